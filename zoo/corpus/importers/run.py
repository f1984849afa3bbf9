"""A foreign log becomes a corpus folder, in one pass and in bounded memory; files beside it name tasks and split."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict, TypeVar

import msgspec

from ...devices import known_device
from ..schema import CorpusError, Task, contradiction, target_options
from ..splits import PARTS
from ..writer import CorpusWriter
from .ansor import ansor_reader
from .autotvm import autotvm_reader
from .metaschedule import metaschedule_reader
from .records import BadLine, ImportContext, LogEntry, TaskFacts, canonical, find_logs, read_records, sniff_framework

_READERS = {"ansor": ansor_reader, "autotvm": autotvm_reader, "metaschedule": metaschedule_reader}
# Examples of broken lines that are reported, of each kind.
EXAMPLES = 3
# Bytes of a vector in programs for a level of x86-64, which many a CPU has longer ones than.
_LEVELS = {"x86-64": 16.0, "x86-64-v2": 16.0, "x86-64-v3": 32.0}
# Programs between two calls of `progress`.
_REPORT_EVERY = 10_000

_Form = TypeVar("_Form")
TaskNames = Mapping[str, Sequence[str]]
"""Part of a split -> names of tasks."""


class _TaskEntry(msgspec.Struct):
    """A task of a task file."""

    workload_key: str | None = None
    other_workload_keys: list[str] = []
    template: str | None = None
    args: list[Any] = []
    op: str | None = None
    flops: float | None = None
    networks: dict[str, int] | list[str] = []
    network: str | None = None

    def facts(self, name: str) -> dict[str, TaskFacts]:
        """Return the facts by each spelling of the task's workload; a network without a number has it once."""
        networks = self.networks or ([self.network] if self.network else [])
        counts = networks if isinstance(networks, dict) else dict.fromkeys(networks, 1)
        keys = [self.workload_key, *self.other_workload_keys] if self.template is None else [[self.template, self.args]]
        facts = TaskFacts(name, self.op, self.flops, tuple(counts.items()))
        return {canonical(key): facts for key in keys if key is not None}


class _Protocol(TypedDict):
    """A protocol of a split file: names of tasks."""

    test: list[str]
    train: NotRequired[list[str]]
    val: NotRequired[list[str]]


@dataclass
class ImportReport:
    """Count of what an import read, took and left.

    Attributes:
        path, framework: of the corpus.
        tasks, valid_programs, failed_programs: taken; errors: the failed ones by kind.
        duplicates: programs left out because the same one is there (see `CorpusWriter`).
        broken: records that could not be read, by kind.
        examples: kind of broken record -> where the first ones are, and what is wrong.
        too_small: tasks left out because they have too few valid programs; left_out: records of these tasks.
        without_task: names of the protocol that no task of the log has.
    """

    path: str
    framework: str
    tasks: int = 0
    valid_programs: int = 0
    failed_programs: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    broken: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    too_small: list[str] = field(default_factory=list)
    left_out: int = 0
    without_task: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, with the totals; `records` are the programs and all that was left out."""
        programs = self.valid_programs + self.failed_programs
        records = programs + self.duplicates + self.left_out + self.broken.total()
        return {"programs": programs, "records": records} | vars(self)

    def note(self, broken: BadLine) -> None:
        """Count a broken record and keep the first ones as examples."""
        self.broken[broken.kind] += 1
        examples = self.examples.setdefault(broken.kind, [])
        if len(examples) < EXAMPLES:
            examples.append(f"{broken.where}: {broken.message}"[:300])


def read_entries(source: Path | str, framework: str, context: ImportContext) -> Iterator[LogEntry | BadLine]:
    """Yield the records of a log, or of every log below a folder, one by one.

    Bad ones have the kinds `not-json`, `wrong-shape`, `bad-result`, `not-readable` (the rest of a damaged file), and
    what the framework's importer names.

    Raises:
        CorpusError: there is no such file, or no log below the folder.
    """
    files = find_logs(Path(source))
    for file in files:
        name = str(file.relative_to(source)) if len(files) > 1 else ""
        yield from read_records(file, framework, _READERS[framework](file, name, context), context)


def import_corpus(
    source: Path | str,
    out: Path | str,
    context: ImportContext,
    *,
    framework: str | None = None,
    split: TaskNames | None = None,
    min_programs: int = 0,
    command: str | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> ImportReport:
    """Write the records of a log as a corpus folder, replacing the one that is there.

    Of programs that are the same schedule, the first that has a latency stays. An import that is interrupted
    leaves no corpus.

    Args:
        source: a log, or a folder of them.
        framework: one of `FRAMEWORKS`; by default that of the log's first lines.
        split: a protocol of task names (see `read_protocol`), kept in `corpus.json` as task ids.
        min_programs: tasks with fewer valid programs are left out.
        progress: called with the number of programs read, now and then.

    Raises:
        CorpusError: no log, nothing in it could be read, or its records are of several devices or of another one.
        StorageError: the disk is full or the folder may not be written.
    """
    name = framework or sniff_framework(source)
    report = ImportReport(str(out), name)
    targets: Counter[str] = Counter()
    tvm_version: str | None = None
    spellings: dict[str, str] = {}
    with CorpusWriter(out, {}) as writer:
        for item in read_entries(source, name, context):
            if isinstance(item, BadLine):
                report.note(item)
                continue
            target = item.program.target
            if target not in targets and not context.allow_mixed:
                _check_one_device(context.device, targets, target)
            targets[target] += 1
            tvm_version = tvm_version or item.program.tvm_version
            spellings[item.task.workload] = item.task.task_id
            if item.task.task_id not in writer.tasks:
                writer.add_task(item.task)
            writer.add(item.program)
            if (count := targets.total()) % _REPORT_EVERY == 0:
                progress(count)
        _choose(writer, report, min_programs)
        if not writer.tasks:
            counts = f"{report.broken.total()} broken, {len(report.too_small)} tasks too small"
            raise CorpusError(
                f"{source}: no {name} record could be used ({counts})",
                remedy="check --framework and --min-programs",
                examples=[text for examples in report.examples.values() for text in examples],
            )
        device, target = known_device(context.device), json.loads(targets.most_common(1)[0][0])
        level = target_options(json.dumps(target)).get("mcpu", "")
        if device is not None and device.kind == "cpu" and level in _LEVELS:
            spec = device.spec.with_values({"simd_bytes": _LEVELS[level]}, f"the target's: {level}")
            writer.meta["device_sheet"] = replace(device, spec=spec).to_dict()
        writer.meta.update(
            device=context.device,
            family=device.family if device else context.device,  # a device without a spec sheet is its own family
            cpu_model=None,
            target=target,
            tvm_version=tvm_version or "not said",
            framework=name,
            licence=context.licence or "not said",
            source=context.source,
            notes=f"imported from a log of {name}; latency is the median of the repeats",
            command=command,
        )
        left_out = {"duplicates": report.duplicates, "broken": dict(report.broken), "too_small": report.too_small}
        writer.meta["import"] = left_out
        if split:
            tasks = list(writer.tasks.values())
            writer.meta["split"], report.without_task = _resolve_protocol(split, context.facts, tasks, spellings)
    return report


def _choose(writer: CorpusWriter, report: ImportReport, min_programs: int) -> None:
    """Count the programs that are kept, and leave out the tasks that have too few."""
    for task_id, errors in writer.count().items():
        added, valid = writer.added[task_id], errors.pop(None, 0)
        if valid < min_programs:
            report.too_small.append(writer.tasks[task_id].name)
            report.left_out += added
            writer.discard(task_id)
            continue
        report.tasks += 1
        report.valid_programs += valid
        report.failed_programs += errors.total()
        report.duplicates += added - valid - errors.total()
        report.errors.update({str(kind): number for kind, number in errors.items()})


def _check_one_device(device: str, targets: Iterable[str], target: str) -> None:
    """Raise CorpusError where a new target of a log names another device than the user or the targets before it."""
    own = known_device(device)
    named = known_device(target_options(target).get("model", ""))
    other = {name: value for name, value in (own.target if own else {}).items() if name in ("kind", "arch")}
    if word := contradiction(json.dumps(other), target) or ("model" if own and named not in (None, own) else None):
        remedy = "name the device that was measured with --device (`tchub devices` lists them), or say --allow-mixed"
        raise CorpusError(f"the log is not of {device}: its target {target} has another {word}", remedy=remedy)
    for known in targets:
        if word := contradiction(known, target):
            problem = f"the log is of several devices: their targets differ in {word} ({known} and {target})"
            remedy = "import each device's records from a log of their own, or say --allow-mixed"
            raise CorpusError(problem, remedy=remedy)


# Files beside a log --------------------------------------------------------------------------------------


def read_facts(file: Path | str, device: str) -> dict[str, TaskFacts]:
    """Read a task file: device -> task name -> facts, to be `ImportContext.facts`.

    The facts name the task by `workload_key` (and `other_workload_keys`; Ansor) or by `template` and `args`
    (AutoTVM). Others are `op`, `flops`, and `networks` (or `network`).

    Raises:
        CorpusError: not such a file, or it does not know the device.
    """
    tasks = _part(_load(file, dict[str, Any]), device, file)
    facts: dict[str, TaskFacts] = {}
    for name in tasks:
        facts |= _convert(tasks[name], _TaskEntry, f"{file}: the task {name!r}").facts(name)
    return facts


def read_protocol(file: Path | str, name: str) -> TaskNames:
    """Read a split file: protocol name -> `test`, `train` and `val` (these two may lack), lists of task names.

    A file with one protocol needs no name; a list alone is that of the test tasks.

    Raises:
        CorpusError: not such a file, or no protocol of that name.
    """
    data = _load(file, dict[str, Any] | list[str])
    if isinstance(data, list):
        return {"test": data}
    protocol = data if isinstance(data.get("test"), list) else _part(data, name, file)
    return dict[str, Any](_convert(protocol, _Protocol, f"{file}: the protocol {name!r}"))


def _resolve_protocol(
    names: TaskNames, facts: Mapping[str, TaskFacts], tasks: Sequence[Task], spellings: Mapping[str, str]
) -> tuple[TaskNames, list[str]]:
    """Return a protocol's task names as task ids, by part, and the names that no task has.

    Two names of one task, which stand for two spellings of its workload (`spellings`: workload -> task id, as the log
    has them), are one id. Without training tasks, all tasks of no other part are.

    Raises:
        CorpusError: no name is a task's, or names of two parts stand for one task.
    """
    ids, known = {task.name: task.task_id for task in tasks}, {task.task_id for task in tasks}
    for workload, task_id in spellings.items():
        name = facts.get(canonical(workload), TaskFacts()).name
        if task_id in known and name:
            ids[name] = task_id
    split = {part: sorted({ids[name] for name in names.get(part, ()) if name in ids}) for part in PARTS}
    parts = Counter(task_id for part in split.values() for task_id in part)
    if parts.total() > len(parts):
        raise CorpusError(
            f"the protocol has the task {parts.most_common(1)[0][0]} in two parts", remedy="correct the split file"
        )
    if "train" not in names:
        split["train"] = sorted(known - parts.keys())
    missing = sorted({name for part in PARTS for name in names.get(part, ())} - ids.keys())
    if missing and not parts:
        raise CorpusError(
            f"the log has no task of the protocol, e.g. {missing[0]}",
            remedy="name the task file (--tasks) that says which workloads the names stand for",
        )
    return split, missing


def _load(file: Path | str, form: Any) -> Any:
    try:
        return msgspec.json.decode(Path(file).read_bytes(), type=form)
    except (OSError, ValueError, RecursionError) as error:
        remedy = "name a JSON file of the form {name: {...}}"
        raise CorpusError(f"{file} cannot be read: {error}", remedy=remedy, path=str(file)) from error


def _part(data: Mapping[str, Any], name: str, file: Path | str) -> dict[str, Any]:
    if not isinstance(data.get(name), dict):
        raise CorpusError(
            f"{file} knows no {name!r}; it knows {', '.join(map(str, data))}",
            remedy="name one of these: FILE.json:NAME",
            path=str(file),
        )
    return data[name]


def _convert(value: Any, form: type[_Form], name: str) -> _Form:
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        raise CorpusError(f"{name} cannot be read: {error}", remedy="correct the file: docs/corpora.md") from error
