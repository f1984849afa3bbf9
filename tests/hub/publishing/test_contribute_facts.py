"""Facts of a contribution and devices without a spec sheet: asked for or refused, before hours are spent."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from contribute_kit import FACTS, Answers, FakeMeasurer, fake_machine, small_config
from registry_kit import refused
from tchub.hub.device.detect import add_device, detect_local
from tchub.hub.device.doctor import Check
from tchub.hub.device.host_facts import read_host_facts
from tchub.hub.publishing.contribute import ContributionConfig, contribute
from tchub.hub.publishing.contribute_facts import FACTS_FILE, CardFacts


@pytest.fixture(autouse=True)
def measurer(monkeypatch: pytest.MonkeyPatch) -> FakeMeasurer:
    """A measurer that must not be used."""
    fake = FakeMeasurer()
    fake_machine(monkeypatch, fake)
    return fake


class Enough(Exception):
    """Ends a contribution after its questions."""


@pytest.fixture
def facts_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that runs a contribution up to its facts, and returns them."""

    def stop(*_: Any) -> Any:
        raise Enough

    def run(config: ContributionConfig, **options: Any) -> dict[str, Any]:
        with pytest.raises(Enough):
            contribute(config, **options)
        return json.loads((config.out / FACTS_FILE).read_text())

    monkeypatch.setattr("tchub.hub.publishing.contribute._measure", stop)
    return run


def test_without_a_terminal_all_that_is_missing_is_named_at_once(tmp_path, measurer):
    with refused("facts") as caught:
        contribute(small_config(tmp_path / "mine", facts=CardFacts()))
    assert caught.value.fields["missing"] == ["authors", "weights_licence", "data_licence"]
    assert "--weights-licence" in str(caught.value.remedy)
    assert measurer.paid == 0, "nothing is measured before"


def test_publishing_needs_a_yes_and_a_token_beforehand(tmp_path, monkeypatch, measurer):
    config = small_config(tmp_path / "mine", publish=True, repo="ada/tcl-epyc")
    with refused("facts", "nobody is there to agree"):
        contribute(config)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with refused("login", "no access token"):
        contribute(replace(config, yes=True))
    assert measurer.paid == 0


@pytest.mark.parametrize("licence", ["none found", "Apache", "MIT or so"])
def test_weights_need_a_licence_that_spdx_knows(tmp_path, licence):
    facts = msgspec.structs.replace(FACTS, weights_licence=licence)
    with refused("fact", "weights_licence"):
        contribute(small_config(tmp_path / "mine", facts=facts))


def test_at_a_terminal_each_question_is_put_until_the_answer_is_right_and_never_again(tmp_path, facts_of):
    person = Answers(
        {"authors": ["", "Ada"], "weights": ["Apache", "Apache-2.0"], "programs": ["MIT"], "users": ["Little data."]}
    )
    config = small_config(tmp_path / "mine", facts=CardFacts())
    facts = facts_of(config, ask=person)
    assert (facts["authors"], facts["weights_licence"], facts["data_licence"]) == ("Ada", "Apache-2.0", "MIT")
    assert facts["limits"] == ["Little data."]
    assert len(person.asked) == 6
    assert facts_of(config, ask=Answers({}))["authors"] == "Ada"
    facts = facts_of(replace(config, facts=CardFacts(weights_licence="MIT")))
    assert (facts["authors"], facts["weights_licence"]) == ("Ada", "MIT"), "only the fact that is given anew changed"


def test_the_next_free_version_is_taken_and_a_wrong_one_refused(tmp_path, facts_of):
    facts = facts_of(small_config(tmp_path / "mine"))
    assert facts["name"].startswith("tcl-")
    assert facts["version"].count(".") == 2
    assert facts_of(small_config(tmp_path / "mine"))["version"] == facts["version"], "it may be published as that"
    with refused("fact"):
        contribute(small_config(tmp_path / "other", facts=msgspec.structs.replace(FACTS, version="one")))


@pytest.mark.parametrize("text", ["{", "[]", '{"authors": 7}'])
def test_damaged_answers_are_refused_and_nothing_is_touched(tmp_path, text):
    (tmp_path / FACTS_FILE).write_text(text)
    with refused("state"):
        contribute(small_config(tmp_path))
    assert (tmp_path / FACTS_FILE).read_text() == text


def test_a_machine_that_is_not_ready_stops_it_with_the_remedy(tmp_path, monkeypatch):
    fake_machine(monkeypatch, FakeMeasurer(), (Check("compiler", "fail", "none found", "install g++"),))
    with refused("machine", "compiler: none found") as caught:
        contribute(small_config(tmp_path / "mine"))
    assert caught.value.remedy == "install g++"


def test_a_device_without_a_sheet_is_refused_until_one_is_added(tmp_path, monkeypatch, facts_of):
    facts = replace(read_host_facts(), vendor_id="Zilog", brand="Z80 Max", cpu_family=1, model=1)
    choice = "tchub.hub.device.device_choice.detect_local"
    monkeypatch.setattr(choice, lambda *_, **__: detect_local(1, facts=facts, host_cpu="x86-64"))
    with refused("device", "Z80 Max has no spec sheet") as caught:
        contribute(small_config(tmp_path))
    assert "tchub devices add NAME --from local" in str(caught.value.remedy)
    monkeypatch.setattr("tchub.hub.device.detect.read_host_facts", lambda: facts)
    add_device("z80", "local")
    assert facts_of(small_config(tmp_path))["name"] == "tcl-z80"
