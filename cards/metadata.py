"""The YAML head of a card, in the form that the Hugging Face Hub itself reads."""

from __future__ import annotations

from huggingface_hub import EvalResult, ModelCardData

from .data import licences
from .licences import hub_licence
from .schema import CardData
from .scores import Scores

# Tasks and metrics that the Hub shows; its own list has none for ranking tensor programs.
TASK = "tabular-regression"
_NAMES = {"top1": "top-1 score", "top5": "top-5 score", "pairwise": "pairwise accuracy"}


def metadata(data: CardData) -> str:
    """The YAML between the two `---` lines (without them).

    library_name, licence, tags (with `measured` or `transferred`), datasets, and a model-index with the
    checkpoint's scores.
    """
    tags = ["tchub", "tvm", "metaschedule", "cost-model", "auto-tuning", data.arch, f"device:{data.family}"]
    if data.origin.data:
        tags.append(data.origin.data)
    datasets = [corpus.name for corpus in data.corpora if corpus.name and "/" in corpus.name]
    licence, licence_name = hub_licence(data.licence)
    card = ModelCardData(
        model_name=data.name,
        library_name="tchub",
        license=licence,
        license_name=licence_name,
        pipeline_tag=TASK,
        tags=tags,
        datasets=datasets or None,
        base_model=data.base if data.base and "/" in data.base else None,
        eval_results=_results(data) or None,
        data_licence=", ".join(licences(data.corpora)) or None,
        data_origin=data.origin.data,
        device_family=data.family,
        checkpoint_version=data.version,
        feature_schema=data.feature_schema,
    )
    return card.to_yaml().strip()


def _results(data: CardData) -> list[EvalResult]:
    """The scores of each split, and of a knowledge base those of each device."""
    run = data.evaluation
    corpus = run.corpus or data.corpus.name or "unknown"
    lines = [(corpus, run.split, run.model), (corpus, "validation", run.validation)]
    lines += [(device.corpus, run.split, device.now) for device in data.devices]
    return [
        EvalResult(
            task_type=TASK,
            task_name="ranking the programs of a task",
            dataset_type=corpus,
            dataset_name=corpus,
            dataset_split=split,
            metric_type=key,
            metric_name=_NAMES[key],
            metric_value=_value(line, key),
        )
        for corpus, split, line in lines
        if line is not None
        for key in _NAMES
        if _value(line, key) is not None
    ]


def _value(line: Scores, key: str) -> float | None:
    value = getattr(line, key)
    return None if value is None else round(value, 4)
