"""Taking results back: lines of `results.jsonl` checked against their bundle, and made programs of a corpus."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ...zoo.corpus import Program, Task, merge_corpus
from ...zoo.devices import Device, get_device
from ..device.detect import match_gpu
from .archive import Bundle
from .target import BundleError

_LICENCE = "Apache-2.0"
_ON_SITE_ERRORS = ("build", "run", "run_timeout", "crash")
# Sums of equal inputs through differently ordered additions in float32 agree far better than this.
_TOLERANCE = 1e-2


@dataclass(frozen=True)
class IngestResult:
    """Counts of taken and refused results.

    Attributes:
        path: the corpus.
        results: programs with a result; failed: of them, and of those that could not be compiled.
        wrong: programs that ran, but computed something else than the others of their task.
        unmeasured: programs of the bundle without a result.
        tasks, programs: in the corpus afterwards.
    """

    path: str
    results: int
    failed: int
    wrong: int
    unmeasured: int
    tasks: int
    programs: int


def ingest(results: Path, bundle: Bundle, device: str, folder: Path) -> IngestResult:
    """Add the results of a bundle to a corpus, or create it; the same results twice change nothing.

    Args:
        results: the file that `run.py` wrote; it may be that of a run which was stopped.
        device: name of the device that measured, see `tchub devices`.

    Raises:
        BundleError: results of another bundle, or lines that are none; nothing is written then.
        BundleError: the bundle is not for this device, or another one measured; nothing is written then.
        CorpusError: the corpus is of another device, CPU or target.
    """
    judged = judged_programs(results, bundle, device)
    corpus = merge_corpus(folder, judged.meta, judged.tasks, judged.programs)
    return IngestResult(
        str(folder),
        judged.results,
        sum(not program.valid for program in judged.programs),
        judged.wrong,
        len(bundle.manifest["programs"]) - len(judged.programs),
        len(corpus.tasks),
        corpus.meta["programs"],
    )


@dataclass(frozen=True)
class Judged:
    """Results before they reach a corpus: facts, tasks, programs, and the counts of `IngestResult`."""

    meta: dict[str, Any]
    tasks: list[Task]
    programs: list[Program]
    results: int
    wrong: int


def judged_programs(results: Path, bundle: Bundle, device: str) -> Judged:
    """The programs of a file of results, those that computed something else marked as failed; see `ingest`."""
    machine, lines = read_results(results, bundle)
    sheet = get_device(device)
    _check_device(sheet, bundle.manifest, machine)
    programs = {program["id"]: program for program in bundle.manifest["programs"]}
    wrong = _wrong_outputs(lines)
    meta = _meta(bundle, sheet, machine)
    measured = [_program(programs[number], _judged(line, number in wrong), meta) for number, line in lines.items()]
    measured += [_program(p, _unbuilt(p), meta) for p in programs.values() if p["error"]]
    used = {program.task_id for program in measured}
    tasks = [_task(task, bundle) for task in bundle.manifest["tasks"] if task["task_id"] in used]
    return Judged(meta, tasks, measured, len(lines), len(wrong))


def _check_device(device: Device, manifest: dict[str, Any], machine: dict[str, Any]) -> None:
    """Raises BundleError where the bundle or the machine shows that it is not this device."""
    gpu = machine.get("gpu")
    measured = match_gpu(gpu) if gpu else None
    if not _runs(device, manifest):
        seen = f"{manifest['device_kind']} ({manifest['arch']})"
        message = f"the bundle is for {seen}, {device.name} is a {device.kind} ({_arch(device)})"
    elif measured not in (None, device.name):
        seen, message = str(measured), f"the results are of a {gpu}, which is {measured}, not {device.name}"
    else:
        return
    named = measured if measured not in (None, device.name) else manifest["device"]
    raise BundleError(
        message,
        remedy=f"name the device that measured: --device {named}" if named else "see `tchub devices` for its name",
        device=device.name,
        seen=seen,
    )


def _runs(device: Device, manifest: dict[str, Any]) -> bool:
    """Return whether a bundle's programs can run on a device."""
    if manifest["device_kind"] == "cpu":
        return device.kind == "cpu" and _arch(device) == manifest["arch"]
    # PTX is for every later GPU as well, a cubin for one architecture.
    return device.target["kind"] == "cuda" and (manifest["code"] == "ptx" or _arch(device) == manifest["arch"])


def _arch(device: Device) -> str:
    """The device's architecture, as manifests name it."""
    return device.isa.replace("-", "_") if device.kind == "cpu" else str(device.target.get("arch", device.isa))


def read_results(path: Path, bundle: Bundle) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """The machine and the results by program id, of a file whose every line belongs to the bundle.

    A last line without an end is that of a run which was killed while it wrote: it is left out.

    Raises:
        BundleError: a line is no result of this bundle; its field `lines` counts them by kind.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error}", remedy="name the file of run.py --out") from error
    programs = {program["id"]: program for program in bundle.manifest["programs"]}
    bad: Counter[str] = Counter()
    machines: list[dict[str, Any]] = []
    seen: dict[int, dict[str, Any]] = {}
    for line in text[: text.rfind(b"\n") + 1].splitlines():
        kind, value = _read_line(line, bundle.identity, programs)
        if kind == "machine":
            machines.append(value)
        elif kind == "program":
            seen.setdefault(value["id"], value)
        else:
            bad[kind] += 1
    if bad or not machines or len({_named(machine) for machine in machines}) > 1:
        bad["no machine" if not machines else "several machines"] += not bad
        raise BundleError(
            f"{path} does not belong to {bundle.path}: " + ", ".join(f"{n} {kind}" for kind, n in bad.items() if n),
            remedy="give the results of one machine, and the very bundle that it measured",
            path=str(path),
            lines={kind: n for kind, n in bad.items() if n},
        )
    return machines[0], seen


def _read_line(line: bytes, identity: str, programs: dict[int, Any]) -> tuple[str, Any]:
    """(`machine` or `program`, the line), or (what is wrong with it, None)."""
    try:
        value = json.loads(line)
        if not _is_text(value):
            return "with impossible values", None
        kind = value["kind"]
        if kind == "machine":
            if value["bundle"] != identity:
                return "of another bundle", None
            return ("machine", value) if _is_machine(value) else ("with impossible values", None)
        program = programs.get(value["id"])
        if kind != "program" or program is None or program["task_id"] != value["task_id"]:
            return "of an unknown program", None
        if not program["sha256"] or value["sha256"] != program["sha256"]:
            return "of another library", None
        return ("program", value) if _sound(value) else ("with impossible values", None)
    except (ValueError, KeyError, TypeError, RecursionError):
        return "not readable", None


def _is_text(value: Any) -> bool:
    """Return whether UTF-8 can encode the text: JSON may name halves of characters, which no corpus can hold."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_machine(line: dict[str, Any]) -> bool:
    return (
        isinstance(line["cpu_model"], str)
        and isinstance(line.get("gpu"), str | None)
        and all(_is_fact(value) for value in line.values())
    )


def _is_fact(value: Any) -> bool:
    """A plain value or a list of them: what nests deeper than JSON is written for breaks the corpus's facts."""
    plain = str | int | float | None
    return isinstance(value, plain) or (isinstance(value, list) and all(isinstance(one, plain) for one in value))


def _sound(line: dict[str, Any]) -> bool:
    latencies, sums = line["latencies"], line.get("fingerprint") or []
    if not isinstance(line["message"], str | None) or not all(
        _is_time(line[key]) for key in ("measured_at", "seconds")
    ):
        return False
    if not isinstance(sums, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in sums):
        return False
    if not all(_is_float(one) for pair in sums for one in pair):
        return False
    if line["error"] is not None:
        return line["error"] in _ON_SITE_ERRORS and latencies == []
    return isinstance(latencies, list) and bool(latencies) and all(_is_time(x) and x > 0 for x in latencies)


def _is_float(value: Any) -> bool:
    """A number that fits a float; infinity and no number are among them, since a task may overflow on its inputs."""
    return type(value) is float or (type(value) is int and abs(value) <= sys.float_info.max)


def _is_time(value: Any) -> bool:
    """A number of seconds, of a run or since 1970."""
    return type(value) in (int, float) and 0 <= value < 1e12


def _named(machine: dict[str, Any]) -> tuple[str, str]:
    return str(machine.get("cpu_model")), str(machine.get("gpu"))


def _wrong_outputs(lines: dict[int, dict[str, Any]]) -> set[int]:
    """Programs whose output is not that of most programs of their task."""
    by_task: dict[str, list[dict[str, Any]]] = {}
    for line in lines.values():
        if line["error"] is None and line.get("fingerprint"):
            by_task.setdefault(line["task_id"], []).append(line)
    wrong: set[int] = set()
    for group in by_task.values():
        ((arguments, _),) = Counter(len(line["fingerprint"]) for line in group).most_common(1)
        alike = [line for line in group if len(line["fingerprint"]) == arguments]
        usual = [[median(sums) for sums in zip(*column, strict=True)] for column in _columns(alike)]
        right = {line["id"] for line in alike if _agree(line["fingerprint"], usual)}
        wrong |= {line["id"] for line in group} - right
    return wrong


def _columns(group: Sequence[dict[str, Any]]) -> Iterator[tuple[list[float], ...]]:
    """Return, for each argument, the [sum, sum of absolute values] of every program."""
    return zip(*(line["fingerprint"] for line in group), strict=True)


def _agree(one: Sequence[Sequence[float]], usual: Sequence[Sequence[float]]) -> bool:
    def near(a: float, b: float, scale: float) -> bool:
        if not math.isfinite(b):  # the task itself overflows on these inputs
            return not math.isfinite(a)
        return abs(a - b) <= _TOLERANCE * max(scale, 1e-12)

    pairs = zip(one, usual, strict=True)
    return all(near(a, b, wanted[1]) for seen, wanted in pairs for a, b in zip(seen, wanted, strict=True))


def _judged(line: dict[str, Any], wrong: bool) -> dict[str, Any]:
    if not wrong:
        return line
    return line | {
        "latencies": [],
        "error": "invalid",
        "message": "its output is not that of the task's other programs",
    }


def _unbuilt(program: dict[str, Any]) -> dict[str, Any]:
    nothing = {"latencies": [], "measured_at": math.nan, "seconds": math.nan}
    return nothing | {"error": program["error"], "message": program["message"]}


def _program(program: dict[str, Any], line: dict[str, Any], meta: dict[str, Any]) -> Program:
    latencies = tuple(float(x) for x in line["latencies"])
    return Program(
        task_id=program["task_id"],
        key=program["key"],
        trace=program["trace"],
        strategy=program["strategy"],
        latencies=latencies,
        latency=median(latencies) if latencies else math.nan,
        device=meta["device"],
        target=json.dumps(meta["target"], sort_keys=True),
        error=line["error"],
        error_message=line["message"],
        cpu_model=meta["cpu_model"],
        tvm_version=meta["tvm_version"],
        measured_at=line["measured_at"],
        cost_seconds=line["seconds"],
    )


def _task(task: dict[str, Any], bundle: Bundle) -> Task:
    networks = tuple(sorted(task["networks"].items()))
    return Task(
        task["task_id"], task["name"], task["op"], task["flops"], networks=networks, **bundle.origin[task["task_id"]]
    )


def _meta(bundle: Bundle, device: Device, machine: dict[str, Any]) -> dict[str, Any]:
    manifest = bundle.manifest
    return {
        "device": device.name,
        "device_sheet": device.to_dict(),
        "family": device.family,
        "cpu_model": machine.get("gpu") or machine["cpu_model"],
        "target": manifest["target"],
        **({"threads": manifest["threads"]} if manifest["device_kind"] == "cpu" else {}),
        "tvm_version": manifest["tvm_version"],
        "command": manifest["command"],
        "licence": _LICENCE,
        "notes": "compiled by tchub, measured on the device from a bundle, random inputs; latency is the median "
        "of the repeats",
        "timing": manifest["timing"],
        "machine": {key: value for key, value in machine.items() if key not in ("kind", "bundle", "libraries")},
    }
