"""Step: the checkpoint goes to the Hub, after a person agreed."""

from __future__ import annotations

from typing import Any

from .errors import NotAgreedError
from .step import Done, Walk


class Publish:
    """Nothing leaves the machine before this step, nor without a yes."""

    name = "publish"
    title = "to the Hub"

    def inputs(self, walk: Walk) -> dict[str, Any]:
        """The files and where they go."""
        settings, card = walk.settings, walk.found["card"]
        repo = settings.destination
        where = {"repo": repo, "index": settings.index_repo if repo else None}
        return where | {"checkpoint": f"{card['name']}@{card['version']}", "findings": walk.found["check"]}

    def run(self, walk: Walk) -> Done:
        """Publish, or leave the folder ready for it."""
        from ..publishing.publish import publish

        settings, folder = walk.settings, walk.folder / walk.found["card"]["folder"]
        repo, index, named = settings.destination, settings.index_repo, settings.index_named
        if repo is None:
            walk.note(f"nothing was published; the checkpoint is ready in {folder}")
            return Done()
        listing = f", and ask the index {index} to list it" if index else ""
        if not _agreed(walk, f"Publish {folder} in the Hub repository {repo}{listing}?"):
            raise NotAgreedError(
                f"nobody agreed to publish in {repo}; the checkpoint is ready in {folder}",
                remedy="run this again and say yes, add --yes, or leave it at that with --no-publish",
                path=str(folder),
            )
        # The step before has evaluated these very files.
        done = publish(folder, repo, index_repo=index, index_named=named, evaluate=False, note=walk.note)
        walk.note(f"published: {done.url}")
        return Done({"published": done.as_dict()})


def _agreed(walk: Walk, question: str) -> bool:
    return walk.settings.confirmed or (walk.ask is not None and walk.ask.yes(question))
