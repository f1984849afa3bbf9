"""How fast is measuring through TVM's RPC tracker, and what does a turn at a server cost?

    python -m scripts.benchmarks rpc --programs 64

A tracker and up to three servers run on the loopback interface, so that no network hides what the software costs.
The same candidates of a small conv2d are measured on this machine and on 1, 2 and 3 servers: programs per second,
building included. Builders and servers share this machine's cores here; on machines of their own, servers do not.
Then one server is taken and given back many times: the time of a whole turn, and of the tracker's answers in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import mean, median
from typing import Any

import click

from scripts.benchmarks.common import finish


def _candidates(count: int, seed: int) -> tuple[dict[str, Any], list[Any]]:
    """This machine's target, and random schedules of a conv2d."""
    import tvm
    from tchub.hub.device.detect import detect_local
    from tchub.hub.networks.operators import operator_module
    from tchub.hub.networks.tasks import make_task
    from tchub.hub.search.candidates import random_candidates
    from tchub.zoo.corpus.workloads import OPERATORS

    target = detect_local(1).target
    task = make_task(operator_module(OPERATORS["conv2d-3x3"]), "conv2d-3x3")
    return target, random_candidates(task, tvm.target.Target(target), count, seed)


@contextmanager
def _farm(servers: int) -> Iterator[Any]:
    from tchub.hub.device.rpc_farm import Farm
    from tchub.hub.device.rpc_fleet import TrackerClient

    with Farm(servers, "bench") as farm:
        tracker = TrackerClient(farm.address)
        while len(tracker.servers()) < servers:
            time.sleep(0.05)
        yield farm


def _rate(measurer: Any, candidates: Sequence[Any]) -> dict[str, float]:
    """Programs per second, after one has been measured to warm up."""
    list(measurer.measure(candidates[:1]))
    start = time.perf_counter()
    found = [measurement for _, measurement in measurer.measure(candidates[1:])]
    seconds = time.perf_counter() - start
    return {
        "programs": len(found),
        "failed": sum(m.error is not None for m in found),
        "seconds": seconds,
        "rate": len(found) / seconds,
        "build_seconds": mean(m.build_seconds for m in found),
        "run_seconds": mean(m.run_seconds for m in found),
    }


def _median_seconds(call: Callable[[], Any], times: int) -> float:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def _turns(farm: Any, times: int) -> dict[str, float]:
    """Median seconds of a turn at a server that is free again only when the turn before has ended."""
    from tchub.hub.device.pool import Zygote
    from tchub.hub.device.rpc_fleet import Fleet, RpcConfig, TrackerClient

    zygote = Zygote()
    fleet = Fleet(farm.address, RpcConfig(), zygote)
    tracker = TrackerClient(farm.address)

    def turn() -> None:
        session = fleet.open()
        assert session is not None, fleet.last_fault
        fleet.give_back(session)

    try:
        turn()
        return {
            "turn_seconds": _median_seconds(turn, times),
            "tracker_list_seconds": _median_seconds(tracker.servers, times),
        }
    finally:
        fleet.close()
        zygote.close()


@click.command()
@click.option("--programs", default=64, show_default=True, type=click.IntRange(2))
@click.option("--turns", default=30, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the whole document.")
def command(programs: int, turns: int, seed: int, as_json: bool) -> None:
    """Measure the rate on this machine, on 1 to 3 servers, and the cost of a turn."""
    from tchub.hub.device.measure import MeasureConfig, Measurer
    from tchub.hub.device.rpc import RpcMeasurer

    started = time.time()
    target, candidates = _candidates(programs, seed)
    found: dict[str, dict[str, float]] = {}
    with Measurer(target) as measurer:
        found["local"] = _rate(measurer, candidates)
    for servers in (1, 2, 3):
        click.echo(f"{servers} servers", err=True)
        with _farm(servers) as farm, RpcMeasurer(farm.address, target, MeasureConfig()) as measurer:
            found[f"{servers} servers"] = _rate(measurer, candidates)
    with _farm(1) as farm:
        cost = _turns(farm, turns)
    summary = {f"rate_{name.replace(' ', '_')}": facts["rate"] for name, facts in found.items()}
    summary |= cost | {"failed": sum(int(facts["failed"]) for facts in found.values())}
    finish("rpc", summary, {"operator": "conv2d-3x3", "rates": found}, [seed], as_json, started)


if __name__ == "__main__":
    command()
