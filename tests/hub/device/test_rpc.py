"""Measuring behind TVM's RPC: a tracker and three servers, each a process; killed, stopped, absent, started again."""

import json
import platform
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import tvm
from fake_tuning import SMALL_SEARCH
from tchub import hub
from tchub.hub.device.device_choice import choose_device
from tchub.hub.device.errors import DeviceError, NoServerError
from tchub.hub.device.measure import MeasureConfig, Measurement
from tchub.hub.device.pool import Zygote
from tchub.hub.device.rpc import RpcConfig, RpcMeasurer, ask_server
from tchub.hub.device.rpc_session import RpcAddress, TrackerClient
from tchub.hub.device.timing import TimingConfig
from tchub.hub.networks.frontend.network import Network
from tchub.hub.networks.latency import Comparison, Libraries
from tchub.hub.networks.sources import open_network
from tchub.hub.networks.transform.winograd import ConvShape
from tchub.hub.records.scope import MeasurementScope
from tchub.hub.records.store import FILE, RunStateError, RunStore
from tchub.hub.tuning.builds import first_build
from tchub.hub.tuning.progress import SessionView, TuneProgress
from tchub.hub.tuning.remote_latency import compare_remote

from scripts.kills.rpc_farm import Farm

pytestmark = pytest.mark.usefixtures("shared_zygote")
SCOPE = MeasurementScope("any", "any", "{}", 1, "any")
QUICK = MeasureConfig(run_timeout=4.0, timing=TimingConfig(max_repeats=3, max_seconds=0.1))
IMPATIENT = RpcConfig(connect_timeout=3.0, patience=2.0)
PATIENT = replace(IMPATIENT, connect_timeout=20.0, patience=60.0)


@pytest.fixture(scope="module")
def farm(shared_zygote: Zygote) -> Iterator[Farm]:
    """A tracker and three servers, from the zygote of all tests; a test that ends one starts another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scripts.kills.rpc_farm.Zygote", lambda: shared_zygote)
        with Farm(3, "spare") as farm:
            _await_servers(farm.address, 3)
            yield farm


@pytest.fixture(scope="module")
def measurer(farm: Farm, target_dict: dict[str, Any]) -> Iterator[RpcMeasurer]:
    with RpcMeasurer(farm.address, target_dict, QUICK, replace(IMPATIENT, patience=20.0)) as measurer:
        yield measurer


def _await_servers(address: RpcAddress, count: int) -> None:
    tracker, until = TrackerClient(address), time.monotonic() + 120  # a busy machine starts a server slowly
    while len(tracker.servers()) < count:
        assert time.monotonic() < until, "the servers do not register"
        time.sleep(0.05)


@contextmanager
def _one_more(farm: Farm) -> Iterator[None]:
    """Make up for a server that the test ends."""
    try:
        yield
    finally:
        farm.start_server()
        _await_servers(farm.address, 3)


def _assert_each_once(results: list[tuple[Any, Measurement]], candidates: list[Any]) -> None:
    assert sorted(c.key for c, _ in results) == sorted(c.key for c in candidates)
    assert {m.message for _, m in results} == {None}


def test_programs_use_the_threads_that_were_asked_for(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the server would take by itself: the latencies are said to be those of so many threads."""
    monkeypatch.setenv("TVM_NUM_THREADS", "4")
    farm.start_server("wide")
    _await_servers(wide := replace(farm.address, key="wide"), 1)
    facts = ask_server(wide, replace(PATIENT, threads=3))
    assert facts.threads == 3
    assert (bool(facts.mcpu), facts.architecture) == (True, platform.machine())
    with pytest.raises(DeviceError, match="use 4 threads at most, not 9") as caught:
        choose_device(str(wide), 9)
    assert "TVM_NUM_THREADS=9" in str(caught.value.remedy)


def _hit(farm: Farm, server: int, number: int, measurer: RpcMeasurer, candidates: list[Any]) -> Iterator[Any]:
    """Measure, and send a server a signal when there are three results."""
    for count, result in enumerate(measurer.measure(candidates), 1):
        if count == 3:
            farm.signal(server, number)
        yield result


def test_a_server_killed_mid_run_loses_nothing(farm: Farm, measurer: RpcMeasurer, small_candidates: list[Any]):
    with _one_more(farm):
        _assert_each_once(list(_hit(farm, 0, signal.SIGKILL, measurer, small_candidates)), small_candidates)
    # The one that was started in its place is taken up.
    _assert_each_once(list(measurer.measure(small_candidates)), small_candidates)


def test_a_server_that_hangs_mid_run_is_left_behind_and_taken_back(
    farm: Farm, measurer: RpcMeasurer, small_candidates: list[Any]
) -> None:
    hung = 1
    try:
        _assert_each_once(list(_hit(farm, hung, signal.SIGSTOP, measurer, small_candidates)), small_candidates)
    finally:
        farm.signal(hung, signal.SIGCONT)
    _assert_each_once(list(measurer.measure(small_candidates)), small_candidates)


def test_a_broken_program_fails_alone_and_costs_no_server(
    farm: Farm, measurer: RpcMeasurer, small_candidates: list[Any]
) -> None:
    good, other = small_candidates[:2]
    broken = replace(other, key="broken", args_info=(((1,), "float32"),) * 3)  # wrong shapes for its arguments
    results = {c.key: m.error for c, m in measurer.measure([good, broken])}
    assert results == {good.key: None, "broken": "run"}
    _await_servers(farm.address, 3)


def test_without_a_server_the_run_ends_with_a_remedy(
    farm: Farm, target_dict: dict[str, Any], small_candidates: list[Any]
) -> None:
    nobody, rpc = replace(farm.address, key="nobody"), replace(IMPATIENT, patience=0.5)
    with RpcMeasurer(nobody, target_dict, QUICK, rpc) as measurer, pytest.raises(NoServerError) as caught:
        list(measurer.measure(small_candidates[:2]))
    assert "--key nobody" in str(caught.value.remedy)
    assert "0 registered" in caught.value.message


def test_when_all_servers_die_what_was_measured_was_given_out_before(
    farm: Farm, target_dict: dict[str, Any], small_candidates: list[Any]
) -> None:
    results: list[tuple[Any, Measurement]] = []
    only, lonely = farm.start_server("lonely"), replace(farm.address, key="lonely")
    with RpcMeasurer(lonely, target_dict, QUICK, IMPATIENT) as measurer:
        with pytest.raises(NoServerError):
            results.extend(_hit(farm, only, signal.SIGKILL, measurer, small_candidates))
        assert 3 <= len(results) < len(small_candidates)
        assert all(measurement.error is None for _, measurement in results)
        farm.start_server("lonely")
        rest = [c for c in small_candidates if c.key not in {done.key for done, _ in results}]
        _assert_each_once([*results, *measurer.measure(rest)], small_candidates)


def test_a_tracker_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(NoServerError, match=r"127\.0\.0\.1:9 ") as caught:
        ask_server(RpcAddress("127.0.0.1", 9, "any"), IMPATIENT)
    assert "rpc_tracker" in str(caught.value.remedy)


@pytest.mark.slow
def test_tune_goes_on_when_a_server_dies_and_its_latency_is_that_of_the_servers(
    farm: Farm, target_dict: dict[str, Any], tmp_path: Path, compared_here: None
) -> None:
    class KillOnce(TuneProgress):
        killed = False

        def session(self, label: str, view: SessionView) -> None:
            if view.done >= 2 and not self.killed:
                self.killed = True
                farm.signal(2, signal.SIGKILL)

    options: dict[str, Any] = {"trials": 6, "out": tmp_path / "out", "target": target_dict, "search": SMALL_SEARCH}
    options |= {"checkpoint": "none", "device": str(farm.address), "progress": (kill := KillOnce())}
    with _one_more(farm):
        result = hub.tune(torch.nn.Linear(24, 32).eval(), example_inputs=(torch.randn(16, 24),), **options)
    assert kill.killed
    run = result.report["runs"]["tuned"]
    assert (run["trials"], run["failed"]) == (6, 0)
    assert set(result.latency) == {"untuned", "tuned"}
    assert all(check["ok"] for check in result.report["output_check"].values())
    assert result.report["machine"]["device"] == "rpc-spare"
    with RunStore(tmp_path / "out" / FILE, SCOPE) as store:
        ((facts,),) = store._rows("SELECT value FROM notes WHERE name = 'run'")
        with pytest.raises(RunStateError, match="another device"):
            store.claim(json.loads(facts) | {"device": None})


def test_all_ways_of_a_network_are_compared_on_a_server(
    farm: Farm, target_dict: dict[str, Any], compared_here: None
) -> None:
    """They are one file there, which none of them may change while the others run."""
    calls: list[Comparison] = []

    def compare(network: Network, libraries: Libraries) -> Comparison:
        calls.append(compare_remote(network, libraries, farm.address))
        return calls[-1]

    network = open_network(torch.nn.Conv2d(4, 16, 3, padding=1).eval(), (torch.randn(1, 4, 8, 8),))
    first = first_build(network, tvm.target.Target(target_dict), "channels-last", compare, None, kinds=[ConvShape])
    assert [check.verdict for check in calls[0].checks.values()] == ["equal"] * 3
    assert (len(calls), len(first.shapes), first.notes) == (1, 2, ())
