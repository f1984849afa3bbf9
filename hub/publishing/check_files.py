"""The questions of a check that a checkpoint's folder alone answers: files, weights, names, device, facts, card.

A question returns the fact behind its yes, or raises a `TchubError`; one with the reason `open` was not answered.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from ...cards import MISSING, CardData, check_card, missing, plots_of
from ...zoo.devices import Device, UnknownDeviceError, get_device, known_device
from ...zoo.untrusted import read_plain
from ..registry.entry import KINDS, NEEDED_FILES, RECORD, CheckpointName, as_object
from ..registry.files import CARD_FILE, CONFIG_FILE, METRICS_FILE, SCHEDULES_FILE, WEIGHTS_FILE, read_json, records_of
from ..registry.index import Index
from .errors import PublishError

if TYPE_CHECKING:
    from ...zoo.corpus import Corpus
    from ...zoo.models import Checkpoint

TOLERANCE = 0.002
MAX_TEXT_BYTES = 4 << 20
PLOTS = "plots"
CHECKPOINT_FILES = (CONFIG_FILE, WEIGHTS_FILE, METRICS_FILE, CARD_FILE)
# The first bytes of a file that only pretends to be text or tensors.
_DISGUISES = {b"\x80": "a pickle", b"PK": "a zip archive", b"\x1f\x8b": "a gzip archive", b"\x7fELF": "a program"}
# Files of the store or of the Hub's client beside a checkpoint are never published.
_BESIDE = (RECORD, ".cache")
_SHOWN = 4
_RENDER = "write README.md again from config.json and metrics.json: tchub contribute does"


@dataclass(frozen=True)
class CheckSubject:
    """One checkpoint, and what it is checked against. Files are read when a question first needs them.

    Attributes:
        corpora: measured programs at hand, by their folders' names.
    """

    folder: Path
    index: Index
    corpora: dict[str, Corpus] = field(default_factory=dict)
    threads: int = 1
    note: Callable[[str], None] = lambda _: None

    @cached_property
    def config(self) -> dict[str, Any]:
        return read_json(self.folder / CONFIG_FILE)

    @cached_property
    def metrics(self) -> dict[str, Any]:
        return read_json(self.folder / METRICS_FILE)

    @cached_property
    def card(self) -> CardData:
        return CardData.from_files(self.config, self.metrics)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        from ...zoo.models import Checkpoint

        return Checkpoint.load(self.folder)

    def require_corpora(self, names: Sequence[str]) -> None:
        """Leave a question open where a corpus is not at hand."""
        if absent := [name for name in dict.fromkeys(names) if name not in self.corpora]:
            options = " ".join(f"--corpus DIR/{name}" for name in absent)
            raise open_question(f"needs the corpus {', '.join(absent)}", f"give {options}, or --no-evaluate")


def failed(detail: str, remedy: str) -> PublishError:
    """Return the error of a question whose answer forbids publishing."""
    return PublishError(detail, reason="check", remedy=remedy)


def open_question(detail: str, remedy: str) -> PublishError:
    """Return the error of a question that could not be answered."""
    return PublishError(detail, reason="open", remedy=remedy)


def check_files(subject: CheckSubject) -> str:
    """Check for config, weights, metrics, card and plots, and nothing else: plain files that are what they seem."""
    try:
        present = {path.name: path for path in subject.folder.iterdir() if path.name not in _BESIDE}
    except OSError as error:
        raise failed(f"{subject.folder}: {error.strerror}", "give the folder of a checkpoint") from error
    plots = present.pop(PLOTS, None)
    problems = [f"{name} is missing" for name in CHECKPOINT_FILES if name not in present]
    known = (*CHECKPOINT_FILES, SCHEDULES_FILE)
    problems += [f"{name} does not belong to it" for name in sorted(set(present) - set(known))]
    for name in known:
        if name in present and (fault := _fault(present[name])):
            problems.append(f"{name} {fault}")
    problems += _wrong_plots(subject, plots) if plots is not None else []
    if problems:
        raise failed("; ".join(problems), "make a folder of these files alone: tchub contribute does")
    size = sum(path.stat().st_size for path in present.values())
    drawn = f", and {len(list(plots.iterdir()))} plots" if plots else ""
    return f"{len(present)} plain files, {size:,} bytes{drawn}"


def _wrong_plots(subject: CheckSubject, folder: Path) -> list[str]:
    """Return the faults of the plots' folder: files that were not drawn from metrics.json."""
    if folder.is_symlink() or not folder.is_dir():
        return [f"{folder.name} is no folder"]
    drawn = {plot.file: plot for plot in plots_of(subject.metrics)}
    problems = []
    for path in sorted(folder.iterdir()):
        if fault := _fault(path):
            problems.append(f"{PLOTS}/{path.name} {fault}")
        elif path.name not in drawn or not drawn[path.name].is_current(path):
            problems.append(f"{PLOTS}/{path.name} is not drawn from these metrics")
    return problems


def _fault(path: Path) -> str | None:
    """Return the fault of a file that may be here; None for a good one."""
    info = path.lstat()
    if not stat.S_ISREG(info.st_mode):
        return "is a link or a folder, not a plain file"
    with path.open("rb") as file:
        head = file.read(16)
    # Tensors begin with the length of a header that fits into the file, and a JSON object.
    tensors = path.suffix == ".safetensors" and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < info.st_size
    if tensors:
        return None
    if disguised := [content for magic, content in _DISGUISES.items() if head.startswith(magic)]:
        return f"is {disguised[0]} in disguise"
    if path.suffix == ".safetensors":
        return "is no safetensors file"
    if info.st_size > MAX_TEXT_BYTES:
        return f"is larger than {MAX_TEXT_BYTES >> 20} MiB"
    try:
        return "is no text" if "\0" in path.read_bytes().decode() else None
    except UnicodeDecodeError:
        return "is no text"


def check_weights(subject: CheckSubject) -> str:
    """Check both phases of loading: the audit of config and header, then the model with its finite weights.

    The schedules that it brings have to load, too.
    """
    model, path = subject.checkpoint.model, subject.folder / SCHEDULES_FILE
    fact = f"{subject.config['arch']} loads: {model.parameter_count():,} finite parameters"
    claimed, held = as_object(subject.config.get("lineage")).get("schedules"), None
    if path.is_file():
        from ..search.schedules import read_schedules

        held = max(map(len, read_schedules(path).values()), default=0)
        fact += f"; schedules of {held} tasks"
    if claimed != held:
        detail = f"config.json says that it brings schedules of {claimed} tasks, and {SCHEDULES_FILE} holds {held}"
        raise failed(detail, "train it again with `tchub train`, which writes both")
    return fact


def check_name(subject: CheckSubject) -> str:
    """Check the name: the config's own architecture and family, and a semantic version."""
    config = subject.config
    parsed = CheckpointName.parse(f"{config.get('name')}@{config.get('version')}")
    if parsed.variant:
        remedy = f"save it as {config.get('arch')}-{config.get('family')}, with a version that nobody has"
        raise failed(f"{parsed.name} is a name of checkpoints adapted on one machine", remedy)
    arch, family = str(config.get("arch")), str(config.get("family"))
    rest = parsed.name.removeprefix(f"{arch}-")
    if rest not in KINDS and (known := known_device(rest)):  # the name or an alias of a device stands for its family
        rest = known.family
    if not parsed.name.startswith(f"{arch}-") or rest != family:
        remedy = f"call it {arch}-{family}"
        raise failed(f"{parsed.name} is no name for {arch} and the family {family}", remedy)
    return str(parsed)


def check_version(subject: CheckSubject) -> str:
    """Check that no published version of this name has other weights or another config."""
    name, version = str(subject.config.get("name")), str(subject.config.get("version"))
    listed = [entry for entry in subject.index.entries if entry.name == name]
    same = next((entry for entry in listed if entry.version == version), None)
    if same is None:
        newest = max((entry.semver for entry in listed), default=None)
        return f"{version} is new" + (f", after {newest}" if newest else f"; so is {name}")
    brought = (SCHEDULES_FILE,) if (subject.folder / SCHEDULES_FILE).is_file() else ()
    now = records_of(subject.folder, (*NEEDED_FILES, *brought))
    changed = replace(same, files=now).changed_in(same)
    if not changed:
        return f"{same.id} is published with these very files"
    further = max(entry.semver for entry in listed).next_minor()
    detail = f"{same.id} is published with another {' and '.join(changed)}; versions never change"
    raise failed(detail, f"save it as {further}")


def check_device(subject: CheckSubject) -> str:
    """Check that the family is one of the zoo's, and that the spec sheet that the model reads is whole."""
    family, own = str(subject.config.get("family")), subject.config.get("device")
    if family in KINDS:
        return f"a knowledge base of {family.upper()}s"
    try:
        known = get_device(family)
    except UnknownDeviceError as error:
        raise failed(error.message, "add its spec sheet first: CONTRIBUTING, 'Adding a device'") from error
    device = known if own is None else Device.from_dict(own, CONFIG_FILE)
    if device.family != known.family and not as_object(subject.config.get("lineage")).get("stand_in"):
        detail = f"the family is {family}, but the spec sheet is that of {device.name}"
        raise failed(detail, "say in lineage.stand_in why that device stands in, or correct the family")
    return f"{device.name} ({device.title})"


def check_facts(subject: CheckSubject) -> str:
    """Check that every fact that a card needs is in the files."""
    if lacking := missing(subject.card):
        raise failed(f"missing: {_shortened(lacking)}", "add what is missing; tchub contribute asks for it")
    return "every fact that a card needs is in config.json and metrics.json"


def check_text(subject: CheckSubject) -> str:
    """Check that README.md is the card of the files, with nothing left to fill in."""
    try:
        text = read_plain(subject.folder / CARD_FILE, MAX_TEXT_BYTES).decode()
    except (OSError, ValueError) as error:
        raise failed(f"{CARD_FILE} cannot be read: {error}", _RENDER) from error
    if gaps := [line.strip() for line in text.splitlines() if MISSING in line]:
        raise failed(f"{len(gaps)} facts are missing, first in: {gaps[0]}", _RENDER)
    if differing := check_card(text, subject.config, subject.metrics):
        raise failed(f"{len(differing)} lines differ from the files, first: {differing[0]}", _RENDER)
    return "README.md agrees with config.json and metrics.json"


def check_licences(subject: CheckSubject) -> str:
    """Check that weights have an SPDX licence, and every corpus one, or the words that none was found."""
    weights, corpora = subject.card.config.lineage.weights_licence, subject.card.config.corpora
    problems = [] if is_spdx(weights) else [f"weights: {weights or 'none given'}"]
    unknown = [corpus for corpus in corpora if not (corpus.unlicensed or is_spdx(corpus.licence))]
    problems += [f"{corpus.name}: {corpus.licence or 'none given'}" for corpus in unknown]
    problems += [] if corpora else ["data: no corpus is named"]
    if problems:
        remedy = "give an SPDX identifier such as Apache-2.0 (https://spdx.org/licenses), for data also `none found`"
        raise failed(f"no licence: {_shortened(problems)}", remedy)
    return f"weights {weights}; data {', '.join(subject.card.licences)}"


def is_spdx(text: str | None) -> bool:
    """Return whether a text is a licence expression of SPDX identifiers."""
    try:
        return bool(canonicalize_license_expression(text or ""))
    except InvalidLicenseExpression:
        return False


def _shortened(items: Sequence[str]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more
