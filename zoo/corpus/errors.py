"""What can be wrong with a corpus folder."""

from __future__ import annotations

from ..errors import TchubError


class CorpusError(TchubError):
    """The folder is not a corpus, is incomplete, or does not hold what it says."""


class NewerCorpusError(CorpusError):
    """The corpus was written in a format that this version does not know."""


class CorpusMismatchError(CorpusError):
    """Programs of another device, target or TVM may not be mixed into this corpus."""


class CorpusWriteError(CorpusError):
    """The corpus could not be written (disk full, read-only folder); nothing was replaced."""


class EmptyDatasetError(CorpusError):
    """No task of the selection has enough valid programs to rank."""


class MixedDevicesError(CorpusError):
    """One log holds records of several devices, whose latencies do not mix."""


class UnknownLogError(CorpusError):
    """A file or folder that is no tuning log of a known framework, or holds no readable record."""
