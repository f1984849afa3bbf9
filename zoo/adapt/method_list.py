"""The methods by name, in the order in which they assume more."""

from __future__ import annotations

from .continual_method import Continual
from .methods import FewShot, Method
from .multi_task_method import MultiTask

METHODS: dict[str, Method] = {method.name: method for method in (FewShot(), Continual(), MultiTask())}
