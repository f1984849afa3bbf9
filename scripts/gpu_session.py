"""A session on a machine with an NVIDIA card that is lent for minutes: bare, without network, and without tchub.

    python -m scripts.gpu_session pack --out packed                         # here: what that machine lacks
    python3 scripts/gpu_session.py run --packed packed --out out            # there, beside this repository
    python3 scripts/gpu_session.py run --packed packed --out out --state out/state.tar.xz    # there, to go on

`pack` downloads wheels for that machine's Python and packs them as one archive, in parts of at most `--part-mib`: by
default so that this repository and a part fit into 64 MiB, and the parts are sent there one by one. xz makes of TVM
half of what its wheel takes; tar, xz and split make the parts. `run` needs Python, NumPy, PyTorch and
a CUDA compiler there. It does the steps of `steps` in turn, each a command of tchub in a process of its own, until the
time is over. After each step `out` holds `journal.jsonl` (a line a step: seconds, exit code, figures, last words) and
`state.tar.xz` (what was measured, without weights and libraries), with which the next call goes on: finished steps are
not done again, and the one that was cut goes on where tchub's own journal ends.

`--networks`, `--precisions`, `--workload`, `--suite`, `--trials` and `--programs` make it small.
"""

import argparse
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# What tchub needs besides what comes with PyTorch and its kin.
PACKAGES = (
    *("apache-tvm", "apache-tvm-ffi", "xgboost-cpu", "msgspec", "platformdirs", "tuf", "securesystemslib"),
    *("cryptography", "cffi", "pycparser"),
)
# Headers and sources in the wheels, of which a session compiles none.
_UNUSED = [f"--exclude=./{name}" for name in ("tvm/3rdparty", "tvm/include", "tvm/src", "tvm_ffi/include")]
# The machine code of TVM is smaller by a tenth where addresses of calls are made absolute first. Preset 6 takes thrice
# the time for a tenth less, and as many parts.
_XZ = "xz -T0 --x86 --lzma2=preset=1,dict=32MiB"
_ARCHIVE = "site.tar.xz"
# Of tchub's folders: compiled networks and their weights, which the machine's next lease compiles again.
_KEPT_BYTES, _LEFT_OUT = 8 << 20, (".cuda", ".so", ".safetensors", ".npz", ".lock")
_GRACE = 45.0  # seconds that tchub has to end after Ctrl-C


# Here -------------------------------------------------------------------------------------------------


def pack(out: Path, part_mib: int, python: str = "3.12") -> list[Path]:
    """Install wheels for that machine, and write what a session needs of them as parts of an archive; return these."""
    wanted = [f"{name}=={metadata.version(name)}" for name in PACKAGES]
    tags = [option for glibc in (17, 27, 28, 34) for option in ("--platform", f"manylinux_2_{glibc}_x86_64")]
    tags += ["--platform", "manylinux2014_x86_64", "--python-version", python, "--only-binary=:all:"]
    with tempfile.TemporaryDirectory(prefix="tchub-pack-") as folder:
        site, archive = Path(folder, "site"), Path(folder, _ARCHIVE)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--no-deps", "--target", str(site)]
        subprocess.run([*pip, *tags, *wanted], check=True)
        about = site / f"tchub-{metadata.version('tchub')}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(str(metadata.distribution("tchub").read_text("METADATA")))
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        subprocess.run(["tar", "-C", str(site), *_UNUSED, "-I", _XZ, "-cf", str(archive), "."], check=True)
        split = ["split", "-b", f"{part_mib}M", "-d", "-a", "3", str(archive), str(out / f"{_ARCHIVE}.")]
        subprocess.run(split, check=True)
    return sorted(out.iterdir())


# There ------------------------------------------------------------------------------------------------


def unpack(packed: Path, site: Path) -> None:
    """Unpack the parts, and let `tchub` be this repository; nothing is done twice."""
    if not (site / "whole").exists():
        parts = sorted(packed.glob(f"{_ARCHIVE}.*"))
        if not parts:
            sys.exit(f"{packed} holds no {_ARCHIVE}.000: run `python -m scripts.gpu_session pack` where pip works")
        shutil.rmtree(site, ignore_errors=True)
        site.mkdir(parents=True)
        data = io.BytesIO(b"".join(part.read_bytes() for part in parts))
        with tarfile.open(fileobj=data, mode="r:xz") as tar:
            tar.extractall(site, filter="data")
        (site / "whole").touch()
    package = site / "tchub"
    package.mkdir(exist_ok=True)
    for room in ("hub", "zoo", "cards"):
        if not (package / room).exists():
            (package / room).symlink_to(ROOT / room)


def steps(work: Path, arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Return the steps by name: each the arguments of `tchub`."""
    card, checkpoint = ["--device", "cuda"], ["--checkpoint", arguments.checkpoint] if arguments.checkpoint else []
    named = {
        "doctor": ["doctor", "--json"],
        "adapt": ["adapt", *checkpoint[1:], *card, "--workload", arguments.workload, "--budget", str(arguments.budget),
                  "--out", str(work / "adapt"), "--json"],
    }  # fmt: skip
    precisions = [(one, "" if one == "float32" else f"-{one}") for one in arguments.precisions.split(",")]
    for network in arguments.networks.split(","):
        for precision, end in precisions:
            name = Path(network).stem + end
            named[f"tune-{name}"] = [
                *("tune", network, *card, *checkpoint, "--trials", str(arguments.trials), "--precision", precision),
                *("--compare", arguments.compare, "--out", str(work / "tune" / name), "--json"),
            ]
    for precision, end in precisions:
        named[f"collect{end}"] = [
            *("collect", *card, "--workload", arguments.suite, "--programs", str(arguments.programs)),
            *("--precision", precision, "--out", str(work / f"corpus{end}"), "--json"),
        ]
    return named


def do_step(command: list[str], environment: dict[str, str], seconds: float, log: Path) -> tuple[int | None, str, str]:
    """Run a command for so many seconds at most; return its code, None where it was cut, its output and last words."""
    with log.open("w") as errors:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
        code: int | None = None
        try:
            out, _ = process.communicate(timeout=seconds)
            code = process.returncode
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # tchub ends its journals
            try:
                out, _ = process.communicate(timeout=_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                out, _ = process.communicate()
    return code, out, log.read_text(errors="replace")[-2000:]


def figures(name: str, out: str, work: Path) -> Any:
    """Return what a step measured: of a network the report's latencies and runs, else what the command printed."""
    report = work / "tune" / name.removeprefix("tune-") / "report.json"
    if name.startswith("tune-") and report.is_file():
        whole = json.loads(report.read_text())
        kept = ("trials", "failed", "tuning_seconds", "model", "sum_of_tasks")
        runs = {label: {key: run[key] for key in kept} for label, run in whole["runs"].items()}
        return {key: whole.get(key) for key in ("latency", "output_check", "not_compared", "notes")} | {"runs": runs}
    try:
        return json.loads(out)
    except ValueError:
        return None


def save_state(work: Path, out: Path) -> None:
    """Write what was measured to `state.tar.xz`, whole or not at all, and the journal beside it."""
    part = out / "state.part"

    def keep(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        small = info.isdir() or (info.isfile() and info.size <= _KEPT_BYTES)
        return info if small and not info.name.endswith(_LEFT_OUT) else None

    with tarfile.open(part, "w:xz", preset=1) as tar:
        tar.add(work, ".", filter=keep)
    part.replace(out / "state.tar.xz")
    if (journal := work / "journal.jsonl").exists():
        shutil.copy(journal, out / "journal.jsonl")


def run(arguments: argparse.Namespace) -> int:
    """Do the steps that are left; return how many were not finished."""
    end = time.monotonic() + 60 * arguments.minutes
    work, out = arguments.work.resolve(), arguments.out.resolve()
    for folder in (work / "logs", out):
        folder.mkdir(parents=True, exist_ok=True)
    journal = work / "journal.jsonl"
    if arguments.state and not journal.exists():
        with tarfile.open(arguments.state) as tar:
            tar.extractall(work, filter="data")
    environment = os.environ | {
        **{"TCHUB_HOME": str(work / "home"), "TCHUB_CACHE": str(work / "cache"), "HF_HUB_OFFLINE": "1"}
    }
    if arguments.packed:
        site = Path(tempfile.gettempdir()) / "tchub-site"
        unpack(arguments.packed, site)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    lines = journal.read_text().splitlines() if journal.exists() else []
    done = {row["step"] for row in map(json.loads, lines) if row["code"] == 0}
    left = {name: command for name, command in steps(work, arguments).items() if name not in done}
    for name, command in left.items():
        if (seconds := end - time.monotonic() - _GRACE) <= 0:
            break
        print(f"{time.strftime('%H:%M:%S')} {name}: {seconds:.0f} s are left", flush=True)
        started, log = time.monotonic(), work / "logs" / f"{name}.txt"
        code, printed, words = do_step([sys.executable, "-m", "tchub.hub.cli", *command], environment, seconds, log)
        row = {
            "step": name, "code": code, "seconds": round(time.monotonic() - started, 1),
            "command": ["tchub", *command], "figures": figures(name, printed, work), "last_words": words,
        }  # fmt: skip
        with journal.open("a") as file:
            file.write(json.dumps(row) + "\n")
        save_state(work, out)
        print(f"{time.strftime('%H:%M:%S')} {name}: {'cut' if code is None else f'exit code {code}'}", flush=True)
        done |= {name} if code == 0 else set()
    missing = [name for name in left if name not in done]
    print(f"not finished: {', '.join(missing)}" if missing else "all steps are done", flush=True)
    return len(missing)


def main() -> int:
    """Pack what the machine lacks, or do the session there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    packing = commands.add_parser("pack", help="write what a bare machine lacks")
    packing.add_argument("--out", type=Path, default=Path("packed"))
    packing.add_argument("--part-mib", type=int, default=16)
    packing.add_argument("--python", default="3.12", help="that machine's")
    running = commands.add_parser("run", help="measure, adapt, tune and collect on the card")
    running.add_argument("--packed", type=Path, help="the folder that `pack` wrote; else tchub is installed")
    running.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "tchub-session")
    running.add_argument("--out", type=Path, default=Path("session"), help="takes the journal and the state")
    running.add_argument("--state", type=Path, help="`state.tar.xz` of the call before")
    running.add_argument("--minutes", type=float, default=9.0)
    running.add_argument("--networks", default="resnet-50,bert-base,vit-small-160")
    running.add_argument("--precisions", default="float32,float16", help="of networks and of what is collected")
    running.add_argument("--workload", default="reference", help="of adapt")
    running.add_argument("--suite", default="reference", help="of collect")
    running.add_argument("--checkpoint", help="a GPU's; else the one that fits the card best")
    running.add_argument("--budget", default="512", help="of adapt: programs, a share, or minutes")
    running.add_argument("--trials", type=int, default=512)
    running.add_argument("--compare", default="torch.compile,stock", help="what tuned networks are timed beside")
    running.add_argument("--programs", type=int, default=4000, help="of collect")
    arguments = parser.parse_args()
    if arguments.command == "run":
        return run(arguments)
    for part in pack(arguments.out, arguments.part_mib, arguments.python):
        print(f"{part}: {part.stat().st_size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
