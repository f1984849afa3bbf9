"""Adapting from the latencies of a corpus: nothing is measured, and the corpus's own test tasks judge."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from adapt_kit import QUICK, corpus_at, toy_world
from tchub.hub.adaptation.adapt import adapt
from tchub.hub.adaptation.config import AdaptConfig
from tchub.hub.adaptation.result import AdaptResult
from tchub.hub.api import CheckpointChoice
from tchub.hub.registry import Registry
from tchub.zoo.adapt.errors import AdaptError
from tchub.zoo.corpus import Corpus, CorpusError, split_tasks
from tchub.zoo.errors import TchubWarning
from tchub.zoo.features import DeviceKindError
from tchub.zoo.models import Checkpoint


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return corpus_at(tmp_path / "xeon-corpus", tasks=10, each=40)


def run(base: CheckpointChoice, corpus: Path, workload: str | None = None, **options: Any) -> AdaptResult:
    with toy_world(base):
        return adapt("tcl-epyc", workload, config=AdaptConfig(**{"corpus": corpus, "labels": "8"} | options))


def test_labels_are_read_the_test_split_judges_and_the_result_is_of_the_corpuss_device(
    base: CheckpointChoice, corpus: Path
):
    result, split = run(base, corpus), split_tasks(Corpus.open(corpus))
    learnt = Counter(pick.task_id for pick in result.picks)
    assert learnt == dict.fromkeys((*split.train, *split.val), 8)
    assert {task.task_id: task.hold_out for task in result.tasks if task.hold_out} == dict.fromkeys(split.test, 40)
    assert {pick.round for pick in result.picks} == {0, 1, 2, 3}
    assert result.settings.hold_out == "test split of the corpus xeon-corpus"
    assert (result.settings.budget, result.settings.device) == ("8 labels a task: 64", "xeon-8272cl")
    assert (result.measurements.journal, result.measurements.corpus) == (None, corpus)
    assert result.judgement.guard.programs == 40 * len(split.test)
    assert (result.name, result.adapted) == ("tcl-epyc+local-xeon", True)
    with pytest.warns(TchubWarning, match=r"tcl-epyc\+local is tcl-epyc\+local-xeon: adapted from a corpus"):
        assert Registry.default().resolve("tcl-epyc+local").entry.name == result.name
    stored = Checkpoint.load(result.path)
    assert (stored.config.family, stored.device.name) == ("xeon", "xeon-8272cl")
    assert stored.config.lineage["hold_out"] == result.settings.hold_out
    again = run(base, corpus)
    assert [pick.key for pick in again.picks] == [pick.key for pick in result.picks]
    assert again.judgement.guard == result.judgement.guard


def test_a_base_that_is_kept_stands_for_the_adapted_name(base: CheckpointChoice, tmp_path: Path):
    """Nothing is learnt, on the base's own device: both models score alike."""
    own = corpus_at(tmp_path / "own", "epyc", "epyc", tasks=10, each=40)
    still = replace(QUICK, val_share=0, blind_epochs=0)
    result = run(base, own, labels="20%", fine_tune=still)
    assert (result.adapted, result.name) == (False, "tcl-epyc")
    for name in ("tcl-epyc+local", "tcl-epyc+local-epyc"):
        with pytest.warns(TchubWarning, match="adapting ranked no better and kept it"):
            assert Registry.default().resolve(name).entry.name == "tcl-epyc"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"labels": "64"}, "the largest 40"),
        ({"labels": "1%"}, "learns from 8 or more"),
        ({"labels": "1"}, "labels are 1"),
        ({"labels": "15m"}, "labels are 15m"),
        ({"budget": "20%"}, "nothing is measured with a corpus, and budget is given"),
        ({"workload": "toy"}, "and a workload is given"),
    ],
)
def test_settings_that_do_not_fit_a_corpus_are_refused(
    base: CheckpointChoice, corpus: Path, options: dict[str, Any], match: str
):
    with pytest.raises(AdaptError, match=match):
        run(base, corpus, **options)


def test_a_corpus_that_does_not_fit_is_refused(base: CheckpointChoice, corpus: Path, tmp_path: Path):
    with pytest.raises(DeviceKindError):
        run(base, corpus_at(tmp_path / "gpu", device="v100", family="v100", tasks=10, each=40))
    with pytest.raises(AdaptError, match="is learnt already"):
        run(base, corpus, sources=str(corpus), method="continual")
    meta = json.loads((corpus / "corpus.json").read_text())
    meta["split"] = {"train": sorted(Corpus.open(corpus).tasks), "test": []}
    (corpus / "corpus.json").write_text(json.dumps(meta))
    with pytest.raises(CorpusError, match="has no test task"):
        run(base, corpus)
