"""`network.json` of an output folder: which libraries it holds, how they are called, and what they run on."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tvm
from tvm import IRModule, relax
from tvm.ir.expr import GenericConst

from ...zoo.files import file_sha256, write_files
from ...zoo.plain_json import json_file
from ...zoo.untrusted import parse_json, read_plain
from .errors import NetworkLoadError
from .frontend.signature import Signature
from .transform.relax_graph import bound_values
from .weights import weights_file

FILE = "network.json"
FORMAT = 1
_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class LibraryFile:
    """A compiled library, for one set of fixed shapes.

    Attributes:
        file: relative to the folder.
        sha256: of the file, in hexadecimal.
        signature: how its function is called.
        weights: sha256 of the file of weights beside it; empty where the library holds them itself.
        constants: numbers of the outputs that depend on no input; every call returns the same memory for them.
    """

    file: str
    sha256: str
    signature: Signature
    weights: str = ""
    constants: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for a constant that is no output."""
        if not set(self.constants) <= set(range(len(self.signature.outputs))):
            raise ValueError(f"{self.file} has not as many outputs as constants")


@dataclass(frozen=True)
class Manifest:
    """A tuned network as it lies in a folder.

    Attributes:
        libraries: one for each set of shapes.
        threads: with which it was tuned and measured.
        tvm: version that compiled it.
    """

    network: str
    libraries: Annotated[tuple[LibraryFile, ...], msgspec.Meta(min_length=1)]
    target: dict[str, Any]
    threads: Annotated[int, msgspec.Meta(ge=1)]
    tvm: str


def write_manifest(
    folder: Path,
    network: str,
    libraries: Sequence[tuple[Path, Signature, IRModule]],
    target: dict[str, Any],
    threads: int,
) -> None:
    """Write `network.json`, after the libraries are on disk; see `Manifest`.

    Args:
        libraries: of each a path below the folder, the signature, and the Relax module that was compiled.

    Raises:
        StorageError: the file cannot be written.
    """
    lifts = target.get("kind") != "cuda"  # whose archives hold all
    listed = tuple(
        LibraryFile(
            path.resolve().relative_to(folder.resolve()).as_posix(),
            file_sha256(path),
            signature,
            file_sha256(weights) if lifts and (weights := weights_file(path)).is_file() else "",
            tuple(constant_results(mod)),
        )
        for path, signature, mod in libraries
    )
    facts = asdict(Manifest(network, listed, target, threads, tvm.__version__))
    write_files(folder, {FILE: json_file({"format": FORMAT} | facts)})


def read_manifest(folder: Path) -> Manifest:
    """Read `network.json` and check the libraries against it, before any is loaded: loading one runs its code.

    Raises:
        NetworkLoadError: the file is missing, damaged or of another version; a library is missing, changed, or lies
            outside the folder.
    """
    path = folder / FILE
    try:
        value = parse_json(read_plain(path, _MAX_BYTES))
        if isinstance(value, dict) and value.get("format") != FORMAT:
            raise ValueError(f"it has the format {value.get('format')!r}, and this version of tchub reads {FORMAT}")
        manifest = msgspec.convert(value, Manifest)
        for library in manifest.libraries:
            file = folder / library.file
            if not file.resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"it names a library outside its folder: {library.file}")
            if not file.is_file() or file_sha256(file) != library.sha256:
                raise ValueError(f"{library.file} is missing, or not the library that was tuned: its checksum differs")
            weights = weights_file(file)
            if library.weights and not (weights.is_file() and file_sha256(weights) == library.weights):
                raise ValueError(
                    f"{weights.name} is missing, or has not the weights that were tuned: its checksum differs"
                )
    except FileNotFoundError:
        remedy = "give the output folder of a completed `tchub tune`"
        raise NetworkLoadError(f"{folder} holds no tuned network: it has no {FILE}", remedy=remedy) from None
    except (OSError, ValueError) as error:
        remedy = "copy the whole output folder again, or tune the network again"
        raise NetworkLoadError(f"{path} cannot be read: {error}", remedy=remedy) from error
    return manifest


def constant_results(mod: IRModule) -> list[int]:
    """Return the numbers of the results of a Relax module's `main` that are constants of the module."""
    main: Any = mod["main"]
    bound = bound_values(main)

    def resolve(value: Any) -> Any:
        while isinstance(value, relax.Var) and value in bound:
            value = bound[value]
        return value

    result = resolve(main.body.body)
    fields = result.fields if isinstance(result, relax.Tuple) else [result]
    return [i for i, field in enumerate(fields) if isinstance(resolve(field), GenericConst)]
