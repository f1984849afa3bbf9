"""Sources: the order they are tried in, folders, and what is said when none of them has a checkpoint."""

from contextlib import contextmanager

import pytest
from registry_kit import refused
from tchub.hub.registry import parse_source
from tchub.hub.registry.errors import IntegrityError, NotInSourceError, SourceError, UnknownCheckpointError
from toy_checkpoints import make_registry, publish, write_index, write_toy

VERSION = "tcl-epyc/1.0.0"


def test_the_wheel_is_used_in_place_and_is_the_first_source(tmp_path):
    entry = publish(tmp_path / "wheel", "tcl-epyc")
    registry = make_registry(tmp_path, entry, wheel=tmp_path / "wheel")
    located = registry.locate(registry.resolve("tcl-epyc"))
    assert (located.path, located.source) == (tmp_path / "wheel" / VERSION, "bundled")
    assert not (tmp_path / "cache").exists()
    pulled = registry.pull("tcl-epyc")
    assert (pulled.path, pulled.source) == (tmp_path / "cache" / VERSION, "bundled")


def test_the_mirrors_of_the_environment_come_before_those_of_the_index(tmp_path, monkeypatch):
    listed = (tmp_path / "listed").as_uri()
    publish(tmp_path / "mirror", "tcl-epyc")
    entry = publish(tmp_path / "listed", "tcl-epyc", entry={"sources": [listed]})
    monkeypatch.setenv("TCHUB_SOURCES", f"{(tmp_path / 'nothing').as_uri()}, {(tmp_path / 'mirror').as_uri()}")
    assert make_registry(tmp_path, entry).pull("tcl-epyc").source == (tmp_path / "mirror").as_uri()


@pytest.mark.parametrize("layout", ["tcl-epyc/1.0.0", "tcl-epyc", "."])
def test_a_folder_may_be_laid_out_like_the_store_like_clones_or_be_the_checkpoint(tmp_path, layout):
    entry = publish(tmp_path / "origin", "tcl-epyc")
    write_toy(tmp_path / "folder" / layout, "tcl-epyc")
    pulled = make_registry(tmp_path, entry).pull("tcl-epyc", source=(tmp_path / "folder").as_uri())
    assert pulled.path.is_dir()


def test_a_folder_may_bring_its_own_index(tmp_path):
    folder = tmp_path / "zoo"
    entry = publish(folder, "tcl-epyc")
    registry = make_registry(tmp_path)
    with pytest.raises(UnknownCheckpointError):
        registry.pull("tcl-epyc", source=folder.as_uri())
    write_index(folder / "index.json", entry)
    assert registry.pull("tcl-epyc", source=folder.as_uri()).entry == entry
    assert registry.resolve("tcl-epyc").entry == entry, "what was pulled is known from then on"


def test_a_source_with_a_damaged_file_is_passed_over(tmp_path, monkeypatch):
    entry = publish(tmp_path / "good", "tcl-epyc", entry={"sources": [(tmp_path / "good").as_uri()]})
    bad = publish(tmp_path / "bad", "tcl-epyc")
    (tmp_path / "bad" / VERSION / "model.safetensors").write_bytes(b"\0" * bad.files["model.safetensors"].size)
    monkeypatch.setenv("TCHUB_SOURCES", (tmp_path / "bad").as_uri())
    pulled = make_registry(tmp_path, entry).pull("tcl-epyc")
    assert pulled.source == (tmp_path / "good").as_uri()


@pytest.mark.parametrize("other", ["s3://of-a-later-release", "http://example.org/zoo", "https://me:pw@example.org"])
def test_a_source_that_the_index_lists_and_nobody_can_use_is_passed_over(tmp_path, other):
    sources = [other, (tmp_path / "good").as_uri()]
    entry = publish(tmp_path / "good", "tcl-epyc", entry={"sources": sources})
    assert make_registry(tmp_path, entry).pull("tcl-epyc").source == sources[1]
    alone = publish(tmp_path / "bad", "tcl-t4", entry={"sources": [other]})
    with pytest.raises(SourceError) as caught:
        make_registry(tmp_path / "again", alone).pull("tcl-t4")
    assert caught.value.remedy.startswith(("write ", "use https://"))


def test_when_several_sources_fail_each_is_quoted(tmp_path, monkeypatch):
    entry = publish(tmp_path / "origin", "tcl-epyc")
    mirrors = [(tmp_path / name).as_uri() for name in ("one", "two")]
    monkeypatch.setenv("TCHUB_SOURCES", ",".join(mirrors))
    with refused("sources") as caught:
        make_registry(tmp_path, entry).pull("tcl-epyc")
    assert set(caught.value.fields["tried"]) == set(mirrors)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "text",
    ["", "https:", "file://host/folder", "file:folder", "hf://only", "hf://a/b/c", "s3://b", "../folder"],
)
def test_other_sources_are_refused(text):
    with refused("form"):
        parse_source(text)


def test_a_file_that_cannot_be_read_is_a_fault_of_the_source(tmp_path, monkeypatch):
    entry = publish(tmp_path / "wheel", "tcl-epyc")

    @contextmanager
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))
        yield

    monkeypatch.setattr("tchub.hub.registry.sources.open_plain", refuse)
    with pytest.raises(NotInSourceError, match=r"config\.json of bundled cannot be read: Permission denied"):
        make_registry(tmp_path, entry, wheel=tmp_path / "wheel").pull("tcl-epyc")


def test_a_file_of_another_size_is_refused_before_a_byte_is_copied(tmp_path):
    entry = publish(tmp_path / "wheel", "tcl-epyc")
    with (tmp_path / "wheel" / VERSION / "model.safetensors").open("wb") as file:
        file.truncate(1 << 40)
    dest = tmp_path / "dest"
    dest.mkdir()
    with pytest.raises(IntegrityError, match="wrong size") as caught:
        parse_source((tmp_path / "wheel").as_uri()).fetch(entry, dest)
    assert caught.value.fields["outcome"] == "size-mismatch"
    assert not (dest / "model.safetensors").exists()
