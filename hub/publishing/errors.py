"""Errors on the way of a checkpoint to others."""

from ...zoo.errors import TchubError


class PublishError(TchubError):
    """A checkpoint was not published. Whatever was done before stands; the same command goes on.

    Fields: `repo`, and `reason`: `check` (see `findings`), `form` (no repository is written like this), `login`,
    `denied`, `public` (and was to be private), `occupied` (by another model), `taken` (the version is out with other
    `files`), `changed` (somebody else pushed meanwhile), or `refused` (by the Hub, in its words); of a contribution
    `facts` (see `missing`), `fact` (`key`), `machine` (see `checks`), `device`, `state` (see `path`), or `consent`.
    """

    reason: str
