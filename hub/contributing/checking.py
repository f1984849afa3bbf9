"""Step: what a reviewer will look at."""

from __future__ import annotations

from typing import Any

from ..registry.files import sha256_of
from .collecting import content, folders_of
from .step import Done, Walk


class Check:
    """`tchub check`, with the corpora. What is wrong stops here, before anything leaves the machine."""

    name = "check"
    title = "what a reviewer looks at"

    def inputs(self, walk: Walk) -> dict[str, Any]:
        """The folder's files and the corpora."""
        folder = walk.folder / walk.found["card"]["folder"]
        files = {str(path.relative_to(folder)): sha256_of(path) for path in sorted(folder.rglob("*")) if path.is_file()}
        return {"files": files, "corpora": content(walk)}

    def run(self, walk: Walk) -> Done:
        """Ask all questions; raises CheckFailedError when an answer is no.

        What a base learnt can only be compared by who has its corpora: that one question may stay open.
        """
        from ..publishing.check import check

        folder = walk.folder / walk.found["card"]["folder"]
        report = check(folder, corpora=folders_of(walk), note=walk.note)
        for finding in report.findings:
            walk.note(f"  {finding.outcome}: {finding.name}: {finding.detail}")
        if report.failed:
            report.require()
        return Done({"findings": report.as_dict()["findings"]})
