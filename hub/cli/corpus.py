"""`tchub corpus`, `collect` and `bundle`: measure programs, import, check, merge and replay them."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import device_options, output_options, threads_option
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

# As in `tchub.zoo.corpus.schema`, whose import takes half a second.
_FRAMEWORKS = ("metaschedule", "ansor", "autotvm")


@click.group("corpus")
def corpus_command() -> None:
    """Look into corpora of measured programs, make them from other tools' logs, and join them.

    \b
    Examples:
      tchub corpus import v100.json.xz --device v100 --out corpora/v100
      tchub corpus stats corpora/epyc
      tchub corpus check corpora/epyc --json
      tchub corpus merge epyc/shard-*-of-8 --out epyc
    """


@corpus_command.command("import")
@click.argument("source", metavar="SRC", type=click.Path())
@click.option("--device", metavar="NAME", required=True, help="The device that all programs were measured on.")
@click.option("--out", "folder", metavar="DIR", required=True, type=click.Path(file_okay=False), help="The corpus.")
@click.option("--framework", type=click.Choice(_FRAMEWORKS), help="Whose log it is; told from its lines by default.")
@click.option("--tasks", metavar="FILE[:NAME]", help="JSON of device -> task name -> facts; NAME if not --device.")
@click.option("--split", metavar="FILE[:NAME]", help="JSON of protocol -> train, val, test; NAME if not --device.")
@click.option("--licence", help="Licence of the log, kept with every program.")
@click.option("--source", "origin", help="Where the log came from, kept with every program.")
@click.option("--allow-mixed", is_flag=True, help="Take records whose targets name different devices.")
@click.option("--min-programs", default=0, show_default=True, help="Leave out tasks with fewer valid programs.")
@output_options
def corpus_import_command(
    source: str,
    device: str,
    folder: str,
    framework: str | None,
    tasks: str | None,
    split: str | None,
    licence: str | None,
    origin: str | None,
    allow_mixed: bool,
    min_programs: int,
    out: Output,
) -> None:
    """Make a corpus of an Ansor, TenSet or AutoTVM log, or of a MetaSchedule database.

    SRC is a log (.json, .log, also .xz or .gz), a folder of logs, or a database folder. Records that cannot be
    read are counted by kind and reported; nothing is left behind when the import is interrupted.

    \b
    Examples:
      tchub corpus import v100.json.xz --device v100 --out corpora/v100 --licence MIT
      tchub corpus import k80.json --device k80 --tasks tasks.json --split splits.json:common --out corpora/k80
      tchub corpus import out/database --device a100 --out corpora/a100 --min-programs 8
    """
    from ...zoo.corpus.importers import ImportContext, import_corpus, read_facts, read_protocol

    task_file, task_name = _file_and_name(tasks, device)
    split_file, split_name = _file_and_name(split, device)
    facts = read_facts(task_file, task_name) if task_file else {}
    report = import_corpus(
        source,
        folder,
        ImportContext(device, licence, origin, facts, allow_mixed),
        framework=framework,
        split=read_protocol(split_file, split_name) if split_file else None,
        min_programs=min_programs,
        command=_command(
            source,
            min_programs,
            allow_mixed,
            {
                "--device": device,
                "--framework": framework,
                "--tasks": tasks,
                "--split": split,
                "--licence": licence,
                "--source": origin,
            },
        ),
        progress=lambda programs: out.note(f"{programs:,} programs"),
    )
    found = report.as_dict()
    out.data(found, lambda console: _draw_corpus_import(found, console))
    out.hint(f"tchub corpus check {folder}")


def _file_and_name(text: str | None, device: str) -> tuple[str | None, str]:
    file, colon, name = (text or "").rpartition(":")
    return (file, name) if colon and name and "/" not in name else (text, device)


def _command(source: str, min_programs: int, allow_mixed: bool, options: dict[str, str | None]) -> str:
    """What makes the same again; options that were not given are left out."""
    given = [word for name, value in options.items() if value is not None for word in (name, value)]
    given += ["--allow-mixed"] * allow_mixed + ["--min-programs", str(min_programs), "--out", "DIR"]
    return shlex.join(["tchub", "corpus", "import", source, *given])


def _draw_corpus_import(found: dict[str, Any], console: Console) -> None:
    def line(name: str, text: object) -> None:
        console.print(f"{name:<16}{text}", highlight=False)

    line("framework", found["framework"])
    line("tasks", f"{found['tasks']}, and {len(found['too_small'])} left out as too small")
    line("programs", f"{found['programs']}: {found['valid_programs']} valid, {found['failed_programs']} failed")
    line("failed", ", ".join(f"{kind} {count}" for kind, count in found["errors"].items()) or "none")
    line("duplicates", f"{found['duplicates']}, left out")
    line("broken records", sum(found["broken"].values()))
    for kind, count in found["broken"].items():
        line(f"  {kind}", count)
        for example in found["examples"][kind]:
            line("", example)
    if found["without_task"]:
        line("split", f"{len(found['without_task'])} of its tasks are not in the log: {found['without_task'][0]}, ...")


@corpus_command.command("stats")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--seed", default=0, show_default=True, help="Seed of the split that is counted.")
@output_options
def corpus_stats_command(folder: str, seed: int, out: Output) -> None:
    """Count tasks, programs, failures, frameworks, licences, splits and the noise of the repeats.

    \b
    Examples:
      tchub corpus stats corpora/epyc
      tchub corpus stats corpora/epyc --json
    """
    from ...zoo.corpus import Corpus, corpus_stats

    found = corpus_stats(Corpus.open(folder), seed)
    out.data(found, lambda console: _draw_corpus_stats(found, console))
    out.hint(f"tchub corpus check {folder}")


def _draw_corpus_stats(found: dict[str, Any], console: Console) -> None:
    for key, value in found.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        text = ", ".join(map(str, value)) if isinstance(value, list) else text
        text = f"{value:.4g}" if isinstance(value, float) else text
        console.print(f"{key.replace('_', ' '):<26}{text}", highlight=False)


# Leaks that are named one by one.
_SHOWN = 20


@corpus_command.command("check")
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(file_okay=False))
@click.option("--seed", default=0, show_default=True, help="Seed of the splits that are checked.")
@click.option(
    "--protocol-allows",
    "allowed",
    metavar="DIR",
    multiple=True,
    type=click.Path(file_okay=False),
    help="A corpus that a protocol lets train on what the others test on.",
)
@output_options
def corpus_check_command(folders: tuple[str, ...], seed: int, allowed: tuple[str, ...], out: Output) -> None:
    """Check hashes, counts, splits, duplicates, failures and devices; exit code 1 if anything is wrong.

    Of several corpora, whatever their frameworks and devices, none may train on a computation that another
    one tests on.

    \b
    Examples:
      tchub corpus check corpora/epyc
      tchub corpus check corpora/v100 corpora/v100-autotvm corpora/k80
      tchub corpus check corpora/v100 corpora/k80 --protocol-allows corpora/v100
    """
    from ...zoo.corpus import Corpus, CorpusError, check_corpus, check_leaks

    corpora = [Corpus.open(folder) for folder in folders]
    findings = [{"path": str(c.path), **f.as_dict()} for c in corpora for f in check_corpus(c, seed)]
    leaks = [leak.as_dict() for leak in check_leaks(corpora, seed, allowed)]
    wrong = sorted({finding["name"] for finding in findings if not finding["ok"]})
    wrong += ["no leak across corpora"] * bool(leaks)
    result = {"ok": not wrong, "findings": findings, "leaks": leaks}
    if not wrong or out.mode != "json":  # with --json the error is the one document on stdout
        out.data(result, lambda console: _draw_corpus_check(result, len(corpora), console))
    if wrong:
        raise CorpusError(
            f"{', '.join(folders)}: {len(wrong)} checks failed: {', '.join(wrong)}",
            remedy=_remedy(leaks),
            findings=findings,
            leaks=leaks,
        )
    out.hint(f"tchub train --corpus {folders[0]}")


def _remedy(leaks: list[dict[str, Any]]) -> str:
    if leaks:
        return "leave these computations out of the training, or say --protocol-allows DIR if a protocol allows it"
    return "do not train on it before it is mended: collect it again, or leave out what is wrong"


def _draw_corpus_check(result: dict[str, Any], corpora: int, console: Console) -> None:
    def line(ok: bool, name: str, message: str) -> None:
        console.print(f"{'ok  ' if ok else 'FAIL'}  {name:<26}{message}", highlight=False)

    path = None
    for finding in result["findings"]:
        if corpora > 1 and finding["path"] != path:
            path = finding["path"]
            console.print(path, highlight=False)
        line(finding["ok"], finding["name"], finding["message"])
    leaks = result["leaks"]
    if corpora > 1:
        line(not leaks, "no leak across corpora", f"{len(leaks)} test computations are in another's training set")
    for leak in leaks[:_SHOWN]:
        line(False, leak["computation"], f"tested by {leak['tested_by']}, in {leak['part']} of {leak['trained_by']}")
    if len(leaks) > _SHOWN:
        console.print(f"and {len(leaks) - _SHOWN} more (--json lists all)", highlight=False)


@corpus_command.command("merge")
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(file_okay=False))
@click.option("--out", "folder", required=True, type=click.Path(file_okay=False), help="Folder of the whole.")
@output_options
def corpus_merge_command(folders: tuple[str, ...], folder: str, out: Output) -> None:
    """Make one corpus of several of one device, e.g. of what `tchub collect --shard` measured on many machines.

    What --out holds already stays in it, so shards may be merged as they come in. Merging again, or corpora that
    overlap, changes nothing: each program is there once, and the order of the folders does not matter.

    \b
    Examples:
      tchub corpus merge epyc/shard-*-of-8 --out epyc
      tchub corpus merge monday tuesday --out both --json
    """
    from ...zoo.corpus import merge_corpora

    merged = merge_corpora(folder, folders)
    meta = merged.corpus.meta
    counts = {name: meta[name] for name in ("tasks", "programs")}
    found = {"path": folder, **counts, "given": merged.given, "changed": merged.changed}
    said = "" if merged.changed else "; it held all of them before"
    out.data(
        found,
        lambda console: console.print(
            f"{found['programs']} programs of {found['tasks']} tasks in {folder}, from {found['given']}{said}",
            highlight=False,
            soft_wrap=True,
        ),
    )
    out.hint(f"tchub corpus check {folder}")


@corpus_command.command("replay")
@click.argument("log", metavar="LOG", type=click.Path())
@click.option("--to", "folder", metavar="DIR", required=True, type=click.Path(file_okay=False), help="The database.")
@click.option("--target", help="TVM target of its records, a name or JSON; without it, the kind of the log's own.")
@click.option("--limit-per-task", type=click.IntRange(min=1), help="Programs of a task to replay, from its first.")
@output_options
def corpus_replay_command(folder: str, log: str, target: str | None, limit_per_task: int | None, out: Output) -> None:
    """Replay the programs of an Ansor log as schedules of today's TVM and keep them as a MetaSchedule database.

    Every replay is checked against its record: loop extents, their order, thread bindings, unrolling. Only tasks of
    plain operators can be replayed (conv2d_layer, matmul_layer, ...); a task known by a hash names no computation.

    \b
    Examples:
      tchub corpus replay v100.json.xz --to v100-database --limit-per-task 40
      tchub corpus replay ansor.log --to database --target nvidia/nvidia-v100 --json
    """
    from ...zoo.corpus.replay.database import replay_log

    with out.console.status("replaying"):
        report = replay_log(log, folder, _target(target), limit_per_task)
    out.data(report.as_dict(), lambda console: _draw_corpus_replay(report.as_dict(), console))
    out.hint(f"tchub corpus import {folder} --device NAME --out DIR")


def _target(text: str | None) -> dict[str, Any] | str | None:
    return json.loads(text) if text and text.lstrip().startswith("{") else text


def _draw_corpus_replay(found: dict[str, Any], console: Console) -> None:
    for op, counts in found["operators"].items():
        share = counts["replayed"] / counts["of"]
        console.print(f"{op:<14}{counts['replayed']:>8} of {counts['of']:<8}{share:>8.1%}", highlight=False)
    for row in found["reasons"]:
        text = f"not replayed: {row['programs']} {row['op']}, {row['reason']}: {row['example']}"
        console.print(text, highlight=False)
    for name in ("untimed", "over_limit"):
        if found[name]:
            console.print(f"not tried: {found[name]} {name.replace('_', ' ')}", highlight=False)
    for kind, count in found["broken"].items():
        console.print(f"not read: {count} {kind}", highlight=False)


@click.command("collect", short_help="Measure a corpus of programs.")
@device_options
@click.option(
    "--suite", default="reference", show_default=True, help="A suite, network or operator; several with commas."
)
@click.option("--programs", default=1000, show_default=True, type=click.IntRange(8), help="Programs in all.")
@click.option(
    "--out",
    "folder",
    required=True,
    type=click.Path(file_okay=False),
    help="Folder of the corpus and its journal.",
)
@threads_option
@click.option("--seed", default=0, show_default=True, help="Seed of the candidates.")
@click.option("--shard", metavar="I/N", help="Measure one of N equal parts of the tasks, into --out/shard-I-of-N.")
@click.option(
    "--besides",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="Leave out the tasks of this corpus. Repeatable.",
)
@output_options
def collect_command(
    device: str,
    target: dict[str, Any] | None,
    linker: str | None,
    suite: str,
    programs: int,
    folder: str,
    threads: int | None,
    seed: int,
    shard: str | None,
    besides: tuple[str, ...],
    out: Output,
) -> None:
    """Measure programs of real networks and write them as a corpus (Parquet).

    Ends with a resumable journal: run the same command again after a stop, and nothing is measured twice.

    \b
    Examples:
      tchub collect --suite reference --programs 2000 --out my-corpus
      tchub collect --suite full --programs 12000 --out epyc --seed 0
      tchub collect --suite full --programs 12000 --out epyc --shard 3/8   # on one of 8 machines of a kind
      tchub collect --suite full --programs 12000 --out graviton --device rpc://tracker.lan:9190/graviton
      tchub corpus merge epyc/shard-*-of-8 --out epyc
    """
    from ..tuning.collect import collect
    from ..tuning.shards import Shard
    from .native_log import native_output_logged
    from .progress import shown_collecting

    part = Shard.parse(shard) if shard else None
    with native_output_logged(out, part.folder(folder) if part else folder), shown_collecting(out, programs) as tell:
        result = collect(
            suite,
            programs,
            folder,
            device=device,
            target=target,
            linker=linker,
            threads=threads,
            seed=seed,
            shard=part,
            besides=besides,
            progress=tell,
            say=out.note,
        )
    out.data(
        asdict(result),
        lambda console: console.print(
            f"{result.programs} programs of {result.tasks} tasks ({result.failed} failed) in {result.path}"
        ),
    )
    whole = f"tchub corpus merge {folder}/shard-*-of-{part.count} --out {folder}" if part else None
    out.hint(whole or f"tchub corpus stats {folder}")


@click.group("bundle")
def bundle_command() -> None:
    """Measure programs on a machine that has no compiler: a GPU machine, a small board.

    \b
    Examples:
      tchub bundle build --workload bert-tiny --target h200 --programs 200 --output h200.zip
      python3 h200.zip --output results.jsonl          # on the GPU machine: driver, Python and numpy
      tchub bundle ingest results.jsonl --bundle h200.zip --device h200 --out corpora/h200
    """


@bundle_command.command("build")
@click.option("--workload", required=True, help="A network, suite or operator.")
@click.option("--target", "target_name", required=True, help="A device (`tchub devices`), `local`, or TVM's JSON.")
@click.option("--programs", default=200, show_default=True, type=click.IntRange(1), help="Programs in all.")
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The archive.")
@click.option("--seed", default=0, show_default=True, help="Seed of the candidates.")
@threads_option
@click.option("--code", type=click.Choice(["library", "object", "cubin", "ptx"]), help="How programs travel.")
@click.option("--checkpoint", help="Half of the programs are those that this checkpoint ranks first.")
@click.option("--corpus", "folder", type=click.Path(file_okay=False), help="Evolve from these measured programs.")
@click.option("--max-size", type=click.FloatRange(min=0.1), help="MiB of an archive at most; else several.")
@click.option("--build-timeout", default=60.0, show_default=True, help="Seconds a program may take to compile.")
@output_options
def bundle_build_command(
    workload: str,
    target_name: str,
    programs: int,
    output: Path,
    seed: int,
    threads: int | None,
    code: str | None,
    checkpoint: str | None,
    folder: str | None,
    max_size: float | None,
    build_timeout: float,
    out: Output,
) -> None:
    """Compile programs for a machine that cannot, and pack them with what measures them there.

    Run the same command again after a stop: what was compiled is not compiled again.

    \b
    Examples:
      tchub bundle build --workload bert-tiny --target h200 --programs 200 --output h200.zip
      tchub bundle build --workload papers --target h200 --programs 4400 --max-size 60 --output h200.zip
      tchub bundle build --workload bert-tiny --target h200 --programs 200 --corpus corpora/h200 --output next.zip
    """
    from rich.markup import escape
    from rich.progress import Progress

    from ...zoo.corpus import Corpus
    from ..bundle.build import BuildSettings, build_bundle
    from ..bundle.target import resolve_target

    target = resolve_target(target_name, threads, code)
    limit = int(max_size * 2**20) if max_size else None
    settings = BuildSettings(programs, seed, checkpoint, limit, build_timeout)
    corpus = Corpus.open(folder) if folder else None
    with Progress(console=out.console, disable=out.mode != "human") as bars:
        bar = bars.add_task("compiling", total=programs)

        def tell(done: int, total: int, name: str) -> None:
            bars.update(bar, completed=done, total=total, description=escape(name[:40]))

        result = build_bundle(workload, target, output, settings, corpus=corpus, tell=tell, say=out.note)
    sizes = ", ".join(f"{path} ({size / 2**20:.1f} MiB)" for path, size in zip(result.paths, result.bytes, strict=True))
    out.data(
        asdict(result),
        lambda console: console.print(
            f"{result.programs} programs of {result.tasks} tasks ({result.failed} did not compile): {sizes}"
        ),
    )
    out.hint(f"python3 {result.paths[0]} --output results.jsonl   (on the device)")


@bundle_command.command("runtime")
@click.option("--output", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of the copies.")
@output_options
def bundle_runtime_command(output: Path, out: Output) -> None:
    """Copy TVM's runtime libraries, for a machine of this one's architecture without TVM. CUDA bundles need none.

    \b
    Examples:
      tchub bundle runtime --output runtime
      python3 bundle.zip --runtime runtime --output results.jsonl      # on the device
    """
    from ..bundle.runtime import copy_runtime

    copies = copy_runtime(output)
    size = sum(path.stat().st_size for path in copies)
    out.data(
        {"paths": [str(path) for path in copies], "bytes": size},
        lambda console: console.print(f"{len(copies)} libraries, {size / 2**20:.1f} MiB, in {output}"),
    )


@bundle_command.command("ingest")
@click.argument("results", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--bundle", "archive", required=True, type=click.Path(path_type=Path), help="The archive measured.")
@click.option("--device", required=True, help="The device that measured (`tchub devices`).")
@click.option("--out", "folder", required=True, type=click.Path(file_okay=False, path_type=Path), help="The corpus.")
@output_options
def bundle_ingest_command(results: Path, archive: Path, device: str, folder: Path, out: Output) -> None:
    """Check results against their bundle and add them to a corpus; the same results twice change nothing.

    \b
    Examples:
      tchub bundle ingest results.jsonl --bundle h200.zip --device h200 --out corpora/h200
    """
    from ..bundle.archive import Bundle
    from ..bundle.ingest import ingest

    found = ingest(results, Bundle(archive), device, folder)
    out.data(
        asdict(found),
        lambda console: console.print(
            f"{found.results} results ({found.failed} failed, {found.wrong} wrong, {found.unmeasured} not measured); "
            f"{found.programs} programs of {found.tasks} tasks in {found.path}"
        ),
    )
    out.hint(f"tchub corpus stats {folder}")
