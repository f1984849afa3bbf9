"""Without a network: what is on this machine works as ever, with every socket blocked; what is not says so."""

import socket
from pathlib import Path

import pytest
from tchub import hub
from tchub.zoo.devices import get_device
from toy_checkpoints import publish, write_index

# In the wheel, with the index that ships.
NAME = "tcl-epyc"


class TouchedTheNetworkError(BaseException):
    """Not an Exception, so that nothing takes it for an ordinary failure."""


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch):
    """Every way out is closed."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise TouchedTheNetworkError(args)

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(autouse=True)
def fresh_machine(tmp_path, monkeypatch) -> Path:
    """Empty stores, and nothing in the environment that says that there is no network."""
    monkeypatch.delenv("TCHUB_INDEX", raising=False)
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tchub.hub.device.detect.detect_local", lambda: get_device("epyc"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "args",
    [
        ["list"],
        ["info", NAME],
        ["pull", "--dry-run", NAME],
        ["pull", "--dry-run", "--device", "local"],
        ["pull", "--verify"],
        ["pull", "--offline"],
        ["cache"],
        ["cache", "--prune"],
    ],
)
def test_commands_work_on_what_is_here(args, run):
    assert run.json(*args)[0] == 0


def test_a_bundled_checkpoint_is_pulled_pinned_verified_and_loaded(run):
    assert run.json("pull", NAME)[1]["source"] == "bundled"
    assert run.json("pull", "--verify", NAME)[1]["copy"] == "store"
    assert run.json("pull", NAME, "--lock")[0] == 0
    code, rows = run.json("pull", "--frozen")
    assert (code, rows[0]["source"]) == (0, "store")
    assert hub.load(NAME, lock="tchub.lock").config.name == NAME


@pytest.mark.parametrize("source", ["https://mirror.example.org/zoo", "hf://org/tcl-own"])
@pytest.mark.parametrize("how", ["--offline", "TCHUB_OFFLINE", "HF_HUB_OFFLINE"])
def test_what_only_the_network_could_give_is_said_without_touching_it(run, tmp_path, monkeypatch, source, how):
    entry = publish(tmp_path / "zoo", "tcl-own", entry={"sources": [source], "revision": "0" * 40})
    monkeypatch.setenv("TCHUB_INDEX", str(write_index(tmp_path / "index.json", entry)))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", False)
    if how != "--offline":
        monkeypatch.setenv(how, "1")
    args = ["pull", "tcl-own", *(["--offline"] if how == "--offline" else [])]
    for forced in ([], ["--source", source]):
        code, error = run.json(*args, *forced)
        assert (code, error["error"]) == (1, "SourceError")
        assert "--offline" in error["remedy"]
