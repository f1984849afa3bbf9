"""Puts this folder and that of the primitives on the path: their samples are shared by the tests of several rooms."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "primitives"))
