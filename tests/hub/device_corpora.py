"""Tiny corpora of several devices, whose tasks are partly the same."""

from tchub.zoo.corpus import Program, Task, write_corpus
from tchub.zoo.primitives import Primitive, PrimitiveSequence

# A training of a tiny TCL in a second.
RECIPE = """
arch: tcl
epochs: 2
learning_rate: 0.01
programs_per_group: 8
model: {hidden: 8, d_model: 16, head: 4}
"""


def make_corpus(path, device, first, count=10, seconds_of=lambda i, j: 1e-3 * (1 + (i + 3 * j) % 5)):
    """Tasks `matmul-first` and so on; the first one is of a held-out network."""
    tasks, measured = [], []
    for i in range(first, first + count):
        task_id = f"{i:016x}"
        networks = (("bert-tiny", 1),) if i == first else ()
        tasks.append(Task(task_id, f"dense{i}", "matmul", 1.0, f"{path.name}-{i}", f"matmul-{i}", networks))
        for j in range(6):
            primitives = PrimitiveSequence((Primitive("Split", (0, 0, 64, 1, 2**j, 1, 64 // 2**j)),), "ansor").to_json()
            seconds = seconds_of(i, j)
            facts = (task_id, f"{j}", "[]", "tuned", (seconds,), seconds, device, "llvm")
            measured.append(Program(*facts, framework="ansor", primitives=primitives))
    meta = {"device": device, "family": device, "target": "llvm", "tvm_version": "0.27.0", "licence": "CC0-1.0"}
    return write_corpus(path, meta, tasks, measured).path
