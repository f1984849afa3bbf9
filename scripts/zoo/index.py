#!/usr/bin/env python3
"""Write cards, plots and the index of the checkpoints that ship in the wheel; or check that they are up to date.

For every `zoo/checkpoints/<name>/<version>/`: README.md is rendered from config.json and metrics.json,
`cards/<name>.md` is the card of the newest version, `cards/plots/<name>/` holds its plots, and
`hub/registry/index.json` lists sizes and sha256. What only publishing knows (sources, revision, deprecated) is kept
from the index as it is. A listed version whose weights or config changed is refused: versions never change.

Examples:
  scripts/zoo/index.py
  scripts/zoo/index.py --check --json      # CI: exit code 1 when something is out of date
  scripts/zoo/index.py --replace           # before a release: a version that nobody has yet may change
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from tchub.cards import draw, plots_of, render_card
from tchub.hub.registry import Entry, Index, Version, describe
from tchub.hub.registry.entry import LASTING_FILES
from tchub.hub.registry.files import read_json
from tchub.zoo.errors import TchubError
from tchub.zoo.files import write_atomically

ROOT = Path(__file__).resolve().parents[2]
# Fields of an entry that only publishing knows.
_PUBLISHED = ("sources", "revision", "deprecated")


class ChangedVersionError(TchubError):
    """A version that the index lists has other weights or another config now."""


def main(argv: list[str] | None = None) -> int:
    """Run the program; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is out of date")
    parser.add_argument("--replace", action="store_true", help="let a listed version change")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    args = parser.parse_args(argv)
    try:
        stale, index = build(args.root, write=not args.check, replace=args.replace)
    except TchubError as error:
        print(f"error: {error.message}\nremedy: {error.remedy}", file=sys.stderr)
        return 1
    report(index, stale, args.json, "out of date" if args.check else "written")
    return 1 if args.check and stale else 0


def build(root: Path, *, write: bool, replace: bool = False) -> tuple[list[str], Index]:
    """Bring cards and index up to date, or with `write=False` only see which files are not.

    Returns:
        The files that were (or are) out of date, relative to `root`, and the index as it should be.
    """
    index_path = root / "hub/registry/index.json"
    listed = Index.read(index_path) if index_path.is_file() else Index()
    old = {entry.id: entry for entry in listed.entries}
    stale: list[str] = []
    entries = [_version(folder, old, stale, root, write, replace) for folder in _folders(root)]
    shipped = {entry.id for entry in entries}
    # What the index lists but the wheel does not hold lives on the Hub, and stays listed.
    remote = [entry for entry in old.values() if entry.id not in shipped and entry.sources]
    index = Index((*entries, *remote), listed.serial, listed.aliases)
    if index.to_json() != listed.to_json():
        index = dataclasses.replace(index, serial=listed.serial + 1)
    for name in sorted({entry.name for entry in entries}):
        newest = max((e for e in entries if e.name == name), key=lambda entry: entry.semver)
        folder = _folder(root, newest)
        _put(root / "cards" / f"{name}.md", _card(folder, f"plots/{name}"), stale, root, write)
        _draw(folder, root / "cards/plots" / name, stale, root, write)
    stale += _orphans(root, {entry.name for entry in index.entries}, write)
    _put(index_path, index.to_json(), stale, root, write)
    return stale, index


def _folders(root: Path) -> list[Path]:
    paths = [path.parent for path in (root / "zoo/checkpoints").glob("*/*/config.json")]
    return sorted(paths, key=lambda path: (path.parent.name, Version.parse(path.name)))


def _folder(root: Path, entry: Entry) -> Path:
    return root / "zoo/checkpoints" / entry.name / entry.version


def _card(folder: Path, plots: str = "plots") -> str:
    return render_card(read_json(folder / "config.json"), read_json(folder / "metrics.json"), plots)


def _draw(folder: Path, to: Path, stale: list[str], root: Path, write: bool) -> None:
    """Plots that are out of date, and files beside them that are no plot of the checkpoint (any more)."""
    metrics = read_json(folder / "metrics.json")
    plots = {plot.file: plot for plot in plots_of(metrics)}
    stale += [str((to / file).relative_to(root)) for file, plot in plots.items() if not plot.is_current(to / file)]
    for path in sorted(to.glob("*")):
        if path.name not in plots:
            stale.append(str(path.relative_to(root)))
            if write:
                path.unlink()
    if write:
        draw(metrics, to)


def _orphans(root: Path, names: set[str], write: bool) -> list[str]:
    """Cards and plots of checkpoints that are not there."""
    cards = [path for path in (root / "cards").glob("*.md") if path.stem not in names]
    found = cards + [path for path in (root / "cards/plots").glob("*/*") if path.parent.name not in names]
    for path in found if write else ():
        path.unlink()
    return sorted(str(path.relative_to(root)) for path in found)


def _version(folder: Path, old: dict[str, Entry], stale: list[str], root: Path, write: bool, replace: bool) -> Entry:
    """The entry of one version, after its card is up to date."""
    _put(folder / "README.md", _card(folder), stale, root, write)
    name, version = folder.parent.name, folder.name
    listed = old.get(f"{name}@{version}")
    kept = {key: listed.as_dict()[key] for key in _PUBLISHED} if listed else {}
    entry = describe(folder, name, version, **kept)
    changed = [file for file in LASTING_FILES if listed and listed.files.get(file) != entry.files[file]]
    if changed and not replace:
        raise ChangedVersionError(
            f"{entry.id} is listed with another {' and '.join(changed)}; versions never change",
            remedy="save it as a new version, or pass --replace if nobody has this one yet",
            name=entry.id,
            changed=changed,
        )
    return entry


def _put(path: Path, text: str, stale: list[str], root: Path, write: bool) -> None:
    """Write a file that differs, and remember that it did."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    stale.append(str(path.relative_to(root)))
    if write:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())


def report(index: Index, stale: list[str], as_json: bool, what: str) -> None:
    """Print a table, or JSON."""
    if as_json:
        print(json.dumps({"checkpoints": [entry.id for entry in index.entries], "stale": stale}, indent=2))
        return
    for entry in index.entries:
        top1 = entry.metrics.get("top1")
        print(f"{entry.id:<32} {entry.size:>10} B  top-1 {'-' if top1 is None else f'{top1:.3f}'}")
    for path in stale:
        print(f"{what}: {path}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
