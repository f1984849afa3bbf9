"""The YAML head of a card, in the form that the Hugging Face Hub itself reads."""

from __future__ import annotations

from huggingface_hub import EvalResult, ModelCardData

from .metrics import ScoreLine
from .schema import CardData

# Tasks and metrics that the Hub shows; its own list has none for ranking tensor programs.
TASK = "tabular-regression"
_NAMES = {"top1": "top-1 score", "top5": "top-5 score", "pairwise": "pairwise accuracy"}
# https://huggingface.co/docs/hub/repositories-licenses
_KNOWN_LICENCES = """
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5
cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0
cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0
cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl
gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc intel-research lppl-1.3c ms-pl mpl-2.0 odc-by odbl openrail++
osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl unknown other
"""
HUB_LICENCES = frozenset(_KNOWN_LICENCES.split())


def hub_licence(spdx: str | None) -> tuple[str | None, str | None]:
    """Return the `license` and `license_name` of a card's head: one that the Hub does not know is `other`.

    Args:
        spdx: an SPDX id, such as `Apache-2.0` or `GPL-3.0-only`; None when there is none.
    """
    if spdx is None:
        return None, None
    name = spdx.lower().removesuffix("-only").removesuffix("-or-later")
    return (name, None) if name in HUB_LICENCES else ("other", spdx.lower())


def metadata(data: CardData) -> str:
    """Return the YAML between the two `---` lines (without them).

    It has library_name, licence, tags (with `measured` or `transferred`), datasets, and a model-index with the
    checkpoint's scores.
    """
    config, origin = data.config, data.origin.data
    tags = ["tchub", "tvm", "metaschedule", "cost-model", "auto-tuning", config.arch, f"device:{config.family}"]
    datasets = [corpus.name for corpus in data.corpora if corpus.name and "/" in corpus.name]
    licence, licence_name = hub_licence(config.lineage.weights_licence)
    base = config.lineage.base
    card = ModelCardData(
        model_name=config.name,
        library_name="tchub",
        license=licence,
        license_name=licence_name,
        pipeline_tag=TASK,
        tags=[*tags, origin] if origin else tags,
        datasets=datasets or None,
        base_model=base if base and "/" in base else None,
        eval_results=_results(data) or None,
        data_licence=", ".join(data.licences) or None,
        data_origin=origin,
        device_family=config.family,
        checkpoint_version=config.version,
        feature_schema=config.feature_schema,
    )
    return card.to_yaml().strip()


def _results(data: CardData) -> list[EvalResult]:
    """Return the scores of each split, and of a knowledge base those of each device."""
    run = data.metrics
    corpus = run.corpus or data.corpus.name or "unknown"
    lines = [(corpus, run.split, run.model), (corpus, "validation", run.validation)]
    lines += [(device.corpus, run.split, device.now) for device in run.devices]
    return [
        EvalResult(
            task_type=TASK,
            task_name="ranking the programs of a task",
            dataset_type=corpus,
            dataset_name=corpus,
            dataset_split=split,
            metric_type=key,
            metric_name=_NAMES[key],
            metric_value=_rounded(line, key),
        )
        for corpus, split, line in lines
        if line is not None
        for key in _NAMES
        if _rounded(line, key) is not None
    ]


def _rounded(line: ScoreLine, key: str) -> float | None:
    value = line.value(key)
    return None if value is None else round(value, 4)
