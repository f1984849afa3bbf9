"""`tchub site`: the facts of each checkpoint in the catalogue, how its files are written, and the command."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from site_pages import page, pages
from tchub.hub.cli import main
from tchub.hub.registry import Index
from tchub.hub.registry.errors import IntegrityError
from tchub.hub.site.build import build
from tchub.zoo.files import StorageError
from toy_checkpoints import write_index


def test_every_published_checkpoint_has_one_line_and_one_page_of_its_newest_version(site):
    assert sorted(path.stem for path in (site / "c").iterdir()) == ["tcl-a100", "tcl-epyc", "tilenet-epyc"]
    index = page(site / "index.html")
    rows = [row["data-name"] for row in index.all("tr") if row.get("data-name")]
    assert rows == [one["name"] for one in index.data()] == ["tcl-epyc", "tilenet-epyc", "tcl-a100"]
    assert page(site / "c" / "tcl-epyc.html").one("h1").text == "tcl-epyc 1.1.0"


def test_catalogue_json_holds_the_same_for_machines(site):
    catalogue = json.loads((site / "catalogue.json").read_text())
    assert catalogue["format"] == 1
    by_name = {one["name"]: one for one in catalogue["checkpoints"]}
    assert by_name["tcl-epyc"]["versions"] == ["1.1.0", "1.0.0"]
    assert by_name["tcl-epyc"]["scores"]["top1"] == 0.91
    assert (site / by_name["tcl-epyc"]["page"]).is_file()
    assert len(by_name["tcl-a100"]["files"]["model.safetensors"]["sha256"]) == 64


def test_a_checkpoint_that_is_not_here_is_shown_as_the_index_tells_it(registry, tmp_path):
    site = build(replace(registry, wheel=tmp_path / "nothing"), tmp_path / "bare").path
    text = page(site / "c" / "tcl-a100.html").one("main").text
    assert "Its card is not on the machine that wrote this page" in text
    assert "0.910" in text


def test_every_checkpoint_that_ships_has_a_page_with_its_card_and_plots(released):
    for entry in Index.shipped().entries:
        read = page(released / "c" / f"{entry.name}.html")
        text = read.one("main").text
        assert "Intended use" in text
        assert entry.files["config.json"].sha256 in text
        assert read.all("img")


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_equal_checkpoints_give_equal_bytes(registry, tmp_path):
    turned = replace(registry, index=Index(registry.index.entries[::-1]))
    first, second = build(registry, tmp_path / "one"), build(turned, tmp_path / "two")
    assert tree(first.path) == tree(second.path)


def test_a_second_build_writes_what_changed_and_removes_pages_that_are_gone(registry, site):
    assert build(registry, site).written == 0
    fewer = replace(registry, index=Index(registry.index.entries[:3]))
    (site / "CNAME").write_text("zoo.example.org")
    built = build(fewer, site)
    assert (built.removed, (site / "c" / "tcl-a100.html").exists()) == (1, False)
    assert "tcl-a100" not in (site / "index.html").read_text()
    assert (site / "CNAME").is_file()


def test_a_folder_with_other_files_is_refused_and_left_as_it_is(registry, tmp_path):
    foreign = tmp_path / "papers"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years of work")
    with pytest.raises(StorageError) as caught:
        build(registry, foreign)
    assert caught.value.remedy
    assert tree(foreign) == {"thesis.tex": b"years of work"}
    for text in ("[]", "not JSON", '{"shoes": 7}'):
        (foreign / "catalogue.json").write_text(text)
        with pytest.raises(StorageError):
            build(registry, foreign)


def test_a_folder_of_hidden_files_alone_is_taken(registry, tmp_path):
    (tmp_path / "gh-pages" / ".git").mkdir(parents=True)
    assert build(registry, tmp_path / "gh-pages").written


def test_a_disk_that_is_full_keeps_the_earlier_index_page(registry, site, full_disk):
    before = (site / "index.html").read_bytes()

    full_disk("os.replace")
    with pytest.raises(StorageError, match="No space left"):
        build(registry, site, title="Another")
    assert (site / "index.html").read_bytes() == before
    assert not [path for path in site.rglob(".*") if path.is_file()]


def test_a_card_that_is_not_the_published_one_is_not_shown(registry, tmp_path):
    (registry.wheel / "tcl-a100" / "1.0.0" / "README.md").write_text("# better than ever\n")
    with pytest.raises(IntegrityError):
        build(registry, tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_the_command_writes_the_catalogue_and_says_where(registry, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    write_index(registry.wheel / "index.json", *registry.index.entries)
    arguments = ["--out", str(tmp_path / "out"), "--source", registry.wheel.as_uri(), "--title", "Ours"]
    assert main(["site", *arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["checkpoints"] == ["tcl-a100", "tcl-epyc", "tilenet-epyc"]
    assert page(Path(result["path"], "index.html")).one("h1").text == "Ours"
    assert main(["site", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == str(Path(result["path"], "index.html"))
    assert "0 of 7 files written" in printed.err


@pytest.fixture(params=["toys", "released"])
def either(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue("site" if request.param == "toys" else "released")


def test_every_link_leads_to_a_file_of_the_catalogue_or_to_the_web(either):
    for path, read in pages(either):
        for link in read.links():
            target = link.partition("#")[0]
            if target and not target.startswith("https://"):
                assert (path.parent / target).is_file(), f"{path.name}: {link}"


def test_no_page_may_run_or_load_anything_but_its_own_two_files(either):
    for _, read in pages(either):
        policy = read.one("meta", **{"http-equiv": "Content-Security-Policy"})["content"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'")
        assert [e["src"].rpartition("/")[2] for e in read.all("script") if e.get("src")] == ["catalogue.js"]
        assert not [e for e in read.elements if any(name.startswith("on") or name == "style" for name in e.attributes)]
