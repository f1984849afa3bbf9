"""docs/benchmarks.md: where tchub loses, then a section a benchmark. What was not run has no section."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.benchmarks.report import adaptation, shapes
from scripts.benchmarks.report import shapes as choices
from scripts.benchmarks.report import shapes as hub
from scripts.benchmarks.report.shapes import local, lost_local
from scripts.benchmarks.report.tables import cell, table, tables


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Every benchmark of the page that was run."""
    files = {section.name: folder / f"{section.name}.json" for section in SECTIONS}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """docs/benchmarks.md."""
    lines = [
        "# Benchmarks",
        "Written by `python -m scripts.benchmarks.report` from [docs/benchmarks](benchmarks), where every figure is.",
        "Each benchmark runs tchub and what it is compared with on one machine in one go.",
        "",
    ]
    if "tuning" in results:
        lines += [f"![{picture_words(results)}](benchmarks/speed.svg)", ""]
    if losing := list(losses(results)):
        lines += ["## Where tchub loses or misses its goal", *(f"- {line}" for line in losing), ""]
    for section in SECTIONS:
        if section.name in results:
            lines += _section(section, results[section.name])
    return "\n".join(lines).rstrip() + "\n"


def picture_words(results: Mapping[str, Mapping[str, Any]]) -> str:
    """What the picture shows, for those who do not see it."""
    networks = sorted({run["network"] for run in results["tuning"]["details"]["runs"]})
    return f"Latency against tuning time, stock and tchub, of {', '.join(networks)}; tchub's gains over stock"


def _section(section: Section, job: Mapping[str, Any]) -> Iterator[str]:
    facts = job["machine"]
    seeds = f"seeds {', '.join(map(str, job['seeds']))}, " if job["seeds"] else ""
    yield from (f"## {section.title}", section.words, "")
    yield (
        f"Measured on {facts['device']} ({facts['cpu_model']}, {facts['cores']} cores), {job['date']}, "
        f"{seeds}by `{job['command']}`."
    )
    yield ""
    if section.goals:
        rows = [_goal(job["summary"], *goal) for goal in section.goals]
        yield from table(("figure", "goal", "found", ""), [row for row in rows if row])
    goals = {key.removesuffix("<") for key, *_ in section.goals}
    if section.shape:
        shown = section.shape(job)
    else:
        yield from tables("", {key: value for key, value in job["summary"].items() if key not in goals})
        shown = {key: value for key, value in job["details"].items() if key not in section.hidden}
    for key, value in shown.items():
        yield from tables(key, value)
    if left := job["details"].get("not_done"):
        yield from (f"Not run: {', '.join(left)}.", "")


def _goal(summary: Mapping[str, Any], key: str, bound: float, words: str) -> tuple[str, ...] | None:
    at_most, name = key.endswith("<"), key.removesuffix("<")
    value = summary.get(name)
    if value is None:
        return None
    sign = "at most" if at_most else "at least"
    return words, f"{sign} {cell(bound)}", f"**{cell(value)}**", "met" if _met(value, bound, at_most) else "missed"


def _met(value: float, bound: float, at_most: bool) -> bool:
    return value <= bound if at_most else value >= bound


def losses(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Goals that were missed, networks where stock or PyTorch is faster, and rows of which stock does more."""
    for section in SECTIONS:
        summary = results[section.name]["summary"] if section.name in results else {}
        for key, bound, words in section.goals:
            at_most, name = key.endswith("<"), key.removesuffix("<")
            value = summary.get(name)
            if value is not None and not _met(value, bound, at_most):
                aim = f"{'at most' if at_most else 'at least'} {cell(bound)}"
                yield f"{section.title}: {words} is {cell(value)}; the goal is {aim}."
        if section.name in results:
            yield from section.lost(results[section.name])


@dataclass(frozen=True)
class Section:
    """One benchmark on the page.

    Attributes:
        name: of its file, without `.json`.
        title, words: what it is about, and what is compared.
        goals: (key of the summary, least value, what it is); a key ending in `<` has a greatest value instead.
        hidden: keys of `details` that are left out.
        shape: the tables to show, instead of everything that the file holds.
        lost: sentences on where something else is ahead.
    """

    name: str
    title: str
    words: str
    goals: Sequence[tuple[str, float, str]] = ()
    hidden: Sequence[str] = ()
    shape: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    lost: Callable[[Mapping[str, Any]], Iterable[str]] = lambda _: ()


SECTIONS = (
    Section(
        "tuning",
        "Tuning whole networks",
        "Each system tunes the same networks and may measure the same number of programs of a task; one may end before "
        "(`trials` in the table of seconds). Ratios are stock MetaSchedule's figure "
        "over the system's, so that more than 1 is faster; latencies are those of one judge that measures every "
        "system's best programs again. `time` and `trials` count until a system has the latency that stock ends with.",
        (
            ("time_ratio", 10, "stock's time to its final latency over tchub's"),
            ("trials_ratio", 10, "stock's trials to its final latency over tchub's"),
            ("latency_ratio_equal_trials", 1.15, "stock's latency over tchub's at equal trials"),
            ("slower_than_pytorch<", 0, "networks slower than PyTorch eager"),
        ),
        shape=shapes.tuning,
        lost=shapes.lost_tuning,
    ),
    Section(
        "measure",
        "Building and measuring programs",
        "MetaSchedule's LocalBuilder and LocalRunner against tchub's workers, on the same programs.",
        (
            ("rate_ratio", 8, "programs a second, tchub's over stock's"),
            ("failed_only_ours<", 0, "programs that stock measures and tchub does not"),
            ("spread<", 0.03, "spread of a program's latency on repeats"),
        ),
        lost=shapes.lost_measure,
    ),
    Section(
        "predict",
        "Scoring candidates",
        "From a schedule to its score, features and forward pass together: stock's `XGBModel` and TenSet-MLP on "
        "PerStoreFeature against tchub.",
        (
            ("llvm_ratio", 10, "stock's microseconds a candidate over tchub's, LLVM"),
            ("nvidia_ratio", 20, "the same, NVIDIA"),
        ),
        shape=shapes.predict,
        lost=shapes.lost_predict,
    ),
    Section(
        "sampling",
        "What to measure next",
        "The corpora are those of `python -m scripts.zoo.build import --data DIR` ([which](corpora.md)) and "
        "corpora/epyc-turin. Each sampler chooses a share of the programs of the training tasks in rounds; a model "
        "learns from them and is "
        "judged on test tasks. Top-1 is the mean over tasks; a cell is mean ± deviation (seeds), and what is compared "
        "is compared over the seeds that both have. A budget is read off a curve of score by budget that is made "
        "monotone first; RDU's own, read off alike, is the control, and what that is off 1 is the reading's error. "
        "In seconds, it is the time to measure what was picked, by the corpus's own times. "
        "*At least*: the largest share does not have the score, and is counted in its place; *at most*: the smallest "
        "has it. The seeds of one corpus share the model of the other device that they start from. `rdu+` was chosen "
        "on validation tasks, but after the page had shown on test tasks that an earlier form of it, level over tasks, "
        "was no better than RDU.",
        (
            ("rdu_minus_random_top1", 0, "RDU's top-1 less random choice's"),
            ("rdu_minus_random_pairwise", 0, "RDU's pairwise accuracy less random choice's"),
            ("rdu_plus_minus_rdu_top1", 0, "rdu+'s top-1 less RDU's"),
            ("rdu_plus_minus_rdu_pairwise", 0, "rdu+'s pairwise accuracy less RDU's"),
            (
                "rdu_plus_budget_ratio_pairwise<",
                0.5,
                "share of RDU's budget that rdu+ needs for its pairwise accuracy",
            ),
            ("rdu_plus_budget_ratio<", 0.5, "share of RDU's budget that rdu+ needs for its top-1"),
        ),
        shape=adaptation.sampling,
        lost=adaptation.lost_sampling,
    ),
    Section(
        "transfer",
        "From other devices to a new one",
        "The corpora are those of the section before. "
        "*Cross-task*: a tenth of the programs of the target's training tasks is measured. *In-task*: a few programs "
        "of each judging task are, and the rest of its programs judges. *Both*: both. The programs are drawn at "
        "random for all methods but `ours` and the rows marked `strata`: these choose theirs by the sampler `strata` "
        "(even strata of the base's scores within each task), as many as the others have, and are judged on the "
        "programs that remain, which are not quite those of the others. `ours` is the mean of three models of the "
        "sources, of three seeds, each fine-tuned, and from eight labels a task on of three from scratch too. `tchub "
        "adapt --sampler strata` makes one of the first kind, the row marked `strata`; with `--method ensemble` it "
        "adds one from scratch, the row `a committee on strata`. *Seen* means that a source knows the judging tasks, "
        "*unseen* that none does; of seen tasks nothing is asked cross-task but the model of the sources as it is, "
        "and nothing of *both*. `continual distillation` is the papers' rule: equations 7 to 11, all sources, in the "
        "order given. `tchub adapt --method continual`, a row of its own, begins with a model of the first source, "
        "learns 200 programs of each task of the others, rehearses, and leaves out what harms. *Averaged* is by "
        "Fisher's information, of models of the sources that share a start. The papers' own networks learn one "
        "source, V100, 40 programs of each of its tasks and 200 of the target's. From scratch is the same network "
        "and as many labels without any source. A cell is mean ± deviation (seeds); differences and ratios are over "
        "the seeds that both sides have; top-1 is the mean over tasks. Numbers of labels are read off curves that "
        "are made monotone first; without labels a curve has a point only where the method itself was measured "
        "there. At most half of a task is measured, which leaves 23 of 32 labels a task on EPYC Turin; ratios count "
        "the labels that were drawn, and their means over targets are geometric. A sixteenth of the judging tasks of "
        "K80 and MI50, one pooling, reads like poolings of the training tasks that differ from it in size alone; it "
        "is easy for every method. Details were chosen on validation tasks, but tables of test tasks were made more "
        "than once: `ours` got its models from scratch after the page had said that fine-tuning is worse than none "
        "of it on EPYC Turin.",
        (
            ("label_ratio_vs_scratch", 8, "labels that scratch needs over ours, for scratch's accuracy at 32, unseen"),
            ("label_ratio_vs_scratch_least", 8, "labels that scratch needs over ours, unseen, the worst target"),
            ("label_ratio_vs_scratch_seen", 8, "labels that scratch needs over ours, tasks that a source knows"),
            ("label_ratio_vs_scratch_seen_least", 8, "labels that scratch needs over ours, seen, the worst target"),
            ("label_ratio_vs_three_scratch", 8, "labels that three models from scratch need over ours, unseen"),
            ("continual_minus_finetune_pairwise", 0.05, "continual less fine-tuned, pairwise, cross-task"),
            ("continual_minus_finetune", 0.05, "continual less fine-tuned, top-1, cross-task"),
            ("continual_minus_mtl_pairwise", 0.02, "continual less multi-task, pairwise, cross-task"),
            ("continual_minus_mtl", 0.02, "continual less multi-task, top-1, cross-task"),
            ("continual_over_full_pairwise", 0.99, "continual over itself on all of the target's data, pairwise"),
            ("continual_over_full", 0.99, "continual over itself on all of the target's data, top-1"),
            (
                "continual_over_joint_pairwise",
                0.99,
                "continual over one training on all of it and the sources, pairwise",
            ),
            ("continual_over_joint", 0.99, "continual over one training on all of it and the sources, top-1"),
            ("forgetting_pairwise<", 0.01, "pairwise accuracy lost on earlier devices after five"),
            ("forgetting<", 0.01, "top-1 lost on earlier devices after five"),
        ),
        shape=adaptation.transfer,
        lost=adaptation.lost_transfer,
    ),
    Section(
        "choices",
        "Settings of adapting, each changed alone",
        "Why the defaults are what they are: K80, MI50 and Ryzen as in the section before, but that *validation* tasks "
        "judge; choices are made by these and by no others. The first row of a table is what the product does, "
        "pairwise accuracy (top-1); the others are what another value of one setting gains over it, with the standard "
        "error over targets and seeds. A *base of two* is a knowledge base that learns a further device, 100 programs "
        "a task of each (40 for TCLs): how it ranks the device before, and the new one. Some defaults were chosen when "
        "less was known, on other programs; a value that ranks better here is named in the list of losses.",
        shape=choices.choices,
        lost=choices.lost_choices,
    ),
    Section(
        "local",
        "Two targets and two numbers of threads on one machine",
        "The same model architecture starts from nothing, from the zoo, or from a model adapted to another of the "
        "targets; each is adapted to the same candidates with one budget, and tunes with as many trials. Pairwise "
        "accuracy is that on held-out programs of the network: of the source without any label, then before and after "
        "adapting, where TileNet is given the labels as context both times. Further programs, 24 a task, half of them "
        "evolved, judge the source and what the guard decided on once more: a hold-out that a user pays for is small. "
        "Latencies are those of one process in which all sources' networks take turns.",
        shape=local,
        lost=lost_local,
    ),
    Section(
        "kills",
        "Killed at random moments",
        "Every run is resumed, and its database compared with its log.",
        (),
        ("runs",),
    ),
    Section(
        "soak",
        "Memory of a long run",
        "Resident memory of the tuner and of its workers over many programs; the slopes are fitted after the first "
        "fifth of a run. That of the workers is of few programs so far: whether it levels off is not known.",
    ),
    Section(
        "corpus",
        "Large corpora",
        "Import and one epoch of training of a made-up corpus, each in one process.",
        (),
        ("make", "import", "train"),
    ),
    Section(
        "coverage",
        "Networks that tune, the first time",
        "Small networks of every family, as a user brings them, in one shared home: exported, imported, compiled and "
        "compared with the original untuned, tuned with 8 trials, compiled and compared again. Two ran side by side, "
        "each on a core of its own, so that latencies are left out here.",
        (
            ("passed", 76, "networks that tune and are right"),
            ("failed<", 0, "networks that fail after measuring began"),
            ("tracebacks<", 0, "tracebacks"),
        ),
        shape=hub.coverage,
        lost=hub.lost_coverage,
    ),
    Section(
        "fuzz",
        "Damaged and hostile files",
        "Every reader of files that somebody else wrote, fed with real ones whose structure was bent and whose bytes "
        "were damaged. Each ends in a file that is taken, a typed error with a remedy, or a record that is counted as "
        "broken; anything else is a crash, and more than 5 seconds are a hang. One input may take 1 GiB.",
        (
            ("fewest_inputs", 100_000, "inputs of a target"),
            ("crashes<", 0, "crashes"),
            ("hangs<", 0, "hangs"),
        ),
        shape=hub.fuzz,
    ),
    Section(
        "startup",
        "Until a command answers",
        "Commands that need no model, in turn, beside Python that does nothing and the help of the Hub's own command "
        "line; medians of wall time.",
        (
            ("help_beside_hf", 1, "`hf --help`'s time over `tchub --help`'s"),
            ("torch_or_tvm_imported<", 0, "of these commands, those that import torch or TVM"),
        ),
        shape=hub.startup,
        lost=hub.lost_startup,
    ),
    Section(
        "scale",
        "What one process of each engine manages",
        "What the figures mean: [at a thousand devices](remote.md#many-machines).",
    ),
)
