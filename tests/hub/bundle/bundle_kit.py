"""Bundles of small C kernels, and machines to run them on, which have TVM's runtime at most."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tchub.hub.bundle.archive import Bundle, BundleProgram, write_parts
from tchub.zoo.corpus.workloads import OPERATORS

# The calling convention of TVM's kernels, and one kernel that doubles a vector after doing something else.
_KERNEL = """
#include <stdint.h>
typedef struct { int32_t type; uint32_t pad; union { int64_t i; void *p; } v; } any_t;
typedef struct {
  void *data; int32_t device, id, ndim; uint8_t code, bits; uint16_t lanes; int64_t *shape, *strides; uint64_t offset;
} tensor_t;
int __tvm_ffi_main(void *self, any_t *args, int n, any_t *result) {
  tensor_t *x = args[0].v.p, *y = args[1].v.p;
  if (n != 2 || args[0].type != 7 || x->ndim != 1 || x->code != 2 || x->bits != 32 || (uintptr_t)x->data % 64) return 1;
  for (int64_t i = 0; i < x->shape[0]; i++) ((float *)y->data)[i] = 2.0f * ((float *)x->data)[i];
  BEHAVIOUR;
  return 0;
}
"""
GOOD, CRASH, HANG, WRONG = "", "*(volatile int *)0 = 1", "for (;;) ;", "((float *)y->data)[0] += 1e4f"
TASK_ID = "00112233445566aa"
QUICK = {
    "min_repeat_seconds": 2e-4, "min_repeats": 3, "max_repeats": 4, "spread": 0.5, "max_seconds": 0.1,
    "slow_factor": 5.0,
}  # fmt: skip
CPU_FACTS: dict[str, Any] = {
    "workload": "toy", "target": {"kind": "llvm", "mcpu": "generic"}, "device": None, "device_kind": "cpu",
    "code": "library", "arch": "x86_64", "threads": 1, "timing": QUICK, "tchub_version": "0", "tvm_version": "0.27",
    "ffi_version": "0.1", "command": "tchub bundle",
}  # fmt: skip


def toy_task(args: list[Any]) -> dict[str, Any]:
    manifest = {"task_id": TASK_ID, "name": "twice", "op": "elementwise", "flops": 1e3, "args": args}
    manifest["networks"] = {next(iter(OPERATORS)): 1}
    return {"manifest": manifest, "origin": {"workload": "{}", "computation": ""}}


@cache
def _compiled(behaviour: str) -> bytes:
    """A kernel that does so, compiled by the C compiler once in this process."""
    with tempfile.NamedTemporaryFile() as file:
        command = ["gcc", "-O1", "-fPIC", "-shared", "-x", "c", "-o", file.name, "-"]
        subprocess.run(command, input=_KERNEL.replace("BEHAVIOUR", behaviour), text=True, check=True)
        return Path(file.name).read_bytes()


def toy_programs(folder: Path, behaviours: list[str]) -> list[BundleProgram]:
    """One program a behaviour."""
    programs = []
    for number, behaviour in enumerate(behaviours):
        file = folder / f"{number}.bin"
        file.write_bytes(_compiled(behaviour) + bytes([number]))  # no two are the same file
        programs.append(BundleProgram(TASK_ID, f"{number:016x}", "random", f"[[], [{number}]]", file))
    return programs


def toy_bundle(folder: Path, behaviours: list[str], **facts: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    programs = toy_programs(folder, behaviours)
    tasks = {TASK_ID: toy_task([[[1000], "float32"], [[1000], "float32"]])}
    (path,) = write_parts(folder / "bundle.zip", {**CPU_FACTS, **facts}, tasks, programs)
    return path


@dataclass
class Machine:
    """A machine without TVM's packages, that may hold a copy of its runtime.

    Attributes:
        environment: of every process on it.
        options: what `run.py` is told of it.
    """

    environment: dict[str, str]
    options: list[str]

    def command(self, bundle: Path, output: Path, *options: str) -> list[str]:
        return [sys.executable, str(bundle), "--out", str(output), *self.options, *options]

    def run(self, bundle: Path, output: Path, *options: str) -> subprocess.CompletedProcess[str]:
        command = self.command(bundle, output, *options)
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120, check=False)

    def measure(self, bundle: Path, output: Path, *options: str) -> list[dict[str, Any]]:
        """Run a bundle, which must succeed; return the lines of its programs."""
        done = self.run(bundle, output, *options)
        assert done.returncode == 0, done.stderr
        return lines_of(output)


def bare_machine(folder: Path, *options: str) -> Machine:
    """Python and numpy; importing TVM or tchub fails there."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden = "import sys\nfor name in ('tvm', 'tvm_ffi', 'tchub', 'torch'):\n    sys.modules[name] = None\n"
    (folder / "sitecustomize.py").write_text(hidden)
    return Machine({"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)}, list(options))


def lines_of(results: Path, kind: str = "program") -> list[dict[str, Any]]:
    return [line for line in map(json.loads, results.read_text().splitlines()) if line["kind"] == kind]


def make_results(bundle: Path, path: Path, latencies: dict[int, float], **machine: Any) -> Path:
    """A results file as `run.py` writes it."""
    opened = Bundle(bundle)
    lines = [{"kind": "machine", "bundle": opened.identity, "cpu_model": "Toy CPU", "started": 1.0, **machine}]
    for program in opened.manifest["programs"]:
        if program["id"] in latencies:
            lines.append({
                "kind": "program", "id": program["id"], "task_id": program["task_id"], "sha256": program["sha256"],
                "error": None, "message": None, "latencies": [latencies[program["id"]]] * 3,
                "fingerprint": [[5.0, 5.0], [10.0, 10.0]], "measured_at": 2.0, "seconds": 0.5,
            })  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
