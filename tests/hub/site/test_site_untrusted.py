"""Nothing of an index or a card is ever code in the catalogue, and a card's Markdown is shown."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from site_pages import Page, page, pages
from tchub.cards import CardError
from tchub.hub.registry import Index
from tchub.hub.registry.listing import published
from tchub.hub.site.build import build, render
from tchub.hub.site.pages import address, card_html
from toy_checkpoints import with_entry

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>'\"&"


def test_hostile_facts_of_an_entry_are_text(registry, tmp_path):
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


def test_hostile_labels_of_metrics_are_text(registry):
    results = {"model": {"top1": 0.6}, HOSTILE: {"label": HOSTILE, "top1": 0.5}}
    listed = [replace(one, metrics={"results": results, "corpus": HOSTILE}) for one in published(registry)]
    read = Page(render(listed)["c/tcl-a100.html"].decode())
    assert HOSTILE in read.one("main").text
    assert len(read.all("script")) == 1


def test_metrics_of_the_wrong_type_are_an_error_that_names_the_checkpoint(registry):
    listed = [replace(one, metrics={"results": {"model": {"top1": HOSTILE}}}) for one in published(registry)]
    with pytest.raises(CardError, match=r"tcl-a100@1\.0\.0: .*top1"):
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
def test_a_hostile_card_is_text(card):
    read = Page(card_html(card))
    assert not {e.tag for e in read.elements} & {"script", "img", "b", "iframe", "style"}
    assert not read.links()
    assert not [e for e in read.elements if {"style", "onclick", "onerror"} & set(e.attributes)]


@given(st.text(st.sampled_from("<>[]()!#|`*_-&;:\"'\n /ahjs.x=")))
def test_whatever_a_card_says_no_markup_of_its_own_comes_through(text):
    blocks = {"p", "h3", "h4", "h5", "h6", "ul", "ol", "li", "pre", "blockquote", "hr"}
    table = {"div", "table", "thead", "tbody", "tr", "th", "td"}
    read = Page(card_html(text))
    assert {e.tag for e in read.elements} <= blocks | table | {"em", "strong", "code", "br", "a"}
    assert all(link.lower().startswith(("http://", "https://")) for link in read.links())


def test_a_source_is_linked_where_a_browser_can_open_it():
    assert address("hf://org/name", "ab" * 20) == f"https://huggingface.co/org/name/tree/{'ab' * 20}"
    assert address("https://mirror.example/zoo", None) == "https://mirror.example/zoo"
    assert address("file:///mnt/zoo", None) is address("javascript:alert(1)", None) is None


def test_a_card_keeps_its_tables_links_and_code_without_its_head_and_title():
    html = card_html(
        "---\nlicense: mit\n---\n# name\n\n## Data\n\n[a](https://x.org)\n\n|n|\n|--:|\n|1|\n\n```\nf(<T>)\n```\n"
    )
    read = Page(html)
    assert read.one("h3").text == "Data"
    assert read.one("a")["href"] == "https://x.org"
    assert read.one("td")["class"] == "right"
    assert read.one("pre").text == "f(<T>)\n"
    assert "license" not in html
