"""`tchub cache`: what is there, what goes, and what never does."""

import pytest
from cli_kit import use_zoo
from tchub.hub.registry import Registry, Store
from tchub.hub.registry.cache import prune
from tchub.zoo.files import StorageError
from toy_checkpoints import forbid_reading, forbid_writing, publish, write_index, write_toy

VERSIONS = ("0.9.0", "0.9.1", "0.10.0")


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Store:
    """Three versions of one checkpoint and one of another, all fetched."""
    root = tmp_path / "zoo"
    entries = [publish(root, "tcl-epyc", version) for version in VERSIONS] + [publish(root, "tcl-t4", "0.9.0")]
    use_zoo(monkeypatch, tmp_path, write_index(tmp_path / "index.json", *entries))
    registry = Registry.default()
    for entry in entries:
        registry.pull(entry.id, source=root.as_uri())
    return registry.cache


def run_json(run, *args: str):
    code, result = run.json("cache", *args)
    assert code == 0
    return result


def stored(cache: Store) -> list[str]:
    return [entry.id for entry in cache.entries()]


def test_list_tells_size_and_whether_a_copy_is_whole(cache, run):
    (cache.root / "tcl-t4/0.9.0/model.safetensors").write_bytes(b"damaged")
    rows = {row["name"]: row for row in run_json(run)["items"]}
    assert list(rows) == ["tcl-epyc@0.9.0", "tcl-epyc@0.9.1", "tcl-epyc@0.10.0", "tcl-t4@0.9.0"]
    assert [row["outcome"] for row in rows.values()] == ["ok", "ok", "ok", "size-mismatch"]
    folder = cache.root / "tcl-epyc/0.9.0"
    assert rows["tcl-epyc@0.9.0"]["size"] == sum(path.stat().st_size for path in folder.iterdir())
    out = run("cache")[1]
    assert "tcl-epyc@0.10.0" in out
    assert "size-mismatch" in out


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ([], ["tcl-epyc@0.10.0", "tcl-t4@0.9.0"]),
        (["--keep", "2"], ["tcl-epyc@0.10.0", "tcl-epyc@0.9.1", "tcl-t4@0.9.0"]),
        (["--keep", "0"], []),
    ],
)
def test_what_prune_keeps(cache, run, options, left):
    would = run_json(run, "--prune", *options, "--dry-run")
    assert len(stored(cache)) == 4, "a dry run removes nothing"
    before = run_json(run)["bytes"]
    did = run_json(run, "--prune", *options)
    assert (did["removed"], did["freed"]) == (would["removed"], before - run_json(run)["bytes"])
    assert stored(cache) == left


def test_damaged_copies_go_and_do_not_count_as_the_newest(cache, run):
    (cache.root / "tcl-epyc/0.10.0/model.safetensors").write_bytes(b"damaged")
    (cache.root / "tcl-epyc/0.9.0/entry.json").unlink()
    reasons = {gone["name"]: gone["reason"] for gone in run_json(run, "--prune")["removed"]}
    assert reasons == {"tcl-epyc@0.10.0": "damaged: size-mismatch", "tcl-epyc@0.9.0": "damaged: missing-file"}
    assert stored(cache) == ["tcl-epyc@0.9.1", "tcl-t4@0.9.0"]


def test_what_a_stopped_download_left_goes_and_the_refreshed_index_with_its_keys_never(cache, run):
    index = cache.root.parent / "index/refreshed.json"
    index.parent.mkdir()
    index.write_text("{}")
    partial = cache.root / "tcl-t4/.partial-abc"
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(b"half")
    stopped, refreshed = run_json(run)["items"][-2:]
    assert (stopped["name"], refreshed["what"]) == ("tcl-t4/.partial-abc", "index")
    assert run_json(run, "--prune", "--keep", "9")["freed"] == 4
    run_json(run, "--prune", "--keep", "0")
    assert not partial.exists()
    assert index.is_file()


def test_a_name_that_another_process_is_writing_is_left_alone(cache, run):
    with cache.locked("tcl-epyc"):
        result = run_json(run, "--prune", "--keep", "0")
    assert [(gone["name"], gone["freed"] > 0) for gone in result["removed"]] == [
        ("tcl-epyc", False), ("tcl-t4@0.9.0", True)
    ]  # fmt: skip
    assert "another process is writing it" in result["removed"][0]["reason"]
    assert len(stored(cache)) == 3


def test_adapted_checkpoints_stay_even_where_both_roots_are_one_folder(cache, run, monkeypatch, tmp_path):
    monkeypatch.setenv("TCHUB_HOME", str(tmp_path / "cache"))
    registry = Registry.default()
    base = registry.resolve("tcl-t4").entry
    adapted = registry.register_local("tcl-t4+local", lambda f, v: write_toy(f, "tcl-t4+local", v), base)
    (registry.home.path(adapted) / "README.md").write_text("damaged")
    run_json(run, "--prune", "--keep", "0")
    assert stored(registry.home) == [adapted.id]


def test_a_name_that_cannot_be_read_is_called_so_and_the_others_go_on(cache, run, monkeypatch):
    forbid_reading(monkeypatch, cache.root / "tcl-t4")
    rows = {row["name"]: row["outcome"] for row in run_json(run)["items"]}
    assert rows == {"tcl-epyc@0.9.0": "ok", "tcl-epyc@0.9.1": "ok", "tcl-epyc@0.10.0": "ok", "tcl-t4": "unreadable"}
    assert run_json(run)["bytes"] > 0
    *gone, left = run_json(run, "--prune", "--keep", "0")["removed"]
    assert len(gone) == 3
    assert (left["name"], left["freed"], left["reason"]) == ("tcl-t4", 0, "left alone: it cannot be read")


def test_a_cache_that_cannot_be_read_is_an_error_of_the_cache_alone(cache, run, monkeypatch):
    forbid_reading(monkeypatch, cache.root)
    for options in ((), ("--prune",)):
        code, _, err = run("cache", *options)
        assert code == 1
        assert "cannot be read: Permission denied\nremedy: check its permissions, or set TCHUB_CACHE" in err
    assert run("list")[0] == 0


def test_a_cache_that_cannot_be_written_is_an_error(cache, monkeypatch):
    forbid_writing(monkeypatch)
    with pytest.raises(StorageError, match="cannot be written"):
        prune(cache)
    assert len(stored(cache)) == 4
