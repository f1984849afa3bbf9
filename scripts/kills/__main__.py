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

import contextlib
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
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import click
import psutil

from scripts.benchmarks.common import ROOT, Document, Journal, benchmark, note, work_option
from scripts.kills.session import check

KINDS = {"tuner": 15, "worker": 15, "zygote": 5, "server": 10, "disk": 10}
KILLS_PER_RUN = 5
SERVERS = 3
TRIALS = 48
_START_SECONDS, _END_SECONDS = 180.0, 600.0
_LOOK_SECONDS = 0.005
# After the last finished measurement that a kill waits for: into the search, a build, a run or a write.
_LATEST_SECONDS = 0.3
# Sizes in KiB of a disk that the run cannot fit in, and of one that it can.
_TIGHT, _ROOMY = 180, 8192


class Victim:
    """The session as a process, and what happened to it: `orphans` outlived a killed tuner by ten seconds."""

    def __init__(self, folder: Path, kind: str, seed: int, machine: str = "workers") -> None:
        self.folder, self.kind, self.seed, self.machine = folder, kind, seed, machine
        self.kills, self.restarts, self.orphans = 0, -1, 0
        self.errors: list[str] = []
        self.draw = random.Random(f"{kind}-{seed}")
        self.start()

    def start(self) -> None:
        """Give the command, or give it again."""
        self.restarts += 1
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the process)
        command = [sys.executable, "-m", "scripts.kills.session", str(self.folder.resolve())]
        command += ["--trials", str(TRIALS), "--machine", self.machine]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=self._log, stderr=self._log)

    def finished(self) -> int:
        """Measurements that finished so far."""
        path = self.folder / "seen.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def wait_for(self, finished: int) -> bool:
        """Wait until so many measurements finished; False when the process ended before."""
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                return False
            if self.finished() >= finished:
                return True
            time.sleep(_LOOK_SECONDS)
        raise click.ClickException(
            f"{self.folder}: no {finished} measurements in {_START_SECONDS:g} s: {self.output()}"
        )

    def family(self) -> list[psutil.Process]:
        """Its zygote, then the workers; fewer while it starts."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def output(self) -> str:
        """The last line of its output, with paths as they are within the repository."""
        self._log.seek(0)
        return (self._log.read().strip().splitlines() or ["nothing"])[-1].replace(f"{ROOT}/", "")[:300]

    def failed(self) -> bool:
        """Wait for the end; where it is an error, keep that and return True."""
        if self.process.wait(_END_SECONDS) == 0:
            return False
        self.errors.append(self.output())
        return True

    def to_the_end(self) -> None:
        """Let it end; a run that stops by itself is resumed once more."""
        if self.failed():
            self.start()
            if self.failed():
                raise click.ClickException(f"{self.folder}: the run does not resume: {self.errors[-1]}")

    def suffer(self, kill: Callable[[Self], bool]) -> None:
        """Let something be killed again and again; the command is given again only if it stopped."""
        while self.kills < KILLS_PER_RUN:
            wanted = self.finished() + (self.kind != "tuner") + self.draw.randrange(TRIALS // (KILLS_PER_RUN + 1))
            alive = self.wait_for(wanted)
            time.sleep(self.draw.uniform(0, _LATEST_SECONDS))
            if alive:
                self.kills += kill(self)
            elif self.failed():
                self.start()
            else:
                break
        self.to_the_end()


def kill_tuner(victim: Victim) -> bool:
    """SIGKILL the tuner; its helpers must end by themselves."""
    family = victim.family()
    victim.process.kill()
    victim.process.wait(_END_SECONDS)
    _, alive = psutil.wait_procs(family, timeout=10)
    victim.orphans += len(alive)
    victim.start()
    return True


def _kill_one(victim: Victim, processes: list[psutil.Process]) -> bool:
    """SIGKILL one of some processes, if there is one."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if processes:
            os.kill(victim.draw.choice(processes).pid, signal.SIGKILL)
    return bool(processes)


def run_servers(folder: Path, seed: int) -> Victim:
    """Kill one of three RPC servers, start another in its place, and so on."""
    from scripts.kills.rpc_farm import Farm

    with Farm(SERVERS) as farm:
        alive = list(range(SERVERS))

        def kill(victim: Victim) -> bool:
            farm.signal(alive.pop(victim.draw.randrange(len(alive))), signal.SIGKILL)
            alive.append(farm.start_server())
            return True

        victim = Victim(folder, "server", seed, str(farm.address))
        victim.suffer(kill)
    return victim


def run_disk(folder: Path, seed: int) -> Victim:
    """Let the disk fill up, give it room for some more, and so on, at last enough."""
    room = _TIGHT + random.Random(seed).randrange(0, 64, 4)
    with small_disk(folder, room) as resize:
        victim = Victim(folder / "run", "disk", seed)
        while victim.kills < KILLS_PER_RUN and victim.failed():
            victim.kills += 1
            room += victim.draw.randrange(8, 32, 4)
            resize(room if victim.kills < KILLS_PER_RUN else _ROOMY)
            victim.start()
        resize(_ROOMY)
        victim.to_the_end()
        shutil.copytree(folder / "run", folder.with_name(f"{folder.name}-after"))
    folder.rmdir()
    folder.with_name(f"{folder.name}-after").rename(folder)
    return victim


@contextmanager
def small_disk(folder: Path, kibibytes: int) -> Iterator[Callable[[int], None]]:
    """A file system of its own in a folder; yields what changes its size. Needs the right to mount."""
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


KILLERS: dict[str, Callable[[Victim], bool]] = {
    "tuner": kill_tuner,
    "worker": lambda victim: _kill_one(victim, victim.family()[1:]),
    "zygote": lambda victim: _kill_one(victim, victim.family()[:1]),
}


def one_run(kind: str, seed: int, work: Path) -> dict[str, Any]:
    """One run with its kills; returns what happened and whether all is there."""
    folder = work / f"{kind}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    if kind in KILLERS:
        victim = Victim(folder, kind, seed)
        victim.suffer(KILLERS[kind])
    else:
        victim = (run_disk if kind == "disk" else run_servers)(folder, seed)
    verdict = check(folder)
    row: dict[str, Any] = {name: getattr(victim, name) for name in ("kills", "restarts", "errors", "orphans")}
    row |= asdict(verdict) | {"complete": verdict.ok and verdict.trials == TRIALS}
    note(f"{kind}, seed {seed}: {row}")
    return row


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums over the runs."""
    sums = {name: sum(row[name] for row in rows) for name in ("kills", "restarts", "lost", "twice", "unlogged")}
    return sums | {
        "runs": len(rows),
        "complete": sum(row["complete"] for row in rows),
        "measurements": sum(row["seen"] for row in rows),
        "orphans": sum(row["orphans"] for row in rows),
        "kills_by_kind": {kind: sum(row["kills"] for row in rows if row["kind"] == kind) for kind in KINDS},
    }


@benchmark(
    "kills",
    click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), default=list(KINDS)),
    work_option("kills"),
)
def main(kinds: tuple[str, ...], work: Path) -> Document:
    """Kill, resume, compare, and write docs/benchmarks/kills.json."""
    work = work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    journal, rows = Journal(work / "journal.jsonl"), []
    for kind in kinds:
        for seed in range(KINDS[kind] // KILLS_PER_RUN):
            rows.append(journal.get(lambda k=kind, s=seed: one_run(k, s, work), kind=kind, seed=seed))
    seeds = sorted({row["seed"] for row in rows})
    return summarise(rows), {"trials_per_run": TRIALS, "runs": rows}, seeds


if __name__ == "__main__":
    main()
