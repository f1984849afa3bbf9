"""Write the catalogue into a folder: `index.html`, a page a checkpoint in `c/`, plots, and `catalogue.json`."""

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ...cards import CardError, Plot, plots_of
from ...zoo.files import StorageError, storing, write_atomically
from ...zoo.plain_json import json_file
from ..registry import Registry
from ..registry.listing import CatalogueItem, in_list_order, published
from .pages import assets, checkpoint_page, index_page

SITE_FORMAT = 1
CATALOGUE = "catalogue.json"
TITLE = "Pretrained cost models"
_CARDS = Path(str(resources.files("tchub.cards")))
# The folders that are the catalogue's own: pages and plots of checkpoints that are no longer listed are removed.
_OWN = ("c/*.html", "plots/*/*.svg")


@dataclass(frozen=True)
class SiteResult:
    """The catalogue in its folder.

    Attributes:
        path: the folder; checkpoints: the names that have a page.
        written: files that are new or changed; removed: files of an earlier catalogue that are gone.
        files: how many there are in all.
    """

    path: Path
    checkpoints: tuple[str, ...]
    written: int
    removed: int
    files: int


def build(registry: Registry, out: Path, title: str = TITLE) -> SiteResult:
    """Write the catalogue of the registry's published checkpoints.

    Equal checkpoints make equal bytes. Each file is replaced whole, `index.html` after the pages that it leads to.
    Hidden files (`.git`, `.nojekyll`) and files of other kinds stay.

    Raises:
        StorageError: the folder holds other files, and no earlier catalogue; or it cannot be written.
        IntegrityError, IndexFileError: a checkpoint's files are damaged (see `listing.published`).
    """
    listed = published(registry)
    with storing(out, "give --out a folder that can be written, on a disk with room; then run it again"):
        _require_own(out)
        files = render(listed, title, out)
        written = sum(_write(out / name, data) for name, data in files.items())
        others = [path for pattern in _OWN for path in out.glob(pattern) if str(path.relative_to(out)) not in files]
        for path in others:
            path.unlink()
    return SiteResult(out, tuple(one.entry.name for one in listed), written, len(others), len(files))


def render(listed: list[CatalogueItem], title: str = TITLE, earlier: Path | None = None) -> dict[str, bytes]:
    """Return all files of the catalogue: path from its folder -> content, `index.html` last.

    Args:
        earlier: a catalogue whose plots are taken over where they show the same figures: drawing takes a while.
    """
    records = {one.entry.name: one.as_dict() for one in listed}
    catalogue = {"format": SITE_FORMAT, "title": title, "checkpoints": list(records.values())}
    files = assets() | {CATALOGUE: json_file(catalogue)}
    for one in listed:
        family = in_list_order(other.entry for other in listed if other.entry.family == one.entry.family)
        try:
            plots = {f"plots/{one.entry.name}/{plot.file}": plot for plot in plots_of(one.metrics)}
        except CardError as error:
            raise CardError(f"{one.entry.id}: {error.message}", remedy=error.remedy, **error.fields) from error
        files |= {path: _drawn(plot, path, earlier) for path, plot in plots.items()}
        files[one.page] = checkpoint_page(title, one, records[one.entry.name], family, plots).encode()
    return files | {"index.html": index_page(title, records, listed).encode()}


def _drawn(plot: Plot, path: str, earlier: Path | None) -> bytes:
    """Return a plot of an earlier catalogue or of the published cards where it is current, or draw it."""
    for folder in filter(None, (earlier, _CARDS)):
        if plot.is_current(folder / path):
            return (folder / path).read_bytes()
    return plot.to_svg().encode()


def _require_own(out: Path) -> None:
    """Refuse a folder with files that are not a catalogue's."""
    if not out.exists() or (out.is_dir() and not [file for file in out.iterdir() if not file.name.startswith(".")]):
        return
    try:
        earlier = json.loads((out / CATALOGUE).read_bytes())
    except (OSError, ValueError, RecursionError):
        earlier = None
    if not (isinstance(earlier, dict) and {"format", "checkpoints"} <= set(earlier)):
        raise StorageError(
            f"{out} holds other files than a catalogue's",
            remedy="give --out a new folder, or an empty one",
            path=str(out),
        )


def _write(path: Path, data: bytes) -> bool:
    """Replace a file whole and return True, unless it is the same already."""
    if path.is_file() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
    return True
