"""What trained a checkpoint, for its card."""

from __future__ import annotations

import torch

from ..this_cpu import cpu_info


def machine(torch_device: str = "cpu") -> str:
    """The GPU's name, or the CPU's with the number of threads that PyTorch used, e.g. `AMD EPYC, 1 thread`."""
    if torch.device(torch_device).type == "cuda":
        return torch.cuda.get_device_name(torch_device)
    threads = torch.get_num_threads()
    return f"{cpu_info().get('brand_raw', 'an unknown CPU')}, {threads} thread{'s' if threads > 1 else ''}"
