"""Results that come back: checked against their bundle line by line, and added once."""

import json
from pathlib import Path
from typing import Any

import pytest
from bundle_kit import GOOD, make_results, toy_bundle
from tchub.hub.bundle.archive import Bundle, BundleError
from tchub.hub.bundle.ingest import ingest
from tchub.zoo.corpus import Corpus
from tchub.zoo.corpus.schema import CorpusError


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return toy_bundle(tmp_path / "bundle", [GOOD] * 4)


def _snapshot(corpus: Path) -> list[Any]:
    return [(p.key, p.latencies, p.error) for p in Corpus.open(corpus).iter_programs()]


def test_results_are_added_once_and_later_ones_complete_them(bundle: Path, tmp_path: Path) -> None:
    opened, corpus = Bundle(bundle), tmp_path / "corpus"
    some = make_results(bundle, tmp_path / "some.jsonl", {0: 1e-3, 2: 2e-3})
    first = ingest(some, opened, "epyc-turin", corpus)
    assert (first.results, first.unmeasured, first.programs) == (2, 2, 2)
    before = _snapshot(corpus)
    assert ingest(some, opened, "epyc-turin", corpus).programs == 2
    assert _snapshot(corpus) == before
    every = make_results(bundle, tmp_path / "all.jsonl", {0: 9.0, 1: 3e-3, 2: 9.0, 3: 4e-3})
    assert ingest(every, opened, "epyc-turin", corpus).programs == 4
    latencies = {key: values[0] for key, values, _ in _snapshot(corpus)}
    assert sorted(latencies.values()) == [1e-3, 2e-3, 3e-3, 4e-3], "what was there stays"
    meta = Corpus.open(corpus).meta
    assert (meta["device"], meta["family"], meta["cpu_model"]) == ("epyc-turin", "epyc", "Toy CPU")


def test_a_program_that_computes_something_else_is_no_valid_one(bundle: Path, tmp_path: Path) -> None:
    results = make_results(bundle, tmp_path / "results.jsonl", {0: 1e-3, 1: 1e-3, 2: 1e-3, 3: 1e-6})
    text = results.read_text().splitlines()
    text[-1] = text[-1].replace("[10.0, 10.0]", "[0.0, 0.0]")
    half = '{"kind": "program", "id": 1, "ta'  # as a killed run leaves it: not read
    results.write_text("\n".join([*text, half]))
    summary = ingest(results, Bundle(bundle), "epyc-turin", tmp_path / "corpus")
    assert (summary.results, summary.wrong, summary.failed) == (4, 1, 1)
    assert [error for _, _, error in _snapshot(tmp_path / "corpus")] == [None, None, None, "invalid"]


@pytest.mark.parametrize(
    ("number", "change", "kind"),
    [
        (-1, None, "not readable"),
        (-1, {"id": 17}, "of an unknown program"),
        (-1, {"sha256": "0" * 64}, "of another library"),
        (-1, {"latencies": [-1.0]}, "with impossible values"),
        (-1, {"error": "boredom", "latencies": []}, "with impossible values"),
        (-1, {"fingerprint": [[10**400, 1]]}, "with impossible values"),
        (-1, {"message": "\ud800"}, "not readable"),
        (0, {"cpu_model": "\ud800"}, "not readable"),
        (0, {"system": {"a": "dictionary"}}, "with impossible values"),
        (0, {"libraries": [["a"]]}, "with impossible values"),
    ],
)
def test_lines_that_are_no_results_are_counted_by_kind_and_nothing_is_written(
    bundle: Path, tmp_path: Path, number: int, change: dict[str, Any] | None, kind: str
) -> None:
    """The first line has the facts of the machine, which a corpus must be able to hold."""
    results = make_results(bundle, tmp_path / "results.jsonl", {0: 1e-3, 1: 1e-3})
    lines = results.read_text().splitlines()
    lines[number] = json.dumps(json.loads(lines[number]) | change) if change else "{"
    results.write_text("\n".join(lines) + "\n")
    with pytest.raises(BundleError, match=f"1 {kind}") as caught:
        ingest(results, Bundle(bundle), "epyc-turin", tmp_path / "corpus")
    assert caught.value.fields["lines"] == {kind: 1}
    assert caught.value.remedy
    assert not (tmp_path / "corpus").exists()


def test_sums_that_overflow_are_compared(bundle: Path, tmp_path: Path) -> None:
    results = make_results(bundle, tmp_path / "results.jsonl", {0: 1e-3, 1: 1e-3, 2: 1e-3})
    results.write_text(results.read_text().replace("[10.0, 10.0]", f"[null, {1e308}]"))
    assert ingest(results, Bundle(bundle), "epyc-turin", tmp_path / "corpus").wrong == 0


def test_results_of_another_bundle_or_of_two_machines_are_refused(bundle: Path, tmp_path: Path) -> None:
    other = toy_bundle(tmp_path / "other", [GOOD] * 2)
    results = make_results(other, tmp_path / "results.jsonl", {0: 1e-3})
    with pytest.raises(BundleError, match="of another bundle"):
        ingest(results, Bundle(bundle), "epyc-turin", tmp_path / "corpus")
    here = make_results(bundle, tmp_path / "here.jsonl", {0: 1e-3}).read_text()
    there = make_results(bundle, tmp_path / "there.jsonl", {1: 1e-3}, gpu="another").read_text()
    (tmp_path / "both.jsonl").write_text(here + there)
    with pytest.raises(BundleError, match="several machines"):
        ingest(tmp_path / "both.jsonl", Bundle(bundle), "epyc-turin", tmp_path / "corpus")
    ingest(tmp_path / "here.jsonl", Bundle(bundle), "epyc-turin", tmp_path / "corpus")
    with pytest.raises(CorpusError, match="device"):
        ingest(tmp_path / "here.jsonl", Bundle(bundle), "xeon-4210", tmp_path / "corpus")


_GPU = {"device_kind": "cuda", "code": "cubin", "arch": "sm_90", "target": {"kind": "cuda", "arch": "sm_90"}}


_PTX = _GPU | {"code": "ptx"}


@pytest.mark.parametrize(
    ("facts", "gpu", "device", "refusal"),
    [
        ({}, None, "h200", r"the bundle is for cpu \(x86_64\), h200 is a gpu \(sm_90\)"),
        ({}, None, "graviton2", r"the bundle is for cpu \(x86_64\), graviton2 is a cpu \(aarch64\)"),
        ({}, "NVIDIA H200", "epyc-turin", "of a NVIDIA H200, which is h200, not epyc-turin"),
        (_GPU, "NVIDIA H200", "graviton2", r"the bundle is for cuda \(sm_90\), graviton2 is a cpu"),
        (_GPU, "NVIDIA H200", "a100", r"a100 is a gpu \(sm_80\)"),
        (_PTX, "NVIDIA A100-SXM4-80GB", "h200", "which is a100, not h200"),
        (_GPU, "NVIDIA H200", "h200", None),
        pytest.param(_GPU, "NVIDIA Paper", "h200", None, id="an unknown GPU is taken at its word"),
        pytest.param(_PTX, "NVIDIA RTX 3090", "rtx3090", None, id="a GPU newer than the PTX, too"),
    ],
)
def test_results_are_of_no_device_that_cannot_have_measured_them(
    tmp_path: Path, facts: dict[str, Any], gpu: str | None, device: str, refusal: str | None
) -> None:
    bundle, corpus = toy_bundle(tmp_path / "bundle", [GOOD], **facts), tmp_path / "corpus"
    results = make_results(bundle, tmp_path / "results.jsonl", {0: 1e-3}, gpu=gpu)
    if refusal is None:
        ingest(results, Bundle(bundle), device, corpus)
        assert Corpus.open(corpus).meta["device"] == device
        return
    with pytest.raises(BundleError, match=refusal) as caught:
        ingest(results, Bundle(bundle), device, corpus)
    assert caught.value.remedy
    assert not corpus.exists()
