"""`tchub collect`, `corpus` and `bundle`: measure programs here or elsewhere, import, check and merge them."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..text import Part
from . import options as opt
from .output import Output

# As in `tchub.zoo.corpus.schema`, whose import takes half a second.
_FRAMEWORKS = ("metaschedule", "ansor", "autotvm")
# Leaks that are named one by one.
_SHOWN = 20


@opt.command("collect")
@opt.device_options
@click.option("--workload", default="reference", help="Suites, networks, operators, with commas.")
@click.option("--programs", default=1000, type=click.IntRange(8), help="Programs in all.")
@opt.out_option("Folder of the corpus and its journal.")
@opt.threads_option
@opt.precision_option
@click.option("--seed", default=0, help="Seed of the candidates.")
@click.option("--shard", metavar="I/N", help="Measure one of N equal parts of the tasks, into --out/shard-I-of-N.")
def collect_command(out: Path, programs: int, shard: str | None, output: Output, **options: Any) -> None:
    """Measure programs of real networks and write them as a corpus (Parquet).

    Run the same command again after a stop: nothing is measured twice.

    \b
    Examples:
      tchub collect --workload reference --programs 2000 --out my-corpus
      tchub collect --workload full --programs 12000 --out epyc --shard 3/8   # on one of 8 machines of a kind
      tchub collect --workload full --programs 12000 --out graviton --device rpc://tracker.lan:9190/graviton
      tchub corpus import epyc/shard-*-of-8 --out epyc
    """
    from ..tuning.collect import Shard, collect
    from .progress import shown_progress

    part = Shard.parse(shard) if shard else None
    workload = options.pop("workload")
    with shown_progress(output, part.folder(out) if part else out) as progress:
        result = collect(workload, programs, out, shard=part, progress=progress.count, note=output.note, **options)
    counts = f"{result.programs} programs of {result.tasks} tasks ({result.failed} failed)"
    output.data(asdict(result), f"{counts} in {result.path}")
    whole = f"tchub corpus import {out}/shard-*-of-{part.count} --out {out}" if part else None
    output.hint(whole or f"tchub corpus check {out}")


@click.group("corpus")
def corpus_command() -> None:
    """Make corpora of other tools' logs and of bundles, join corpora, and check them.

    \b
    Examples:
      tchub corpus import v100.json.xz --device v100 --out corpora/v100
      tchub corpus check corpora/epyc --json
      tchub corpus import epyc/shard-*-of-8 --out epyc
    """


@opt.command("import", corpus_command)
@click.argument("logs", metavar="LOG...", nargs=-1, required=True, type=opt.PATH)
@opt.out_option("Folder of the corpus.")
@click.option("--device", metavar="D", help="The device that all programs were measured on.")
@click.option("--framework", type=click.Choice(_FRAMEWORKS), help="Whose log it is. [default: as its lines show]")
@click.option("--tasks", metavar="FILE[:NAME]", help="JSON of device -> task name -> facts; NAME if not --device.")
@click.option("--split", metavar="FILE[:NAME]", help="JSON of test tasks, or of protocol -> train, val, test.")
@click.option("--licence", help="Licence of the log, kept with every program.")
@click.option("--source", help="Where the log came from, kept with every program.")
@click.option("--allow-mixed", is_flag=True, help="Take records whose targets name different devices.")
@click.option("--min-programs", default=0, help="Leave out tasks with fewer valid programs.")
@click.option(
    "--bundle", type=opt.PATH, metavar="ZIP", help="LOG holds the results of this bundle; --out keeps its own."
)
@click.option("--replay", is_flag=True, help="Write a MetaSchedule database for today's TVM instead of a corpus.")
@click.option("--target", help="With --replay: the database's TVM target, a name or JSON. [default: the log's kind]")
@click.option("--per-task", type=click.IntRange(1), metavar="N", help="With --replay: programs of a task at most.")
def corpus_import_command(
    logs: tuple[Path, ...], out: Path, device: str | None, bundle: Path | None, replay: bool, output: Output,
    **options: Any,
) -> None:  # fmt: skip
    """Make a corpus of a log (Ansor, TenSet, AutoTVM), a MetaSchedule database, a bundle's results, or of corpora.

    LOG is a file (.json, .jsonl, .log, also .xz, .gz or .zst), a folder of logs or databases, or what a bundle wrote.
    Records that cannot be read are counted by kind and reported; an interrupted import leaves nothing behind. Results
    are checked against their bundle; the same ones twice change nothing.

    Several corpora of one device, e.g. of `tchub collect --shard`, become one, and what --out holds already stays in
    it. Each program is there once, and the order of the folders does not matter.

    --replay runs the programs of an Ansor log as schedules of today's TVM and checks each against its record; only
    tasks of plain operators can be replayed.

    \b
    Examples:
      tchub corpus import v100.json.xz --device v100 --out corpora/v100 --licence MIT
      tchub corpus import out/database --device a100 --out corpora/a100 --min-programs 8
      tchub corpus import results.jsonl --bundle h200.zip --device h200 --out corpora/h200
      tchub corpus import epyc/shard-*-of-8 --out epyc
      tchub corpus import v100.json.xz --replay --per-task 40 --out v100-database
    """
    log, *more = logs
    if all((path / "corpus.json").is_file() for path in logs):
        from ...zoo.corpus import merge_corpora

        merged = merge_corpora(out, logs)
        counts = {name: merged.corpus.meta[name] for name in ("tasks", "programs")}
        text = f"{counts['programs']} programs of {counts['tasks']} tasks in {out}, from {merged.given}"
        result = {"path": out, "given": merged.given, "changed": merged.changed} | counts
        output.data(result, text + ("" if merged.changed else "; it held all of them before"))
    elif more:
        raise click.UsageError("several LOGs have to be corpora: import each log by itself, then join the corpora")
    elif replay:
        from ...zoo.corpus.replay.database import replay_log

        target = options["target"]
        parsed = json.loads(target) if target and target.lstrip().startswith("{") else target
        with output.console.status("replaying"):
            result = replay_log(log, out, parsed, options["per_task"])
        output.data(result, _replayed(result))
    elif device is None:
        raise click.UsageError("Missing option '--device'.")
    elif bundle is not None:
        from ..bundle.archive import Bundle
        from ..bundle.ingest import ingest

        result = ingest(log, Bundle(bundle), device, out)
        counts = f"{result.failed} failed, {result.wrong} wrong, {result.unmeasured} not measured"
        text = f"{result.programs} programs of {result.tasks} tasks in {result.path}"
        output.data(result, f"{result.results} results ({counts}); {text}")
    else:
        _import(log, out, device, output, options)
    output.hint(f"tchub corpus import {out} --device NAME --out DIR" if replay else f"tchub corpus check {out}")


def _import(log: Path, out: Path, device: str, output: Output, options: dict[str, Any]) -> None:
    from ...zoo.corpus.importers import ImportContext, import_corpus, read_facts, read_protocol
    from ...zoo.devices import UnknownDeviceError, get_device

    try:
        get_device(device)
    except UnknownDeviceError as error:
        output.note(f"{error.message}; training and judging need its spec sheet: {error.remedy}")
    task_file, task_name = _file_and_name(options["tasks"], device)
    split_file, split_name = _file_and_name(options["split"], device)
    facts = read_facts(task_file, task_name) if task_file else {}
    report = import_corpus(
        log,
        out,
        ImportContext(device, options["licence"], options["source"], facts, options["allow_mixed"]),
        framework=options["framework"],
        split=read_protocol(split_file, split_name) if split_file else None,
        min_programs=options["min_programs"],
        command=f"{opt.given_again(without=['out'])} --out DIR",
        progress=lambda programs: output.note(f"{programs:,} programs"),
    )
    result = report.as_dict()
    output.data(result, [dict(_import_facts(result))])


def _file_and_name(text: str | None, device: str) -> tuple[str | None, str]:
    file, colon, name = (text or "").rpartition(":")
    return (file, name) if colon and name and "/" not in name else (text, device)


def _import_facts(result: dict[str, Any]) -> Iterator[tuple[str, object]]:
    def kinds(name: str) -> str:
        counts = ", ".join(f"{kind} {count}" for kind, count in result[name].items())
        return f" ({counts})" if counts else ""

    small = f"{result['left_out']} of {len(result['too_small'])} tasks that are too small"
    left = f"{result['duplicates']} duplicates, {small}, {sum(result['broken'].values())} broken{kinds('broken')}"
    yield "framework", result["framework"]
    yield "records", f"{result['records']}: {result['programs']} programs of {result['tasks']} tasks, {left}"
    yield "programs", f"{result['valid_programs']} valid, {result['failed_programs']} failed{kinds('errors')}"
    for kind, examples in result["examples"].items():
        yield f"  {kind}", "; ".join(examples)
    if missing := result["without_task"]:
        yield "split", f"{len(missing)} of its tasks are not in the log: {missing[0]}, ..."


def _replayed(result: dict[str, Any]) -> Iterator[Part]:
    for op, counts in result["operators"].items():
        yield f"{op:<14}{counts['replayed']:>8} of {counts['of']:<8}{counts['replayed'] / counts['of']:>8.1%}"
    for row in result["reasons"]:
        yield f"not replayed: {row['programs']} {row['op']}, {row['reason']}: {row['example']}"
    yield from (f"not tried: {result[name]} {name}" for name in ("untimed", "over_limit") if result[name])
    yield from (f"not read: {count} {kind}" for kind, count in result["broken"].items())


@opt.command("check", corpus_command)
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=opt.FOLDER)
@click.option(
    "--protocol-allows", "allowed", metavar="DIR", multiple=True, type=opt.FOLDER,
    help="A corpus that a protocol lets train on what the others test on. Repeatable.",
)  # fmt: skip
def corpus_check_command(folders: tuple[Path, ...], allowed: tuple[Path, ...], output: Output) -> None:
    """Count what corpora hold, and check hashes, counts, splits, duplicates, failures and devices.

    Of several corpora, whatever their frameworks and devices, none may train on a computation that another one tests
    on. Exit code 1 if anything is wrong.

    \b
    Examples:
      tchub corpus check corpora/epyc
      tchub corpus check corpora/v100 corpora/k80 --protocol-allows corpora/v100
    """
    from ...zoo.corpus import Corpus, CorpusError, check_corpus, check_leaks

    corpora = [Corpus.open(folder) for folder in folders]
    checked = [check_corpus(corpus) for corpus in corpora]
    findings = [{"path": stats["path"], **asdict(f)} for stats, answers in checked for f in answers]
    leaks = list(map(asdict, check_leaks(corpora, allowed)))
    wrong = sorted({finding["name"] for finding in findings if not finding["ok"]})
    wrong += ["no leak across corpora"] * bool(leaks)
    result = {"ok": not wrong, "findings": findings, "leaks": leaks, "corpora": [stats for stats, _ in checked]}
    if not wrong or output.mode != "json":  # with --json the error is the one document on stdout
        output.data(result, _check(result))
    if wrong:
        mend = "do not train on it before it is mended: collect it again, or leave out what is wrong"
        leave = "`tchub train` on all of them leaves these out; --protocol-allows DIR where a protocol lets it learn"
        raise CorpusError(
            f"{', '.join(map(str, folders))}: {len(wrong)} checks failed: {', '.join(wrong)}",
            remedy=leave if leaks else mend,
            findings=findings,
            leaks=leaks,
        )
    output.hint(f"tchub train tilenet --corpus {folders[0]} --out DIR")


def _check(result: dict[str, Any]) -> Iterator[Part]:
    def line(ok: bool, name: str, message: str) -> str:
        return f"{'ok  ' if ok else 'FAIL'}  {name:<25} {message}"

    for stats in result["corpora"]:
        yield {key.replace("_", " "): _stat_text(value) for key, value in stats.items()}
        for finding in result["findings"]:
            if finding["path"] == stats["path"]:
                yield line(finding["ok"], finding["name"], finding["message"])
        yield ""
    leaks = result["leaks"]
    if len(result["corpora"]) > 1:
        yield line(not leaks, "no leak across corpora", f"{len(leaks)} test computations are in another's training set")
    for leak in leaks[:_SHOWN]:
        message = f"tested by {leak['tested_by']}, in {leak['part']} of {leak['trained_by']}"
        yield line(False, leak["computation"], message)
    if len(leaks) > _SHOWN:
        yield f"and {len(leaks) - _SHOWN} more (--json lists all)"


def _stat_text(value: object) -> str:
    if isinstance(value, dict | list):
        return ", ".join(f"{key} {value[key]}" if isinstance(value, dict) else str(key) for key in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@opt.command("bundle")
@click.option("--workload", help="Suites, networks, operators, with commas.")
@click.option("--target", metavar="T", help="A device (`tchub devices`), `local`, or TVM's JSON.")
@click.option("--programs", default=200, type=click.IntRange(1), help="Programs in all.")
@click.option("--out", type=opt.FILE, metavar="ZIP", help="The archive.")
@click.option("--seed", default=0, help="Seed of the candidates.")
@opt.threads_option
@click.option("--code", type=click.Choice(["cubin", "ptx"]), help="Code of a GPU: its own, or for later ones too.")
@opt.precision_option
@click.option("--checkpoint", metavar="NAME", help="Half of the programs are those that it ranks first.")
@click.option("--corpus", type=opt.FOLDER, metavar="DIR", help="Evolve from these measured programs.")
@click.option("--max-size", type=click.FloatRange(min=0.1), metavar="MIB", help="Size of an archive; else several.")
@click.option("--build-timeout", default=60.0, metavar="S", help="Time for a program to compile.")
@click.option("--runtime", type=opt.FOLDER, metavar="DIR", help="Copy TVM's runtime there, for a CPU without TVM.")
def bundle_command(
    workload: str | None, target: str | None, out: Path | None, runtime: Path | None, threads: int | None,
    code: str | None, corpus: Path | None, max_size: float | None, output: Output, **options: Any,
) -> None:  # fmt: skip
    """Compile programs for a machine that has no compiler, and pack them with what measures them there.

    The machine needs Python, numpy and for a GPU its driver; `python3 ZIP --out results.jsonl` measures there, and
    `tchub corpus import` takes the results. Run the same command again after a stop: what was compiled is not compiled
    again. CPU bundles need TVM's runtime libraries where TVM is not installed: --runtime copies them for machines of
    this one's architecture, also without an archive.

    \b
    Examples:
      tchub bundle --workload bert-tiny --target h200 --programs 200 --out h200.zip
      tchub bundle --workload bert-tiny --target h200 --corpus corpora/h200 --out next.zip
      tchub bundle --runtime runtime            # then: python3 ZIP --runtime runtime --out results.jsonl
    """
    from ..bundle.build import BuildSettings, build_bundle, copy_runtime, resolve_target

    needed = {"--workload": workload, "--target": target, "--out": out}
    missing = [name for name, value in needed.items() if value is None]
    if missing and (runtime is None or len(missing) < len(needed)):
        raise click.UsageError(f"Missing option '{missing[0]}'.")
    copied: dict[str, Any] = {}
    if runtime is not None:
        copies = copy_runtime(runtime)
        copied = {"paths": copies, "bytes": sum(path.stat().st_size for path in copies)}
        text = f"{len(copies)} libraries, {copied['bytes'] / 2**20:.1f} MiB, in {runtime}"
        if missing:
            output.data(copied, text)
            return
        output.note(text)
    from ...zoo.corpus import Corpus
    from .progress import shown_progress

    settings = BuildSettings(max_bytes=int(max_size * 2**20) if max_size else None, **options)
    opened, resolved = Corpus.open(corpus) if corpus else None, resolve_target(str(target), threads, code)
    with shown_progress(output) as progress:
        how: dict[str, Any] = {"corpus": opened, "note": output.note, "count": progress.count}
        result = build_bundle(str(workload), resolved, Path(str(out)), settings, **how)
    sizes = ", ".join(f"{path} ({size / 2**20:.1f} MiB)" for path, size in zip(result.paths, result.bytes, strict=True))
    counts = f"{result.programs} programs of {result.tasks} tasks ({result.failed} did not compile)"
    output.data(asdict(result) | ({"runtime": copied} if copied else {}), f"{counts}: {sizes}")
    output.hint(f"python3 {result.paths[0]} --out results.jsonl   (on the device)")
