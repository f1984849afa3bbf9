"""The methods by name, in the order in which they assume more."""

from __future__ import annotations

from .committee_method import CommitteeWithFresh
from .continual_method import Continual
from .methods import FewShot, Method
from .multi_task_method import MultiTask

_ALL: tuple[Method, ...] = (FewShot(), CommitteeWithFresh(), Continual(), MultiTask())
METHODS: dict[str, Method] = {method.name: method for method in _ALL}
# They learn programs of other devices too; the rest know the base and the labels alone.
LEARN_CORPORA = (Continual.name, MultiTask.name)
