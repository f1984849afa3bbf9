"""A machine with a T4 of paper: a driver that runs kernels on the CPU, and an nvcc that compiles for it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from paper_nvcc import FLAGS
from tchub.hub.device import card_state

HERE = Path(__file__).parent


@cache
def _driver(*options: str) -> bytes:
    with tempfile.NamedTemporaryFile(prefix="paper-driver-") as library:
        source = [*options, str(HERE / "paper_card.c"), "-ldl"]
        subprocess.run(["gcc", "-O1", "-w", "-shared", "-fPIC", "-o", library.name, *source], check=True)
        return Path(library.name).read_bytes()


def driver_library(folder: Path, *options: str) -> Path:
    """Compile the driver, once in this process; `options` are the C compiler's."""
    library = folder / "libcuda.so"
    library.write_bytes(_driver(*options))
    return library


@cache
def compiled_header() -> tempfile.TemporaryDirectory[str]:
    """Compile what all programs include once in this process: a program takes half the time then."""
    folder = tempfile.TemporaryDirectory(prefix="paper-cuda-")
    header = [str(HERE / "paper_cuda.h"), "-o", str(Path(folder.name, "paper_cuda.h.gch"))]
    subprocess.run(["g++", "-x", "c++-header", *FLAGS, *header], check=True)
    return folder


@dataclass(frozen=True)
class PaperCard:
    """A card; `folder` holds its driver, its nvcc and what is wrong with it."""

    folder: Path

    @classmethod
    def install(cls, folder: Path, patch: pytest.MonkeyPatch, name: str = "Tesla T4", sm: int = 75) -> PaperCard:
        """Make it this machine's card."""
        (folder / "faults").mkdir(parents=True, exist_ok=True)
        library = driver_library(folder, f'-DCARD="{name}"', f"-DSM={sm}")
        nvcc = folder / "nvcc"
        nvcc.write_text(f"#!{sys.executable} -S\nimport sys\nsys.path.insert(0, {str(HERE)!r})\n"
                        "from paper_nvcc import main\n"
                        f"sys.exit(main(sys.argv[1:], {compiled_header().name!r}))\n")  # fmt: skip
        nvcc.chmod(0o755)
        patch.setenv("TCHUB_LIBCUDA", str(library))
        patch.setenv("TCHUB_NVCC", str(nvcc))
        patch.setenv("TCHUB_CACHE", str(folder / "cache"))
        return cls(folder)

    @property
    def compiled(self) -> int:
        """How many programs its nvcc was given."""
        return len(list((self.folder / "faults").glob("taken-*")))

    def break_program(self, number: int, fault: str) -> None:
        """Let the program that is compiled as this number (from 1) have a fault of `paper_card.c`."""
        (self.folder / "faults" / str(number)).write_text(fault)

    def becomes(self, state: str) -> None:
        """Change the card: `lost`, `exclusive`, `prohibited`, `private`, `mig`, `full`, `old`, `slow` or `shared`."""
        (self.folder / state).touch()

    def has_nvml(self, patch: pytest.MonkeyPatch) -> None:
        """Let NVML's own Python module find the card."""
        import pynvml

        patch.setattr(card_state, "LIBRARY", str(self.folder / "libcuda.so"))
        patch.setattr(pynvml, "nvmlLib", ctypes.CDLL(card_state.LIBRARY))
        patch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        patch.setattr(card_state, "_nvml", card_state._nvml.__wrapped__)
