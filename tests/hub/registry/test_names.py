"""Names and versions: what is accepted, what is refused, and how versions are ordered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.hub.registry import CheckpointName, Version
from tchub.hub.registry.errors import CheckpointNameError
from tchub.zoo.errors import TchubError


@pytest.mark.parametrize(
    ("text", "arch", "family", "variant", "version"),
    [
        ("tcl-epyc", "tcl", "epyc", None, None),
        ("tcl-epyc@1.2.3", "tcl", "epyc", None, "1.2.3"),
        ("tcl-epyc+local", "tcl", "epyc", "local", None),
        ("tcl-epyc+local@1.0.1", "tcl", "epyc", "local", "1.0.1"),
        ("tenset_mlp-rtx-3080@2.0.0", "tenset_mlp", "rtx-3080", None, "2.0.0"),
    ],
)
def test_names_have_an_architecture_a_family_and_maybe_more(text, arch, family, variant, version):
    parsed = CheckpointName.parse(text)
    assert (parsed.arch, parsed.family, parsed.variant) == (arch, family, variant)
    assert (str(parsed.version) if parsed.version else None) == version
    assert str(parsed) == text


@pytest.mark.parametrize(
    "text",
    ["", "tcl", "tcl-", "-epyc", "TCL-epyc", "tcl-epyc@", "tcl-epyc@1", "tcl-epyc@main", "tcl-../../etc",
     "tcl-e/f", "tcl-epyc+", "tcl-epyc@1.0.0@1.0.0", "tcl-epyc\n",
     "tcl-" + "x" * 200, "tcl-..", "tcl-a..b", "tcl-épyc",
     *(f"tcl-epyc@{version}" for version in ("1.0", "v1.0.0", "01.0.0", "1.0.0+b", "1.0.0-rc.1", "1.0.x", "١.0.0"))],
)  # fmt: skip
def test_anything_else_is_refused_with_a_remedy(text):
    with pytest.raises(CheckpointNameError) as caught:
        CheckpointName.parse(text)
    assert caught.value.remedy


@given(st.text(max_size=40))
def test_no_text_makes_the_parser_fail_otherwise_or_yields_a_path(text):
    try:
        name = CheckpointName.parse(text).name
    except TchubError:
        return
    assert "/" not in name
    assert "\\" not in name
    assert ".." not in name


def test_versions_are_ordered_by_their_numbers():
    texts = ["0.9.0", "1.0.0", "1.0.1", "1.2.0", "1.10.0", "2.0.0"]
    assert [str(version) for version in sorted({Version.parse(text) for text in texts})] == texts
