"""A foreign log becomes a corpus folder, in one pass and in bounded memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...devices import UnknownDeviceError, get_device
from ..schema import CorpusError, MixedDevicesError, Program, Task, UnknownLogError
from ..scope import contradiction
from ..splits import PARTS
from ..writer import CorpusWriter, Taken
from .records import Broken, Entry, ImportContext, check_texts, sniff_framework

Names = Mapping[str, Sequence[str]]


def read_facts(file: Path | str, device: str) -> dict[str, dict[str, Any]]:
    """Read a task file: device -> task name -> facts, to be `ImportContext.facts`.

    The facts name the task by `workload_key` (and `other_workload_keys`; Ansor) or by `template` and `args`
    (AutoTVM). Others are `op`, `flops`, and `networks` (or `network`).

    Raises:
        CorpusError: not such a file, or it does not know the device.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, told in _entry(_load(file), device, file).items():
        try:
            facts = {**told, "name": name, "networks": _networks(told)}
            keys = _keys(told)
        except (TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
            raise CorpusError(
                f"{file}: what it tells of the task {name!r} cannot be read: {error}",
                remedy='mend it; the form is {"workload_key": ..., "op": ..., "networks": {"resnet-18": 2}}',
                path=str(file),
            ) from error
        for key in keys:
            found[key] = facts
    return found


def read_protocol(file: Path | str, name: str) -> dict[str, list[str]]:
    """Read a split file: protocol name -> `train`, `val` (may lack) and `test`, lists of task names.

    Raises:
        CorpusError: not such a file, or no protocol of that name.
    """
    data = _load(file)
    told = data if "train" in data and "test" in data else _entry(data, name, file)
    if not {"train", "test"} <= told.keys():
        raise CorpusError(f"{file}: {name} lists no train and test tasks", remedy="name another: FILE.json:NAME")
    for part in PARTS:
        if not isinstance(told.get(part) or [], list):
            raise CorpusError(f"{file}: {part} of {name} is no list of task names", remedy="mend the split file")
    return {part: [str(task) for task in told.get(part) or ()] for part in PARTS}


def resolve_protocol(
    names: Names, facts: Mapping[str, Mapping[str, Any]], tasks: Iterable[Task], spellings: Mapping[str, str]
) -> tuple[Names, list[str]]:
    """A protocol's task names as task ids, by part, and the names that no task has.

    Two names of one task, which stand for two spellings of its workload, are one id.

    Args:
        names: the protocol.
        facts: which workload a name stands for.
        tasks: of the corpus.
        spellings: workload -> task id, as the log spells them.

    Raises:
        CorpusError: no name is a task's, or names of two parts stand for one task.
    """
    named = {canonical(key): str(told["name"]) for key, told in facts.items() if "name" in told}
    known = {task.task_id: task for task in tasks}
    ids = {task.name: task.task_id for task in known.values()}
    for workload, task_id in spellings.items():
        if task_id in known and canonical(workload) in named:
            ids[named[canonical(workload)]] = task_id
    split = {part: sorted({ids[name] for name in names.get(part, ()) if name in ids}) for part in PARTS}
    twice = [t for i, part in enumerate(PARTS) for t in split[part] if any(t in split[p] for p in PARTS[:i])]
    if twice:
        raise CorpusError(f"the protocol has the task {twice[0]} in two parts", remedy="mend the split file")
    missing = sorted({name for part in PARTS for name in names.get(part, ())} - ids.keys())
    if missing and not any(split.values()):
        raise CorpusError(
            f"the log has no task of the protocol, e.g. {missing[0]}",
            remedy="name the task file (--tasks) that says which workloads the names stand for",
        )
    return split, missing


def canonical(text: str) -> str:
    """JSON text in one spelling; other text as it is."""
    try:
        return json.dumps(json.loads(text), separators=(",", ":"))
    except ValueError:
        return text


def _load(file: Path | str) -> dict[str, Any]:
    try:
        text = Path(file).read_text(encoding="utf-8")
        data = json.loads(text)
        check_texts(text)
    except (OSError, ValueError) as error:
        raise CorpusError(f"{file} cannot be read: {error}", remedy="name a JSON file", path=str(file)) from error
    if not isinstance(data, dict):
        raise CorpusError(f"{file} is no JSON object", remedy="name a file of the form {name: {...}}", path=str(file))
    return data


def _entry(data: Mapping[str, Any], name: str, file: Path | str) -> dict[str, Any]:
    if not isinstance(data.get(name), dict):
        raise CorpusError(
            f"{file} knows no {name!r}; it knows {', '.join(map(str, data))}",
            remedy="name one of these: FILE.json:NAME",
            path=str(file),
        )
    return data[name]


def _keys(told: Mapping[str, Any]) -> list[str]:
    if "template" in told and "args" in told:
        pair = [told["template"], told["args"]]
        return [json.dumps(pair), json.dumps(pair, separators=(",", ":"))]
    keys = [told.get("workload_key"), *(told.get("other_workload_keys") or ())]
    return [str(key) for key in keys if key]


def _networks(told: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Names alone mean one occurrence each."""
    networks = told.get("networks") or ([told["network"]] if told.get("network") else [])
    if isinstance(networks, Mapping):
        return tuple((str(name), int(count)) for name, count in networks.items())
    return tuple((str(n), 1) if isinstance(n, str) else (str(n[0]), int(n[1])) for n in networks)


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
