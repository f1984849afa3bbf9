"""The archive: one zip that Python runs, equal for equal contents, in several parts where one would be too large."""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec

from ...zoo.errors import TchubError
from ...zoo.files import write_files
from ...zoo.untrusted import check_zip
from ..device import onsite
from ..device.onsite.files import FORMAT, MANIFEST, OnsiteError, Package

ORIGIN = "origin.json"
_SUFFIXES = {"library": "so", "cubin": "cubin", "ptx": "ptx"}
_ENTRY_BYTES = 64 << 20  # of one file of an archive at most
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can say
_ONSITE = Path(onsite.__file__).parent
_RUN = '''"""Measure this bundle's programs on this machine: see --help. Needs Python 3.10 or later and numpy."""

import os
import sys

from onsite.cli import main

sys.exit(main(os.path.dirname(os.path.abspath(__file__))))
'''


class BundleError(TchubError):
    """A bundle, its target, its results or TVM's runtime libraries cannot be used. Fields: path, target, device."""


@dataclass(frozen=True)
class BundleProgram:
    """One program of a bundle, named as its candidate.

    Attributes:
        file: the compiled program; None when it could not be built.
        plan: how a CUDA program is launched (see `CudaLaunches`); of one on a CPU the arguments that it takes permuted
            (see `CpuProgram`), or None.
        error, message: why there is no file: `build`, `build_timeout` or `crash`.
    """

    task_id: str
    key: str
    strategy: str
    trace: str
    file: Path | None
    plan: dict[str, Any] | None = None
    error: str | None = None
    message: str | None = None


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
        StorageError: the archive cannot be written.
    """
    archives = _archives(facts, tasks, programs, max_bytes)
    paths = [out] if len(archives) == 1 else [out.with_stem(f"{out.stem}-{n + 1}") for n in range(len(archives))]
    for path, data in zip(paths, archives, strict=True):
        write_files(path.parent, {path.name: data})
    return paths


def _archives(
    facts: Mapping[str, Any],
    tasks: Mapping[str, Mapping[str, Any]],
    programs: Sequence[BundleProgram],
    max_bytes: int | None,
) -> list[bytes]:
    data, largest = _archive(facts, tasks, programs)
    if largest <= _ENTRY_BYTES and (max_bytes is None or len(data) <= max_bytes):
        return [data]
    if len(programs) == 1:
        message = f"one program alone needs more than {max_bytes or _ENTRY_BYTES} bytes"
        raise BundleError(message, remedy="raise --max-size", limit=max_bytes)
    half = len(programs) // 2
    return [one for part in (programs[:half], programs[half:]) for one in _archives(facts, tasks, part, max_bytes)]


def _archive(
    facts: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any]], programs: Sequence[BundleProgram]
) -> tuple[bytes, int]:
    """Return an archive and the size of its largest file."""
    used = list(dict.fromkeys(program.task_id for program in programs))
    origin = {
        "tasks": {task_id: tasks[task_id]["origin"] for task_id in used},
        "traces": [program.trace for program in programs],
    }
    files = {f"onsite/{file.name}": file.read_bytes() for file in sorted(_ONSITE.glob("*.py"))}
    files |= {"__main__.py": _RUN.encode(), "run.py": _RUN.encode(), ORIGIN: _json(origin)}
    rows, contents = list[dict[str, Any]](), dict[str, Path]()
    for number, program in enumerate(programs):
        row = {name: getattr(program, name) for name in ("task_id", "key", "strategy", "plan", "error", "message")}
        row |= {"id": number, "file": None, "sha256": None}
        if program.file is not None:
            row["file"] = f"programs/{number:05d}.{_SUFFIXES[facts['code']]}"
            row["sha256"] = hashlib.sha256(program.file.read_bytes()).hexdigest()
            contents[row["file"]] = program.file
        rows.append(row)
    manifest = {
        **facts,
        "format": FORMAT,
        "tasks": [tasks[task_id]["manifest"] for task_id in used],
        "programs": rows,
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())},
    }
    files |= {MANIFEST: _json(manifest)} | {name: file.read_bytes() for name, file in contents.items()}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as writer:
        for name, data in sorted(files.items()):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            writer.writestr(info, data)
    return archive.getvalue(), max(map(len, files.values()))


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


# Flat, or one folder down: a bundle that lies unpacked must not have other files read.
_File = Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9_]+/)?[A-Za-z0-9_]+\.[a-z]+$")]
ManifestTask = TypedDict("ManifestTask", {  # noqa: UP013
    "task_id": str, "name": str, "op": str, "flops": Annotated[float, msgspec.Meta(ge=0.0)],
    "networks": dict[str, Annotated[int, msgspec.Meta(ge=1)]], "args": list[tuple[list[int], str]],
})  # fmt: skip
ManifestProgram = TypedDict("ManifestProgram", {  # noqa: UP013  # see `BundleProgram`; `Bundle` adds the trace
    "id": int, "task_id": str, "key": str, "strategy": Literal["random", "evolutionary", "tuned"],
    "file": _File | None, "sha256": str | None, "plan": dict[str, Any] | None,
    "error": Literal["build", "build_timeout", "crash"] | None, "message": str | None, "trace": NotRequired[str],
})  # fmt: skip
BundleManifest = TypedDict("BundleManifest", {  # noqa: UP013  # what is read of it when results come back
    "device": str | None, "device_kind": Literal["cpu", "cuda"], "code": Literal["library", "cubin", "ptx"],
    "arch": str, "threads": int, "target": dict[str, Any], "timing": dict[str, float | int], "tvm_version": str,
    "command": str, "tasks": list[ManifestTask], "programs": list[ManifestProgram], "files": dict[_File, str],
})  # fmt: skip
_TaskOrigin = TypedDict("_TaskOrigin", {"workload": str, "computation": str})  # noqa: UP013
_Origin = TypedDict("_Origin", {"tasks": dict[str, _TaskOrigin], "traces": list[str]})  # noqa: UP013


class Bundle:
    """A bundle opened here, to take its results back.

    Attributes:
        manifest: see `write_parts`; its programs with the `trace` put in.
        origin: what a corpus needs of each task, by id.
        identity: what results name it by.

    Raises:
        BundleError: no bundle, a damaged or forged one, or one of another format.
    """

    def __init__(self, path: Path | str) -> None:
        try:
            if Path(path).is_file():
                check_zip(Path(path), entry=_ENTRY_BYTES)
            package = Package(str(path))
            self.manifest = msgspec.json.decode(package.read(MANIFEST), type=BundleManifest)
            package.check()
            origin = msgspec.json.decode(package.read(ORIGIN), type=_Origin)
            for program, trace in zip(self.manifest["programs"], origin["traces"], strict=True):
                program["trace"] = trace
            self.origin = origin["tasks"]
            tasks = self.origin.keys() & {task["task_id"] for task in self.manifest["tasks"]}
            if not tasks.issuperset(program["task_id"] for program in self.manifest["programs"]):
                raise ValueError("it has programs of no task")
        except Exception as error:  # whatever zipfile, zlib and JSON of any form raise
            raise BundleError(
                str(error) if isinstance(error, OnsiteError) else f"{path} is no bundle: {error}",
                remedy="name the archive that `tchub bundle` wrote, unchanged",
                path=str(path),
            ) from error
        self.path, self.identity = Path(path), package.identity
