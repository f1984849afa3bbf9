"""The archive: one zip that Python runs, equal for equal contents, in several parts where one would be too large."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .onsite.files import FORMAT, MANIFEST, OnsiteError, Package
from .target import BundleError

ORIGIN = "origin.json"
_SUFFIXES = {"library": "so", "object": "o", "cubin": "cubin", "ptx": "ptx"}
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can say
_ONSITE = Path(__file__).with_name("onsite")
# What the zip's own tables take for each file, and for all that is not a program.
_ENTRY_BYTES, _FIXED_BYTES = 400, 64 << 10
_RUN = '''"""Measure this bundle's programs on this machine: see --help. Needs Python 3.10 or later and numpy."""

import os
import sys

from onsite.cli import main

sys.exit(main(os.path.dirname(os.path.abspath(__file__))))
'''


@dataclass(frozen=True)
class BundleProgram:
    """One program of a bundle.

    Attributes:
        task_id, key, strategy, trace: of the candidate.
        file: the compiled program; None when it could not be built.
        plan: how a CUDA program is launched (see `launch_plan`); None on a CPU.
        error, message: why there is no file: `build`, `build_timeout` or `crash`.
        build_seconds: what compiling it took.
    """

    task_id: str
    key: str
    strategy: str
    trace: str
    file: Path | None
    plan: dict[str, Any] | None = None
    error: str | None = None
    message: str | None = None
    build_seconds: float = 0.0


def write_parts(
    out: Path,
    facts: Mapping[str, Any],
    tasks: Mapping[str, Mapping[str, Any]],
    programs: Sequence[BundleProgram],
    max_bytes: int | None = None,
) -> list[Path]:
    """Write the programs as `out`, or as `out` with -1, -2, ... where one file would be over `max_bytes`.

    Args:
        facts: what the manifest says besides tasks, programs and files.
        tasks: by id, each with `manifest` (what the device needs) and `origin` (what the corpus needs).

    Raises:
        BundleError: one program alone is over the limit.
        BundleError: the archive cannot be written.
    """
    parts = list(_split(programs, tasks, max_bytes))
    paths = [out if len(parts) == 1 else out.with_stem(f"{out.stem}-{n}") for n in range(1, len(parts) + 1)]
    for number, (path, part) in enumerate(zip(paths, parts, strict=True), 1):
        _write(path, {**facts, "part": [number, len(parts)]}, tasks, part)
        if max_bytes is not None and path.stat().st_size > max_bytes:
            path.unlink()
            raise _too_large(max_bytes)
    return paths


def _split(
    programs: Sequence[BundleProgram], tasks: Mapping[str, Mapping[str, Any]], max_bytes: int | None
) -> Iterator[list[BundleProgram]]:
    """Runs of programs whose archives stay under the limit; sizes are told too large rather than too small."""
    part: list[BundleProgram] = []
    size, held = _FIXED_BYTES, set[str]()
    for program in programs:
        cost = _deflated(program.trace.encode()) + _ENTRY_BYTES
        cost += _deflated(program.file.read_bytes()) if program.file and max_bytes else 0
        shared = _deflated(json.dumps(tasks[program.task_id]).encode())
        more = cost + (0 if program.task_id in held else shared)
        if max_bytes is not None and part and size + more > max_bytes:
            yield part
            part, size, held, more = [], _FIXED_BYTES, set(), cost + shared
        if max_bytes is not None and size + more > max_bytes:
            raise _too_large(max_bytes)
        part.append(program)
        size += more
        held.add(program.task_id)
    yield part


def _deflated(data: bytes) -> int:
    return len(zlib.compress(data, 9))


def _too_large(limit: int) -> BundleError:
    return BundleError(f"one program alone needs more than {limit} bytes", remedy="raise --max-size", limit=limit)


def _write(
    path: Path, facts: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any]], programs: Sequence[BundleProgram]
) -> None:
    used = list(dict.fromkeys(program.task_id for program in programs))
    origin = {
        "tasks": {task_id: tasks[task_id]["origin"] for task_id in used},
        "traces": [program.trace for program in programs],
    }
    files = {f"onsite/{file.name}": file.read_bytes() for file in sorted(_ONSITE.glob("*.py"))}
    files |= {"__main__.py": _RUN.encode(), "run.py": _RUN.encode(), ORIGIN: _json(origin)}
    rows, contents = _programs(programs, _SUFFIXES[facts["code"]])
    manifest = {
        **facts,
        "format": FORMAT,
        "tasks": [tasks[task_id]["manifest"] for task_id in used],
        "programs": rows,
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())},
    }
    _zip(path, {**files, MANIFEST: _json(manifest)}, contents)


def _programs(programs: Sequence[BundleProgram], suffix: str) -> tuple[list[dict[str, Any]], dict[str, Path]]:
    rows, contents = [], {}
    for number, program in enumerate(programs):
        row = {name: getattr(program, name) for name in ("task_id", "key", "strategy", "plan", "error", "message")}
        row |= {"id": number, "file": None, "sha256": None}
        if program.file is not None:
            row["file"] = f"programs/{number:05d}.{suffix}"
            row["sha256"] = hashlib.sha256(program.file.read_bytes()).hexdigest()
            contents[row["file"]] = program.file
        rows.append(row)
    return rows, contents


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _zip(path: Path, files: Mapping[str, bytes], contents: Mapping[str, Path]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name in sorted([*files, *contents]):
                info = zipfile.ZipInfo(name, _EPOCH)
                info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(info, files[name] if name in files else contents[name].read_bytes())
        os.replace(partial, path)
    except OSError as error:
        raise BundleError(
            f"cannot write {path}: {error}", remedy="free some space or choose another folder", path=str(path)
        ) from error
    finally:
        partial.unlink(missing_ok=True)


class Bundle:
    """A bundle opened here, to take its results back.

    Attributes:
        manifest: see `write_parts`; its programs with the `trace` put in.
        origin: what a corpus needs of each task, by id.
        identity: what results name it by.

    Raises:
        BundleError: no bundle, a damaged one, or one of another format.
    """

    def __init__(self, path: Path | str) -> None:
        try:
            package = Package(str(path))
            package.check()
            origin = json.loads(package.read(ORIGIN))
        except OnsiteError as error:
            raise BundleError(
                str(error), remedy="name the archive that `tchub bundle` wrote, unchanged", path=str(path)
            ) from error
        self.path, self.identity, self.manifest = Path(path), package.identity, package.manifest
        self.origin: dict[str, Any] = origin["tasks"]
        for program, trace in zip(self.manifest["programs"], origin["traces"], strict=True):
            program["trace"] = trace
