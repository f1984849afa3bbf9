"""The index entry of a checkpoint's folder: sizes and sha256 of its files, facts of its config and scores."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from ...zoo.untrusted import read_plain
from .entry import LEARNT, TRANSFER, Entry
from .entry_files import CONFIG_FILE, WEIGHT_FILES
from .errors import IndexFileError
from .fields import bad, is_number, parse_document
from .names import KINDS
from .verify import records_of

METRICS_FILE, CARD_FILE = "metrics.json", "README.md"
OPTIONAL_FILES = (METRICS_FILE, CARD_FILE)
METRICS = ("top1", "top5", "pairwise")
# Of each device of a knowledge base; its scores are in metrics.json.
_DEVICE_FACTS = ("corpus", "device", "licence", "version", "gate")
_MAX_BYTES = 4 << 20
_REMEDY = "check its permissions, or fetch the checkpoint again"


def describe(folder: Path, name: str, version: str, **facts: Any) -> Entry:
    """Describe the files of a checkpoint as they are now.

    The licences come from `facts`, or from the config: `lineage.weights_licence`, and those of all corpora in
    `training`.

    Args:
        folder: holds config.json, the weights (one of `WEIGHT_FILES`) and maybe metrics.json and README.md.
        name, version: what it is called.
        facts: fields of the entry that override what the files tell.

    Raises:
        IndexFileError: a file is missing or unreadable, there are two files of weights, or a licence is not given.
    """
    present = tuple(file for file in (CONFIG_FILE, *WEIGHT_FILES, *OPTIONAL_FILES) if (folder / file).is_file())
    weights = [file for file in present if file in WEIGHT_FILES]
    if CONFIG_FILE not in present or len(weights) != 1:
        raise IndexFileError(
            f"{folder} is no whole checkpoint: it has {', '.join(present) or 'no file of one'}",
            remedy=f"save {CONFIG_FILE} and one of {', '.join(WEIGHT_FILES)}",
            path=str(folder),
        )
    config = read_json(folder / CONFIG_FILE)
    records = records_of(folder, present)
    raw = {key: config.get(key) for key in ("arch", "family", "format", "feature_schema", "tvm")}
    raw["feature_version"] = config.get("feature_version", 1)
    raw["parameters"] = _parameters(config, folder / weights[0])
    raw |= _facts(config, read_json(folder / METRICS_FILE)) | facts | {"name": name, "version": version}
    raw["files"] = {file: {"size": record.size, "sha256": record.sha256} for file, record in records.items()}
    return Entry.from_dict(raw, str(folder))


def corpus_of(config: dict[str, Any]) -> dict[str, Any]:
    """What the config says about the measured programs it was trained on (`training.corpus`)."""
    corpus = as_object(config.get("training")).get("corpus")
    return corpus if isinstance(corpus, dict) else {"name": corpus} if isinstance(corpus, str) else {}


def scores_of(metrics: dict[str, Any]) -> dict[str, float | None]:
    """top1, top5 and pairwise of the model itself, and of how many tasks they are, from a metrics.json."""
    told = as_object(as_object(metrics.get("results")).get("model")) | {"tasks": metrics.get("tasks")}
    return {key: value for key in (*METRICS, "tasks") if is_number(value := told.get(key))}


def transfer_of(metrics: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Device -> scores there, from a metrics.json; of several corpora of a device those of most tasks."""
    rows = metrics.get("transfer")
    found: dict[str, dict[str, float]] = {}
    for row in map(as_object, rows if isinstance(rows, list) else ()):
        told = as_object(row.get("metrics")) | {"tasks": row.get("tasks")}
        scores = {key: value for key in TRANSFER if is_number(value := told.get(key))}
        device = row.get("device")
        if isinstance(device, str) and scores and scores.get("tasks", 0) >= found.get(device, {}).get("tasks", 0):
            found[device] = scores | ({LEARNT: True} if row.get("device_learnt") else {})
    return found


def as_object(value: object) -> dict[str, Any]:
    """The value when it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def read_json(path: Path) -> dict[str, Any]:
    """A small JSON object of a checkpoint's folder; {} when there is no such file.

    Raises:
        IndexFileError: it is there and is not a JSON object, or too large to be one.
    """
    data = _read(path)
    return {} if data is None else parse_document(data, str(path), _REMEDY)


def read_card(folder: Path) -> str:
    """The card of a checkpoint's folder without control characters; empty when there is none.

    Raises:
        IndexFileError: it cannot be read, or is too large to be one.
    """
    text = (_read(folder / CARD_FILE) or b"").decode(errors="replace")
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")


def _read(path: Path) -> bytes | None:
    """The bytes of a small file, or None when there is no such file; raises IndexFileError."""
    try:
        return read_plain(path, _MAX_BYTES)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise bad(str(path), getattr(error, "strerror", None) or str(error), _REMEDY) from error


def _parameters(config: dict[str, Any], weights: Path) -> int | None:
    """What the config says; without that, the numbers in a file of tensors (a model's fixed scales included)."""
    said = as_object(config.get("training")).get("parameters")
    if isinstance(said, int) or weights.suffix != ".safetensors":
        return said if isinstance(said, int) else None
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(weights, framework="numpy") as file:
            return sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    except SafetensorError:
        return None  # whether the files are whole is the sha256's to tell


def _corpora(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Every corpus that it learnt from or was judged by: the target's first, then the sources."""
    sources = as_object(config.get("training")).get("sources")
    return [corpus_of(config), *map(as_object, sources if isinstance(sources, list) else ())]


def _licences(corpora: list[dict[str, Any]]) -> str | None:
    """The licences of all corpora, each once."""
    return ", ".join(dict.fromkeys(str(corpus["licence"]) for corpus in corpora if corpus.get("licence"))) or None


def _of_family(config: dict[str, Any]) -> dict[str, Any]:
    """The target's corpus; the licences are those of the sources too."""
    device = as_object(config.get("device")).get("name")
    known = ({"device": device} if device else {}) | corpus_of(config)
    data = {key: known[key] for key in ("name", "device", "cpu_model", "programs", "tasks") if key in known}
    return {"data_licence": _licences(_corpora(config)), "data": data}


def _of_kind(config: dict[str, Any]) -> dict[str, Any]:
    """All corpora of a knowledge base together."""
    corpora = _corpora(config)
    counts = {key: sum(c[key] for c in corpora if isinstance(c.get(key), int)) for key in ("programs", "tasks")}
    name = ", ".join(str(c["name"]) for c in corpora if c.get("name"))
    lineage = as_object(config.get("lineage"))
    learnt = lineage.get("devices")
    devices = [
        {key: device.get(key) for key in _DEVICE_FACTS}
        for device in map(as_object, learnt if isinstance(learnt, list) else ())
    ]
    return {
        "data_licence": _licences(corpora),
        "data": {"name": name} | counts,
        "lineage": lineage | {"devices": devices},
    }


def _facts(config: dict[str, Any], metrics: dict[str, Any]) -> dict[str, Any]:
    from ...zoo.primitives.metaschedule import TVM_RELEASES

    lineage = as_object(config.get("lineage"))
    return {
        "weights_licence": lineage.get("weights_licence"),
        "lineage": lineage,
        "metrics": scores_of(metrics),
        "transfer": transfer_of(metrics),
        "tvm_range": TVM_RELEASES,
        **(_of_kind(config) if config.get("family") in KINDS else _of_family(config)),
    }
