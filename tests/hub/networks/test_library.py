"""A tuned library: the database's schedules, and weights that were permuted when it was compiled."""

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from tchub.hub.device.candidate import WEIGHTS, tuning_record
from tchub.hub.device.errors import DeviceError
from tchub.hub.device.pool import JobResult, WorkerPool, Zygote
from tchub.hub.device.worker import WorkerSetup
from tchub.hub.networks.alternatives import extract
from tchub.hub.networks.library import build_library
from tchub.hub.networks.sources import open_network
from tchub.hub.networks.transform.prepare import prepare
from tchub.hub.search.candidates import random_candidates


@pytest.mark.parametrize("seed", [0, 1])
def test_weights_are_permuted_at_compile_time_and_the_output_is_right(
    tmp_path: Path, target: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the transposed convolution are read backwards and stay as they are: permuted, they were read beside."""
    import tvm
    from tvm import relax
    from tvm.s_tir import meta_schedule as ms

    module = torch.nn.Sequential(
        torch.nn.Conv2d(8, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.ConvTranspose2d(16, 8, 4, 2, 1)
    )
    x = torch.randn(1, 8, 12, 12)
    network = open_network(module.eval(), [x])
    database: Any = ms.database.MemoryDatabase()
    permuted = 0
    for task in extract(network, target):
        for candidate in random_candidates(task, target, 1, seed=seed):
            permuted += "layout_rewrite_preproc" in candidate.trace
            workload = database.commit_workload(task.mod)
            schedule: Any = tvm.s_tir.Schedule(task.mod)
            tvm.s_tir.schedule.Trace.apply_json_to_schedule(json.loads(candidate.trace), schedule)
            database.commit_tuning_record(ms.database.TuningRecord(schedule.trace, workload, [1e-6], target))
    scheduled = list[Any]()
    monkeypatch.setattr("tchub.hub.networks.library.prefetch_weights", lambda mod, _: scheduled.append(mod) or mod)
    library = build_library(prepare(network.imported()), target, database, tmp_path / "tuned.so")
    kernels = {var.name_hint: function for var, function in scheduled[0].functions_items()}
    taking = [function for name, function in kernels.items() if name.endswith("_prepacked")]
    assert taking
    assert all(function.attrs[WEIGHTS] for function in taking), "they still know which of their inputs are weights"
    names = (tmp_path / "tuned.so").read_bytes()
    assert permuted
    assert b"prepacked" in names, "the kernels take permuted weights"
    assert b"weight_prepack" not in names, "and none permutes them when the network runs"
    assert library.tuned
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(tmp_path / "tuned.so")), tvm.cpu())
    result = machine["main"](tvm.runtime.tensor(x.numpy()))
    output = (result if hasattr(result, "numpy") else result[0]).numpy()
    np.testing.assert_allclose(output, module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("parts", [lambda x: x.split(32, -1), lambda x: (x[:, :32],)], ids=["split", "slice"])
def test_a_weight_of_which_no_block_reads_all_keeps_its_layout(
    tmp_path: Path, target: Any, parts: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
) -> None:
    """TVM permutes weights as one block reads them: an LSTM's first step took the bias of one gate for all of them."""
    import tvm
    from tvm import relax
    from tvm.s_tir import meta_schedule as ms

    class Gates(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(parts(x + torch.arange(128.0)))

    x = torch.randn(1, 128)
    network = open_network(Gates(), [x])
    (task,) = extract(network, target)
    database: Any = ms.database.MemoryDatabase()
    workload = database.commit_workload(task.mod)
    (candidate,) = random_candidates(task, target, 1)
    database.commit_tuning_record(tuning_record(task.mod, target, workload, json.loads(candidate.trace), [1e-6]))
    path = tmp_path / "tuned.so"
    assert build_library(prepare(network.imported()), target, database, path).tuned
    result = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())["main"](tvm.runtime.tensor(x.numpy()))
    for ours, theirs in zip(result if isinstance(result, Iterable) else [result], Gates()(x), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_a_function_that_is_one_call_of_tvms_runtime_stands_beside_tuned_ones(tmp_path: Path, target: Any) -> None:
    """TVM's pass that splits the permutation off refuses it, which a user learnt when all was measured."""
    import tvm
    from tvm import relax
    from tvm.s_tir import meta_schedule as ms

    class Ranked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 16)

        def forward(self, x: torch.Tensor) -> Any:
            return torch.topk(self.linear(x), 3)

    ranked, x = Ranked().eval(), torch.randn(2, 8)
    mod = prepare(open_network(ranked, [x]).imported())
    with pytest.raises(tvm.error.InternalError, match="There should be a compute block"):
        relax.transform.SplitLayoutRewritePreproc()(mod)
    build_library(mod, target, ms.database.MemoryDatabase(), tmp_path / "ranked.so")
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(tmp_path / "ranked.so")), tvm.cpu())
    values, indices = (one.numpy() for one in machine["main"](tvm.runtime.tensor(x.numpy())))
    right = ranked(x)
    np.testing.assert_allclose(values, right.values.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(indices, right.indices.numpy())


@pytest.fixture
def builders(shared_zygote: Zygote) -> Iterator[WorkerPool]:
    pool = WorkerPool(shared_zygote, [WorkerSetup(), WorkerSetup()])
    yield pool
    pool.close()


def test_workers_compile_the_kernels_of_a_network(
    tmp_path: Path, target: Any, builders: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tvm
    from tvm import relax

    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(196, 5))
    x = torch.randn(1, 3, 9, 9)
    mod, path = prepare(open_network(module.eval(), [x]).imported()), tmp_path / "network.so"
    here = list[tvm.IRModule]()
    build = tvm.tirx.build
    monkeypatch.setattr(tvm.tirx, "build", lambda mod, **options: here.append(mod) or build(mod, **options))
    built = build_library(mod, target, None, path, builders=builders)
    assert built.functions > 1
    assert [[var.name_hint for var in mod.functions] for mod in here] == [["tchub_nothing"]]
    result = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())["main"](tvm.runtime.tensor(x.numpy()))
    output = (result if hasattr(result, "numpy") else result[0]).numpy()
    np.testing.assert_allclose(output, module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


class FailingPool:
    """Fails with each of some results before it does a job; the next ones are done."""

    def __init__(self, *results: JobResult) -> None:
        self.results = list(results)

    def submit(self, job: Any, args: tuple[Any, ...], timeout: float) -> Future[JobResult]:
        future = Future[JobResult]()
        future.set_result(self.results.pop(0) if self.results else JobResult(job(*args)))
        return future


CRASH = JobResult(error="crash", message="the worker process died")
FULL = JobResult(error="exception", message="OSError: No space left on device")
WRONG = JobResult(error="exception", message="TypeError: no such type")


@pytest.mark.parametrize("failures", [[], [CRASH], [FULL]])
def test_a_kernel_is_compiled_again_where_a_worker_died(tmp_path: Path, target: Any, failures: list[JobResult]) -> None:
    mod, pool = prepare(open_network(torch.nn.Linear(8, 4).eval(), [torch.randn(2, 8)]).imported()), FailingPool()
    pool.results = [*failures]
    build_library(mod, target, None, tmp_path / "network.so", builders=cast("Any", pool))
    assert b"fused_matmul" in (tmp_path / "network.so").read_bytes()
    assert not pool.results


@pytest.mark.parametrize(
    ("failures", "error"),
    [
        ([CRASH, CRASH], RuntimeError),
        ([CRASH, WRONG], RuntimeError),
        ([WRONG], RuntimeError),
        ([FULL, FULL], DeviceError),
    ],
)
def test_a_kernel_that_cannot_be_compiled_is_named_and_a_full_disk_is_no_fault_of_it(
    tmp_path: Path, target: Any, failures: list[JobResult], error: type[Exception]
) -> None:
    mod = prepare(open_network(torch.nn.Linear(8, 4).eval(), [torch.randn(2, 8)]).imported())
    with pytest.raises(error, match=rf"matmul.*: {failures[-1].message}"):
        build_library(mod, target, None, tmp_path / "network.so", builders=cast("Any", FailingPool(*failures)))
    assert not [*tmp_path.iterdir()]


def test_a_network_without_a_kernel_has_a_library_too(tmp_path: Path, target: Any) -> None:
    from tvm import relax

    builder: Any = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    assert build_library(builder.get(), target, None, tmp_path / "same.so").functions == 0
    assert (tmp_path / "same.so").is_file()
