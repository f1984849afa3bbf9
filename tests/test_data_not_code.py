"""Nothing that came from elsewhere is run: what ruff's rules of pyproject.toml cannot see of that."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Compiled code is loaded by `open_library`, which compares its sha256 with that of the build or of the user's folder;
# and by RPC servers, which run what they are sent.
LIBRARIES = {"hub/device/jobs.py", "hub/device/rpc_session.py", "hub/tuning/remote_latency.py"}


def calls() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Every call of the packages: its file, what is called, and its keywords."""
    for path in (path for package in ("hub", "zoo", "cards") for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                keywords = {str(keyword.arg): ast.unparse(keyword.value) for keyword in node.keywords}
                yield str(path.relative_to(ROOT)), ast.unparse(node.func), keywords


def test_no_call_runs_a_text_or_unpickles_and_compiled_code_is_loaded_only_by_those_who_measure() -> None:
    loading, models = set(), []
    for where, name, keywords in calls():
        assert name not in ("compile", "__import__"), where
        assert keywords.keys().isdisjoint({"trust_remote_code"}), where
        assert keywords.get("allow_pickle", "False") == "False", where
        assert name != "torch.load" or keywords.get("weights_only") == "True", where
        if name.rpartition(".")[2] == "load_module":
            loading.add(where)
        if name == "kind.from_pretrained":
            models.append(keywords)
    assert loading == LIBRARIES
    (of_the_disk,) = models
    assert {"use_safetensors": "True", "local_files_only": "True"}.items() <= of_the_disk.items()
