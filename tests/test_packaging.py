"""The package as a whole: nothing forgotten in the wheel, imports go one way, sound scripts."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest
from tchub.hub.tuning.config import RIVALS

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("hub", "zoo", "cards")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def python_files(floor: str) -> list[Path]:
    return sorted((ROOT / floor).rglob("*.py"))


def test_every_folder_with_code_is_a_listed_package() -> None:
    folders = {path.parent.relative_to(ROOT) for floor in FLOORS for path in python_files(floor)}
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    assert {"tchub." + ".".join(folder.parts) for folder in folders} == listed


def test_every_runtime_that_tune_compares_comes_with_the_extra_that_its_remedy_names() -> None:
    project = PROJECT["project"]
    extras, pending, packages = project["optional-dependencies"], ["bench"], set(project["dependencies"])
    while pending:
        for one in extras[pending.pop()]:
            inner = re.fullmatch(r"tchub\[(\w+)\]", one)
            pending += [inner[1]] if inner else []
            packages.add(one)
    assert {re.split(r"[<>=\[]", one)[0] for one in packages} >= set(RIVALS.values())


def test_every_package_has_an_init_and_every_floor_is_typed() -> None:
    for package in PROJECT["tool"]["setuptools"]["packages"]:
        assert (ROOT / Path(*package.split(".")[1:]) / "__init__.py").is_file(), package
    for floor in FLOORS:
        assert (ROOT / floor / "py.typed").is_file()


@pytest.mark.parametrize(
    ("package", "folder"),
    [("zoo", "devices/data"), ("zoo", "checkpoints/tcl-epyc/1.0.0"), ("hub", "site/templates"), ("cards", "templates")],
)
def test_what_is_no_code_is_package_data(package: str, folder: str) -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"][f"tchub.{package}"]
    packed = {path for pattern in patterns for path in (ROOT / package).glob(pattern)}
    assert {path for path in (ROOT / package / folder).iterdir() if path.is_file()} <= packed
    assert package != "hub" or ROOT / "hub/registry/index.json" in packed


def test_the_wheel_stays_below_30_mb() -> None:
    """Measured without building it: a wheel deflates each file by itself, at zlib's default level."""
    data = PROJECT["tool"]["setuptools"]["package-data"]
    packed = {path for floor in FLOORS for one in data[f"tchub.{floor}"] for path in (ROOT / floor).glob(one)}
    packed |= {path for floor in FLOORS for path in python_files(floor)}
    assert sum(len(zlib.compress(path.read_bytes())) for path in packed if path.is_file()) < 30e6


def test_the_version_is_the_changelogs_newest() -> None:
    versions = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == PROJECT["project"]["version"] == metadata.version("tchub")


def test_the_constraints_hold_the_projects_own_pins() -> None:
    constraints = (ROOT / "constraints.txt").read_text().split()
    pins = [requirement for requirement in PROJECT["project"]["dependencies"] if "==" in requirement]
    assert pins
    assert set(pins) <= set(constraints)


@pytest.mark.parametrize("floor", FLOORS)
def test_the_code_imports_itself_relatively(floor: str) -> None:
    """`hub`, `zoo` and `cards` are installed as `tchub.*`: their bare names exist in a clone only."""
    for path in python_files(floor):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            assert not [n for n in names if n.split(".")[0] in (*FLOORS, "tchub")], path


def test_the_console_script_answers() -> None:
    (script,) = metadata.entry_points(group="console_scripts", name="tchub")
    assert script.value == PROJECT["project"]["scripts"]["tchub"]
    program = Path(sys.executable).with_name("tchub")
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Examples:" in done.stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A checkout in miniature, in a folder with a space; its `python` and `tchub` only write down their calls."""
    root = tmp_path / "a clone"
    (root / "scripts").mkdir(parents=True)
    for name in ("quickstart", "test", "environment.sh"):
        (root / "scripts" / name).write_bytes((ROOT / "scripts" / name).read_bytes())
    for name in ("pyproject.toml", "constraints.txt"):
        (root / name).write_text(f"# {name}\n")
    bin_folder = root / ".venv" / "bin"
    for name in ("python", "tchub"):
        add_program(bin_folder, name, f'echo "{name} $*" >> "{root}/calls"\n[ ! -e "{root}/offline" ] || exit 1')
    return root


def add_program(folder: Path, name: str, body: str = "exit 0") -> None:
    """Write an executable shell script."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def machine(clone: Path, *, architecture: str, programs: Sequence[str] = ()) -> dict[str, str]:
    """Environment of a machine that has bash, POSIX tools and `programs`, whatever this one has."""
    folder = clone / "machine"
    for name in ("bash", "cat", "cksum", "dirname", "grep", "head"):
        tool = shutil.which(name)
        assert tool is not None, name
        folder.mkdir(exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(tool)
    add_program(folder, "uname", f"echo {architecture}")
    for name in programs:
        add_program(folder, name)
    return {"PATH": str(folder)}


COMPLETE = ("chromium", "chromedriver", "nvcc")


def quickstart(
    clone: Path, *arguments: str, script: str = "quickstart", architecture: str = "x86_64",
    programs: Sequence[str] = COMPLETE,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    env = machine(clone, architecture=architecture, programs=programs)
    command = ["bash", clone / "scripts" / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd="/", env=env, check=False)


def test_quickstart_installs_once_then_runs_the_command_from_any_folder(clone: Path) -> None:
    for _ in range(2):
        done = quickstart(clone, "--json", "two words")
        assert done.returncode == 0, done.stderr
    calls = (clone / "calls").read_text().splitlines()
    installs = [call for call in calls if " install " in call]
    assert len(installs) == 1
    assert f"--constraint {clone}/constraints.txt --editable {clone}" in installs[0]
    assert calls.count("tchub quickstart --json two words") == 2
    (clone / "constraints.txt").write_text("# other versions\n")
    quickstart(clone)
    assert sum(" install " in call for call in (clone / "calls").read_text().splitlines()) == 2, (
        "new pins install again"
    )


@pytest.mark.parametrize(
    ("architecture", "programs", "marks"),
    [
        ("x86_64", ("chromium", "chromedriver"), "not nvcc"),
        ("x86_64", ("chromium", "nvcc"), "not browser"),
        ("aarch64", (), "not browser and not nvcc and not x86"),
    ],
)
def test_what_a_machine_lacks_is_left_out_by_name(
    clone: Path, architecture: str, programs: tuple[str, ...], marks: str
) -> None:
    done = quickstart(clone, "tests/hub", script="test", architecture=architecture, programs=programs)
    assert done.returncode == 0, done.stderr
    assert (
        f"python -m pytest -q -n 2 --dist worksteal -m {marks} tests/hub" in (clone / "calls").read_text().splitlines()
    )
    left_out = re.findall(r"left out: the tests marked '(\w+)'", done.stderr)
    assert " and ".join(f"not {mark}" for mark in left_out) == marks


def test_a_python_that_is_too_old_is_said(clone: Path) -> None:
    (clone / "offline").touch()  # the fake interpreter now fails: neither pip nor a new environment can be had
    env = {"PATH": os.environ["PATH"], "PYTHON": str(clone / ".venv" / "bin" / "python")}
    command = ["bash", clone / "scripts" / "quickstart"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 1
    assert "is not Python 3.11 or newer" in done.stderr


def test_a_failed_install_is_said_and_tried_again(clone: Path) -> None:
    fake = clone / ".venv" / "bin" / "python"
    works = fake.read_text()
    fake.write_text(works + 'case "$*" in *install*) exit 1;; esac\n')
    done = quickstart(clone)
    assert done.returncode == 1
    assert "remedy: check the network" in done.stderr
    fake.write_text(works)
    assert quickstart(clone).returncode == 0
