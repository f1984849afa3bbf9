"""A foreign log becomes a corpus folder, in one pass and in bounded memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...devices import UnknownDeviceError, get_device
from ..errors import MixedDevicesError, UnknownLogError
from ..schema import Program
from ..targets import contradiction
from ..writer import CorpusWriter, Taken
from .base import Broken, Entry, ImportContext
from .facts import Names, resolve_protocol
from .files import sniff_framework

# Examples of broken lines that are reported, of each kind.
EXAMPLES = 3
# Programs between two calls of `progress`.
_TELL_EVERY = 10_000


@dataclass
class ImportReport:
    """What an import read, took and left.

    Attributes:
        path, framework: of the corpus.
        valid, failed: programs taken, by task id.
        names: task id -> name.
        errors: failed programs that were read, by kind, also those that are left out in the end.
        duplicates: programs left out because the same one is there (see `CorpusWriter.add`).
        broken: records that could not be read, by kind.
        examples: kind of broken record -> where the first ones are, and what is wrong.
        too_small: tasks left out because they have too few valid programs.
        without_task: names of the protocol that no task of the log has.
    """

    path: str
    framework: str
    valid: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    names: dict[str, str] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    broken: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    too_small: list[str] = field(default_factory=list)
    without_task: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """JSON form, with the totals."""
        totals = {"tasks": len(self.names), "programs": self.valid.total() + self.failed.total()}
        totals |= {"valid_programs": self.valid.total(), "failed_programs": self.failed.total()}
        rows = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return totals | {name: dict(row) if isinstance(row, Counter) else row for name, row in rows.items()}

    def count(self, program: Program) -> None:
        """Count a program that was taken."""
        (self.failed if program.error else self.valid)[program.task_id] += 1
        if program.error:
            self.errors[program.error] += 1

    def note(self, broken: Broken) -> None:
        """Count a broken record and keep the first ones as examples."""
        self.broken[broken.kind] += 1
        examples = self.examples.setdefault(broken.kind, [])
        if len(examples) < EXAMPLES:
            examples.append(f"{broken.where}: {broken.message}"[:300])


def read_entries(source: Path | str, framework: str, context: ImportContext) -> Iterator[Entry | Broken]:
    """The records of a log, one by one, by the framework's own importer."""
    if framework == "ansor":
        from .ansor import read_ansor as read
    elif framework == "autotvm":
        from .autotvm import read_autotvm as read
    else:
        from .metaschedule import read_metaschedule as read
    return read(Path(source), context)


def import_corpus(
    source: Path | str,
    out: Path | str,
    context: ImportContext,
    *,
    framework: str | None = None,
    split: Names | None = None,
    min_programs: int = 0,
    command: str | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> ImportReport:
    """Write the records of a log as a corpus folder, replacing the one that is there.

    Of programs that are the same schedule, the first that has a latency stays. An import that is interrupted
    leaves no corpus.

    Args:
        source: a log, or a folder of them.
        out: the corpus folder.
        context: device, licence, and what is known of the tasks.
        framework: one of `FRAMEWORKS`; by default told from the log's first lines.
        split: a protocol of task names (see `facts.read_protocol`), kept in `corpus.json` as task ids.
        min_programs: tasks with fewer valid programs are left out.
        command: what was typed, for the record.
        progress: told the number of programs read, now and then.

    Raises:
        UnknownLogError: no log, or nothing in it could be read.
        MixedDevicesError: its records are of several devices, and `context.allow_mixed` is off.
        CorpusWriteError: the disk is full or the folder may not be written.
    """
    name = framework or sniff_framework(source)
    report = ImportReport(str(out), name)
    guard = _OneDevice(context.allow_mixed)
    spellings: dict[str, str] = {}
    with CorpusWriter(out, {}) as writer:
        for item in read_entries(source, name, context):
            if isinstance(item, Broken):
                report.note(item)
                continue
            guard.see(item.program)
            spellings[item.spelling or item.task.workload] = item.task.task_id
            _take(writer, item, report)
            if writer.programs % _TELL_EVERY == 0:
                progress(writer.programs)
        _leave_out_small(writer, report, min_programs)
        if not writer.programs:
            raise UnknownLogError(
                f"{source}: no {name} record could be used ({report.broken.total()} broken, "
                f"{len(report.too_small)} tasks too small)",
                remedy="check --framework and --min-programs",
                examples=[text for examples in report.examples.values() for text in examples],
            )
        report.names = {task_id: task.name for task_id, task in writer.tasks.items()}
        writer.meta.update(_meta(context, name, guard, report, command))
        if split:
            writer.meta["split"], report.without_task = resolve_protocol(
                split, context.facts, writer.tasks.values(), spellings
            )
    return report


def _take(writer: CorpusWriter, entry: Entry, report: ImportReport) -> None:
    if entry.task.task_id not in writer.tasks:
        writer.add_task(entry.task)
    taken = writer.add(entry.program)
    if taken is not Taken.NEW:
        report.duplicates += 1
    if taken is not Taken.LEFT:
        report.count(entry.program)
    if taken is Taken.INSTEAD:
        report.failed[entry.program.task_id] -= 1


def _leave_out_small(writer: CorpusWriter, report: ImportReport, min_programs: int) -> None:
    for task_id, task in list(writer.tasks.items()):
        if report.valid[task_id] < min_programs:
            writer.discard(task_id, report.valid.pop(task_id, 0) + report.failed.pop(task_id, 0))
            report.too_small.append(task.name)


class _OneDevice:
    """Sees to it that all targets may be one device's; remembers how often each occurs."""

    def __init__(self, allow_mixed: bool) -> None:
        self.allow_mixed = allow_mixed
        self.targets: Counter[str] = Counter()
        self.cpu_models: Counter[str | None] = Counter()
        self.tvm_version: str | None = None

    def see(self, program: Program) -> None:
        if program.target not in self.targets:
            self._compare(program.target)
        self.targets[program.target] += 1
        self.cpu_models[program.cpu_model] += 1
        self.tvm_version = self.tvm_version or program.tvm_version

    def _compare(self, target: str) -> None:
        for known in () if self.allow_mixed else self.targets:
            if word := contradiction(known, target):
                raise MixedDevicesError(
                    f"the log is of several devices: their targets differ in {word} ({known} and {target})",
                    remedy="import each device's records from a log of their own, or say --allow-mixed",
                    targets=[known, target],
                    field=word,
                )


def _meta(
    context: ImportContext, framework: str, guard: _OneDevice, report: ImportReport, command: str | None
) -> dict[str, Any]:
    return {
        "device": context.device,
        "family": _family(context.device),
        "cpu_model": next(iter(guard.cpu_models)) if len(guard.cpu_models) == 1 else None,
        "target": _plain_target(guard.targets.most_common(1)[0][0]),
        "tvm_version": guard.tvm_version or "not said",
        "framework": framework,
        "licence": context.licence or "not said",
        "source": context.source,
        "command": command,
        "notes": f"imported from a log of {framework}; latency is the median of the repeats",
        "import": {"duplicates": report.duplicates, "broken": dict(report.broken), "too_small": report.too_small},
    }


def _family(device: str) -> str:
    try:
        return get_device(device).family
    except UnknownDeviceError:
        return device  # a device without a spec sheet is a family of its own


def _plain_target(target: str) -> Any:
    try:
        return json.loads(target)
    except ValueError:
        return target
