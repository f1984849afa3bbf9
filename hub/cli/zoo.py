"""`tchub list`, `info`, `resolve`, `pull` and `verify`: find, fetch and check checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console
    from rich.table import Table

    from ...zoo.devices import Device
    from ..api import CheckpointInfo
    from ..registry import Entry, PulledCheckpoint, Resolution, Verdict, Verification
    from .output import Output


def find_folder(name_or_path: str) -> Path:
    """A folder when there is one of this name or it is written like a path, else that of a name of the registry.

    Raises:
        TchubError: there is no such checkpoint, or it cannot be fetched.
    """
    path = Path(name_or_path)
    if path.is_dir() or len(path.parts) > 1:
        return path
    from ..api import locate

    return locate(name_or_path).path


def draw_summary(entry: Entry, metrics: Mapping[str, Any], console: Console) -> None:
    """Name, facts and scores beside the baselines."""
    from ..registry.listed_facts import facts

    console.print(entry.name, style="bold", end=" ", highlight=False)
    console.print(entry.version, highlight=False)
    for key, value in facts(entry).items():
        console.print(f"  {key:<16} {value}", highlight=False)
    draw_scores(entry, metrics, console)


def next_step(entry: Entry, name: str) -> str:
    """The command that comes after a checkpoint is here: a CPU's programs are measured here, a GPU's travel to it.

    Args:
        entry: what a name led to.
        name: as it was given; a family or an old name leads somewhere else tomorrow.
    """
    from ..registry.listed_facts import kind_of

    called = entry.id if "@" in name else entry.name
    if kind_of(entry) == "gpu":
        return f"tchub bundle build --workload bert-tiny --target DEVICE --checkpoint {called} --output bundle.zip"
    return f"tchub adapt {called} --device local --budget 10%"


def warn_without_licence(lineage: Mapping[str, Any], out: Output) -> None:
    """Say that a checkpoint that was trained here has no licence, without which it cannot be published."""
    if not lineage.get("weights_licence"):
        out.note(
            "warning: the card names no licence of the weights; to name one, run the same command with --resume "
            "--weights-licence SPDX"
        )


def draw_scores(entry: Entry, metrics: Mapping[str, Any], console: Console) -> None:
    """Scores of metrics.json beside its baselines; without the file, those of the index."""
    from rich.table import Table

    from ..registry.scores import results_of
    from ..text import score_text

    table = Table(box=None, pad_edge=False)
    table.add_column(f"  {metrics.get('split', 'held-out')} split")
    for title in ("top-1", "top-5", "pairwise"):
        table.add_column(title, justify="right")
    for line in results_of(entry, metrics):
        table.add_row(f"  {line['label']}", *(score_text(line[key]) for key in ("top1", "top5", "pairwise")))
    console.print(table)


_SCORES = ("top1", "top5", "pairwise")


@click.command("list")
@click.option("--search", default="", metavar="TEXT", help="Only those in whose facts every word occurs, e.g. nvidia.")
@click.option("--family", metavar="F", help="Only checkpoints of this device family, e.g. epyc.")
@click.option("--arch", metavar="A", help="Only checkpoints of this architecture, e.g. tcl.")
@click.option("--kind", type=click.Choice(["cpu", "gpu"]), help="Only checkpoints for this kind of device.")
@click.option("--local", is_flag=True, help="Only checkpoints adapted on this machine.")
@click.option(
    "--sort", default="family", show_default=True, help="The order of the lines; scores of one family compare.",
    type=click.Choice(["family", "name", *_SCORES, "parameters", "size"]),
)  # fmt: skip
@output_options
def list_command(
    search: str, family: str | None, arch: str | None, kind: str | None, local: bool, sort: str, out: Output
) -> None:
    """List the checkpoints: published, fetched, and adapted on this machine.

    \b
    Examples:
      tchub list
      tchub list --family epyc
      tchub list --kind gpu --search "turing measured" --sort size
      tchub list --local --json
    """
    from ..api import list_checkpoints
    from ..registry.catalogue import listing
    from ..registry.query import arranged, found

    entries = arranged(found(list_checkpoints(family=family, arch=arch, local=local), search, kind), sort)
    out.data([listing(entry) for entry in entries], lambda console: draw_list(entries, console))
    if not entries:
        out.note("no checkpoint matches" if search or family or arch or kind or local else "the index is empty")
        return
    if sort in _SCORES and len({entry.family for entry in entries}) > 1:
        out.note("each family was judged on test programs of its own: scores of different families do not compare")
    names = {entry.name for entry in entries}
    out.hint(
        f"tchub info {entries[-1].name}" if local else f"tchub pull {names.pop()}" if len(names) == 1 else "tchub pull"
    )


def draw_list(entries: list[Entry], console: Console) -> None:
    """The table; a terminal too narrow for all of it gets the columns by which one chooses."""
    from ..text import data_text, number_text, score_text, size_text
    from .terminal import Column, table

    scores = {
        title: [score_text(e.metrics.get(key)) for e in entries]
        for key, title in zip(_SCORES, ("top-1", "top-5", "pairwise"), strict=True)
    }
    columns = [
        Column("name", [e.name for e in entries]),
        Column("version", [e.version + (" (deprecated)" if e.deprecated else "") for e in entries], leaves=7),
        Column("arch", [e.arch for e in entries], leaves=5),
        Column("features", [e.feature_schema for e in entries], leaves=3),
        Column("device", [e.family for e in entries]),
        Column("origin", [e.origin or "" for e in entries], leaves=8),
        Column("parameters", [number_text(e.parameters) for e in entries], number=True, leaves=4),
        Column("size", [size_text(e.size) for e in entries], number=True, leaves=6),
        *(Column(title, texts, number=True, leaves=9 if title == "top-5" else None) for title, texts in scores.items()),
        Column("data", [data_text(e.data, device=False) for e in entries], leaves=2),
        Column("licence", [f"{e.weights_licence}, data {e.data_licence}" for e in entries], leaves=1),
    ]
    console.print(table(columns, console.width))


_IN_SUMMARY = ("base", "weights_licence", "data", "measured_on", "devices")
_MOST_COMPARED = 4


@click.command("info")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--card", is_flag=True, help="Print the whole model card (Markdown).")
@output_options
def info_command(names: tuple[str, ...], card: bool, out: Output) -> None:
    """Show a checkpoint: its card's summary, scores beside baselines, files with sha256, and lineage.

    Two to four names are shown side by side; as JSON they are a list.

    \b
    Examples:
      tchub info tcl-epyc
      tchub info tcl-epyc@1.0.0 --json
      tchub info tcl-epyc --card
      tchub info tcl-epyc tilenet-epyc tenset-mlp-epyc
    """
    from ..api import describe_checkpoint

    name, *others = names
    if len(names) > _MOST_COMPARED or (card and others):
        raise click.UsageError("one checkpoint has its card shown, and up to four are compared")
    if others:
        compare([describe_checkpoint(name) for name in names], out)
    else:
        _show(describe_checkpoint(name), name, card, out)


def _show(found: CheckpointInfo, name: str, card: bool, out: Output) -> None:

    entry = found.entry
    result = _as_json(found) | ({"card": found.card} if card else {})
    if card:
        out.data(result, lambda console: console.print(found.card, soft_wrap=True))
    else:
        out.data(result, lambda console: _draw_info(entry, found.metrics, console))
    if found.path is None:
        out.note(f"{entry.id} is not on this machine; this is what the index says")
    out.hint(next_step(entry, name) if found.path else f"tchub pull {name}")


def _as_json(found: CheckpointInfo) -> dict[str, Any]:
    entry = found.entry
    return entry.as_dict() | {
        "path": str(found.path) if found.path else None,
        "size": entry.size,
        "origin": entry.origin or None,
        "measured_on": list(entry.measured_on),
        "results": found.metrics.get("results", {}),
    }


def _draw_info(entry: Entry, metrics: Mapping[str, Any], console: Console) -> None:
    from rich.table import Table

    from ..text import size_text
    from .train import device_table

    draw_summary(entry, metrics, console)
    devices = device_table(metrics.get("devices"))
    if devices.row_count:
        console.print(devices)
    table = Table(box=None, pad_edge=False)
    table.add_column("  file", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("sha256", overflow="fold")
    for file, record in sorted(entry.files.items()):
        table.add_row(f"  {file}", size_text(record.size), record.sha256)
    console.print(table)
    console.print(_lineage(entry))


def _lineage(entry: Entry) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    for key, value in entry.lineage.items():
        if key not in _IN_SUMMARY and value:
            table.add_row(Text(f"  {key:<16}"), Text("\n".join(_lines_info(value))))
    return table


def _lines_info(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"{key}: {one}" for key, one in value.items()]
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def compare(found: Sequence[CheckpointInfo], out: Output) -> None:
    """Print the checkpoints as columns; as JSON, a list of what the catalogue holds of each."""
    from ..registry.catalogue import comparable, record

    records = [record(one.entry, one.metrics) for one in found]
    out.data(records, lambda console: _draw_comparison(records, console))
    if not comparable(records):
        out.note("these were judged on different test programs: their scores cannot be held against each other")
    for one in found:
        if one.path is None:
            out.note(f"{one.entry.id} is not on this machine; this is what the index says")


def _draw_comparison(records: list[dict[str, Any]], console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for one in records:
        table.add_column(f"{one['name']} {one['version']}", overflow="fold")
    for title, texts in _lines_comparison(records):
        table.add_row(title, *texts)
    console.print(table)


def _lines_comparison(records: list[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    from ..registry.scores import TITLES

    for key, title in TITLES.items():
        if any(one["scores"][key] is not None for one in records):
            yield title, [_score(one, key) for one in records]
    yield "judged on", [one["judged_on"] or "-" for one in records]
    for label in dict.fromkeys(label for one in records for label in one["facts"]):
        yield label, [one["facts"].get(label, "-") for one in records]


def _score(one: dict[str, Any], key: str) -> str:
    from ..text import score_text

    seeds = one["seeds"].get(key)
    spread = f" ({one['seeds']['count']} seeds: {seeds['mean']:.3f} ± {seeds['stdev']:.3f})" if seeds else ""
    return score_text(one["scores"][key]) + spread


# Columns of a terminal from which on numbers stand beside the reasons.
_WIDE = 120


@click.command("resolve")
@click.argument("name", required=False)
@click.option("--device", metavar="D", help="local, or a name of `tchub devices`. Default without a NAME: local.")
@click.option("--all", "every_version", is_flag=True, help="Older versions too.")
@output_options
def resolve_command(name: str | None, device: str | None, every_version: bool, out: Output) -> None:
    """Show which checkpoint `pull`, `load` and `adapt` would take, and why every other one is passed over.

    NAME is a checkpoint, or a device family for the best checkpoint of it; without one, the device decides: by
    the rank of its distance, then by what was measured on it, then by the spec sheets. Nothing is fetched.

    \b
    Examples:
      tchub resolve --device local
      tchub resolve k80
      tchub resolve --device graviton2 --all --json
      tchub pull $(tchub resolve --device a100 --quiet)
    """
    from ..api import list_checkpoints, resolve
    from ..registry.resolve import other_versions

    found = resolve(name, device=_device(device))
    verdicts = list(found.verdicts)
    if every_version:
        verdicts += other_versions(list_checkpoints(), verdicts)
    result = {
        "name": found.entry.name,
        "version": found.entry.version,
        "warnings": list(found.warnings),
        "verdicts": [verdict.as_dict() for verdict in verdicts],
    }
    if out.mode == "quiet":
        out.data(found.entry.id)
    else:
        out.data(result, lambda console: draw_resolve(found, verdicts, console))
    out.hint(f"tchub pull {found.entry.id}")


def _device(text: str | None) -> Device | None:
    """None for this machine, which is detected only where the choice needs it."""
    from ...zoo.devices import get_device

    return None if text in (None, "local") else get_device(text)


def draw_resolve(found: Resolution, verdicts: Iterable[Verdict], console: Console) -> None:
    """The choice, then a line for each one that was passed over."""
    from rich.table import Table

    chosen, *others = verdicts
    console.print(found.entry.id, style="bold", highlight=False)
    console.print(f"  {chosen.reason}", highlight=False)
    if not others:
        return
    short = console.width < _WIDE
    table = Table(box=None, pad_edge=False)
    table.add_column("passed over", no_wrap=True)
    for title in () if short else ("rank", "spec sheets", "top-1", "pairwise"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("why")
    for verdict in others:
        table.add_row(verdict.id, *(() if short else _numbers(verdict)), verdict.passed_over)
    console.print(table)


def _numbers(verdict: Verdict) -> tuple[str, str, str, str]:
    """Rank, gap, and the scores on this device or its family."""
    from ..text import score_text

    rank = "-" if verdict.rank is None else str(verdict.rank)
    gap = "-" if verdict.gap is None else f"{2**verdict.gap:.2g}x"
    found = verdict.measured
    return rank, gap, score_text(found and found.top1), score_text(found and found.pairwise)


@click.command("pull")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--source", metavar="S", help="Only this source: bundled, file:///folder, https://host/folder or hf://org/name."
)
@click.option("--offline", is_flag=True, help="Use no network: the wheel, folders and the Hub's cache only.")
@click.option("--lock", is_flag=True, help="Pin what is pulled in the lock file; without a NAME, renew its pins.")
@click.option("--frozen", is_flag=True, help="Pull exactly what the lock file pins; without a NAME, all of it.")
@click.option(
    "--lock-file", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH", help="[default: tchub.lock]"
)
@output_options
def pull_command(
    names: tuple[str, ...],
    source: str | None,
    offline: bool,
    lock: bool,
    frozen: bool,
    lock_file: Path | None,
    out: Output,
) -> None:
    """Fetch checkpoints into this machine's store and verify their sha256.

    NAME is arch-family or arch-family@X.Y.Z, or a device family for the best checkpoint of it; without it, the
    checkpoint that fits this device best is chosen, as `tchub resolve` explains. Sources are tried in this order: the
    wheel, those in TCHUB_SOURCES, those that the index lists. A download can be repeated safely: a checkpoint appears
    whole or not at all. `--json` prints an object for one NAME, and a list for several or for a lock file's all.

    \b
    Examples:
      tchub pull tcl-epyc
      tchub pull epyc
      tchub pull
      tchub pull tcl-epyc@1.0.0 --source file:///mnt/zoo --json
      tchub pull tcl-epyc tilenet-t4 --lock     # writes tchub.lock
      tchub pull --frozen                       # the same files, anywhere and at any time
    """
    from ..registry.lock import LOCK_FILE

    if lock and frozen:
        raise click.UsageError("--lock changes the lock file, --frozen follows it: give one of them")
    if lock_file and not (lock or frozen):
        raise click.UsageError("--lock-file needs --lock, to change it, or --frozen, to follow it")
    lock_file = lock_file or Path(LOCK_FILE)
    how: dict[str, Any] = {"source": source, "offline": offline}
    if lock or frozen:
        from ..registry.pinning import pull_and_pin, pull_pinned

        pulled = (pull_and_pin if lock else pull_pinned)(names, lock=lock_file, **how)
    else:
        from ..api import pull

        pulled = [pull(name, **how) for name in names or [None]]
    results = [_result_pull(one) for one in pulled]
    single = len(names) == 1 or not (names or lock or frozen)
    out.data(results[0] if single else results, lambda console: _draw_pull(pulled, console))
    for one in pulled:
        _explain(one, out)
    if lock:
        out.note(f"{len(pulled)} pinned in {lock_file}")
    if pulled:
        out.hint(next_step(pulled[0].entry, names[0] if single and names else ""))


def _result_pull(pulled: PulledCheckpoint) -> dict[str, Any]:
    from ..registry.listed_facts import facts

    entry = pulled.entry
    return {
        "name": entry.name,
        "version": entry.version,
        "path": str(pulled.path),
        "source": pulled.source,
        "verified": "ok",
        "files": {file: record.sha256 for file, record in entry.files.items()},
        "summary": facts(entry),
        "metrics": dict(entry.metrics),
        "verdicts": [verdict.as_dict() for verdict in pulled.resolution.verdicts],
        "warnings": list(pulled.resolution.warnings),
    }


def _draw_pull(pulled: list[PulledCheckpoint], console: Console) -> None:
    from ..registry.describe import read_json

    for one in pulled:
        draw_summary(one.entry, read_json(one.path / "metrics.json"), console)


def _explain(pulled: PulledCheckpoint, out: Output) -> None:
    entry, verdicts = pulled.entry, pulled.resolution.verdicts
    if len(verdicts) > 1:
        out.note(f"chosen: {entry.id}: {verdicts[0].reason}")
    for verdict in verdicts[1:]:
        out.note(f"passed over: {verdict.id}: {verdict.passed_over}")
    came = "already here" if pulled.source == "store" else f"from {pulled.source}"
    out.note(f"{entry.id} {came}, sha256 verified, in {pulled.path}")


@click.command("verify")
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Every checkpoint on this machine.")
@click.option(
    "--lock-file", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH",
    help="Check against what this lock file pins; without a NAME, all of it.",
)  # fmt: skip
@output_options
def verify_command(name: str | None, everything: bool, lock_file: Path | None, out: Output) -> None:
    """Check size and sha256 of a checkpoint's files on this machine.

    The outcome is one of: ok, not-installed, missing-file, not-a-file, unreadable, size-mismatch,
    hash-mismatch. Exit code 0 for ok, 1 for any other, also of one among several.

    \b
    Examples:
      tchub verify tcl-epyc
      tchub verify tcl-epyc+local --json
      tchub verify --all
      tchub verify --lock-file tchub.lock
    """
    from ..api import verify, verify_all

    if (everything and (name or lock_file)) or not (everything or name or lock_file):
        raise click.UsageError("give a NAME, or --all, or --lock-file PATH with or without a NAME")
    checked = [verify(name, lock=lock_file)] if name else verify_all(lock=lock_file)
    results = [_result_verify(*one) for one in checked]
    out.data(results[0] if name else results, lambda console: _draw_verify(checked, console))
    for entry, found, _ in checked:
        out.note(f"{len(entry.files)} files checked in {found.path}" if found.ok else found.message)
    bad = [entry for entry, found, _ in checked if not found.ok]
    if bad:
        names = " ".join(entry.id for entry in bad)
        out.hint(f"tchub pull --frozen --lock-file {lock_file}" if lock_file else f"tchub pull {names}")
        raise click.exceptions.Exit(1)


def _result_verify(entry: Entry, found: Verification, where: str) -> dict[str, Any]:
    return {
        "name": entry.name,
        "version": entry.version,
        "outcome": found.outcome.value,
        "copy": where,
        "path": str(found.path),
        "expected": found.expected,
        "actual": found.actual,
    }


def _draw_verify(checked: list[tuple[Entry, Verification, str]], console: Console) -> None:
    for entry, found, _ in checked:
        console.print(f"{found.outcome.value} {entry.id}", highlight=False)
