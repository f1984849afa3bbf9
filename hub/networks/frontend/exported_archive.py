"""Check a `.pt2` archive before PyTorch loads it: `torch.export.load` alone would run code that a file carries.

The archive is a zip of a graph in JSON, raw weights and example inputs. PyTorch unpickles weights, constants and
example inputs, loads shared libraries, falls back to an older format that is pickled, evaluates the expressions of
symbolic shapes, and writes names of the graph into Python source that it executes. Nothing of this is in a file that
`torch.export.save` writes for a network of tensors. The records are read with PyTorch's own reader, so that what is
checked is what is loaded.
"""

import io
import json
import re
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch._export.serde.schema import SCHEMA_VERSION

from ..errors import NetworkImportError, file_error
from .network import check_memory

MAX_GRAPH_BYTES = 1 << 29
"""A graph of a hundred layers has some ten megabytes of JSON."""
MAX_PARTS = 100_000

_RECORDS = re.compile(
    r"models/model\.json|data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)|data/sample_inputs/model\.pt"
    r"|archive_format|archive_version|byteorder|\.data/\w+|\.format_version|\.storage_alignment|extra/.*"
)
_CODE = re.compile(r"data/constants/\w*obj\w*|data/aotinductor/.*|.*\.(so|pyd|dll|py|pkl)")
_EXPERTS = "torch.ops.transformers.grouped_mm_fallback.default"  # how transformers computes experts on a CPU
_QUANTISED = "torch.ops.quantized_decomposed."
_OPERATOR = re.compile(  # of PyTorch itself; `from_file` reads a file, or writes one
    r"torch\.ops\.(aten|prims|higher_order)\.(?!from_file\b)\w+(\.\w+)?|_operator\.\w+|math\.\w+|torch\.(_?sym_\w+)"
    rf"|{re.escape(_EXPERTS)}|{re.escape(_QUANTISED)}\w+\.\w+"
)
_NAME = re.compile(r"[\w.@/+-]*")  # PyTorch writes names into Python source: nothing that could close one
_TREE_TYPES = frozenset(
    [None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", "torch.Size"]
)
_SYMBOL = r"Symbol\('\w{1,40}'(, \w+=True)*\)"
_SIZE = re.compile(  # e.g. `Mul(Integer(2), Symbol('s0', positive=True))`, which PyTorch evaluates; no towers of powers
    rf"({_SYMBOL}|Pow\({_SYMBOL}, Integer\(\d\)\)|[(), ]|-?\d{{1,18}}+(?!\d)"
    r"|Float\('[\d.e+-]{1,40}', precision=\d{1,3}\)|(Integer|Rational|Add|Mul|Max|Min|Mod|PythonMod"
    r"|Where|ModularIndexing|FloorDiv|CleanDiv|CeilDiv|CeilToInt|FloorToInt|TruncToInt|RoundToInt|TruncToFloat|ToFloat"
    r"|IntTrueDiv|FloatTrueDiv|Identity|floor|ceiling|Eq|Ne|Equality|Unequality|StrictLessThan|LessThan"
    r"|StrictGreaterThan|GreaterThan)\(){1,800}+"
)
_FREE_TEXT = frozenset(["metadata", "guards_code", "as_string", "as_strings", "torch_version"])


def check_archive(path: Path) -> None:
    """Refuse an archive that is damaged, too new, or holds anything but a graph and plain tensors.

    Raises:
        NetworkImportError: it does; nothing of it was loaded.
    """
    try:
        reader: Any = torch._C.PyTorchFileReader(str(path))
    except (RuntimeError, ValueError, LookupError):  # ValueError: names that are no texts
        raise _refuse(path, "is no file of torch.export.save, or is cut short") from None
    try:
        _check_records(path, reader, reader.get_all_records())
        program = json.loads(reader.get_record("models/model.json"))
        configs = [
            (folder, json.loads(reader.get_record(f"data/{folder}/model_{folder}_config.json"))["config"])
            for folder in ("weights", "constants")
        ]
        version = (program["schema_version"]["major"], program["schema_version"]["minor"])
        if version > SCHEMA_VERSION or version[0] != SCHEMA_VERSION[0]:
            saved_by = str(program.get("torch_version", "unknown"))[:40]
            problem = f"was saved by {'a newer' if version > SCHEMA_VERSION else 'an older'} PyTorch ({saved_by})"
            again = f"export the network again with PyTorch {torch.__version__}"
            raise _refuse(path, problem, remedy=f"{again}, or install the version that saved it")
        weights = [
            _check_payload(path, reader, f"data/{folder}/{facts['path_name']}", name, facts)
            for folder, config in configs
            for name, facts in config.items()
        ]
        check_memory(path, sum(weights))  # strides of 0 make a large tensor of few bytes
        _check_graph(path, program)
        _check_example_inputs(path, reader.get_record("data/sample_inputs/model.pt"))
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError, RuntimeError, OverflowError) as error:
        raise _refuse(path, f"is damaged: {error!r:.300} in its description") from None


_refuse = partial(file_error, remedy="save it again with torch.export.save, from a module that you trust")


def _check_records(path: Path, reader: Any, names: list[str]) -> None:
    if "data.pkl" in names or "version" in names:
        kind = "a pickled file of torch.save" if "data.pkl" in names else "saved by PyTorch 2.8 or older, and pickled"
        raise _refuse(
            path, f"is {kind}", remedy="save an exported program: torch.export.save(torch.export.export(m, (x,)), p)"
        )
    if len({name.casefold() for name in names}) != len(names):  # the reader's look-up ignores case
        raise _refuse(path, "holds two records of one name")
    for name in names:
        if _CODE.fullmatch(name):
            raise _refuse(path, f"would run code: it holds {name}")
        if not _RECORDS.fullmatch(name):
            raise _refuse(path, f"holds more than one exported program: {name}")
    if "models/model.json" not in names:
        raise _refuse(path, "holds no exported program")
    _check_sizes(path, reader, path.stat().st_size)
    if reader.get_record_size("models/model.json") > MAX_GRAPH_BYTES:
        raise _refuse(path, f"has a graph of more than {MAX_GRAPH_BYTES >> 20} MiB", remedy="export a smaller network")


def _check_sizes(path: Path, reader: Any, size: int) -> None:
    """Refuse records larger than their file: PyTorch compresses nothing, so they were made to fill the memory."""
    if sum(map(reader.get_record_size, reader.get_all_records())) > size:
        raise _refuse(path, "holds compressed or overlapping records, which could fill the memory")


def _check_payload(path: Path, reader: Any, record: str, name: str, facts: dict[str, Any]) -> int:
    """Return how many numbers a tensor holds; refuse one that is pickled, or without the bytes of its shape."""
    if facts["use_pickle"]:
        raise _refuse(
            path,
            f"would run code: its weight {name!r} is pickled",
            remedy="save plain tensors: no tensor subclasses, quantised or sparse tensors",
        )
    if not _RECORDS.fullmatch(record) or not _NAME.fullmatch(name):
        raise _refuse(path, f"would run code: {name!r} is no plain tensor")
    sizes = [int(size["as_int"]) for size in facts["tensor_meta"]["sizes"]]
    if reader.get_record_size(record) == 0 and prod(sizes):
        raise _refuse(path, f"has a weight without data: {name}")
    return prod(sizes)


def _check_graph(path: Path, program: dict[str, Any]) -> None:
    for key, value in _strings(program):
        if key == "target" and not _OPERATOR.fullmatch(value):
            raise _refuse(path, f"calls {value[:80]!r}, which is no operator of a network")
        if key == "target" and value == _EXPERTS:
            import_module("transformers.integrations.moe")  # registers it
        if key == "target" and value.startswith(_QUANTISED):
            import_module("torch.ao.quantization.fx._decomposed")  # the same
        if key in ("expr_str", "as_expr"):
            if not _SIZE.fullmatch(value):
                raise _refuse(path, f"would run code: {value[:80]!r} is no size")
        elif key in ("in_spec", "out_spec"):
            _check_tree(path, value)
        elif not _NAME.fullmatch(value):
            raise _refuse(path, f"would run code: {value[:80]!r} is no name")


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string of a JSON document that PyTorch interprets, keys included, with the key above it."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, key)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield "", name
            if name not in _FREE_TEXT:
                yield from _strings(item, name)


def _check_tree(path: Path, text: str) -> None:
    """Refuse inputs and outputs but tuples, lists, dicts, and transformers' outputs, whose classes are imported."""

    def nodes(tree: Any) -> Iterator[dict[str, Any]]:
        yield tree
        for child in tree["children_spec"]:
            yield from nodes(child)

    if '"__enum__"' in text.replace("\\", ""):
        raise _refuse(path, "would import code: its inputs or outputs hold an enumeration")
    for node in nodes(json.loads(text)[1]) if text else ():
        kind = node["type"]
        if kind in _TREE_TYPES:
            continue
        if not re.fullmatch(r"transformers\.[a-z0-9_.]+\.[A-Z]\w+", str(kind)):
            raise _refuse(
                path,
                f"takes or gives an object of {str(kind)[:80]!r}",
                remedy="export a module that takes and returns tensors, tuples, lists and dicts",
            )
        import_module(kind.rpartition(".")[0])  # PyTorch knows the class once its module is there


def _check_example_inputs(path: Path, content: bytes) -> None:
    if not content:
        return
    try:
        inner = torch._C.PyTorchFileReader(io.BytesIO(content))
        _check_sizes(path, inner, len(content))
        if b"bytearray" in inner.get_record("data.pkl"):
            raise ValueError("zeros, as many as a number says")
        _check_parts(path, torch.load(io.BytesIO(content), weights_only=True))
    except NetworkImportError:
        raise
    except Exception:  # whatever a damaged or hostile pickle raises; PyTorch would now unpickle all of it
        raise _refuse(
            path,
            "would run code: its example inputs are pickled objects",
            remedy="export it with inputs that are tensors, numbers, tuples and dicts",
        ) from None


def _check_parts(path: Path, value: Any) -> None:
    """Refuse containers that hold one another so often that to walk through them would take forever."""
    waiting, parts = [value], 0
    while waiting:
        one = waiting.pop()
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, tuple | list | set) else ()
        waiting += inner
        if (parts := parts + len(inner)) > MAX_PARTS:
            raise _refuse(path, f"has more than {MAX_PARTS} example inputs", remedy="export it with tensors as inputs")
