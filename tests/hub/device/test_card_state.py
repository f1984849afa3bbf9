"""Cards as NVML tells of them, and as the kernel's driver does where there is no NVML."""

from __future__ import annotations

from pathlib import Path

import pytest
from paper_card import PaperCard
from tchub.hub.device.card_state import CardState, card_names, card_state


def test_nvml_tells_the_clock_and_what_holds_it_down(card: PaperCard, monkeypatch: pytest.MonkeyPatch) -> None:
    card.has_nvml(monkeypatch)
    assert card_names() == ("Tesla T4",)
    state = card_state("0000:65:00.0")
    assert state == CardState(1590, 1590, 69.8, 70.0, None, 0, 141 << 30), "this card does not tell its temperature"
    for change in ("slow", "shared"):
        card.becomes(change)
    state = card_state("0000:65:00.0")
    assert state is not None
    assert (state.clock_mhz, state.processes, state.slowed_by) == (990, 2, ("its power limit", "its heat"))
    assert card_state("0000:00:00.0") is None, "another card's address"


def test_without_nvml_the_kernels_driver_tells_the_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tchub.hub.device.card_state._nvml", lambda: None)
    assert card_names(tmp_path) == ()
    for number, name in enumerate(("Tesla T4", "NVIDIA L4")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "information").write_text(f"Model: \t\t {name}\nIRQ:   \t\t 35\n")
    assert card_names(tmp_path) == ("Tesla T4", "NVIDIA L4")
    assert card_state("0000:65:00.0") is None
