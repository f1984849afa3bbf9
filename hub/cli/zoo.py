"""`tchub list`, `info` and `pull`: find, compare, fetch and check checkpoints."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ...zoo.devices import Device, get_device
from .. import api
from ..registry import Entry, PulledCheckpoint, Resolution, listing
from ..registry.entry import METRICS
from ..registry.files import read_json
from ..registry.listing import CatalogueItem
from ..registry.lock_file import LOCK_FILE
from ..text import Column, Part, data_text, number_text, score_text, size_text
from .options import FILE, command
from .output import Output

_SCORES = {key: listing.TITLES[key] for key in METRICS}
_IN_SUMMARY = ("base", "weights_licence", "data", "measured_on", "devices")


@command("list")
@click.option("--search", metavar="TEXT", help="Only checkpoints that match every word, e.g. nvidia.")
@click.option("--family", metavar="F", help="Only checkpoints of this device family, e.g. epyc.")
@click.option("--arch", metavar="A", help="Only checkpoints of this architecture, e.g. tcl.")
@click.option("--kind", type=click.Choice(["cpu", "gpu"]), help="Only checkpoints for this kind of device.")
@click.option("--local", is_flag=True, help="Only checkpoints adapted on this machine.")
@click.option(
    "--sort", default="family", help="Order of the lines; scores of one family compare.",
    type=click.Choice(listing.SORT_KEYS),
)  # fmt: skip
def list_command(
    search: str | None, kind: str | None, sort: str, local: bool, output: Output, **filters: str | None
) -> None:
    """List the checkpoints: published, fetched, and adapted on this machine.

    \b
    Examples:
      tchub list
      tchub list --family epyc
      tchub list --kind gpu --search "turing measured" --sort size
    """
    matching = listing.matching(api.list_checkpoints(local=local, **filters), search or "", kind)
    entries = listing.in_list_order(matching, sort)
    output.data([listing.listing(entry) for entry in entries], _list(entries))
    if not entries:
        filtered = search or kind or local or any(filters.values())
        output.note("no checkpoint matches" if filtered else "the index is empty")
        return
    if sort in _SCORES and len({entry.family for entry in entries}) > 1:
        output.note("each family was judged on test programs of its own: scores of different families do not compare")
    names = {entry.name for entry in entries}
    pull = f"tchub pull {names.pop()}" if len(names) == 1 else "tchub pull"
    output.hint(f"tchub info {entries[-1].name}" if local else pull)


def _list(entries: Sequence[Entry]) -> Iterator[Part]:
    """Show the table; a narrow terminal gets the columns by which one chooses."""
    scores = (
        Column(title, [score_text(e.metrics.get(key)) for e in entries], True, leaves=9 if key == "top5" else None)
        for key, title in _SCORES.items()
    )
    yield [
        Column("name", [e.name for e in entries]),
        Column("version", [e.version + (" (deprecated)" if e.deprecated else "") for e in entries], leaves=7),
        Column("arch", [e.arch for e in entries], leaves=5),
        Column("features", [e.feature_schema for e in entries], leaves=3),
        Column("device", [e.family for e in entries]),
        Column("origin", [e.origin or "" for e in entries], leaves=8),
        Column("parameters", [number_text(e.parameters) for e in entries], True, leaves=4),
        Column("size", [size_text(e.size) for e in entries], True, leaves=6),
        *scores,
        Column("data", [data_text(e.data, device=False) for e in entries], leaves=2),
        Column("licence", [f"{e.weights_licence}, data {e.data_licence}" for e in entries], leaves=1),
    ]


@command("info")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--card", is_flag=True, help="Print the whole model card (Markdown).")
def info_command(names: tuple[str, ...], card: bool, output: Output) -> None:
    """Show a checkpoint: its card's summary, scores beside baselines, files with sha256, and lineage.

    Two to four names are shown side by side; as JSON they are a list.

    \b
    Examples:
      tchub info tcl-epyc
      tchub info tcl-epyc --card
      tchub info tcl-epyc tilenet-epyc tenset-mlp-epyc
    """
    if len(names) > 4 or (card and len(names) > 1):
        raise click.UsageError("one checkpoint has its card shown, and up to four are compared")
    infos = [api.describe_checkpoint(name) for name in names]
    for info in infos:
        if info.path is None:
            output.note(f"{info.entry.id} is not on this machine; this is what the index says")
    if len(infos) > 1:
        _compare(infos, output)
        return
    info, name, entry = infos[0], next(iter(names)), infos[0].entry
    result = entry.as_dict() | {key: getattr(entry, key) for key in ("size", "origin", "measured_on")}
    result |= {"path": info.path, "results": info.metrics.get("results", {})} | ({"card": info.card} if card else {})
    output.data(result, info.card if card else _info(info))
    output.hint(next_step(entry, name) if info.path else f"tchub pull {name}")


def _info(info: CatalogueItem) -> Iterator[Part]:
    from .train import devices_table

    entry = info.entry
    yield from _summary(entry, info.metrics)
    yield from devices_table(info.metrics.get("devices"))
    files = sorted(entry.files.items())
    yield [
        Column("  file", [f"  {name}" for name, _ in files]),
        Column("size", [size_text(record.size) for _, record in files], True, leaves=1),
        Column("sha256", [record.sha256 for _, record in files], wraps=True),
    ]
    lineage = {key: value for key, value in entry.lineage.items() if key not in _IN_SUMMARY and value}
    yield {f"  {key}": "; ".join(_texts(value)) for key, value in lineage.items()}


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"{key}: {one}" for key, one in value.items()]
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def _compare(infos: Sequence[CatalogueItem], output: Output) -> None:
    """Print checkpoints as columns; as JSON, a list of what the catalogue holds of each."""
    records = [listing.record(info.entry, info.metrics) for info in infos]
    titles, *columns = zip(*_comparison(records), strict=True)
    names = [f"{one['name']} {one['version']}" for one in records]
    cells = (Column(name, texts, wraps=True, least=12) for name, texts in zip(names, columns, strict=True))
    output.data(records, [[Column("", titles), *cells]])
    if not listing.comparable(records):
        output.note("these were judged on different test programs: their scores cannot be held against each other")


def _comparison(records: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for key, title in listing.TITLES.items():
        if any(one["scores"][key] is not None for one in records):
            yield title, *(_score(one, key) for one in records)
    yield "judged on", *(one["judged_on"] or "-" for one in records)
    for label in dict.fromkeys(label for one in records for label in one["facts"]):
        yield label, *(one["facts"].get(label, "-") for one in records)


def _score(one: dict[str, Any], key: str) -> str:
    seeds = one["seeds"].get(key)
    spread = f" ({one['seeds']['count']} seeds: {seeds['mean']:.3f} ± {seeds['stdev']:.3f})" if seeds else ""
    return score_text(one["scores"][key]) + spread


def _summary(entry: Entry, metrics: Mapping[str, Any]) -> Iterator[Part]:
    """Show the name, the facts and the scores, beside the baselines where metrics.json is there."""
    yield f"{entry.name} {entry.version}"
    yield {f"  {name}": fact for name, fact in listing.facts(entry).items()}
    run = listing.metrics_of(metrics)
    lines = listing.results_of(entry, run)
    yield [
        Column(f"  {run.split or 'held-out'} split", [f"  {line['label']}" for line in lines], least=16),
        *(Column(title, [score_text(line[key]) for line in lines], True) for key, title in _SCORES.items()),
    ]


def next_step(entry: Entry, name: str) -> str:
    """Return the command that comes after a checkpoint is here.

    Args:
        entry: the checkpoint; a CPU's programs are measured here, those of a GPU in a bundle on its machine.
        name: as it was given; a family leads somewhere else tomorrow.
    """
    called = entry.id if "@" in name else entry.name
    if listing.kind_of(entry) == "gpu":
        return f"tchub bundle --workload bert-tiny --target DEVICE --checkpoint {called} --out bundle.zip"
    return f"tchub adapt {called} --device local --budget 10%"


@command("pull")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--device", metavar="D", help="Choose for local, or for a name of `tchub devices`. [default: local]")
@click.option(
    "--source", metavar="S", help="Only this source: bundled, file:///folder, https://host/folder or hf://org/name."
)
@click.option("--offline", is_flag=True, help="Use no network: the wheel, folders and the Hub's cache only.")
@click.option("--dry-run", is_flag=True, help="Fetch nothing; show the choice, and why every other one is passed over.")
@click.option("--verify", is_flag=True, help="Fetch nothing; check the files on this machine, of all without a NAME.")
@click.option("--lock", is_flag=True, help="Pin what is pulled in the lock file; without a NAME, renew its pins.")
@click.option("--frozen", is_flag=True, help="Pull exactly what the lock file pins; without a NAME, all of it.")
@click.option("--lock-file", type=FILE, metavar="PATH", help="[default: tchub.lock]")
def pull_command(
    names: tuple[str, ...], device: str | None, dry_run: bool, verify: bool, lock: bool, frozen: bool,
    lock_file: Path | None, output: Output, **how: Any,
) -> None:  # fmt: skip
    """Fetch checkpoints into this machine's store and verify their sha256.

    NAME is arch-family or arch-family@X.Y.Z, or a device family for the best checkpoint of it; without it, the
    checkpoint that fits this device best is chosen. Sources are tried in this order: the wheel, those in
    TCHUB_SOURCES, those that the index lists. A download can be repeated safely: a checkpoint appears whole or not at
    all. --verify ends with exit code 1 unless every outcome is ok. `--json` prints an object for one NAME, and a list
    for several or for a lock file's all.

    \b
    Examples:
      tchub pull tcl-epyc
      tchub pull --device graviton2 --dry-run   # which one fits, and why not the others
      tchub pull tcl-epyc tilenet-t4 --lock     # writes tchub.lock
      tchub pull --frozen                       # the same files, anywhere and at any time
      tchub pull --verify
    """
    if sum((lock, frozen, dry_run)) > 1 or (verify and (lock or dry_run)):
        raise click.UsageError("give one of --lock, --frozen, --dry-run; --verify goes with --frozen alone")
    if lock_file and not (lock or frozen):
        raise click.UsageError("--lock-file needs --lock, to change it, or --frozen, to follow it")
    if device and (len(names) > 1 or lock or frozen or verify):
        raise click.UsageError("--device chooses one checkpoint: give it with at most one NAME and without a lock file")
    lock_file = lock_file or Path(LOCK_FILE)
    if dry_run:
        _explain_choice(names, device, output)
    elif verify:
        _verify(names, lock_file if frozen else None, output)
    else:
        if lock or frozen:
            pulled = (api.pull_and_pin if lock else api.pull_pinned)(names, lock=lock_file, **how)
        else:
            pulled = [api.pull(name, device=_device(device), **how) for name in names or [None]]
        single = len(names) == 1 or not (names or lock or frozen)
        _show_pulled(pulled, names[0] if single and names else "", single, output)
        if lock:
            output.note(f"{len(pulled)} pinned in {lock_file}")


def _show_pulled(pulled: list[PulledCheckpoint], name: str, single: bool, output: Output) -> None:
    results = [_pull_json(one) for one in pulled]
    parts = (part for one in pulled for part in _summary(one.entry, read_json(one.path / "metrics.json")))
    output.data(results[0] if single else results, parts)
    for one in pulled:
        entry, (chosen, *others) = one.entry, one.resolution.verdicts or (None,)
        if chosen is not None and others:
            output.note(f"chosen: {entry.id}: {chosen.reason}")
        for verdict in others:
            output.note(f"passed over: {verdict.id}: {verdict.passed_over}")
        came = "already here" if one.source == "store" else f"from {one.source}"
        output.note(f"{entry.id} {came}, sha256 verified, in {one.path}")
    if pulled:
        output.hint(next_step(pulled[0].entry, name))


def _choice_json(resolution: Resolution) -> dict[str, Any]:
    choice = {"name": resolution.entry.name, "version": resolution.entry.version}
    return choice | {"warnings": resolution.warnings, "verdicts": resolution.verdicts}


def _pull_json(pulled: PulledCheckpoint) -> dict[str, Any]:
    entry = pulled.entry
    return _choice_json(pulled.resolution) | {
        "path": pulled.path,
        "source": pulled.source,
        "verified": "ok",
        "files": {file: record.sha256 for file, record in entry.files.items()},
        "summary": listing.facts(entry),
        "metrics": dict(entry.metrics),
    }


def _device(text: str | None) -> Device | None:
    """Return the device of a name; None for this machine, which is detected only where the choice needs it."""
    return None if text in (None, "local") else get_device(text)


def _explain_choice(names: tuple[str, ...], device: str | None, output: Output) -> None:
    """Show which checkpoint `pull`, `load` and `adapt` would take, and why every other one is passed over."""
    if len(names) > 1:
        raise click.UsageError("--dry-run explains one choice: give one NAME, or none")
    resolution = api.resolve(*names, device=_device(device))
    name = resolution.entry.id
    output.data(_choice_json(resolution), name if output.mode == "quiet" else _choice(resolution))
    output.hint(f"tchub pull {name}")


def _choice(resolution: Resolution) -> Iterator[Part]:
    chosen, *others = resolution.verdicts
    yield resolution.entry.id
    yield {"": chosen.reason}
    if others:
        measured = [verdict.measured for verdict in others]
        yield [
            Column("passed over", [verdict.id for verdict in others]),
            Column("rank", ["-" if v.rank is None else str(v.rank) for v in others], True, leaves=2),
            Column("spec sheets", ["-" if v.gap is None else f"{2**v.gap:.2g}x" for v in others], True, leaves=1),
            Column("top-1", [score_text(m and m.top1) for m in measured], True, leaves=3),
            Column("pairwise", [score_text(m and m.pairwise) for m in measured], True, leaves=4),
            Column("why", [verdict.passed_over for verdict in others], wraps=True, least=40),
        ]


def _verify(names: tuple[str, ...], lock: Path | None, output: Output) -> None:
    """Check size and sha256 of files on this machine; exit code 1 unless every outcome is ok."""
    checked = api.verify(names, lock=lock)
    results = [
        {"name": entry.name, "version": entry.version, "copy": where} | vars(check) for entry, check, where in checked
    ]
    lines = (f"{check.outcome.value} {entry.id}" for entry, check, _ in checked)
    output.data(results[0] if len(names) == 1 else results, lines)
    for entry, check, _ in checked:
        output.note(f"{len(entry.files)} files checked in {check.path}" if check.ok else check.message)
    if bad := [entry.id for entry, check, _ in checked if not check.ok]:
        output.hint(f"tchub pull --frozen --lock-file {lock}" if lock else f"tchub pull {' '.join(bad)}")
        raise click.exceptions.Exit(1)
