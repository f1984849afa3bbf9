"""Some fifty kills at random moments: every run resumes, and the database holds every measurement that finished, once.

    python -m scripts.kills --json

The victim is `session.py`, a real tuning session with real workers. SIGKILL comes at moments drawn by chance:

    tuner    the process that searches; the same command is then given again
    worker   a process that builds or times programs; the tuner must go on by itself
    zygote   the process that workers are forked from; the tuner goes on, or the same command does
    server   an RPC server of three; the tuner must go on with the others
    disk     the file system that holds the run fills up; it is given more room, then the same command again

After each run's end `session.check` compares the database, the log, and what a witness saw finish.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import psutil

from scripts.benchmarks.common import ROOT, finish
from scripts.kills.session import check

KINDS = {"tuner": 15, "worker": 15, "zygote": 5, "server": 10, "disk": 10}
KILLS_PER_RUN = 5


def one_run(kind: str, seed: int, kills: int, work: Path) -> dict[str, Any]:
    """One run with its kills; returns what happened and whether all is there."""
    folder = work / f"{kind}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    story, draw = Story(kind, seed), random.Random(f"{kind}-{seed}")
    if kind == "tuner":
        run_tuner(folder, story, kills, draw)
    elif kind == "disk":
        run_disk(folder, story, kills, draw)
    elif kind == "server":
        run_servers(folder, story, kills, draw)
    else:
        run_helpers(Victim(folder), story, kills, draw, kill_worker if kind == "worker" else kill_zygote)
    verdict = check(folder)
    complete = verdict.ok and verdict.trials == TRIALS
    return asdict(story) | asdict(verdict) | {"complete": complete}


def all_runs(kinds: dict[str, int], work: Path) -> Iterator[dict[str, Any]]:
    """Every run of the plan; those in the journal are not done again."""
    journal = work / "journal.jsonl"
    work.mkdir(parents=True, exist_ok=True)
    known = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    done = {(row["kind"], row["seed"]): row for row in known}
    for kind, kills in kinds.items():
        for seed, start in enumerate(range(0, kills, KILLS_PER_RUN)):
            row = done.get((kind, seed))
            if row is None:
                row = one_run(kind, seed, min(KILLS_PER_RUN, kills - start), work)
                with journal.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            click.echo(f"{time.strftime('%H:%M:%S')} {row}", err=True)
            yield row


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums over the runs."""
    sums = {name: sum(row[name] for row in rows) for name in ("kills", "restarts", "lost", "twice", "unlogged")}
    kinds = {kind: sum(row["kills"] for row in rows if row["kind"] == kind) for kind in KINDS}
    return sums | {
        "runs": len(rows),
        "complete": sum(row["complete"] for row in rows),
        "measurements": sum(row["seen"] for row in rows),
        "orphans": sum(row["orphans"] for row in rows),
        "kills_by_kind": kinds,
    }


@click.command()
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), default=list(KINDS), show_default=True)
@click.option(
    "--kills",
    type=click.IntRange(1),
    help="Of each kind at most; not given: 55 in all, where each disk fills up five times.",
)
@click.option("--work", default=ROOT / "runs" / "kills", show_default=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True)
def main(kinds: tuple[str, ...], kills: int | None, work: Path, as_json: bool) -> None:
    """Kill, resume, compare, and write docs/benchmarks/kills.json."""
    started = time.time()
    rows = list(all_runs({kind: kills or KINDS[kind] for kind in kinds}, work.resolve()))
    seeds = sorted({row["seed"] for row in rows})
    finish("kills", summarise(rows), {"trials_per_run": TRIALS, "runs": rows}, seeds, as_json, started)


if __name__ == "__main__":
    main()


SERVERS = 3
TRIALS = 48
_START_SECONDS, _END_SECONDS = 180.0, 600.0
_LOOK_SECONDS = 0.005
# After the last finished measurement that a kill waits for: into the search, a build, a run or a write.
_LATEST_SECONDS = 0.3
# Sizes in KiB of a disk that the run cannot fit in, and of one that it can.
_TIGHT, _ROOMY = 180, 8192


@dataclass
class Story:
    """What happened to one run, written down as it happens.

    Attributes:
        kills: of its processes, or fillings of its disk; restarts: times that the command was given again.
        errors: last lines of what the command said when it stopped by itself.
        orphans: processes that outlived a killed tuner by ten seconds.
    """

    kind: str
    seed: int
    kills: int = 0
    restarts: int = 0
    errors: list[str] = field(default_factory=list)
    orphans: int = 0


class Victim:
    """The session as a process."""

    def __init__(self, folder: Path, machine: str = "workers") -> None:
        self.folder, self.machine = folder, machine
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the process)
        command = [sys.executable, "-m", "scripts.kills.session", str(folder.resolve())]
        command += ["--trials", str(TRIALS), "--machine", machine]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=self._log, stderr=self._log)

    def wait_for(self, finished: int) -> bool:
        """Wait until so many measurements finished; False when the process ended before."""
        path, end = self.folder / "seen.jsonl", time.monotonic() + _START_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                return False
            if finished == 0 or (path.exists() and path.read_bytes().count(b"\n") >= finished):
                return True
            time.sleep(_LOOK_SECONDS)
        raise click.ClickException(f"{self.folder}: no {finished} measurements in {_START_SECONDS:g} s: {self.said()}")

    def family(self) -> list[psutil.Process]:
        """Its zygote, then the workers; fewer while it starts."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def said(self) -> str:
        """The last line of its output, with paths as they are within the repository."""
        self._log.seek(0)
        return (self._log.read().strip().splitlines() or ["nothing"])[-1].replace(f"{ROOT}/", "")[:300]

    def end(self) -> int:
        """Wait for its end; returns the exit code."""
        return self.process.wait(_END_SECONDS)


def seen(folder: Path) -> int:
    """Measurements that finished so far."""
    path = folder / "seen.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_tuner(victim: Victim, story: Story) -> None:
    """SIGKILL the tuner; its helpers must end by themselves."""
    family = victim.family()
    victim.process.kill()
    victim.end()
    _, alive = psutil.wait_procs(family, timeout=10)
    story.orphans += len(alive)


def _kill_one(processes: list[psutil.Process], draw: random.Random) -> bool:
    if not processes:
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        os.kill(draw.choice(processes).pid, signal.SIGKILL)
    return True


def kill_worker(victim: Victim, draw: random.Random) -> bool:
    """SIGKILL a worker, if there is one."""
    return _kill_one(victim.family()[1:], draw)


def kill_zygote(victim: Victim, draw: random.Random) -> bool:
    """SIGKILL the process that workers are forked from, if there is one."""
    return _kill_one(victim.family()[:1], draw)


def run_tuner(folder: Path, story: Story, kills: int, draw: random.Random) -> None:
    """Kill the tuner, start it again, and so on."""
    victim = Victim(folder)
    while story.kills < kills:
        alive = victim.wait_for(seen(folder) + draw.randrange(TRIALS // (kills + 1)))
        time.sleep(draw.uniform(0, _LATEST_SECONDS))
        if not alive:
            break
        kill_tuner(victim, story)
        story.kills += 1
        victim = restart(victim, story)
    to_the_end(victim, story)


def run_helpers(victim: Victim, story: Story, kills: int, draw: random.Random, kill: Callable[..., bool]) -> None:
    """Kill a helper of the running tuner, and so on; the command is given again only if it stopped."""
    folder = victim.folder
    while story.kills < kills:
        alive = victim.wait_for(seen(folder) + 1 + draw.randrange(TRIALS // (kills + 1)))
        time.sleep(draw.uniform(0, _LATEST_SECONDS))
        if alive:
            story.kills += kill(victim, draw)
        elif victim.end() == 0:
            break
        else:
            story.errors.append(victim.said())
            victim = restart(victim, story)
    to_the_end(victim, story)


def run_servers(folder: Path, story: Story, kills: int, draw: random.Random) -> None:
    """Kill one of three RPC servers, start another in its place, and so on."""
    from tchub.hub.device.rpc_farm import Farm

    with Farm(SERVERS) as farm:
        alive = list(range(SERVERS))

        def kill(_victim: Victim, draw: random.Random) -> bool:
            farm.signal(alive.pop(draw.randrange(len(alive))), signal.SIGKILL)
            alive.append(farm.start_server())
            return True

        run_helpers(Victim(folder, str(farm.address)), story, kills, draw, kill)


def run_disk(folder: Path, story: Story, kills: int, draw: random.Random) -> None:
    """Let the disk fill up, give it room for some more, and so on, at last enough."""
    room = _TIGHT + draw.randrange(0, 64, 4)
    with small_disk(folder, room) as resize:
        victim = Victim(folder / "run")
        while story.kills < kills and victim.end() != 0:
            story.kills += 1
            story.errors.append(victim.said())
            room += draw.randrange(8, 32, 4)
            resize(room if story.kills < kills else _ROOMY)
            victim = restart(victim, story)
        resize(_ROOMY)
        to_the_end(victim, story)
        shutil.copytree(folder / "run", folder.with_name(f"{folder.name}-after"))
    folder.rmdir()
    folder.with_name(f"{folder.name}-after").rename(folder)


@contextmanager
def small_disk(folder: Path, kibibytes: int) -> Iterator[Callable[[int], None]]:
    """A file system of its own in a folder; yields what changes its size. Needs the right to mount.

    Raises:
        click.ClickException: no such right.
    """
    folder.mkdir(parents=True)

    def mount(*options: str) -> None:
        done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise click.ClickException(f"no file system to fill: {done.stderr.strip()} (leave --kind disk out)")

    mount("-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs")
    try:
        yield lambda size: mount("-o", f"remount,size={size}k")
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def restart(victim: Victim, story: Story) -> Victim:
    """The same command again."""
    story.restarts += 1
    return Victim(victim.folder, victim.machine)


def to_the_end(victim: Victim, story: Story) -> None:
    """Let it end; a run that stops by itself is resumed once more."""
    if victim.end() != 0:
        story.errors.append(victim.said())
        if restart(victim, story).end() != 0:
            raise click.ClickException(f"{victim.folder}: the run does not resume: {story.errors[-1]}")
