"""Networks of the zoo that ONNX Runtime's tools have quantised to 8 bits, as files, for the benchmark `rivals_int8`.

Convolutional networks, ViT and SegFormer are quantised statically, with scales by what random inputs give, the others
dynamically, as its users do.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

_DYNAMIC = ("bert-tiny", "gpt2-48", "whisper-tiny-encoder", "bert-base")
QUANTISED = ("resnet-18", "resnet-50", "mobilenet-v2", "vit-tiny", "convnext-atto", "segformer-b0-160", *_DYNAMIC)
_SAMPLES = 8  # by which scales are chosen


def quantised(name: str, folder: Path) -> Path:
    """Return the file of a network of the zoo, quantised by ONNX Runtime; it is written where it is not there yet."""
    import torch
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process
    from tchub.hub.networks.workloads import load_network

    path, whole, prepared = (folder / f"{name}{suffix}.onnx" for suffix in ("", "-float32", "-prepared"))
    if path.exists():
        return path
    network = load_network(name)
    inputs = network.inputs()
    torch.onnx.export(network.export(), inputs, whole, dynamo=True, external_data=False)
    quant_pre_process(whole, prepared, skip_symbolic_shape=True)
    if name in _DYNAMIC:
        quantize_dynamic(prepared, path, weight_type=QuantType.QInt8, per_channel=True)
    else:
        quantize_static(
            prepared, path, _samples(prepared, inputs), quant_format=QuantFormat.QDQ, per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip
    return path


def _samples(path: Path, inputs: tuple[Any, ...]) -> Any:
    """Return what gives ONNX Runtime the inputs by which it chooses scales."""
    import onnx
    import torch
    from onnxruntime.quantization import CalibrationDataReader

    names = [one.name for one in onnx.load(path).graph.input]

    class Samples(CalibrationDataReader):
        def __init__(self) -> None:
            generator = torch.Generator().manual_seed(0)
            self._each: Iterator[dict[str, Any]] = iter(
                {name: torch.randn(x.shape, generator=generator).numpy() for name, x in zip(names, inputs, strict=True)}
                for _ in range(_SAMPLES)
            )

        def get_next(self) -> dict[str, Any] | None:
            return next(self._each, None)

    return Samples()
