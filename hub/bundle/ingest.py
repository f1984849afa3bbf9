"""Taking results back: lines of `results.jsonl` checked against their bundle, and made programs of a corpus."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from ...zoo.corpus import Task, merge_corpus
from ...zoo.devices import Device, get_device
from ..device.detect import match_gpu
from ..device.measure import Measurement
from ..records.corpus import as_program
from ..records.store import MeasuredProgram
from .archive import Bundle, BundleError, BundleManifest, ManifestProgram

_LICENCE = "Apache-2.0"
# Sums of equal inputs through differently ordered additions in float32 agree far better than this.
_TOLERANCE = 1e-2
Fact = str | int | float | None
Seconds = Annotated[float, msgspec.Meta(ge=0.0, lt=1e12)]


class ResultLine(msgspec.Struct):
    """A line of the results, as `onsite` writes it: the latencies of a program, or why there are none."""

    id: int
    task_id: str
    sha256: str
    error: Literal["run", "run_timeout", "crash"] | None
    message: str | None
    latencies: list[Annotated[float, msgspec.Meta(gt=0.0, lt=1e12)]]
    measured_at: Seconds
    seconds: Seconds
    fingerprint: list[tuple[float | None, float | None]] = []

    def __post_init__(self) -> None:
        if (self.error is None) != bool(self.latencies):
            raise ValueError("a program has latencies, or an error")


@dataclass(frozen=True)
class IngestResult:
    """Counts of taken and refused results.

    Attributes:
        results: programs with a result; failed: of them, and of those that could not be compiled.
        wrong: programs that ran, but computed something else than the others of their task.
        unmeasured: programs of the bundle without a result.
        tasks, programs: in the corpus at `path` afterwards.
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
        BundleError: results of another bundle or device, or lines that are none; nothing is written then.
        CorpusError: the corpus is of another device, CPU or target.
    """
    meta, tasks, programs, measured, wrong = judged_programs(results, bundle, device)
    corpus = merge_corpus(folder, meta, tasks, [as_program(program, meta) for program in programs])
    failed = sum(program.measurement.error is not None for program in programs)
    unmeasured = len(bundle.manifest["programs"]) - len(programs)
    counts = len(corpus.tasks), corpus.meta["programs"]
    return IngestResult(str(folder), measured, failed, wrong, unmeasured, *counts)


def judged_programs(
    results: Path, bundle: Bundle, device: str
) -> tuple[dict[str, Any], list[Task], list[MeasuredProgram], int, int]:
    """Return facts, tasks and programs of results before they reach a corpus, and how many ran and were wrong."""
    machine, lines = read_results(results, bundle)
    sheet = get_device(device)
    _check_device(sheet, bundle.manifest, machine)
    programs = {program["id"]: program for program in bundle.manifest["programs"]}
    wrong = _wrong_outputs(lines)
    meta = _meta(bundle, sheet, machine)
    measured = [_program(programs[number], line, number in wrong) for number, line in lines.items()]
    measured += [_program(program, None, False) for program in programs.values() if program["error"]]
    used = {program.task_id for program in measured}
    tasks = [
        Task(
            *(task["task_id"], task["name"], task["op"], task["flops"]),
            networks=tuple(sorted(task["networks"].items())),
            **bundle.origin[task["task_id"]],
        )
        for task in bundle.manifest["tasks"]
        if task["task_id"] in used
    ]
    return meta, tasks, measured, len(lines), len(wrong)


def _check_device(device: Device, manifest: BundleManifest, machine: dict[str, Any]) -> None:
    """Raises BundleError where the bundle or the machine shows that it is not this device."""
    gpu, kind = machine.get("gpu"), "cpu" if device.kind == "cpu" else device.target["kind"]
    arch = device.isa.replace("-", "_") if kind == "cpu" else str(device.target.get("arch", device.isa))
    measured = match_gpu(gpu) if gpu else None
    seen, named = f"{manifest['device_kind']} ({manifest['arch']})", measured or manifest["device"]
    # PTX is for every later GPU as well, a cubin for one architecture.
    if kind != manifest["device_kind"] or (arch != manifest["arch"] and manifest["code"] != "ptx"):
        message = f"the bundle is for {seen}, {device.name} is a {device.kind} ({arch})"
    elif measured not in (None, device.name):
        seen, message = str(measured), f"the results are of a {gpu}, which is {measured}, not {device.name}"
    else:
        return
    remedy = f"name the device that measured: --device {named}" if named else "see `tchub devices` for its name"
    raise BundleError(message, remedy=remedy, device=device.name, seen=seen)


def read_results(path: Path, bundle: Bundle) -> tuple[dict[str, Any], dict[int, ResultLine]]:
    """Return the machine, and the results by program id, of a file whose every line belongs to the bundle.

    A last line without an end is that of a run which was killed while it wrote: it is left out. Any other that is no
    result of this bundle is a BundleError, whose field `lines` counts them by kind.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error}", remedy="name the file of run.py --out") from error
    programs = {program["id"]: program for program in bundle.manifest["programs"]}
    bad: Counter[str] = Counter()
    machines: list[dict[str, Any]] = []
    seen: dict[int, ResultLine] = {}
    for line in text[: text.rfind(b"\n") + 1].splitlines():
        try:
            value = _read_line(line, bundle.identity, programs)
        except msgspec.ValidationError:
            bad["with impossible values"] += 1
        except (ValueError, KeyError, TypeError, RecursionError):
            bad["not readable"] += 1
        else:
            if isinstance(value, str):
                bad[value] += 1
            elif isinstance(value, ResultLine):
                seen.setdefault(value.id, value)
            else:
                machines.append(value)
    if bad or len({(str(machine.get("cpu_model")), str(machine.get("gpu"))) for machine in machines}) != 1:
        bad["no machine" if not machines else "several machines"] += not bad
        counts = {kind: count for kind, count in bad.items() if count}
        raise BundleError(
            f"{path} does not belong to {bundle.path}: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()),
            remedy="give the results of one machine, and the very bundle that it measured",
            path=str(path),
            lines=counts,
        )
    return machines[0], seen


def _read_line(line: bytes, identity: str, programs: dict[int, Any]) -> dict[str, Any] | ResultLine | str:
    """Return the facts of a machine, or a result; a text says why it is not of this bundle."""
    value = msgspec.json.decode(line)
    if value["kind"] == "machine":
        facts = msgspec.convert(value, dict[str, Fact | list[Fact]])
        if not isinstance(value["cpu_model"], str) or not isinstance(value.get("gpu"), str | None):
            raise msgspec.ValidationError
        return facts if value["bundle"] == identity else "of another bundle"
    program = programs.get(value["id"])
    if value["kind"] != "program" or program is None or program["task_id"] != value["task_id"]:
        return "of an unknown program"
    if not program["sha256"] or value["sha256"] != program["sha256"]:
        return "of another library"
    return msgspec.convert(value, ResultLine)


def _wrong_outputs(lines: dict[int, ResultLine]) -> set[int]:
    """Return programs whose output is not that of most programs of their task."""
    by_task: dict[str, list[ResultLine]] = {}
    for line in lines.values():
        if line.error is None and line.fingerprint:
            by_task.setdefault(line.task_id, []).append(line)
    wrong: set[int] = set()
    for group in by_task.values():
        ((arguments, _),) = Counter(len(line.fingerprint) for line in group).most_common(1)
        alike = [line for line in group if len(line.fingerprint) == arguments]
        # One row a program: the sum and the sum of absolute values of each argument; NaN where they overflow.
        sums = np.array([line.fingerprint for line in alike], dtype=np.float64).reshape(len(alike), -1, 2)
        usual = np.median(sums, axis=0)
        near = np.abs(sums - usual) <= _TOLERANCE * np.maximum(usual[:, 1:], 1e-12)
        agree = np.where(np.isfinite(usual), near, ~np.isfinite(sums))
        wrong |= {line.id for line in group} - {line.id for line, own in zip(alike, agree, strict=True) if own.all()}
    return wrong


def _program(program: ManifestProgram, line: ResultLine | None, wrong: bool) -> MeasuredProgram:
    """Return a program with its result; None for one that could not be compiled."""
    measurement = Measurement((), program["error"], program["message"])
    if line is not None:
        costs = 0.0, line.seconds, line.measured_at
        measurement = Measurement(tuple(line.latencies), line.error, line.message, *costs)
        if wrong:
            measurement = Measurement((), "invalid", "its output is not that of the task's other programs", *costs)
    named = program["task_id"], program["key"], program["strategy"], program.get("trace", "")
    return MeasuredProgram(*named, measurement)


def _meta(bundle: Bundle, device: Device, machine: dict[str, Any]) -> dict[str, Any]:
    manifest = bundle.manifest
    return {
        "device": device.name,
        "device_sheet": device.to_dict(),
        "family": device.family,
        "cpu_model": machine.get("gpu") or machine["cpu_model"],
        **{name: manifest[name] for name in ("target", "tvm_version", "command", "timing")},
        **({"threads": manifest["threads"]} if manifest["device_kind"] == "cpu" else {}),
        "licence": _LICENCE,
        "notes": "compiled by tchub, measured on the device from a bundle, random inputs; latency is the median "
        "of the repeats",
        "machine": {key: value for key, value in machine.items() if key not in ("kind", "bundle")},
    }
