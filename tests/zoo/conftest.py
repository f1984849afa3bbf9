"""Puts this folder and those whose samples are shared by the tests of several rooms on the path."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent / name) for name in ("primitives", "adapt")]
