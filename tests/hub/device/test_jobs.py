"""What the workers' jobs compile."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tchub.hub.device.jobs import with_aligned_stack


def test_functions_align_their_stack_and_compute_the_same(
    target_dict: dict[str, Any], small_candidates: list[Any], tmp_path: Path
) -> None:
    candidate = small_candidates[0]
    built = tvm.tirx.build(candidate.mod, target=tvm.target.Target(target_dict))
    aligned = with_aligned_stack(built)
    path = tmp_path / "code.ll"
    aligned.write_to_file(str(path), "ll")
    code = path.read_text()
    groups = set(re.findall(r"^define .* #(\d+) ", code, re.MULTILINE))
    assert groups
    for group in groups:
        assert re.search(rf'^attributes #{group} = {{.*"stackrealign"', code, re.MULTILINE)
    *inputs, out = (np.random.default_rng(0).random(shape, np.float32) for shape, _ in candidate.args_info)
    outputs = []
    for module in (built, aligned):
        arguments = [tvm.runtime.tensor(array) for array in (*inputs, np.zeros_like(out))]
        module["main"](*arguments)
        outputs.append(arguments[-1].numpy())
    assert outputs[0].std() > 0
    np.testing.assert_array_equal(*outputs)
