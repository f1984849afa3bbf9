"""`tchub site build`: pages that stand by themselves, say what the index says, and run nothing that came from it."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from site_pages import Page
from tchub.cards import CardError
from tchub.hub.cli import main
from tchub.hub.registry import Entry, Index, Registry, Store
from tchub.hub.registry.errors import IntegrityError, UnknownSourceError
from tchub.hub.site.build import build, render
from tchub.hub.site.catalogue import published, registry_of
from tchub.hub.site.errors import ForeignFolderError, SiteWriteError
from tchub.hub.site.markdown import card_html
from tchub.hub.site.pages import address
from toy_checkpoints import make_registry, publish, write_index

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>'\"&"


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Two checkpoints of one family, one of them in two versions, and one of another family."""
    wheel = tmp_path / "wheel"
    entries = [
        publish(wheel, "tcl-epyc", "1.0.0"),
        publish(wheel, "tcl-epyc", "1.1.0"),
        publish(wheel, "tilenet-epyc", feature_schema="nest-cpu"),
        publish(wheel, "tcl-a100", feature_schema="tcl-gpu"),
    ]
    return make_registry(tmp_path, *entries, wheel=wheel)


@pytest.fixture
def site(registry: Registry, tmp_path: Path) -> Path:
    """The catalogue of the toys."""
    return build(registry, tmp_path / "site").path


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The catalogue of what ships, with its real cards and plots."""
    folder = tmp_path_factory.mktemp("released")
    return build(Registry(Index.default(), Store(folder / "cache"), Store(folder / "home")), folder / "site").path


@pytest.fixture(params=["toys", "released"])
def either(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue("site" if request.param == "toys" else "released")


def page(path: Path) -> Page:
    return Page(path.read_text())


def pages(site: Path) -> Iterator[tuple[Path, Page]]:
    return ((path, page(path)) for path in sorted(site.rglob("*.html")))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def with_entry(registry: Registry, **changes: Any) -> Registry:
    """The registry with fields of its first entry changed."""
    first, *others = registry.index.entries
    return replace(registry, index=Index((replace(first, **changes), *others)))


# What is written


def test_every_published_checkpoint_has_one_line_and_one_page_of_its_newest_version(site: Path) -> None:
    assert sorted(path.stem for path in (site / "c").iterdir()) == ["tcl-a100", "tcl-epyc", "tilenet-epyc"]
    index = page(site / "index.html")
    rows = [row["data-name"] for row in index.all("tr") if row.get("data-name")]
    assert rows == [one["name"] for one in index.data()] == ["tcl-epyc", "tilenet-epyc", "tcl-a100"]
    assert page(site / "c" / "tcl-epyc.html").one("h1").text == "tcl-epyc 1.1.0"


def test_a_page_lists_the_other_versions_with_the_commands_that_fetch_them(site: Path) -> None:
    text = page(site / "c" / "tcl-epyc.html").one("main").text
    assert "tchub pull tcl-epyc@1.1.0" in text
    assert "tchub pull tcl-epyc@1.0.0" in text


def test_a_pre_release_is_shown_only_where_there_is_no_release(tmp_path: Path) -> None:
    wheel = tmp_path / "wheel"
    versions = [publish(wheel, "tcl-epyc", version) for version in ("1.0.0", "2.0.0-rc.1")]
    (one,) = published(make_registry(tmp_path, *versions, wheel=wheel))
    assert (one.entry.version, [e.version for e in one.older]) == ("1.0.0", ["2.0.0-rc.1"])


def test_a_page_says_scores_beside_baselines_licences_and_every_files_sha256(site: Path, registry: Registry) -> None:
    text = page(site / "c" / "tilenet-epyc.html").one("main").text
    for told in ("0.910", "random choice", "0.350", "Apache-2.0", "CC0-1.0", "A toy."):
        assert told in text
    entry = next(e for e in registry.index.entries if e.name == "tilenet-epyc")
    assert all(record.sha256 in text for record in entry.files.values())


def test_catalogue_json_holds_the_same_for_machines(site: Path) -> None:
    catalogue = json.loads((site / "catalogue.json").read_text())
    assert catalogue["format"] == 1
    by_name = {one["name"]: one for one in catalogue["checkpoints"]}
    assert by_name["tcl-epyc"]["versions"] == ["1.1.0", "1.0.0"]
    assert by_name["tcl-epyc"]["scores"]["top1"] == 0.91
    assert (site / by_name["tcl-epyc"]["page"]).is_file()
    assert len(by_name["tcl-a100"]["files"]["model.safetensors"]["sha256"]) == 64


def test_a_checkpoint_that_is_not_here_is_shown_as_the_index_tells_it(registry: Registry, tmp_path: Path) -> None:
    site = build(replace(registry, wheel=tmp_path / "nothing"), tmp_path / "bare").path
    text = page(site / "c" / "tcl-a100.html").one("main").text
    assert "Its card is not on the machine that wrote this page" in text
    assert "0.910" in text


def test_a_checkpoint_adapted_here_is_not_published(registry: Registry, tmp_path: Path) -> None:
    (base, *_) = registry.index.entries
    local = registry.register_local("tcl-epyc+local", lambda folder, _: copy(registry, base, folder), base)
    assert local in registry.entries()
    assert "tcl-epyc+local" not in [one.entry.name for one in published(registry)]


def copy(registry: Registry, entry: Entry, folder: Path) -> None:
    for name in entry.files:
        (folder / name).write_bytes((registry.wheel / entry.name / entry.version / name).read_bytes())


def test_the_plots_of_measured_curves_are_drawn_and_described(registry: Registry, tmp_path: Path) -> None:
    listed = published(registry)
    scores = {"top1": 0.8, "top5": 0.9, "pairwise": 0.7}
    rows = [{"corpus": corpus, "metrics": scores, "random": scores} for corpus in ("here", "there")]
    files = render([replace(one, metrics=dict(one.metrics) | {"transfer": rows}) for one in listed])
    assert b"<svg" in files["plots/tcl-a100/transfer.svg"]
    image = Page(files["c/tcl-a100.html"].decode()).one("img")
    assert image["src"] == "../plots/tcl-a100/transfer.svg"
    assert "2 other corpora" in image["alt"]


def test_a_picture_in_a_card_leads_to_the_pages_own_figure() -> None:
    read = Page(card_html("![words](plots/scatter.svg) ![more](plots/other.svg)", {"plots/scatter.svg": "Scatter"}))
    assert (read.one("a")["href"], read.one("a").text) == ("#plots/scatter.svg", "Plot: Scatter")
    assert "more" in read.one("p").text
    linked = Page(card_html("[![words](plots/scatter.svg)](https://x.org)", {"plots/scatter.svg": "Scatter"}))
    assert (linked.one("a")["href"], linked.one("a").text) == ("https://x.org", "words")


def test_a_page_tells_earlier_names_tvm_releases_and_scores_on_other_devices(registry: Registry) -> None:
    told = with_entry(registry, tvm_range=">=0.27,<0.28", transfer={"t4": {"pairwise": 0.65, "tasks": 12}})
    index = Index((told.index.entries[0],), aliases={"tcl-turin": "tcl-epyc"})
    files = render(published(replace(registry, index=index)))
    text = Page(files["c/tcl-epyc.html"].decode()).one("main").text
    for fact in ("tcl-turin", ">=0.27,<0.28", "On other devices and programs", "0.650", "nothing"):
        assert fact in text
    assert "tcl-turin" in Page(files["index.html"].decode()).data()[0]["search"]


def test_every_checkpoint_that_ships_has_a_page_with_its_card_and_plots(released: Path) -> None:
    for entry in Index.default().entries:
        read = page(released / "c" / f"{entry.name}.html")
        text = read.one("main").text
        assert "Intended use" in text
        assert entry.files["config.json"].sha256 in text
        assert read.all("img")


# How it is written


def test_equal_checkpoints_give_equal_bytes(registry: Registry, tmp_path: Path) -> None:
    turned = replace(registry, index=Index(registry.index.entries[::-1]))
    first, second = build(registry, tmp_path / "one"), build(turned, tmp_path / "two")
    assert tree(first.path) == tree(second.path)


def test_a_second_build_writes_what_changed_and_removes_pages_that_are_gone(registry: Registry, site: Path) -> None:
    assert build(registry, site).written == 0
    fewer = replace(registry, index=Index(registry.index.entries[:3]))
    (site / "CNAME").write_text("zoo.example.org")
    built = build(fewer, site)
    assert (built.removed, (site / "c" / "tcl-a100.html").exists()) == (1, False)
    assert "tcl-a100" not in (site / "index.html").read_text()
    assert (site / "CNAME").is_file()


def test_a_folder_with_other_files_is_refused_and_left_as_it_is(registry: Registry, tmp_path: Path) -> None:
    foreign = tmp_path / "papers"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years of work")
    with pytest.raises(ForeignFolderError) as caught:
        build(registry, foreign)
    assert caught.value.remedy
    assert tree(foreign) == {"thesis.tex": b"years of work"}


def test_a_file_that_only_is_called_catalogue_json_makes_no_catalogue(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    for text in ("[]", "not JSON", '{"shoes": 7}'):
        (tmp_path / "shop" / "catalogue.json").write_text(text)
        with pytest.raises(ForeignFolderError):
            build(registry, tmp_path / "shop")


def test_a_folder_of_hidden_files_alone_is_taken(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "gh-pages" / ".git").mkdir(parents=True)
    assert build(registry, tmp_path / "gh-pages").written


def test_a_disk_that_is_full_keeps_the_earlier_index_page(registry: Registry, site: Path, monkeypatch: Any) -> None:
    before = (site / "index.html").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(site / "c"))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(SiteWriteError, match="No space left"):
        build(registry, site, title="Another")
    assert (site / "index.html").read_bytes() == before
    assert not [path for path in site.rglob(".*") if path.is_file()]


def test_a_card_that_is_not_the_published_one_is_not_shown(registry: Registry, tmp_path: Path) -> None:
    (registry.wheel / "tcl-a100" / "1.0.0" / "README.md").write_text("# better than ever\n")
    with pytest.raises(IntegrityError):
        build(registry, tmp_path / "site")
    assert not (tmp_path / "site").exists()


# Standing by itself


def test_every_link_leads_to_a_file_of_the_catalogue_or_to_the_web(either: Path) -> None:
    for path, read in pages(either):
        for link in read.links():
            target = link.partition("#")[0]
            if target and not target.startswith("https://"):
                assert (path.parent / target).is_file(), f"{path.name}: {link}"


def test_every_reference_within_a_page_has_its_target(either: Path) -> None:
    for path, read in pages(either):
        ids = [e["id"] for e in read.elements if e.get("id")]
        assert len(set(ids)) == len(ids), path
        named = {word for e in read.elements for word in (e.get("aria-labelledby") or "").split()}
        named |= {link[1:] for link in read.links() if link.startswith("#")}
        assert named <= set(ids), path


def test_headings_go_down_one_level_at_a_time_from_one_title(either: Path) -> None:
    for path, read in pages(either):
        levels = [int(e.tag[1]) for e in read.elements if re.fullmatch(r"h[1-6]", e.tag)]
        assert levels.count(1) == 1, path
        assert levels[0] == 1, path
        assert all(below <= above + 1 for above, below in pairwise(levels)), path


def test_tables_and_pictures_are_named_for_those_who_do_not_see_them(either: Path) -> None:
    for _, read in pages(either):
        assert read.one("html")["lang"] == "en"
        assert all(image["alt"] for image in read.all("img"))
        assert page(either / "index.html").one("caption").text


def test_no_page_may_run_or_load_anything_but_its_own_two_files(either: Path) -> None:
    for _, read in pages(either):
        policy = read.one("meta", **{"http-equiv": "Content-Security-Policy"})["content"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'")
        assert [e["src"].rpartition("/")[2] for e in read.all("script") if e.get("src")] == ["catalogue.js"]
        assert not [e for e in read.elements if any(name.startswith("on") or name == "style" for name in e.attributes)]


# Nothing of an index or a card is ever code


def test_hostile_facts_of_an_entry_are_text(registry: Registry, tmp_path: Path) -> None:
    data = {"device": HOSTILE, "name": HOSTILE, "programs": HOSTILE}
    facts = dict.fromkeys(("family", "weights_licence", "data_licence", "tvm", "deprecated", "arch"), HOSTILE)
    hostile = with_entry(
        registry, **facts, data=data, sources=(HOSTILE, "javascript:alert(1)"), lineage={"base": HOSTILE}
    )
    hostile = replace(hostile, index=Index((hostile.index.entries[0], *hostile.index.entries[2:])))
    site = build(hostile, tmp_path / "hostile", title=HOSTILE).path
    for _, read in pages(site):
        scripts = [script for script in read.all("script") if script.get("type") != "application/json"]
        assert [script.text for script in scripts] == [""]
        assert not read.all("img")
        assert not [link for link in read.links() if link.lower().startswith("javascript")]
    assert HOSTILE in {one["family"] for one in page(site / "index.html").data()}
    assert HOSTILE in page(site / "c" / "tcl-epyc.html").one("main").text


def test_hostile_labels_of_metrics_are_text(registry: Registry) -> None:
    results = {"model": {"top1": 0.6}, HOSTILE: {"label": HOSTILE, "top1": 0.5}}
    listed = [replace(one, metrics={"results": results, "corpus": HOSTILE}) for one in published(registry)]
    read = Page(render(listed)["c/tcl-a100.html"].decode())
    assert HOSTILE in read.one("main").text
    assert len(read.all("script")) == 1


def test_metrics_of_the_wrong_type_are_an_error_that_names_the_checkpoint(registry: Registry) -> None:
    listed = [replace(one, metrics={"results": {"model": {"top1": HOSTILE}}}) for one in published(registry)]
    with pytest.raises(CardError, match=r"tcl-a100@1\.0\.0: top1 is not a number"):
        render(listed)


@pytest.mark.parametrize(
    "card",
    [
        HOSTILE,
        "<script>alert(1)</script>\n",
        "[x](javascript:alert(1)) [y](data:text/html,<script>) [z](//evil.example) <javascript:alert(1)>",
        "![x](https://evil.example/pixel.png) ![y](../../secret.svg)",
        "[x]: javascript:alert(1)\n\n[x] [up](../../index.html)",
        "| a |\n|:-:|\n| <b onclick=alert(1)> |",
    ],
)
def test_a_hostile_card_is_text(card: str) -> None:
    read = Page(card_html(card))
    assert not {e.tag for e in read.elements} & {"script", "img", "b", "iframe", "style"}
    assert not read.links()
    assert not [e for e in read.elements if {"style", "onclick", "onerror"} & set(e.attributes)]


@given(st.text(st.sampled_from("<>[]()!#|`*_-&;:\"'\n /ahjs.x=")))
def test_whatever_a_card_says_no_markup_of_its_own_comes_through(text: str) -> None:
    blocks = {"p", "h3", "h4", "h5", "h6", "ul", "ol", "li", "pre", "blockquote", "hr"}
    table = {"div", "table", "thead", "tbody", "tr", "th", "td"}
    read = Page(card_html(text))
    assert {e.tag for e in read.elements} <= blocks | table | {"em", "strong", "code", "br", "a"}
    assert all(link.lower().startswith(("http://", "https://")) for link in read.links())


def test_a_card_keeps_its_tables_links_and_code_without_its_head_and_title() -> None:
    html = card_html(
        "---\nlicense: mit\n---\n# name\n\n## Data\n\n[a](https://x.org)\n\n|n|\n|--:|\n|1|\n\n```\nf(<T>)\n```\n"
    )
    read = Page(html)
    assert read.one("h3").text == "Data"
    assert read.one("a")["href"] == "https://x.org"
    assert read.one("td")["class"] == "right"
    assert read.one("pre").text == "f(<T>)\n"
    assert "license" not in html


def test_a_source_is_linked_where_a_browser_can_open_it() -> None:
    assert address("hf://org/name", "ab" * 20) == f"https://huggingface.co/org/name/tree/{'ab' * 20}"
    assert address("https://mirror.example/zoo", None) == "https://mirror.example/zoo"
    assert address("file:///mnt/zoo", None) is address("javascript:alert(1)", None) is None


# The command


def test_the_command_writes_the_catalogue_and_says_where(
    registry: Registry, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    write_index(registry.wheel / "index.json", *registry.index.entries)
    arguments = ["--output", str(tmp_path / "out"), "--source", registry.wheel.as_uri(), "--title", "Ours"]
    assert main(["site", "build", *arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["checkpoints"] == ["tcl-a100", "tcl-epyc", "tilenet-epyc"]
    assert page(Path(told["index"])).one("h1").text == "Ours"
    assert main(["site", "build", *arguments]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == told["index"]
    assert "0 of 7 files written" in said.err


def test_an_index_of_its_own_is_shown_without_cards(registry: Registry, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    index = write_index(tmp_path / "other.json", publish(tmp_path / "elsewhere", "tlp-epyc"))
    (one,) = published(registry_of(index))
    assert (one.entry.id, one.card) == ("tlp-epyc@1.0.0", "")


def test_a_source_that_is_no_folder_is_refused() -> None:
    with pytest.raises(UnknownSourceError):
        registry_of(source="hf://org/name")


def test_a_foreign_folder_is_said_with_a_remedy(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["site", "build", "--output", str(tmp_path)]) == 1
    assert "remedy: give --output a new folder" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["site"], ["site", "build"]])
def test_help_has_examples(arguments: list[str], capsys: Any) -> None:
    assert main([*arguments, "--help"]) == 0
    assert "tchub site build --output" in capsys.readouterr().out.split("Examples:")[1]


# What ships


def test_templates_style_sheet_and_script_are_in_the_wheel() -> None:
    root = Path(__file__).resolve().parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["tchub.hub"]
    packed = {path for pattern in patterns for path in (root / "hub").glob(pattern)}
    assert set((root / "hub" / "site" / "templates").iterdir()) <= packed
