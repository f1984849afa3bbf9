"""Step: can this machine measure, and will the Hub take what comes of it?"""

from __future__ import annotations

from importlib import metadata
from typing import Any

from ..publishing.repository import Repository
from .errors import NotReadyError
from .step import Done, Walk


class Preflight:
    """The checks of `tchub doctor` where something is measured, and of the Hub's token where it is to go there."""

    name = "preflight"
    title = "is everything ready?"

    def inputs(self, walk: Walk) -> dict[str, Any]:
        """Measuring or not, on which machine, with which TVM; where it is to be published."""
        from ..device.host_facts import read_host_facts

        settings = walk.settings
        goal = {"measures": settings.measures, "repo": settings.destination}
        if not settings.measures:
            return goal
        return goal | {"cpu": read_host_facts().brand, "tvm": metadata.version("apache-tvm")}

    def run(self, walk: Walk) -> Done:
        """Note the warnings.

        Raises:
            NotReadyError: something will not work here.
            PublishError, SourceError: the Hub will not take anything from this person.
        """
        settings = walk.settings
        if settings.destination:
            Repository(settings.destination).require_login()
            if settings.index_repo:
                Repository(settings.index_repo)  # what is no name of one is told now, not after hours
        return Done({"warnings": _doctor(walk) if settings.measures else []})


def _doctor(walk: Walk) -> list[str]:
    """What is not as it should be; raises NotReadyError when measuring will not work."""
    from ..device.doctor import run_checks

    checks = [check for check in run_checks() if check.status != "ok"]
    for check in checks:
        walk.note(f"{check.status}: {check.name}: {check.value}" + (f" -> {check.remedy}" if check.remedy else ""))
    if bad := [check for check in checks if check.status == "fail"]:
        raise NotReadyError(
            "this machine is not ready: " + "; ".join(f"{check.name}: {check.value}" for check in bad),
            remedy=bad[0].remedy,
            checks=[check.to_dict() for check in bad],
        )
    return [f"{check.name}: {check.value}" for check in checks]
