"""From a workload to a corpus by way of a machine that has no compiler."""

import io
import json
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tvm
from bundle_kit import CPU_FACTS, GOOD, TASK_ID, bare_machine, toy_bundle, toy_programs, toy_task
from tchub.hub.bundle.archive import Bundle, BundleError, write_parts
from tchub.hub.bundle.build import BuildSettings, build_bundle, choose_candidates, resolve_target
from tchub.hub.device.errors import DeviceError
from tchub.hub.networks.tasks import make_task
from tchub.zoo.corpus import Corpus

pytestmark = pytest.mark.usefixtures("shared_zygote")
LLVM = '{"kind": "llvm"}'


def test_programs_compiled_here_are_measured_there_and_become_a_corpus(
    tmp_path: Path, small_task: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second argument is a constant of the network, which programs take permuted.
    constant = small_task.mod["main"].with_attr("layout_free_buffers", [1])
    task = make_task(tvm.IRModule({"main": constant}), "small")
    monkeypatch.setattr("tchub.hub.bundle.build.tasks_of", lambda *_, **__: [task])
    archive, corpus, runtime = tmp_path / "bundle.zip", tmp_path / "corpus", tmp_path / "runtime"
    with pytest.raises(BundleError):
        build_bundle("small", resolve_target("local"), archive, BuildSettings(3, max_bytes=1000))
    # What was compiled before the stop is not compiled again: no worker may start.
    monkeypatch.setattr("tchub.hub.bundle.build.Zygote", None)
    code, built = run.json("bundle", "--workload", "small", "--target", "local", "--programs", 3, "--out", archive)
    assert (code, built["programs"], built["failed"], built["bytes"]) == (0, 3, 0, [archive.stat().st_size])
    assert not archive.with_suffix(".work").exists(), "nothing is left of the work"
    assert any(program["plan"] for program in Bundle(archive).manifest["programs"])

    assert run("bundle", "--runtime", runtime)[0] == 0
    lines = bare_machine(tmp_path / "site", "--runtime", str(runtime)).measure(archive, tmp_path / "results.jsonl")
    assert [line["error"] for line in lines] == [None] * 3

    options = ["--bundle", archive, "--device", "epyc-turin", "--out", corpus]
    _, summary = run.json("corpus", "import", tmp_path / "results.jsonl", *options)
    assert (summary["results"], summary["failed"], summary["wrong"], summary["programs"]) == (3, 0, 0, 3)
    opened = Corpus.open(corpus)
    (stored,) = opened.tasks.values()
    assert (stored.task_id, stored.op, stored.flops) == (task.task_id, "matmul", task.flops)
    assert stored.computation
    assert all(program.valid for program in opened.iter_programs())

    # A second round evolves from what was measured, and chooses none of it again.
    here = tvm.target.Target(resolve_target("local").target)
    chosen = list(choose_candidates([task], here, BuildSettings(2), opened, print))
    assert {candidate.strategy for candidate in chosen} == {"evolutionary"}
    assert not {candidate.key for candidate in chosen} & {program.key for program in opened.iter_programs()}


def test_a_stopped_build_gives_nothing_to_one_with_other_settings(
    tmp_path: Path, small_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tchub.hub.bundle.build.tasks_of", lambda *_, **__: [small_task])
    archive = tmp_path / "bundle.zip"
    for threads in (1, 2):
        with pytest.raises(BundleError):
            build_bundle("small", resolve_target(LLVM, threads), archive, BuildSettings(1, max_bytes=1000))
    assert len(list(archive.with_suffix(".work").glob("*/*.bin"))) == 2, "each is compiled, and each is kept"
    too_short = BuildSettings(1, max_bytes=1000, build_timeout=1e-4)
    with pytest.raises(BundleError):
        build_bundle("small", resolve_target(LLVM, 3), archive, too_short)
    assert len(list(archive.with_suffix(".work").glob("*/*.json"))) == 2, "what did not compile is tried again"
    monkeypatch.setattr("tchub.hub.bundle.build.Zygote", None)
    build_bundle("small", resolve_target(LLVM, 2), archive, BuildSettings(1))
    assert Bundle(archive).manifest["threads"] == 2


def test_a_checkpoint_chooses_half_of_the_programs(small_task: Any, target: Any) -> None:
    random, chosen = (
        [c.key for c in choose_candidates([small_task], target, settings, None, print)]
        for settings in (BuildSettings(16), BuildSettings(4, checkpoint="tcl-epyc"))
    )
    assert len(chosen) == 4
    assert set(chosen) <= set(random)
    assert chosen[2:] == [key for key in random if key not in chosen[:2]][:2], "the rest come as they came"


def test_an_archive_depends_on_its_contents_alone(tmp_path: Path) -> None:
    one, other = (toy_bundle(tmp_path / name, [GOOD] * 2) for name in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()
    assert Bundle(one).identity == Bundle(other).identity


def test_too_large_an_archive_becomes_several_that_stand_alone(tmp_path: Path) -> None:
    programs, tasks = toy_programs(tmp_path, [GOOD] * 30), {TASK_ID: toy_task([])}
    limit = 48 << 10
    paths = write_parts(tmp_path / "bundle.zip", CPU_FACTS, tasks, programs, limit)
    assert [path.name for path in paths] == [f"bundle-{n}.zip" for n in range(1, len(paths) + 1)]
    assert len(paths) > 1
    assert all(path.stat().st_size <= limit for path in paths)
    traces = [program["trace"] for path in paths for program in Bundle(path).manifest["programs"]]
    assert traces == [program.trace for program in programs], "every program is in one of them, in order"
    with pytest.raises(BundleError, match="one program alone"):
        write_parts(tmp_path / "small.zip", CPU_FACTS, tasks, programs, 1000)


def test_a_damaged_or_newer_bundle_is_refused(tmp_path: Path) -> None:
    path = toy_bundle(tmp_path, [GOOD])
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(tmp_path / "newer.zip", "w") as copy:
        copy.writestr("manifest.json", source.read("manifest.json").replace(b'"format":1', b'"format":2'))
    with pytest.raises(BundleError, match="has the format 2, this reader knows 1"):
        Bundle(tmp_path / "newer.zip")


@pytest.mark.parametrize(
    "change",
    [
        {"tasks": [{"task_id": TASK_ID}]},
        {"programs": [{"file": None}]},
        {"files": {"../../etc/passwd": "0" * 64}},
        {"files": {"/dev/zero": "0" * 64}},
        {"target": [1]},
        {"device_kind": "tpu"},
        {"threads": "many"},
    ],
    ids=str,
)
@pytest.mark.parametrize("unpacked", [False, True])
def test_a_forged_manifest_is_refused(tmp_path: Path, change: dict[str, Any], unpacked: bool) -> None:
    forged = tmp_path / "forged"
    shutil.unpack_archive(toy_bundle(tmp_path, [GOOD]), forged)
    manifest = forged / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
    if not unpacked:
        forged = Path(shutil.make_archive(str(tmp_path / "b"), "zip", forged))
    with pytest.raises(BundleError, match="is no bundle"):
        Bundle(forged)


@pytest.mark.parametrize(
    ("text", "refusal"),
    [("no-such-device", "no device is called"), ("{", "is no target"), ('{"kind": "rocm"}', "not for 'rocm'"),
     ('{"kind": "llvm", "mtriple": "riscv64-linux-gnu"}', "riscv64")],
)  # fmt: skip
def test_what_cannot_be_compiled_for_is_said(text: str, refusal: str) -> None:
    with pytest.raises((BundleError, DeviceError), match=refusal):
        resolve_target(text)


LARGE = 256 << 20
# Opens archives while this process may take a gigabyte more than it has; a child for each has the imports already.
OPEN = """
import json, os, pathlib, resource, sys
from tchub.hub.bundle.archive import Bundle, BundleError
taken = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 30),) * 2)
for path in map(pathlib.Path, sys.argv[1:]):
    if not os.fork():
        try:
            Bundle(path)
            message = None
        except BundleError as error:
            message = error.message
        print(json.dumps([path.stem, message]), flush=True)
        os._exit(0)
    os.wait()
"""


def _manifest(data: bytes, method: int = zipfile.ZIP_DEFLATED, *others: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name in ("manifest.json", *others):
            archive.writestr(name, data)
    return file.getvalue()


@cache
def _large() -> bytes:
    return _manifest(bytes(LARGE))


STORED = zipfile.ZIP_STORED
BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "large": (_large, "unpacks to more than 64 MiB"),
    "many": (lambda: _manifest(bytes(LARGE >> 3), zipfile.ZIP_DEFLATED, *"abcdefg"), "more than 100 times its size"),
    # It says of a large file that it is small.
    "liar": (
        lambda: _large().replace(struct.pack("<L", LARGE), struct.pack("<L", 100)), "is no bundle",
    ),
    "bzip2": (lambda: _manifest(bytes(LARGE >> 3), zipfile.ZIP_BZIP2), "compressed by other means"),
    "lists": (lambda: _manifest(b"[" + b"[]," * (5 << 21) + b"0]", STORED), "lists and objects"),
    "nested": (lambda: _manifest(b"[" * 1_000_000, STORED), "is no bundle"),
    "bare": (lambda: _manifest(b'{"format":1}', STORED), "is no bundle"),
    "torn": (lambda: b"PK\x03\x04 torn", "is no zip file"),
}  # fmt: skip


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """What is said of each bomb, and of a bundle."""
    folder = tmp_path_factory.mktemp("bombs")
    for name, (make, _) in BOMBS.items():
        (folder / f"{name}.zip").write_bytes(make())
    paths = [*folder.glob("*.zip"), toy_bundle(folder / "toy", [GOOD] * 4)]
    done = subprocess.run([sys.executable, "-c", OPEN, *map(str, paths)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_a_gigabyte(messages: dict[str, str | None], name: str) -> None:
    assert BOMBS[name][1] in (messages[name] or "it is taken")


def test_a_bundle_unpacks_within_the_same_limits(messages: dict[str, str | None]) -> None:
    assert messages["bundle"] is None
