"""What a checkpoint's card must say before it is published."""

from __future__ import annotations

from .schema import CardData

# Without these a checkpoint cannot be compared with others.
_PUBLISHED_SCORES = ("top1", "top5", "pairwise")


def missing(data: CardData) -> tuple[str, ...]:
    """What a card needs before it is published and lacks, as `file: field`; () when nothing does.

    A knowledge base is judged on several devices, so it has no one device.
    """
    run = data.evaluation
    wanted: dict[str, object] = {
        "config.json: lineage.weights_licence": data.licence,
        "config.json: lineage.authors": data.authors,
        "config.json: training.command": data.training.command,
        "config.json: training.seed": data.training.seed,
        "config.json: training.seconds": data.training.seconds,
        "config.json: training.corpus": data.corpora,
        "config.json: devices that the training was measured on": data.origin.data,
        "metrics.json: corpus": run.corpus,
        "metrics.json: split": run.split,
        "metrics.json: device": run.device or data.devices,
        "metrics.json: tasks": run.tasks,
        "metrics.json: programs": run.programs,
        "metrics.json: results.random": next((line for line in run.scores if line.key == "random"), None),
    }
    wanted |= {f"metrics.json: results.model.{key}": getattr(run.model, key, None) for key in _PUBLISHED_SCORES}
    for at, corpus in enumerate(data.corpora):
        where = f"config.json: training.{'corpus' if at == 0 else f'sources[{at - 1}]'}"
        facts = ("name", "device", "licence", "programs", "tasks", "how")
        wanted |= {f"{where}.{key}": getattr(corpus, key) for key in facts}
    return tuple(name for name, value in wanted.items() if value is None or value in ("", ()))
