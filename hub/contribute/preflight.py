"""Step: is this machine ready to measure?"""

from __future__ import annotations

from importlib import metadata
from typing import Any

from .errors import NotReadyError
from .step import Done, Walk


class Preflight:
    """The checks of `tchub doctor`, where something is to be measured on or from this machine."""

    name = "preflight"
    title = "is this machine ready?"

    def inputs(self, walk: Walk) -> dict[str, Any]:
        """Measuring or not, on which machine, with which TVM."""
        from ..device.host_facts import read_host_facts

        if not walk.settings.measures:
            return {"measures": False}
        return {"measures": True, "cpu": read_host_facts().brand, "tvm": metadata.version("apache-tvm")}

    def run(self, walk: Walk) -> Done:
        """Note the warnings; raises NotReadyError when something will not work."""
        from ..device.doctor import run_checks

        if not walk.settings.measures:
            walk.note("nothing is measured here: the corpora are given")
            return Done()
        checks = [check for check in run_checks() if check.status != "ok"]
        for check in checks:
            walk.note(f"{check.status}: {check.name}: {check.value}" + (f" -> {check.remedy}" if check.remedy else ""))
        if bad := [check for check in checks if check.status == "fail"]:
            raise NotReadyError(
                "this machine is not ready: " + "; ".join(f"{check.name}: {check.value}" for check in bad),
                remedy=bad[0].remedy,
                checks=[check.to_dict() for check in bad],
            )
        return Done({"warnings": [f"{check.name}: {check.value}" for check in checks]})
