"""Going through the steps of a contribution: what is finished and unchanged is kept, the rest is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from .ask_facts import AskFacts
from .checking import Check
from .collecting import Collect
from .errors import MissingFactsError
from .evaluating import Evaluate
from .preflight import Preflight
from .publishing import Publish
from .settings import FACTS_FILE, CardFacts, Settings
from .spec_sheet import SpecSheet
from .state import Record, State, digests, locked
from .step import Ask, Step, Walk
from .training import Train
from .write_card import WriteCard

if TYPE_CHECKING:
    from ..tuning.collect import CollectProgress

# Questions come before anything that takes hours.
STEPS: tuple[Step, ...] = (
    Preflight(),
    SpecSheet(),
    AskFacts(),
    Collect(),
    Train(),
    Evaluate(),
    WriteCard(),
    Check(),
    Publish(),
)
NAMES = tuple(step.name for step in STEPS)


@dataclass(frozen=True)
class Passed:
    """A step that is behind us.

    Attributes:
        outcome: `done` now, or `kept` from an earlier run.
    """

    name: str
    outcome: str
    seconds: float
    facts: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def contribute(
    settings: Settings,
    *,
    ask: Ask | None = None,
    again_from: str | None = None,
    note: Callable[[str], None] = lambda _: None,
    progress: Callable[[CollectProgress], None] = lambda _: None,
    steps: Sequence[Step] = STEPS,
) -> list[Passed]:
    """Go from a machine to a checkpoint that others can use.

    A second call with the same settings goes on where the first one stopped, be it by an error or a kill; with
    other settings it does again what depends on them.

    Args:
        settings: what is to be made; `contribute.toml` in the output folder says what the settings leave open.
        ask: asks a person; None where nobody is there to ask.
        again_from: name of a step that is done again, with all after it.
        note: told what is being done.
        progress: told after each program that is measured.
        steps: in their order.

    Raises:
        MissingFactsError: a licence, the authors or the yes to publishing were not given, and there is nobody to ask.
        ContributionStateError: the output folder cannot be used.
        TchubError: a subclass for each way a step can fail.
    """
    _require_answers(settings, ask)
    with locked(settings.output):
        state = State.open(settings.output)
        told = CardFacts.read(settings.output / FACTS_FILE)
        walk = Walk(replace(settings, facts=settings.facts.over(told)), ask=ask, note=note, progress=progress)
        if again_from is not None:
            names = [step.name for step in steps]
            state.forget(tuple(names[names.index(again_from) :]))
        return [_pass(step, number, len(steps), walk, state) for number, step in enumerate(steps, 1)]


def _require_answers(settings: Settings, ask: Ask | None) -> None:
    """Whether anybody will agree to publish is settled before hours are spent."""
    if settings.destination and ask is None and not settings.confirmed:
        raise MissingFactsError(
            f"nobody is there to agree to publishing in {settings.repo}",
            remedy="add --yes, or --no-publish",
            missing=["yes"],
        )


def _pass(step: Step, number: int, count: int, walk: Walk, state: State) -> Passed:
    inputs = step.inputs(walk)
    changed = state.changed(step.name, inputs)
    title = f"[{number}/{count}] {step.name}: {step.title}"
    if changed == ():
        walk.note(f"{title}: done before")
        walk.found[step.name] = state.records[step.name].facts
        return Passed(step.name, "kept", 0.0, walk.found[step.name])
    walk.note(title + (f" (again: {', '.join(changed)} changed)" if changed else ""))
    walk.before = state.records[step.name].facts if step.name in state.records else {}
    started = time.monotonic()
    done = step.run(walk)
    state.keep(step.name, Record(inputs, done.facts, digests(walk.folder, done.files)))
    walk.found[step.name] = done.facts
    return Passed(step.name, "done", time.monotonic() - started, done.facts)
