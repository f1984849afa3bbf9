"""Runs one target of the fuzzer in this process: counts what its inputs end in, and keeps those that it may not.

Input i of a seed is always the same. The input in hand lies in FOLDER/current and its number in FOLDER/number, where
they are found if this process dies; crashes and hangs are kept beside them.
"""

import gc
import hashlib
import os
import resource
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: these models are small, and two threads slower

from tchub.zoo.errors import TchubError

from scripts.fuzz.limits import TooSlowError, limited_memory, limited_time
from scripts.fuzz.mutate import mutate
from scripts.fuzz.targets import TARGETS, Target

# What one input may take beyond what the process has: far less than a real machine has, far more than a file needs.
MEMORY = 1 << 30
MAX_SECONDS = 1200


# Events of Python's audit that no reader may raise: a file that runs something.
_RUNNING = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "socket.connect", "ctypes.dlopen")
_events: list[str] = []


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if event in _RUNNING:
        _events.append(f"{event} {arguments}"[:200])


@dataclass
class Result:
    """What became of a target's inputs.

    Attributes:
        accepted: taken for good; refused: by the kind of the typed error, or of the broken record.
        crashes: by error; hangs: longer than the target allows. Both name the file that was kept last.
        slowest_ms: of one input; seconds: of all, without the start.
    """

    target: str
    inputs: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    crashes: dict[str, str] = field(default_factory=dict)
    hangs: dict[str, str] = field(default_factory=dict)
    slowest_ms: float = 0.0
    seconds: float = 0.0


def make_input(target: Target, seed: int, number: int) -> bytes:
    """Input `number` of a seed; the first ones are the real files as they are."""
    seeds = target.seeds()
    if number < len(seeds):
        return seeds[number]
    rng = Random(f"{seed}/{target.name}/{number}")
    return mutate(rng, rng.choice(seeds), seeds, target.form)


def run_part(target: str, inputs: int, seed: int, folder: Path, first: int) -> Result:
    """`run`, for a process of its own; a limit of its seconds on the CPU ends native code, which no alarm does."""
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
    return run(TARGETS[target], inputs, seed, folder, first)


def run(target: Target, inputs: int, seed: int, folder: Path, first: int = 0) -> Result:
    """Inputs `first` to `inputs` of a target."""
    result = Result(target.name)
    current, at = (os.open(folder / name, os.O_RDWR | os.O_CREAT) for name in ("current", "number"))
    with suppress(TchubError):
        target.run(target.seeds()[0])  # imports what it needs, which is no input's doing
    sys.addaudithook(_watch)
    _events.clear()  # what is loaded with the reader
    gc.freeze()  # what is imported stays: collecting it again and again is most of the time otherwise
    started = time.perf_counter()
    with limited_memory(MEMORY):
        for number in range(first, inputs):
            os.pwrite(at, f"{number:10}".encode(), 0)
            data = make_input(target, seed, number)
            os.pwrite(current, data, 0)
            os.ftruncate(current, len(data))
            _one(target, data, number, folder, result)
    result.seconds = round(time.perf_counter() - started, 1)
    return result


def _one(target: Target, data: bytes, number: int, folder: Path, result: Result) -> None:
    started, keep = time.perf_counter(), partial(_keep, folder, data, number)
    try:
        with limited_time(target.seconds):
            kind = target.run(data)
    except TchubError as error:
        kind = error.kind
        if not error.remedy:
            result.crashes[f"{kind} without a remedy"] = keep()
    except TooSlowError:
        kind = "hang"
        result.hangs[f"longer than {target.seconds} s"] = keep()
    except Exception as error:  # whatever it is, it should have been a TchubError
        kind = "crash"
        result.crashes[f"{type(error).__name__}: {error}"[:200]] = keep()
    if _events:
        result.crashes[f"it ran something: {_events.pop()}"] = keep()
        _events.clear()
    result.inputs += 1
    result.slowest_ms = max(result.slowest_ms, round(1000 * (time.perf_counter() - started), 1))
    if kind:
        result.refused[kind] += 1
    else:
        result.accepted += 1


def _keep(folder: Path, data: bytes, number: int) -> str:
    """Keep an input as a file; returns its name."""
    path = folder / f"{number}-{hashlib.sha256(data).hexdigest()[:8]}"
    path.write_bytes(data)
    return path.name
