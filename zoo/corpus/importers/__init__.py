"""Measured programs of other tools' logs -> the Parquet layout."""

from .base import Broken, Entry, ImportContext

__all__ = ["Broken", "Entry", "ImportContext"]
