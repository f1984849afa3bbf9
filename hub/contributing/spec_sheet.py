"""Step: has the device a spec sheet? Without one no model can be told what it runs on, and nobody finds the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.devices import Device, UnknownDeviceError, get_device
from ...zoo.devices.registry import read_family
from ...zoo.models.files import write_folder
from ...zoo.plain_json import json_file
from .errors import NoSpecSheetError
from .step import Done, Walk

if TYPE_CHECKING:
    from ..device.detect import LocalDevice

TEMPLATE = "device.json"
FILL_IN = "FILL IN"


class SpecSheet:
    """The device of the programs is one of the zoo's; for another one a template of its sheet is written."""

    name = "device"
    title = "is its spec sheet known?"

    def inputs(self, walk: Walk) -> dict[str, Any]:
        """Which device."""
        from ..device.host_facts import read_host_facts

        settings = walk.settings
        if not settings.measures:
            return {"corpus": str(settings.corpora[0].resolve())}
        chosen = {"device": settings.device, "target": settings.target}
        return chosen | {"threads": settings.threads, "cpu": read_host_facts().brand}

    def run(self, walk: Walk) -> Done:
        """Name the device; raises NoSpecSheetError for one that the zoo does not know."""
        device = _measured_on(walk) if walk.settings.measures else _device_of(walk.settings.corpora[0])
        walk.note(f"{device.name}: {device.title}")
        return Done({"device": device.name, "family": device.family, "kind": device.kind})


def _device_of(corpus: Path) -> Device:
    from ...zoo.corpus import Corpus
    from ...zoo.training.programs import corpus_device

    device = corpus_device(Corpus.open(corpus))
    get_device(device.family)
    return device


def _measured_on(walk: Walk) -> Device:
    from ..device.device_choice import choose_device

    settings = walk.settings
    chosen = choose_device(settings.device, settings.threads, target=settings.target, linker=settings.linker)
    try:
        get_device(chosen.facts.family)
    except UnknownDeviceError as error:
        raise _no_sheet(chosen.facts, walk.folder) from error
    if not chosen.facts.exact:
        walk.note(f"no spec sheet of its own: {'; '.join(chosen.facts.reasons[:1])}")
    return chosen.facts.device


def _no_sheet(facts: LocalDevice, folder: Path) -> NoSpecSheetError:
    """The error, after a template was written or what is in it was looked at."""
    path = folder / TEMPLATE
    if not path.is_file():
        write_folder(folder, {TEMPLATE: json_file(template(facts.device))})
        what, remedy = f"a template of it is in {path}", f"replace every '{FILL_IN}' there, then run this again"
    elif open_places := path.read_text(encoding="utf-8").count(FILL_IN):
        what, remedy = f"{open_places} places of {path} are to be filled in", "see CONTRIBUTING, 'Adding a device'"
    else:
        (device,) = read_family(json.loads(path.read_text(encoding="utf-8")), str(path))
        what = f"{path} describes {device.name}, but this tchub does not have it yet"
        remedy = f"propose it as zoo/devices/data/{device.family}.json; install that version and run this again"
    return NoSpecSheetError(f"{facts.cpu_model} has no spec sheet: {what}", remedy=remedy, path=str(path))


def template(device: Device) -> dict[str, Any]:
    """A family's data file with one device, in which what nobody can know here is marked `FILL IN`."""
    sheet = device.to_dict()
    number = sheet.pop("format")
    shared = {key: sheet.pop(key) for key in ("family", "kind", "vendor", "isa")}
    for entry in sheet["spec"].values():
        if entry["value"] is None:
            entry["source"] = f"{FILL_IN}: the number and the document it is from, or null and 'unknown: why'"
    own = {"name": f"{FILL_IN}: e.g. epyc-rome", "match": {"vendor_id": FILL_IN, "brand": device.title}}
    return {"format": number} | shared | {"family": f"{FILL_IN}: e.g. epyc", "devices": [sheet | own]}
