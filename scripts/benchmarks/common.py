"""What every benchmark shares: its command, results that are kept, machine facts, and the file in docs/benchmarks."""

import functools
import json
import multiprocessing
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from tchub.zoo.files import write_atomically

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "benchmarks"
_INLINE_DEPTH, _INLINE_WIDTH = 3, 100
_PACKAGES = ("tchub", "apache-tvm", "torch", "xgboost-cpu", "numpy")

# What a benchmark comes to: the figures that documents quote, all that they were computed from, and the seeds.
Document = tuple[Mapping[str, Any], Mapping[str, Any], Sequence[int]]


def benchmark(name: str, *options: Any) -> Callable[[Callable[..., Document | None]], click.Command]:
    """Return a decorator that makes a command of a function.

    The command writes what the function returns to `docs/benchmarks/<name>.json`, and prints the summary.

    Args:
        options: decorators of click; `--json` is added.
    """

    def decorate(measure: Callable[..., Document | None]) -> click.Command:
        @click.option("--json", "as_json", is_flag=True, help="Print the whole document.")
        @functools.wraps(measure)
        def run(*, as_json: bool, **arguments: Any) -> None:
            started = time.time()
            if (measured := measure(**arguments)) is None:
                return
            summary, details, seeds = measured
            document = {
                "benchmark": name,
                "command": repeatable(name, sys.argv[1:]),
                "date": time.strftime("%Y-%m-%d", time.gmtime(started)),
                "seconds": round(time.time() - started, 1),
                "seeds": list(seeds),
                "machine": machine_facts(),
                "summary": dict(summary),
                "details": dict(details),
            }
            write_text(FOLDER / f"{name}.json", as_text(document) + "\n")
            click.echo(json.dumps(document if as_json else summary, indent=2))

        for option in reversed(options):
            run = option(run)
        return click.command(run)

    return decorate


def work_option(name: str) -> Any:
    """`--work`, the folder of a benchmark's results; a run that was killed goes on with what it holds."""
    folder = ROOT / "runs" / name
    return click.option(
        "--work", default=folder, show_default=True, type=click.Path(path_type=Path), help="Results are kept here."
    )


class Clock:
    """When nothing new is to be begun: after so many minutes, or never."""

    def __init__(self, minutes: float | None = None) -> None:
        self._end = time.monotonic() + 60 * (float("inf") if minutes is None else minutes)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end


# `--minutes`, as a clock: a run that was cut goes on with what it kept.
CLOCK = click.option(
    "--minutes", "clock", type=float, callback=lambda _context, _option, minutes: Clock(minutes),
    help="Begin nothing new after so long; 0: only write what is there.",
)  # fmt: skip


def in_process(function: Callable[..., Any], *arguments: Any, log: Path | None = None) -> Any:
    """Return what a function returns in a fresh process, in which nothing is imported yet.

    Args:
        log: takes what the process prints.

    Raises:
        click.ClickException: the process ended without a result, or with an error.
    """
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _print_to, (log,)) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except Exception as error:
            message = f"{function.__name__}: {type(error).__name__}: {error}"[:400]
            raise click.ClickException(message + (f" (see {log})" if log else "")) from error


def _print_to(log: Path | None) -> None:
    if log is not None:
        with log.open("ab") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)


def note(text: str) -> None:
    """A line of progress."""
    click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    return json.loads(path.read_text())


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())


def kept(path: Path, make: Callable[[], Any]) -> Any:
    """A result in a JSON file of its own, made when it is not there yet."""
    if not path.is_file():
        write_text(path, json.dumps(make()))
    return read_json(path)


class Journal:
    """Results in a file of JSON lines; what is there is not made again, and a line cut short by a kill is left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: list[dict[str, Any]] = []
        self._read = 0  # bytes

    def rows(self) -> list[dict[str, Any]]:
        """All results, also those of another run that shares the file."""
        if self.path.is_file():
            with self.path.open("rb") as file:
                file.seek(self._read)
                whole = file.read().rpartition(b"\n")[0]  # the last line may still be written
            self._read += len(whole)
            for line in whole.splitlines():
                with suppress(ValueError):
                    self._rows.append(json.loads(line))
        return list(self._rows)

    def find(self, **key: Any) -> dict[str, Any] | None:
        """The last result that has these values, a tuple being what JSON makes of it, a list."""
        wanted = json.loads(json.dumps(key))
        return next((row for row in reversed(self.rows()) if all(row.get(name) == wanted[name] for name in key)), None)

    def get(self, make: Callable[[], dict[str, Any]], clock: Clock | None = None, **key: Any) -> Any:
        """The result of a key, made and written where it is missing.

        With a clock, None where the time is over or the run failed, which is noted: the others go on without it.
        """
        row = self.find(**key)
        if row is None and not (clock and clock.is_over):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                text = json.dumps(key | make())
            except click.ClickException as error:
                if clock is None:
                    raise
                note(error.message)
                return None
            with self.path.open("a") as file:
                file.write(f"\n{text}\n")  # on a line of its own, whatever the last one is
            row = self.find(**key)
        return row


def spread(values: Sequence[float], digits: int = 17) -> dict[str, Any]:
    """Mean, standard deviation, which one value does not have, and the number of seeds."""
    deviation = round(statistics.stdev(values), digits) if len(values) > 1 else None
    return {"mean": round(statistics.mean(values), digits), "stdev": deviation, "seeds": len(values)}


def monotone(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The nearest curve that never falls (least squares), at the same efforts.

    Where a noisy curve first has a score is early by chance; a curve that never falls has no such luck.

    Args:
        points: (effort, score), the least effort first.
    """
    from sklearn.isotonic import isotonic_regression

    if not points:
        return []
    fitted = isotonic_regression([score for _, score in points])
    return [(effort, float(score)) for (effort, _), score in zip(points, fitted, strict=True)]


def lacking(number: int, planned: int, what: str) -> list[str]:
    """What is not run, for `not_done` of the details."""
    return [f"{number} of {planned} {what}"] if number > 0 else []


def on_family(family: str) -> None:
    """Refuse to go on with a table of a device family on a machine of another one.

    Raises:
        click.ClickException: this machine is of another one.
    """
    from tchub.hub.device.detect import detect_local

    if (here := detect_local().device.family) != family:
        raise click.ClickException(f"this table is of {family}, and this machine is of {here}")


def machine_facts() -> dict[str, Any]:
    """CPU, cores, memory, versions and load: what a figure depends on."""
    import psutil
    from tchub.hub.device.detect import detect_local

    local = detect_local()
    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "device": local.device.name,
        "cpu_model": local.cpu_model,
        "mcpu": local.mcpu,
        "cores": local.cores,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in _PACKAGES},
        "load_at_start": round(os.getloadavg()[0], 2),
        "commit": commit or "unknown",
    }


def repeatable(name: str, arguments: list[str]) -> str:
    """Return the command that makes a benchmark's figures again, without what only says where and until when."""
    given = list(arguments)
    for option in ("--minutes", "--work"):
        while option in given:
            at = given.index(option)
            del given[at : at + 2]
    module = ["scripts." + name] if name in ("fuzz", "kills") else ["scripts.benchmarks", name]
    return shlex.join(["python", "-m", *module, *given])


def as_text(value: Any, depth: int = 0) -> str:
    """Return JSON with numbers of seven digits and a line for each row: small, and readable in a difference."""
    if isinstance(value, float):
        return json.dumps(float(f"{value:.7g}"))
    if isinstance(value, Mapping):
        items = [f"{json.dumps(str(key))}: {as_text(item, depth + 1)}" for key, item in value.items()]
        opening, closing = "{}"
    elif isinstance(value, list | tuple):
        items = [as_text(item, depth + 1) for item in value]
        opening, closing = "[]"
    else:
        return json.dumps(value)
    text = ", ".join(items)
    if depth > _INLINE_DEPTH or len(text) < _INLINE_WIDTH:
        return f"{opening}{text}{closing}"
    return opening + ",".join(f"\n{' ' * (depth + 1)}{item}" for item in items) + f"\n{' ' * depth}{closing}"
