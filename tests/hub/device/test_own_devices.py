"""A device that no sheet of the package knows: its own sheet, and who finds it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tchub.hub.device.detect import add_device
from tchub.hub.device.errors import DeviceError
from tchub.zoo.devices import UnknownDeviceError, distance, get_device, list_devices, own_folder
from tchub.zoo.errors import TchubError


def test_the_nearest_devices_numbers_stand_in_and_say_so():
    added = add_device("rtx4090", "rtx3090")
    assert added == get_device("rtx4090")
    assert (added.family, added.target) == ("rtx4090", get_device("rtx3090").target)
    assert added.spec.values() == get_device("rtx3090").spec.values()
    assert set(added.spec.sources.values()) == {"assumed: as rtx3090"}
    assert added in list_devices("gpu")
    assert distance(added, get_device("rtx3090")).gap == 0


def test_a_sheet_from_a_file_is_validated(tmp_path: Path):
    sheet = get_device("t4").to_dict()
    (tmp_path / "sheet.json").write_text(json.dumps(sheet))
    assert add_device("t4g", str(tmp_path / "sheet.json")).spec.values() == get_device("t4").spec.values()
    sheet["spec"]["cuda_cores"] = {"value": -1, "source": "nowhere"}
    for text in (json.dumps(sheet), "{", "[]"):
        (tmp_path / "sheet.json").write_text(text)
        with pytest.raises(TchubError):
            add_device("t4h", str(tmp_path / "sheet.json"))
    assert not (own_folder() / "t4h.json").exists()


@pytest.mark.parametrize("name", ["t4", "epyc", "../evil", "", "Upper", "tesla-k80"])
def test_a_name_that_is_taken_or_none_is_refused(name: str):
    with pytest.raises(DeviceError, match="can be called"):
        add_device(name, "t4")
    with pytest.raises(UnknownDeviceError, match="nowhere"):
        add_device("fresh", "nowhere")
