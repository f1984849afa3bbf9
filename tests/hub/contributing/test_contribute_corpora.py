"""What a contribution learns from: corpora are known by what is in them, wherever they lie."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from contribute_kit import Finished, outcomes, settings
from tchub.hub.contributing.collecting import Collect
from tchub.hub.contributing.settings import Settings
from tchub.hub.contributing.state import FORMAT, STATE_FILE
from tchub.hub.contributing.step import Walk
from tchub.hub.contributing.walk import contribute
from tchub.zoo.corpus.schema import CorpusError

pytestmark = pytest.mark.usefixtures("quick")


def test_it_goes_on_from_another_directory_with_the_same_corpora(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    corpus = shutil.copytree(finished.corpus, here / finished.corpus.name)
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    contribute(settings(Path("mine"), corpora=(Path(corpus.name),)))
    monkeypatch.chdir(elsewhere)
    passed = contribute(settings(Path("../here/mine"), corpora=(Path("../here", corpus.name),)))
    assert set(outcomes(passed).values()) == {"kept"}


def inputs(*corpora: Path) -> dict[str, Any]:
    """What the collection depends on when these corpora are given."""
    return Collect().inputs(Walk(Settings(Path("mine"), corpora=corpora), found={"device": {"device": "epyc"}}))


def change_fact(corpus: Path, name: str, value: object) -> None:
    file = corpus / "corpus.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))


def test_a_corpus_is_another_one_with_another_licence_but_not_in_another_place(
    finished: Finished, tmp_path: Path
) -> None:
    before, corpus = inputs(finished.corpus), shutil.copytree(finished.corpus, tmp_path / finished.corpus.name)
    change_fact(corpus, "created", "2030-01-01T00:00:00Z")
    assert inputs(corpus) == before
    change_fact(corpus, "licence", "MIT")
    assert inputs(corpus) != before


def test_a_corpus_is_another_one_with_another_list_of_tasks(finished: Finished, tmp_path: Path) -> None:
    corpus = shutil.copytree(finished.corpus, tmp_path / finished.corpus.name)
    change_fact(corpus, "files", {})  # the sizes, which tell a file that was cut short
    before, path = inputs(corpus), corpus / "tasks.parquet"
    tasks = pq.read_table(path)
    names = ["another", *tasks["name"].to_pylist()[1:]]
    pq.write_table(tasks.set_column(tasks.schema.get_field_index("name"), "name", [names]), path)
    assert inputs(corpus) != before


def test_which_corpus_judges_is_no_matter_of_indifference(finished: Finished, tmp_path: Path) -> None:
    other = shutil.copytree(finished.corpus, tmp_path / "other")
    assert inputs(finished.corpus, other) != inputs(other, finished.corpus)


@pytest.mark.parametrize("name", ["corpus.json", "tasks.parquet", "programs.parquet"])
def test_a_corpus_that_lost_a_file_is_an_error_with_a_remedy(finished: Finished, tmp_path: Path, name: str) -> None:
    corpus = shutil.copytree(finished.corpus, tmp_path / finished.corpus.name)
    (corpus / name).unlink()
    with pytest.raises(CorpusError, match=name) as caught:
        inputs(corpus)
    assert caught.value.remedy


def as_format_1(folder: Path, corpus: str) -> None:
    """The state as it was first written: corpora by the path that was typed, and their programs alone."""
    path = folder / STATE_FILE
    state = json.loads(path.read_text()) | {"format": 1}
    state["steps"]["collect"]["facts"]["corpora"] = [corpus]
    for name in ("train", "evaluate", "check"):
        told = state["steps"][name]["inputs"]
        told["programs"] = {corpus: told.pop("corpora")[0]["programs.parquet"]}
    path.write_text(json.dumps(state))


def test_a_state_of_format_1_goes_on_as_it_did(mine: Path) -> None:
    as_format_1(mine, str(next((mine / "corpora").iterdir())))
    assert set(outcomes(contribute(settings(mine))).values()) == {"kept"}
    contribute(settings(mine), again_from="publish")
    assert json.loads((mine / STATE_FILE).read_text())["format"] == FORMAT
    assert set(outcomes(contribute(settings(mine))).values()) == {"kept"}


def test_a_state_of_format_1_whose_path_leads_nowhere_learns_from_its_own_corpus_again(mine: Path) -> None:
    as_format_1(mine, "typed/in/another/directory")
    passed = outcomes(contribute(settings(mine)))
    assert (passed["collect"], passed["train"]) == ("kept", "done")
