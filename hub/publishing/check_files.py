"""Questions about a checkpoint's files: which there are, whether they load, what they are called."""

from __future__ import annotations

import stat
from pathlib import Path

from ...cards.plots import plots_of
from ...zoo.devices import UnknownDeviceError, get_device
from ...zoo.devices.device import Device
from ..registry.entry import LASTING_FILES, OPTIONAL_FILES, RECORD
from ..registry.files import CONFIG_FILE, WEIGHTS_FILE, records_of
from ..registry.names import KINDS, CheckpointName
from .findings import Finding, failed, passed
from .subject import MAX_TEXT_BYTES, Subject

# What a file that is said to be text, or a file of tensors, begins with when it is something else.
_DISGUISES = {b"\x80": "a pickle", b"PK": "a zip archive", b"\x1f\x8b": "a gzip archive", b"\x7fELF": "a program"}
# What the store or the Hub's client keeps beside a checkpoint is never published.
_BESIDE = (RECORD, ".cache")
PLOTS = "plots"
_FOLDER_REMEDY = "make a folder of these files alone: tchub contribute does"


def check_files(subject: Subject) -> Finding:
    """Config, one file of weights, metrics, card and plots, and nothing else; plain files that are what they say."""
    try:
        found = {path.name: path for path in subject.folder.iterdir() if path.name not in _BESIDE}
    except OSError as error:
        return failed("files", f"{subject.folder}: {error.strerror}", "give the folder of a checkpoint")
    plots = found.pop(PLOTS, None)
    weights = [name for name in (WEIGHTS_FILE,) if name in found]
    wanted = (CONFIG_FILE, *OPTIONAL_FILES)
    problems = [f"{name} is missing" for name in wanted if name not in found]
    problems += [f"{len(weights)} files of weights, not one"] if len(weights) != 1 else []
    problems += [f"{name} does not belong to it" for name in sorted(set(found) - {*wanted, *weights})]
    problems += [f"{name} {wrong}" for name in (*wanted, *weights) if name in found and (wrong := _wrong(found[name]))]
    problems += _wrong_plots(subject, plots) if plots is not None else []
    if problems:
        return failed("files", "; ".join(problems), _FOLDER_REMEDY)
    size = sum(path.stat().st_size for path in found.values())
    drawn = f", and {len(list(plots.iterdir()))} plots" if plots else ""
    return passed("files", f"{len(found)} plain files, {size:,} bytes{drawn}")


def _wrong_plots(subject: Subject, folder: Path) -> list[str]:
    """What is in the folder of plots and was not drawn from metrics.json."""
    if folder.is_symlink() or not folder.is_dir():
        return [f"{folder.name} is no folder"]
    drawn = {plot.file: plot for plot in plots_of(subject.metrics)}
    problems = []
    for path in sorted(folder.iterdir()):
        if wrong := _wrong(path):
            problems.append(f"{PLOTS}/{path.name} {wrong}")
        elif path.name not in drawn or not drawn[path.name].is_current(path):
            problems.append(f"{PLOTS}/{path.name} is not drawn from these metrics")
    return problems


def _wrong(path: Path) -> str | None:
    """What is wrong with a file that may be here; None when nothing is."""
    info = path.lstat()
    if not stat.S_ISREG(info.st_mode):
        return "is a link or a folder, not a plain file"
    with path.open("rb") as file:
        head = file.read(16)
    for magic, what in _DISGUISES.items():
        if head.startswith(magic) and not _is_tensors(path, head, info.st_size):
            return f"is {what} in disguise"
    if path.suffix == ".safetensors":
        return None if _is_tensors(path, head, info.st_size) else "is no safetensors file"
    return _wrong_text(path, info.st_size)


def _is_tensors(path: Path, head: bytes, size: int) -> bool:
    """Whether a file begins like safetensors: the length of a header that fits into it, and a JSON object."""
    return path.suffix == ".safetensors" and head[8:9] == b"{" and int.from_bytes(head[:8], "little") + 8 <= size


def _wrong_text(path: Path, size: int) -> str | None:
    if path.name != WEIGHTS_FILE and size > MAX_TEXT_BYTES:
        return f"is larger than {MAX_TEXT_BYTES >> 20} MiB"
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError:
        return "is no text"
    return "is no text" if "\0" in text else None


def check_weights(subject: Subject) -> Finding:
    """Both phases of loading: the audit of config and header, then the model with its finite weights."""
    model = subject.checkpoint.model
    return passed("weights", f"{subject.config['arch']} loads: {model.parameter_count():,} finite parameters")


def check_name(subject: Subject) -> Finding:
    """`arch-family` of the config's own architecture and family, and a semantic version."""
    config = subject.config
    parsed = CheckpointName.parse(f"{config.get('name')}@{config.get('version')}")
    if parsed.variant:
        remedy = f"save it as {config.get('arch')}-{config.get('family')}, with a version that nobody has"
        return failed("name", f"{parsed.name} is a name of checkpoints adapted on one machine", remedy)
    arch, family = str(config.get("arch")), str(config.get("family"))
    rest = parsed.name.removeprefix(f"{arch}-")
    if rest == parsed.name or _family_of(rest) != family:
        remedy = f"call it {arch}-{family}"
        return failed("name", f"{parsed.name} is no name for {arch} and the family {family}", remedy)
    return passed("name", str(parsed))


def _family_of(word: str) -> str:
    """The family that a name's second part says: itself, or that of a device's name or alias."""
    try:
        return word if word in KINDS else get_device(word).family
    except UnknownDeviceError:
        return word


def check_version(subject: Subject) -> Finding:
    """No published version of this name has other weights or another config."""
    name, version = str(subject.config.get("name")), str(subject.config.get("version"))
    listed = [entry for entry in subject.index.entries if entry.name == name]
    same = next((entry for entry in listed if entry.version == version), None)
    if same is None:
        newest = max((entry.semver for entry in listed), default=None)
        return passed("version", f"{version} is new" + (f", after {newest}" if newest else f"; so is {name}"))
    now = records_of(subject.folder, LASTING_FILES)
    changed = [file for file in LASTING_FILES if now[file] != same.files[file]]
    if not changed:
        return passed("version", f"{same.id} is published with these very files")
    further = max(entry.semver for entry in listed).next_minor()
    detail = f"{same.id} is published with another {' and '.join(changed)}; versions never change"
    return failed("version", detail, f"save it as {further}")


def check_device(subject: Subject) -> Finding:
    """The family is one of the zoo's, and the spec sheet that the model reads is whole."""
    family, own = str(subject.config.get("family")), subject.config.get("device")
    if family in KINDS:
        return passed("device", f"a knowledge base of {family.upper()}s")
    try:
        known = get_device(family)
    except UnknownDeviceError as error:
        return failed("device", error.message, "add its spec sheet first: CONTRIBUTING, 'Adding a device'")
    device = known if own is None else Device.from_dict(own, CONFIG_FILE)
    if device.family != known.family and not subject.lineage.get("stand_in"):
        detail = f"the family is {family}, but the spec sheet is that of {device.name}"
        return failed("device", detail, "say in lineage.stand_in why that device stands in, or correct the family")
    return passed("device", f"{device.name} ({device.title})")
