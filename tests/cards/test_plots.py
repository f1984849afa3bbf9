"""Plots: drawn from metrics.json alone, small, equal bytes again, for light and dark paper, and stale when edited."""

import json
import os
import subprocess
import sys
from xml.etree import ElementTree as XML

import pytest
from card_kit import METRICS, subsets
from hypothesis import HealthCheck, given, settings
from tchub.cards import CardError, draw, plots_of

FILES = ("top-k.svg", "scatter.svg", "calibration.svg", "transfer.svg", "tuning.svg")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plots")
    assert draw(METRICS, folder) == FILES
    return folder


@pytest.mark.parametrize("file", FILES)
def test_a_plot_is_small_valid_xml_with_words_and_text_that_stays_text(drawn, file):
    text = (drawn / file).read_text()
    root = XML.fromstring(text)
    plot = next(plot for plot in plots_of(METRICS) if plot.file == file)
    assert (root.findtext(f"{SVG}title"), root.findtext(f"{SVG}desc")) == (plot.title, plot.description)
    assert len(text) < 15_000
    assert list(root.iter(f"{SVG}text"))


def test_equal_figures_give_equal_bytes_in_another_process(drawn, tmp_path):
    program = "import json, sys; from pathlib import Path; from tchub.cards import draw; "
    program += "draw(json.load(sys.stdin), Path(sys.argv[1])); assert 'torch' not in sys.modules"
    environment = os.environ | {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "SOURCE_DATE_EPOCH": "0"}
    command = [sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(command, input=json.dumps(METRICS), text=True, check=True, env=environment)
    for file in FILES:
        assert (tmp_path / file).read_bytes() == (drawn / file).read_bytes()


def test_a_plot_of_other_figures_and_one_that_was_edited_are_stale(drawn, tmp_path):
    plot = plots_of(METRICS)[0]
    path = tmp_path / plot.file
    assert not plot.is_current(path)
    text = (drawn / plot.file).read_text()
    path.write_text(text)
    assert plot.is_current(path)
    path.write_text(text.replace("this checkpoint", "that checkpoint"))
    assert not plot.is_current(path)
    path.write_text(text)
    changed = METRICS | {"curves": METRICS["curves"] | {"top_k": [{"k": 1, "model": 0.99}]}}
    assert not plots_of(changed)[0].is_current(path)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(subsets(METRICS))
def test_any_part_of_the_metrics_can_be_drawn_or_is_a_named_fault(tmp_path, metrics):
    try:
        files = draw(metrics, tmp_path)
    except CardError:
        return
    for file in files:
        XML.parse(tmp_path / file)
