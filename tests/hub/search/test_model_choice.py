"""The cost model that guides a run: refusals before anything is measured."""

from __future__ import annotations

import pytest
from tchub.hub.search.models import choose_model
from tchub.zoo.devices import get_device
from tchub.zoo.features import DeviceKindError


def test_an_unknown_way_to_learn_is_refused() -> None:
    with pytest.raises(ValueError, match="few-shot"):
        choose_model("tcl-epyc", update="often")


def test_a_checkpoint_of_gpus_tunes_no_programs_of_a_cpu() -> None:
    with pytest.raises(DeviceKindError, match="reads tcl-gpu, but the programs are for"):
        choose_model("tcl-k80", runs_on=get_device("epyc"))
