"""A finished training is read again, and a torn or unfinished one goes on."""

from __future__ import annotations

from pathlib import Path

from fine_tune_kit import small
from tchub.zoo.adapt.method import TrainedModel, cached_model, model_digest


def test_a_model_is_trained_once_and_anew_when_its_file_is_torn(tmp_path: Path):
    states: list[Path | None] = []
    model = small()

    def train(state: Path | None):
        states.append(state)
        if state is not None:
            state.mkdir(parents=True, exist_ok=True)
        return TrainedModel(model, {"epochs": 3})

    first, second = (cached_model(tmp_path, ("a",), train) for _ in range(2))
    assert len(states) == 1
    assert model_digest(first.model) == model_digest(second.model)
    assert second.facts == {"epochs": 3}
    assert states[0] is not None
    assert not states[0].exists(), "the epochs of a finished training are removed"
    cached_model(tmp_path, ("b",), train)
    assert states[1] != states[0], "other inputs are another training"
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:-9])
    cached_model(tmp_path, ("a",), train)
    assert states[2] == states[0]
    for _ in range(2):
        cached_model(tmp_path, ("quick",), train, least_seconds=60)
    assert len(states) == 5, "what takes no time is not worth the room"
    assert cached_model(None, ("a",), train).model is model
    assert states[-1] is None
