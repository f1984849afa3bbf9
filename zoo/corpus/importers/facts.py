"""What files beside a log tell of it: names and sizes of its tasks, and the protocol by which they are split."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import CorpusError
from ..schema import Task
from ..splits import PARTS
from .files import check_texts

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
