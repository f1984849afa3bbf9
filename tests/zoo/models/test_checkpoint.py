"""Checkpoints: what is refused, by which error, and that a refusal comes before any tensor is used."""

from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch
from real_checkpoint import rewrite_config
from tchub.zoo.devices import get_device
from tchub.zoo.features import get_schema
from tchub.zoo.files import StorageError
from tchub.zoo.models import (
    Checkpoint,
    CheckpointConfig,
    CheckpointError,
    CorruptCheckpointError,
    ModelConfigError,
    create,
)
from tchub.zoo.primitives import Primitive, PrimitiveSequence
from tchub.zoo.trust import ClassTrust

SETTINGS = {"hidden": 8, "d_model": 16, "head": 4, "d_state": 2, "dt_rank": 2}


def make(**changes) -> Checkpoint:
    torch.manual_seed(0)
    model = create("tcl", **SETTINGS).eval()
    schema = {"feature_schema": "tcl-cpu", "feature_version": get_schema("tcl-cpu").version}
    config = CheckpointConfig("tcl-epyc", "1.0.0", "tcl", model.config.as_dict(), family="epyc", **schema)
    return Checkpoint(replace(config, **changes), model, get_device("epyc"))


@pytest.fixture
def saved(tmp_path):
    make().save(tmp_path)
    return tmp_path


def sequences(n=5):
    return [PrimitiveSequence((Primitive("Split", (2 + i, 4), ()),) * (1 + i)) for i in range(n)]


def test_scores_are_float64_and_do_not_depend_on_the_batch(saved, monkeypatch):
    checkpoint = Checkpoint.load(saved)
    scores = checkpoint.score(sequences())
    assert scores.dtype == np.float64
    assert scores.shape == (5,)
    assert checkpoint.score([]).shape == (0,)
    monkeypatch.setattr("tchub.zoo.models.checkpoint.BATCH", 2)
    np.testing.assert_allclose(checkpoint.score(sequences()), scores, rtol=1e-5, atol=1e-6)


def test_a_device_of_its_own_travels_with_the_checkpoint(tmp_path):
    """An adapted checkpoint of a machine that no data file lists."""
    device = replace(get_device("epyc"), name="my-machine", family="mine")
    replace(make(family="mine", device=device.to_dict()), device=device).save(tmp_path)
    assert Checkpoint.load(tmp_path).device == device


def test_trust_travels_with_the_checkpoint_and_goes_by_framework_first(tmp_path):
    known, inverted = ClassTrust.of([0.8, 0.9, 0.7], [0.9], 900), ClassTrust.of([0.2, 0.25])
    rows = {"ansor/conv2d": known, "*/conv2d": inverted, "ansor/reduce": inverted, "*/pool": known, "ansor/*": known}
    make(trust=rows).save(tmp_path)
    config = Checkpoint.load(tmp_path).config
    assert config.trust == rows
    names = ("conv2d", "reduce", "pool", "softmax")
    assert [config.trusts("ansor", name) for name in names] == [True, False, True, False]
    assert not any(config.trusts("autotvm", name) for name in names), "nothing is known of its programs"
    assert make().config.trusts("ansor", "softmax"), "nothing is known of a checkpoint without trust"


def test_trust_needs_more_than_luck():
    cases = (([0.9], True), ([0.6], False), ([0.6] * 12, True), ([0.5] * 100, False), ([], False))
    assert [ClassTrust.of(judged).trusted for judged, _ in cases] == [trusted for _, trusted in cases]
    few = ClassTrust.of([0.55], [0.9, 0.8, 0.85], 600)
    assert (few.trusted, few.tasks, few.judged, few.pairwise) == (True, 3, 1, 0.55), "what it learnt counts too"
    assert not ClassTrust.of([], [0.6, 0.58]).trusted, "it did not learn them either"
    assert not ClassTrust.of([0.3] * 3, [0.9] * 30).trusted, "enough tasks judge it"
    assert ClassTrust.of([0.5] * 5, [0.95] * 30).trusted, "and not enough to forget what it learnt"


def test_a_newer_format_is_refused_whatever_else_it_says(saved):
    (saved / "config.json").write_text('{"format": 2, "layers": []}')
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.load(saved)
    assert "format 2" in caught.value.message
    assert "upgrade" in str(caught.value.remedy)


def config_text(text):
    return lambda folder: (folder / "config.json").write_bytes(text.encode("latin1"))


def field(**change):
    return lambda folder: rewrite_config(folder, **change)


def norm(change):
    """Change the tensor `norm_in.weight`."""

    def edit(folder):
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
        tensors["norm_in.weight"] = change(tensors["norm_in.weight"])
        (folder / "model.safetensors").write_bytes(safetensors.torch.save(tensors))

    return edit


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), CheckpointError, "safetensors"),
        (lambda folder: (folder / "config.json").unlink(), CheckpointError, "config.json"),
        *(
            (config_text(t), CorruptCheckpointError, "")
            for t in ("", "[]", '{"format": true}', '{"format": 1}', "\xff")
        ),
        (field(name=3), CorruptCheckpointError, ""),
        (field(surprise=1), CorruptCheckpointError, ""),
        (field(device="epyc"), CorruptCheckpointError, ""),
        (field(feature_version=True), CorruptCheckpointError, ""),
        *((field(trust={"reduce": row}), CorruptCheckpointError, "") for row in (0.5, {"least": "0.9"})),
        *((field(model=m), CorruptCheckpointError, "") for m in ([], {"d_state": 2, "colour": "red"}, {"d_state": 3})),
        # What this release does not know.
        (field(arch="transformer-9000"), ModelConfigError, "transformer-9000"),
        (field(feature_schema="tcl-tpu"), CheckpointError, "tcl-tpu"),
        (field(feature_version=99), CheckpointError, "99"),
        (field(feature_schema="tcl-gpu"), CheckpointError, "tcl-gpu"),
        # Tensors that do not fit.
        (norm(lambda t: torch.zeros(3)), CorruptCheckpointError, "shape"),
        (norm(lambda t: t * torch.nan), CorruptCheckpointError, "NaN"),
    ],
)
def test_what_cannot_be_loaded_is_refused(saved, damage, error, message):
    damage(saved)
    with pytest.raises(error, match=message):
        Checkpoint.load(saved)


def test_saving_with_the_wrong_schema_is_refused(tmp_path):
    with pytest.raises(CheckpointError):
        make(feature_schema="tcl-gpu").save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_checkpoint(saved, full_disk):
    before = {f.name: f.read_bytes() for f in saved.iterdir()}

    full_disk("os.fsync")
    with pytest.raises(StorageError, match="No space left"):
        make(version="2.0.0").save(saved)
    assert {f.name: f.read_bytes() for f in saved.iterdir()} == before
