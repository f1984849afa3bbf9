"""Cards, plots, metrics and the index agree; whichever of them is touched, the check says which file is wrong."""

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from tchub.cards import CardData, missing, plots_of
from tchub.cards.render import hub_licences
from tchub.hub.registry import Index

from scripts.zoo.index import ChangedVersionError, build

ROOT = Path(__file__).resolve().parents[2]
NAME = "tilenet-epyc"
FOLDER = next((ROOT / "zoo/checkpoints" / NAME).glob("*.*.*")).relative_to(ROOT)
CARD, README, METRICS = Path("cards") / f"{NAME}.md", FOLDER / "README.md", FOLDER / "metrics.json"
PLOTS, INDEX = Path("cards/plots") / NAME, Path("hub/registry/index.json")
PUBLISHED = sorted((ROOT / "zoo/checkpoints").glob("*/*/config.json"))


@pytest.fixture
def measuring() -> Any:
    """`python -m scripts.zoo.measure_cards`."""
    return importlib.import_module("scripts.zoo.measure_cards")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A repository of one published checkpoint, up to date."""
    root = tmp_path_factory.mktemp("built")
    for folder in ("cards", "hub/registry"):
        (root / folder).mkdir(parents=True)
    shutil.copytree(ROOT / FOLDER, root / FOLDER)
    build(root, write=True)
    return root


@pytest.fixture
def repository(built, tmp_path) -> Path:
    """One that a test may spoil."""
    return shutil.copytree(built, tmp_path / "repository")


def stale(repository: Path) -> set[str]:
    """What a check finds."""
    return set(build(repository, write=False)[0])


def edit(old: str, new: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return change


def score(path: Path) -> None:
    """Another top-1 in metrics.json."""
    metrics = json.loads(path.read_text())
    metrics["results"]["model"]["top1"] = 0.999
    metrics["curves"]["top_k"][0]["model"] = 0.999
    path.write_text(json.dumps(metrics))


@pytest.mark.parametrize(
    ("path", "change", "stale_files"),
    [
        (CARD, edit("top-1 score", "best score"), {CARD}),
        (CARD, Path.unlink, {CARD}),
        (README, edit("| random choice | 0", "| random choice | 1"), {README, INDEX}),
        (PLOTS / "top-k.svg", edit("random choice", "blind guess"), {PLOTS / "top-k.svg"}),
        (PLOTS / "scatter.svg", Path.unlink, {PLOTS / "scatter.svg"}),
        (PLOTS / "old.svg", Path.touch, {PLOTS / "old.svg"}),
        (METRICS, score, {CARD, README, PLOTS / "top-k.svg", INDEX}),
        (INDEX, edit('"top1": 0.', '"top1": 1.'), {INDEX}),
        (Path("cards/gone.md"), Path.touch, {Path("cards/gone.md")}),
    ],
)
def test_each_kind_of_disagreement_is_found_and_mended(repository, path, change, stale_files):
    change(repository / path)
    assert stale(repository) == {str(file) for file in stale_files}
    build(repository, write=True)
    assert stale(repository) == set()


def test_the_index_counts_its_publications(repository):
    first = Index.read(repository / INDEX).serial
    build(repository, write=True)
    assert Index.read(repository / INDEX).serial == first, "nothing was published"
    score(repository / METRICS)
    build(repository, write=True)
    assert Index.read(repository / INDEX).serial == first + 1


def test_a_listed_version_may_not_get_other_weights(repository):
    weights = repository / FOLDER / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b"\0")
    with pytest.raises(ChangedVersionError, match="versions never change"):
        build(repository, write=True)


def test_what_publishing_added_to_the_index_is_kept(repository):
    path = repository / INDEX
    index = json.loads(path.read_text())
    index["checkpoints"][0] |= {"sources": [f"hf://org/{NAME}"], "revision": "1" * 40, "deprecated": "old"}
    path.write_text(json.dumps(index))
    build(repository, write=True)
    entry = Index.read(path).entries[0]
    assert (entry.sources, entry.revision, entry.deprecated) == ((f"hf://org/{NAME}",), "1" * 40, "old")


@pytest.mark.parametrize("config", PUBLISHED, ids=lambda path: path.parent.parent.name)
def test_every_published_card_is_complete_and_the_hub_accepts_its_head(config):
    metrics = json.loads((config.parent / "metrics.json").read_text())
    facts = json.loads(config.read_text())
    assert missing(CardData.from_files(facts, metrics)) == ()
    card = ModelCard.load(config.parent / "README.md")
    assert card.data.license in hub_licences()
    assert card.data.library_name == "tchub"
    values = {(r.dataset_type, r.dataset_split, r.metric_type): r.metric_value for r in card.data.eval_results or []}
    assert values[metrics["corpus"], "test", "top1"] == round(metrics["results"]["model"]["top1"], 4)
    assert [plot.file for plot in plots_of(metrics)][:3] == ["top-k.svg", "scatter.svg", "calibration.svg"]


@pytest.mark.parametrize("config", PUBLISHED, ids=lambda path: path.parent.parent.name)
def test_top_1_and_top_5_of_the_curve_are_the_published_scores(config):
    metrics = json.loads((config.parent / "metrics.json").read_text())
    curve = {row["k"]: row for row in metrics["curves"]["top_k"]}
    tolerance = 5e-5 if metrics["curves"]["programs"] == metrics["programs"] else 5e-3
    for k in (1, 5):
        assert curve[k]["model"] == pytest.approx(metrics["results"]["model"][f"top{k}"], abs=tolerance)
        assert curve[k]["random"] == pytest.approx(metrics["results"]["random"][f"top{k}"], abs=tolerance)


@pytest.mark.parametrize("config", PUBLISHED, ids=lambda path: path.parent.parent.name)
def test_the_tuning_runs_of_the_cards_are_those_of_the_benchmark(measuring, config):
    published = measuring.Published(config.parent)
    for row, again in zip(published.metrics.get("tuning", []), measuring.tuning(published), strict=True):
        assert row | {"ms": None} == again | {"ms": None}
        assert row["ms"] == pytest.approx(again["ms"], rel=1e-5), "run scripts.zoo.measure_cards"
    assert measuring.with_schedules(published, published.metrics) == published.metrics, "run scripts.zoo.measure_cards"


@pytest.mark.slow
def test_the_curves_come_out_again_from_the_weights_and_the_corpus(measuring):
    from tchub.zoo.models import Checkpoint

    published = measuring.Published(ROOT / FOLDER)
    measured = measuring.curves_of(published, Checkpoint.load(published.folder))
    assert measured["curves"] == published.metrics["curves"]
    assert measured["again"]["epyc-turin"] == pytest.approx(published.metrics["results"]["model"], abs=1e-6)
