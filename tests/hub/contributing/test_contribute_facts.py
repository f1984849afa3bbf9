"""What only a person can tell, and devices that nobody described: asked for or refused, before hours are spent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contribute_kit import FACTS, Answers, FakeMeasurer, fake_machine, settings
from tchub.hub.contributing.errors import BadFactError, MissingFactsError, NoSpecSheetError, NotReadyError
from tchub.hub.contributing.settings import FACTS_FILE, CardFacts
from tchub.hub.contributing.spec_sheet import FILL_IN, TEMPLATE
from tchub.hub.contributing.walk import STEPS, contribute
from tchub.hub.device.detect import detect_local
from tchub.hub.device.doctor import Check
from tchub.hub.device.host_facts import read_host_facts
from tchub.hub.publishing.errors import NotLoggedInError

ASKING = STEPS[:3]


@pytest.fixture(autouse=True)
def measurer(monkeypatch: pytest.MonkeyPatch) -> FakeMeasurer:
    found = FakeMeasurer()
    fake_machine(monkeypatch, found)
    return found


def facts_of(passed: list[Any]) -> dict[str, Any]:
    return next(step.facts for step in passed if step.name == "facts")


def test_without_a_terminal_all_that_is_missing_is_named_at_once(tmp_path: Path, measurer: FakeMeasurer) -> None:
    with pytest.raises(MissingFactsError) as caught:
        contribute(settings(tmp_path / "mine", facts=CardFacts()))
    assert caught.value.fields["missing"] == ["authors", "weights_licence", "data_licence"]
    assert "--weights-licence" in str(caught.value.remedy)
    assert measurer.paid == 0, "it is said before anything is measured"


def test_without_a_terminal_publishing_needs_a_yes_beforehand(tmp_path: Path) -> None:
    with pytest.raises(MissingFactsError, match="nobody is there to agree"):
        contribute(settings(tmp_path / "mine", publish=True, repo="ada/tcl-epyc"))


def test_who_cannot_publish_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measurer: FakeMeasurer
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(NotLoggedInError, match="no access token"):
        contribute(settings(tmp_path / "mine", publish=True, repo="ada/tcl-epyc", confirmed=True))
    assert measurer.paid == 0


@pytest.mark.parametrize("licence", ["none found", "Apache", "all mine", "MIT or so"])
def test_weights_need_a_licence_that_spdx_knows(tmp_path: Path, licence: str, measurer: FakeMeasurer) -> None:
    with pytest.raises(BadFactError, match="weights_licence"):
        contribute(settings(tmp_path / "mine", facts=replace(FACTS, weights_licence=licence)))
    assert measurer.paid == 0


def test_at_a_terminal_what_is_missing_is_asked_for_until_it_is_right_and_never_again(tmp_path: Path) -> None:
    person = Answers(
        {"authors": ["", "Ada"], "weights": ["Apache", "Apache-2.0"], "programs": ["MIT"], "users": ["Little data."]}
    )
    small = settings(tmp_path / "mine", facts=CardFacts())
    facts = facts_of(contribute(small, ask=person, steps=ASKING))
    assert (facts["authors"], facts["weights_licence"], facts["data_licence"]) == ("Ada", "Apache-2.0", "MIT")
    assert facts["limits"] == ("Little data.",)
    assert len(person.asked) == 6
    assert facts_of(contribute(small, ask=Answers({}), steps=ASKING))["authors"] == "Ada"
    other = replace(small, facts=CardFacts(weights_licence="MIT"))
    facts = facts_of(contribute(other, steps=ASKING))
    assert (facts["authors"], facts["weights_licence"]) == ("Ada", "MIT"), "only what is said anew has changed"


def test_a_file_in_the_folder_answers_and_options_are_ahead_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    text = 'authors = "Ada"\nweights_licence = "MIT"\ndata_licence = "CC0-1.0"\nlimits = ["Little data."]\n'
    (folder / FACTS_FILE).write_text(text)
    facts = facts_of(contribute(settings(folder, facts=CardFacts(weights_licence="Apache-2.0")), steps=ASKING))
    assert (facts["weights_licence"], facts["data_licence"]) == ("Apache-2.0", "CC0-1.0")
    assert facts["limits"] == ("Little data.",)


@pytest.mark.parametrize(
    ("text", "said"),
    [("author = 'Ada'", "authors"), ("authors = 7", "a text"), ("limits = 'one'", "a list"), ("=", "correct it")],
)
def test_a_wrong_line_of_the_file_is_named_with_what_is_right(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / FACTS_FILE).write_text(text)
    with pytest.raises(BadFactError) as caught:
        contribute(settings(tmp_path), steps=ASKING)
    assert said in str(caught.value.remedy)


def test_the_next_free_version_is_taken_and_a_wrong_one_refused(tmp_path: Path) -> None:
    facts = facts_of(contribute(settings(tmp_path / "mine"), steps=ASKING))
    assert facts["name"].startswith("tcl-")
    assert facts["version"].count(".") == 2
    with pytest.raises(BadFactError):
        contribute(settings(tmp_path / "other", facts=replace(FACTS, version="one")), steps=ASKING)


def test_a_machine_that_is_not_ready_stops_it_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_machine(monkeypatch, FakeMeasurer(), (Check("compiler", "fail", "none found", "install g++"),))
    with pytest.raises(NotReadyError, match="compiler: none found") as caught:
        contribute(settings(tmp_path / "mine"))
    assert caught.value.remedy == "install g++"


@pytest.fixture
def strange(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that no data file describes."""
    facts = replace(read_host_facts(), vendor_id="Zilog", brand="Z80 Max", cpu_family=1, model=1)
    device = detect_local(1, facts=facts, host_cpu="x86-64")
    monkeypatch.setattr("tchub.hub.device.detect.detect_local", lambda *_, **__: device)


@pytest.mark.usefixtures("strange")
def test_for_a_device_without_a_sheet_a_template_is_written_that_the_zoo_reads_once_it_is_filled_in(
    tmp_path: Path,
) -> None:
    with pytest.raises(NoSpecSheetError, match="a template of it is in"):
        contribute(settings(tmp_path))
    template = tmp_path / TEMPLATE
    open_places = template.read_text().count(FILL_IN)
    assert open_places > 3
    with pytest.raises(NoSpecSheetError, match=f"{open_places} places"):
        contribute(settings(tmp_path))
    sheet = json.loads(template.read_text().replace(f"{FILL_IN}: e.g. ", ""))
    for entry in sheet["devices"][0]["spec"].values():
        entry["source"] = entry["source"].replace(FILL_IN, "unknown")
    sheet["devices"][0]["match"] = {"vendor_id": "Zilog"}
    template.write_text(json.dumps(sheet | {"family": "z80"}))
    with pytest.raises(NoSpecSheetError, match="does not have it yet") as caught:
        contribute(settings(tmp_path))
    assert "zoo/devices/data/z80.json" in str(caught.value.remedy)
