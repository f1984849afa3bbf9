"""The catalogue's pages stand by themselves: links, headings, names of tables, and nothing loaded from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from site_pages import page, pages


@pytest.fixture(params=["toys", "released"])
def either(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue("site" if request.param == "toys" else "released")


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
