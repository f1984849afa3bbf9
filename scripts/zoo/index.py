"""Write cards, plots and the index of the checkpoints that ship in the wheel; or check that they are up to date.

For every `zoo/checkpoints/<name>/<version>/`: README.md is rendered from config.json and metrics.json,
`cards/<name>.md` is the card of the newest version, `cards/plots/<name>/` holds its plots, and
`hub/registry/index.json` lists sizes and sha256. What only publishing knows (sources, revision, deprecated) is kept
from the index as it is. A listed version whose weights or config changed is refused: versions never change.

Examples:
  python -m scripts.zoo.index
  python -m scripts.zoo.index --check             # CI: exit code 1 when something is out of date
  python -m scripts.zoo.index --replace           # before a release: a version that nobody has yet may change
"""

import dataclasses
import sys
from pathlib import Path

import click
from tchub.cards import draw, plots_of, render_card
from tchub.hub.registry import Entry, Index, Version, describe
from tchub.hub.registry.files import read_json
from tchub.zoo.errors import TchubError

from scripts.benchmarks.common import ROOT, write_text

# Fields of an entry that only publishing knows.
_PUBLISHED = ("sources", "revision", "deprecated")


class ChangedVersionError(TchubError):
    """A version that the index lists has other weights or another config now."""


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when a file is out of date.")
@click.option("--replace", is_flag=True, help="Let a listed version change.")
def main(check: bool, replace: bool) -> None:
    """Write cards, plots and the index of the checkpoints in the wheel."""
    try:
        stale, index = build(ROOT, write=not check, replace=replace)
    except TchubError as error:
        raise click.ClickException(f"{error.message}\nremedy: {error.remedy}") from error
    for entry in index.entries:
        top1 = entry.metrics.get("top1")
        click.echo(f"{entry.id:<32} {entry.size:>10} B  top-1 {'-' if top1 is None else f'{top1:.3f}'}")
    for path in stale:
        click.echo(f"{'out of date' if check else 'written'}: {path}", err=True)
    sys.exit(1 if check and stale else 0)


def build(root: Path, *, write: bool, replace: bool = False) -> tuple[list[str], Index]:
    """Bring cards and index up to date, or with `write=False` only see which files are not.

    Returns:
        The files that were (or are) out of date, relative to `root`, and the index as it should be.
    """
    stale: list[Path] = []

    def put(path: Path, text: str) -> None:
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
            if write:
                write_text(path, text)

    index_path = root / "hub/registry/index.json"
    listed = Index.read(index_path) if index_path.is_file() else Index()
    old = {entry.id: entry for entry in listed.entries}
    paths = [path.parent for path in (root / "zoo/checkpoints").glob("*/*/config.json")]
    folders = sorted(paths, key=lambda path: (path.parent.name, Version.parse(path.name)))
    for folder in folders:
        put(folder / "README.md", _card(folder))
    entries = [_version(folder, old, replace) for folder in folders]
    shipped = {entry.id for entry in entries}
    # What the index lists but the wheel does not hold lives on the Hub, and stays listed.
    remote = [entry for entry in old.values() if entry.id not in shipped and entry.sources]
    index = Index((*entries, *remote), listed.serial)
    if index.to_json() != listed.to_json():
        index = dataclasses.replace(index, serial=listed.serial + 1)
    plots: set[Path] = set()
    for name, folder in {folder.parent.name: folder for folder in folders}.items():  # the newest comes last
        put(root / "cards" / f"{name}.md", _card(folder, f"plots/{name}"))
        metrics, own = read_json(folder / "metrics.json"), root / "cards/plots" / name
        drawn = {own / plot.file: plot for plot in plots_of(metrics)}
        stale += [path for path, plot in drawn.items() if not plot.is_current(path)]
        plots |= drawn.keys()
        if write:
            draw(metrics, own)
    names, here = {entry.name for entry in index.entries}, {folder.parent.name for folder in folders}
    # What belongs to no checkpoint, or not any more.
    gone = [path for path in (root / "cards").glob("*.md") if path.stem not in names]
    every = (root / "cards/plots").glob("*/*")
    gone += [path for path in every if path not in plots and path.parent.name not in names - here]
    for path in gone if write else ():
        path.unlink()
    put(index_path, index.to_json())
    return [str(path.relative_to(root)) for path in (*stale, *sorted(gone))], index


def _card(folder: Path, plots: str = "plots") -> str:
    return render_card(read_json(folder / "config.json"), read_json(folder / "metrics.json"), plots)


def _version(folder: Path, old: dict[str, Entry], replace: bool) -> Entry:
    """The entry of one version, whose card is up to date."""
    name, version = folder.parent.name, folder.name
    listed = old.get(f"{name}@{version}")
    published = {key: listed.as_dict()[key] for key in _PUBLISHED} if listed else {}
    entry = describe(folder, name, version, **published)
    changed = listed.changed_in(entry) if listed else []
    if changed and not replace:
        raise ChangedVersionError(
            f"{entry.id} is listed with another {' and '.join(changed)}; versions never change",
            remedy="save it as a new version, or pass --replace if nobody has this one yet",
            name=entry.id,
            changed=changed,
        )
    return entry


if __name__ == "__main__":
    main()
