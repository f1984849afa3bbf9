"""Which programs were seen already, in 8 bytes a program."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np


class Seen:
    """A set of texts that remembers an 8-byte hash of each.

    Among five million texts, two have the same hash with a probability below one in a million.
    """

    def __init__(self, recent: int = 1 << 16) -> None:
        """`recent` hashes wait in a Python set before they are merged into the sorted array."""
        self._sorted = np.empty(0, dtype=np.uint64)
        self._recent: set[int] = set()
        self._limit = recent

    def __len__(self) -> int:
        return len(self._sorted) + len(self._recent)

    def add(self, *words: str) -> bool:
        """Remember the words; False if they were seen before."""
        if words in self:
            return False
        self._recent.add(_number(words))
        if len(self._recent) >= self._limit:
            self._merge()
        return True

    def __contains__(self, words: tuple[str, ...]) -> bool:
        number = _number(words)
        if number in self._recent:
            return True
        key = np.uint64(number)
        index = self._sorted.searchsorted(key)
        return bool(index < len(self._sorted) and self._sorted[index] == key)

    def _merge(self) -> None:
        recent = np.fromiter(self._recent, dtype=np.uint64, count=len(self._recent))
        self._sorted = np.concatenate((self._sorted, recent))
        # Both parts are nearly sorted runs, which a stable sort merges without sorting again.
        self._sorted.sort(kind="stable")
        self._recent.clear()


def _number(words: tuple[str, ...]) -> int:
    return int.from_bytes(blake2b("\0".join(words).encode(), digest_size=8).digest(), "little")
