"""A tuned library: the database's schedules, and weights that were permuted when it was compiled."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import tvm
from tchub.hub.device.candidate import WEIGHTS, tuning_record
from tchub.hub.device.errors import DeviceError
from tchub.hub.device.pool import JobResult, WorkerPool, Zygote
from tchub.hub.device.worker import WorkerSetup
from tchub.hub.networks.alternatives import extract
from tchub.hub.networks.library import build_library
from tchub.hub.networks.sources import open_network
from tchub.hub.search.candidates import random_candidates
from torch import nn
from tvm import relax
from tvm.s_tir import meta_schedule as ms


def database_of(module: nn.Module, x: torch.Tensor, target: Any, seed: int = 0) -> tuple[Any, list[str]]:
    """A database with a random program of each task of a network, and the programs' traces."""
    database: Any = ms.database.MemoryDatabase()
    traces = []
    for task in extract(open_network(module.eval(), [x]), target):
        workload = database.commit_workload(task.mod)
        for candidate in random_candidates(task, target, 1, seed=seed):
            traces.append(candidate.trace)
            record = tuning_record(task.mod, target, workload, json.loads(candidate.trace), [1e-6])
            database.commit_tuning_record(record)
    return database, traces


@pytest.mark.parametrize("seed", [0, 1])
def test_weights_are_permuted_at_compile_time_and_the_output_is_right(
    tmp_path: Path, target: Any, seed: int, monkeypatch: pytest.MonkeyPatch, prepared: Any, run_library: Any
) -> None:
    """Those of the transposed convolution are read backwards and stay as they are: permuted, they were read beside."""
    module = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(16, 8, 4, 2, 1))
    x = torch.randn(1, 8, 12, 12)
    database, traces = database_of(module, x, target, seed)
    assert any("layout_rewrite_preproc" in trace for trace in traces)
    scheduled = list[Any]()
    monkeypatch.setattr("tchub.hub.networks.library.prefetch_weights", lambda mod, _: scheduled.append(mod) or mod)
    assert build_library(prepared(module, x), target, database, tmp_path / "tuned.so").tuned
    taking = [f for var, f in scheduled[0].functions_items() if var.name_hint.endswith("_prepacked")]
    assert taking
    assert all(function.attrs[WEIGHTS] for function in taking), "they still know which of their inputs are weights"
    names = (tmp_path / "tuned.so").read_bytes()
    assert b"prepacked" in names, "the kernels take permuted weights"
    assert b"weight_prepack" not in names, "and none permutes them when the network runs"
    (output,) = run_library(tmp_path / "tuned.so", x)
    np.testing.assert_allclose(output, module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("parts", [lambda x: x.split(32, -1), lambda x: (x[:, :32],)], ids=["split", "slice"])
def test_a_weight_of_which_no_block_reads_all_keeps_its_layout(
    tmp_path: Path, target: Any, parts: Callable[..., Any], network_of: Any, prepared: Any, run_library: Any
) -> None:
    """TVM permutes weights as one block reads them: an LSTM's first step took the bias of one gate for all of them."""
    module = network_of(lambda x: tuple(parts(x + torch.arange(128.0))))
    x, path = torch.randn(1, 128), tmp_path / "tuned.so"
    database, _ = database_of(module, x, target)
    assert build_library(prepared(module, x), target, database, path).tuned
    for ours, theirs in zip(run_library(path, x), module(x), strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())


def test_a_function_that_is_one_call_of_tvms_runtime_stands_beside_tuned_ones(
    tmp_path: Path, target: Any, prepared: Any, run_library: Any
) -> None:
    """TVM's pass that splits the permutation off refuses it, which a user learnt when all was measured."""
    linear, x, path = nn.Linear(8, 16), torch.randn(2, 8), tmp_path / "ranked.so"
    mod = prepared(lambda linear, x: torch.topk(linear(x), 3), x, parts=(linear,))
    with pytest.raises(tvm.error.InternalError, match="There should be a compute block"):
        relax.transform.SplitLayoutRewritePreproc()(mod)
    build_library(mod, target, ms.database.MemoryDatabase(), path)
    values, indices = run_library(path, x)
    right = torch.topk(linear(x), 3)
    np.testing.assert_allclose(values, right.values.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(indices, right.indices.numpy())


def test_a_function_of_one_tensor_whose_loops_stay_is_no_view(
    tmp_path: Path, target: Any, prepared: Any, run_library: Any
) -> None:
    """TVM looks for those in blocks, which are lowered where it would unroll a long softmax."""
    module, x = nn.LogSoftmax(-1), torch.randn(40, 1325)
    database, (trace,) = database_of(module, x, target, seed=3)
    assert '"meta_schedule.unroll_explicit"' in trace
    build_library(prepared(module, x), target, database, tmp_path / "tuned.so")
    (output,) = run_library(tmp_path / "tuned.so", x)
    np.testing.assert_allclose(output, module(x).numpy(), rtol=1e-5)


@pytest.fixture
def builders(shared_zygote: Zygote) -> Iterator[WorkerPool]:
    pool = WorkerPool(shared_zygote, [WorkerSetup(), WorkerSetup()])
    yield pool
    pool.close()


def test_workers_compile_the_kernels_of_a_network(
    tmp_path: Path, target: Any, builders: WorkerPool, monkeypatch: Any, prepared: Any, run_library: Any
) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(196, 5))
    x, path, here, build = torch.randn(1, 3, 9, 9), tmp_path / "network.so", list[Any](), tvm.tirx.build
    monkeypatch.setattr(tvm.tirx, "build", lambda mod, **options: here.append(mod) or build(mod, **options))
    assert build_library(prepared(module, x), target, None, path, builders=builders).functions > 1
    assert [[var.name_hint for var in mod.functions] for mod in here] == [["tchub_nothing"]]
    np.testing.assert_allclose(run_library(path, x)[0], module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


class FailingPool:
    """Fails with each of some results before it does a job; the next ones are done."""

    def __init__(self, results: list[JobResult]) -> None:
        self.results = [*results]

    def submit(self, job: Any, args: tuple[Any, ...], timeout: float) -> Future[JobResult]:
        future = Future[JobResult]()
        future.set_result(self.results.pop(0) if self.results else JobResult(job(*args)))
        return future


CRASH = JobResult(error="crash", message="the worker process died")
FULL = JobResult(error="exception", message="OSError: No space left on device")
WRONG = JobResult(error="exception", message="TypeError: no such type")


@pytest.mark.parametrize("failures", [[], [CRASH], [FULL]])
def test_a_kernel_is_compiled_again_where_a_worker_died(
    tmp_path: Path, target: Any, failures: list[JobResult], prepared: Any
) -> None:
    mod, pool, path = prepared(nn.Linear(8, 4), torch.randn(2, 8)), FailingPool(failures), tmp_path / "network.so"
    build_library(mod, target, None, path, builders=cast("Any", pool))
    assert b"fused_matmul" in path.read_bytes()
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
    tmp_path: Path, target: Any, failures: list[JobResult], error: type[Exception], prepared: Any
) -> None:
    mod, pool = prepared(nn.Linear(8, 4), torch.randn(2, 8)), cast("Any", FailingPool(failures))
    with pytest.raises(error, match=rf"matmul.*: {failures[-1].message}"):
        build_library(mod, target, None, tmp_path / "network.so", builders=pool)
    assert not [*tmp_path.iterdir()]


def test_a_network_without_a_kernel_has_a_library_too(tmp_path: Path, target: Any, prepared: Any) -> None:
    mod = prepared(lambda x: x, torch.randn(2))
    assert build_library(mod, target, None, tmp_path / "same.so").functions == 0
    assert (tmp_path / "same.so").is_file()
