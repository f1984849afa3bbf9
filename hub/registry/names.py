"""Names and versions: `arch-family`, a local variant `arch-family+local`, a version `@1.2.0`.

A knowledge base is of a kind of device, not of a family: `arch-kb-cpu`, `arch-kb-gpu`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

from .errors import CheckpointNameError

# Names become folder names, so the alphabet is what every file system takes, and ".." cannot occur.
_NAME = re.compile(
    r"(?P<arch>[a-z0-9]+(?:_[a-z0-9]+)*)-(?P<family>[a-z0-9]+(?:[._-][a-z0-9]+)*)"
    r"(?:\+(?P<variant>[a-z0-9]+(?:[._-][a-z0-9]+)*))?"
)
_NUMBER = r"(?:0|[1-9][0-9]{0,8})"
_PRE = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION = re.compile(rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_PRE}(?:\.{_PRE})*))?", re.ASCII)
_MAX_LENGTH = 128
KINDS = ("cpu", "gpu")  # stands for a family in a knowledge base's entry, which has learnt several devices
_REMEDY = (
    "write arch-family, e.g. tcl-epyc, tcl-epyc@1.0.0 or tcl-epyc+local (`tchub list` shows all names), "
    "or a device family (`tchub devices`)"
)


@total_ordering
@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version, ordered as semver.org 2.0.0 section 11 says (no build metadata).

    Attributes:
        pre: the pre-release identifiers, empty for a release.
    """

    major: int
    minor: int
    patch: int
    pre: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read `X.Y.Z` or `X.Y.Z-rc.1`.

        Raises:
            CheckpointNameError: for anything else.
        """
        match = _VERSION.fullmatch(text) if len(text) <= _MAX_LENGTH else None
        if not match:
            raise CheckpointNameError(
                f"{text[:_MAX_LENGTH]!r} is not a semantic version",
                remedy="write X.Y.Z, e.g. 1.0.0",
                version=text,
            )
        major, minor, patch, pre = match.groups()
        return cls(int(major), int(minor), int(patch), tuple(pre.split(".")) if pre else ())

    def next_patch(self) -> Version:
        """Return the version after this one."""
        return Version(self.major, self.minor, self.patch + 1)

    def next_minor(self) -> Version:
        """Return the first version of the next minor number."""
        return Version(self.major, self.minor + 1, 0)

    def _key(self) -> tuple[object, ...]:
        # Numbers sort below words, and a release above each of its pre-releases.
        pre = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in self.pre)
        return (self.major, self.minor, self.patch, not self.pre, pre)

    def __lt__(self, other: object) -> bool:
        return self._key() < other._key() if isinstance(other, Version) else NotImplemented

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}" + (f"-{'.'.join(self.pre)}" if self.pre else "")


@dataclass(frozen=True, slots=True)
class CheckpointName:
    """A parsed name. `variant` is set for checkpoints made on this machine, e.g. `local`."""

    arch: str
    family: str
    variant: str | None = None
    version: Version | None = None

    @classmethod
    def parse(cls, text: str) -> CheckpointName:
        """Read `arch-family[+variant][@X.Y.Z]`.

        Raises:
            CheckpointNameError: for anything else.
        """
        name, at, version = text.partition("@")
        match = _NAME.fullmatch(name) if len(name) <= _MAX_LENGTH else None
        if not match:
            raise CheckpointNameError(f"{text[:_MAX_LENGTH]!r} is not a checkpoint name", remedy=_REMEDY, name=text)
        return cls(match["arch"], match["family"], match["variant"], Version.parse(version) if at else None)

    @property
    def base(self) -> str:
        """The name without variant and version."""
        return f"{self.arch}-{self.family}"

    @property
    def name(self) -> str:
        """The name without its version, which is also its folder's name."""
        return self.base + (f"+{self.variant}" if self.variant else "")

    def __str__(self) -> str:
        return self.name + (f"@{self.version}" if self.version else "")
