"""What every test starts from, whatever started the suite: random examples, threads, Ctrl-C.

Hypothesis draws the same examples in every run, so that only a change of the code can fail the suite.
`HYPOTHESIS_PROFILE=explore scripts/test` draws new ones, thirty times as many: for looking for failures.
"""

import errno
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# What is imported and collected stays: to look for garbage among it takes a tenth of the time.
gc.set_threshold(50_000, 20, 20)
# Before PyTorch is loaded: the models of tests are small, and two threads on busy cores take several times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No deadline: on a busy machine any example may be slow.
settings.register_profile("steady", max_examples=30, derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
# `nohup scripts/test &` starts its programs with SIGINT ignored, which they and their children inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Keep what was imported and collected out of garbage collections, which take a tenth of the time otherwise."""
    if "tchub.hub.networks.frontend.exported_file" in sys.modules:
        import_module("torch.export.pt2_archive._package")  # much of what an export imports
    if "torch.fx" in sys.modules:
        import_module("torch.fx.config").do_not_emit_stack_traces = True  # of each operator, a tenth of an export
    gc.collect()
    gc.freeze()
    if exporting := sys.modules.get("torch._export.utils"):
        # PyTorch looks at each of its operators several times an export, and gives 800 of them a dozen kernels: most of
        # the time that a small network takes.
        exporting._materialize_cpp_cia_ops = cache(exporting._materialize_cpp_cia_ops)
        exporting._check_valid_to_preserve = cache(exporting._check_valid_to_preserve)
        programs = import_module("torch.export.exported_program")
        programs._collect_all_valid_cia_ops = cache(programs._collect_all_valid_cia_ops)
        programs._is_preservable_cia_op = cache(programs._is_preservable_cia_op)
        tables = import_module("torch.export.decomp_utils")
        tables._get_decomp_for_cia = cache(tables._get_decomp_for_cia)
        programs._override_composite_implicit_decomp = kept_kernels(programs._override_composite_implicit_decomp)
        if ours := sys.modules.get("tchub.hub.networks.frontend.decompose"):
            table = cache(ours._table)  # kernels are the same for the very same functions alone
            ours._table = lambda: dict(table())  # type: ignore[attr-defined]


def kept_kernels(override: Callable[..., Any]) -> Callable[..., Any]:
    """Return PyTorch's override of operators, which keeps the kernels that it has installed for some functions."""
    fakes = import_module("torch._subclasses.fake_impls").op_implementations_dict
    tables: list[tuple[dict[Any, Any], dict[Any, Any], dict[Any, Any]]] = []

    @contextmanager
    def install(decompositions: dict[Any, Any]) -> Iterator[None]:
        known = next((one for one in tables if one[0] == decompositions), None)
        if known is None:
            with override(decompositions):
                kernels = {op: op.py_kernels.copy() for op in decompositions}
                tables.append((dict(decompositions), kernels, {op: fakes[op] for op in kernels if op in fakes}))
                yield
            return
        _, kernels, impls = known
        before = {op: op.py_kernels.copy() for op in decompositions}
        try:
            replace_kernels(kernels, before)
            fakes.update(impls)
            yield
        finally:
            replace_kernels(before, before)
            for op in before:
                fakes.pop(op, None)

    def replace_kernels(others: dict[Any, Any], ops: Iterable[Any]) -> None:
        for op in ops:
            op.py_kernels.clear()
            op.py_kernels.update(others[op])
            op._dispatch_cache.clear()

    return install


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that lets a call, by its dotted name, fail as on a full disk from then on."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return lambda call: monkeypatch.setattr(call, refuse)


@pytest.fixture
def own_signals() -> Iterator[None]:
    """PyTorch's launcher leaves handlers of its own, which take Ctrl-C from the tests after it."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture
def forked() -> Iterator[Callable[..., Any]]:
    """A function that starts another in a process of its own, which has all imports already: PyTorch takes seconds."""
    processes: list[Any] = []

    def start(function: Callable[..., object], *arguments: Any) -> Any:
        process = get_context("fork").Process(target=function, args=arguments)
        processes.append(process)
        process.start()
        return process

    yield start
    for process in processes:
        process.kill()
        process.join()


@pytest.fixture(scope="session")
def zygote() -> Iterator[Any]:
    """One import of TVM for the workers of all tests; a test that ends a zygote starts its own."""
    from tchub.hub.device.pool import Zygote

    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture(scope="module")
def shared_zygote(zygote: Any) -> Iterator[Any]:
    """The zygote of all tests, wherever tchub would start one of its own: TVM takes seconds to import."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("device.measure", "device.rpc", "bundle.build"):
            patch.setattr(f"tchub.hub.{module}.Zygote", lambda: zygote)
        patch.setattr(zygote, "close", lambda: None)
        yield zygote


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_zygote: Any) -> Any:
    """A T4 of paper: a `PaperCard`."""
    from paper_card import PaperCard

    return PaperCard.install(tmp_path / "card", monkeypatch)


@pytest.fixture(scope="session")
def pt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported program of a tiny network with two outputs."""
    import torch
    from tiny_network import Tiny

    path = tmp_path_factory.mktemp("network") / "tiny.pt2"
    torch.export.save(torch.export.export(Tiny().eval(), (torch.randn(16, 24),)), path)
    return path


@pytest.fixture
def learnt_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapt in few steps: what a command does is tested so, and elsewhere how well a few labels are learnt."""
    from tchub.hub.adaptation.config import AdaptConfig
    from tchub.zoo.adapt import method
    from tchub.zoo.adapt.fine_tune import FineTuneConfig

    quick = FineTuneConfig(epochs=2, patience=1, blind_epochs=2, refit=False)
    monkeypatch.setattr(AdaptConfig, "learning", property(lambda self: quick))
    monkeypatch.setattr(method, "LEAST_STEPS", 4)


@pytest.fixture
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write reports without charts, which take two seconds."""
    monkeypatch.setattr("tchub.hub.tuning.charts.svg_text", lambda figure: "<svg></svg>")


@pytest.fixture
def compared_here(monkeypatch: pytest.MonkeyPatch, without_charts: None) -> None:
    """Run compiled networks in this process, timed briefly: one of their own takes four seconds."""
    from tchub.hub.networks import latency, rivals
    from tchub.hub.search import roofline
    from tchub.hub.tuning import remote_latency

    def ask(lines: Iterable[str], module: str, *_: Any) -> Any:
        first, second = map(json.loads, lines)
        return import_module(module).answer(first | second, rivals.ReferenceNetwork(first))

    monkeypatch.setattr(latency, "_ask", ask)
    monkeypatch.setattr(latency, "_REPEAT_SECONDS", 1e-4)
    monkeypatch.setattr(remote_latency, "REPEATS", 2)
    monkeypatch.setattr(roofline, "_TILES", roofline._TILES[:1])
    monkeypatch.setattr(roofline, "_PASSES", 1)
