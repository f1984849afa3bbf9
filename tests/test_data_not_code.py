"""Nothing that came from elsewhere is run: which modules and calls the packages may not hold, and where TVM loads code.

A pickle runs when it is loaded, `eval` runs what it is given, and a compiled library runs whatever is in it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(path for package in ("hub", "zoo", "cards") for path in (ROOT / package).rglob("*.py"))
# Modules whose loaders run code; multiprocessing and cloudpickle are TVM's affair between its own processes.
MODULES = {"pickle", "cPickle", "_pickle", "dill", "joblib", "cloudpickle", "shelve", "marshal", "pandas", "imp"}
CALLS = {"eval", "exec", "compile", "__import__"}
ATTRIBUTES = {
    "unsafe_load", "full_load", "unsafe_load_all", "read_pickle", "load_pickle", "jit.load", "from_source",
    "load_inline", "torch.load", "export.load", "load_pt2", "torch.hub.load", "load_library", "np.load", "numpy.load",
    "yaml.load", "os.system", "os.popen",
}  # fmt: skip
# What is allowed after all, and why that is no hole.
ALLOWED = {
    # Input of a network that tchub wrote itself a moment before, into a folder of its own; read as tensors alone.
    ("hub/networks/rivals.py", "torch.load"),
    # Outputs of a measured program, written by a worker of the same run; numpy refuses pickles by default.
    ("hub/device/jobs.py", "np.load"),
    # A user's arrays for a tuned network, with `allow_pickle=False`.
    ("hub/networks/tuned.py", "np.load"),
    # A member of a user's `.pt2` file, read as tensors alone, to refuse what PyTorch would unpickle afterwards.
    ("hub/networks/frontend/exported_archive.py", "torch.load"),
    # After `check_archive`, which lets a graph and plain tensors through.
    ("hub/networks/frontend/exported_file.py", "load_pt2"),
    # After `check_script`.
    ("zoo/corpus/importers/tvmscript.py", "from_source"),
    # Texts of its own alone.
    ("zoo/tile_instructions.py", "from_source"),
}
# Compiled code is loaded by `open_library`, which compares its sha256 with that of the build or of the user's folder;
# and by RPC servers, which run what they are sent.
LIBRARIES = {
    *("hub/device/build_jobs.py", "hub/device/jobs.py", "hub/device/rpc_session.py", "hub/tuning/remote_latency.py"),
}


def name_of(node: ast.expr) -> str:
    """`a.b.c` of a call."""
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).partition(".")[0]


def forbidden_calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = name_of(node.func)
        if name.startswith("safetensors."):
            continue
        last = {name, ".".join(name.split(".")[-2:]), name.rpartition(".")[2] if "." in name else name}
        if name in CALLS:
            yield name
        elif found := last & ATTRIBUTES:
            yield found.pop()
        for keyword in node.keywords:
            if keyword.arg in ("allow_pickle", "trust_remote_code", "shell") and ast.unparse(keyword.value) != "False":
                yield f"{keyword.arg}={ast.unparse(keyword.value)}"


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Every file of the packages, parsed."""
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in FILES}


def test_no_file_imports_a_module_that_runs_what_it_loads(trees: dict[str, ast.Module]) -> None:
    assert not {(where, name) for where, tree in trees.items() for name in MODULES & set(imports(tree))}


def test_no_file_calls_a_loader_that_runs_what_it_loads_but_where_it_is_told_why(trees: dict[str, ast.Module]) -> None:
    assert {(where, call) for where, tree in trees.items() for call in forbidden_calls(tree)} == ALLOWED


def test_compiled_code_is_loaded_only_by_those_who_measure(trees: dict[str, ast.Module]) -> None:
    assert {where for where, tree in trees.items() if "load_module(" in ast.unparse(tree)} == LIBRARIES


def test_libraries_of_c_are_the_systems_the_driver_and_a_bundles_runtime(trees: dict[str, ast.Module]) -> None:
    calls = {
        (where, ast.unparse(node.args[0]))
        for where, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and name_of(node.func).rpartition(".")[2] in ("CDLL", "PyDLL", "LoadLibrary")
    }
    assert {(where, path) for where, path in calls if path != "None"} == {
        ("hub/device/card_state.py", "LIBRARY"),
        ("hub/device/onsite/cuda.py", "library or os.environ.get('TCHUB_LIBCUDA') or 'libcuda.so.1'"),
        ("hub/device/onsite/tvm_runtime.py", "path"),
    }


def test_torch_reads_tensors_alone(trees: dict[str, ast.Module]) -> None:
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and name_of(node.func) == "torch.load":
                assert {"weights_only": "True"}.items() <= {k.arg: ast.unparse(k.value) for k in node.keywords}.items()


def test_transformers_reads_safetensors_of_the_disk_alone(trees: dict[str, ast.Module]) -> None:
    calls = [
        {k.arg: ast.unparse(k.value) for k in node.keywords}
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and name_of(node.func) == "kind.from_pretrained"
    ]
    assert len(calls) == 1
    assert {"use_safetensors": "True", "local_files_only": "True"}.items() <= calls[0].items()


@pytest.mark.parametrize(
    "code",
    ["import pickle", "from joblib import load", "torch.load(f)", "np.load(f, allow_pickle=True)", "yaml.load(f)",
     "eval(x)", "tvm.script.from_source(x)", "subprocess.run(x, shell=True)", "torch.jit.load(x)",
     "torch.export.load(x)"],
)  # fmt: skip
def test_the_check_sees_what_it_is_for(code: str) -> None:
    tree = ast.parse(code)
    assert MODULES & set(imports(tree)) or list(forbidden_calls(tree))
