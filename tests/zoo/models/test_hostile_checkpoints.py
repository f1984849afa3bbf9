"""Checkpoints that mean harm: each is refused by a typed error with a remedy, in bounded time and memory.

Everything here runs with 256 MiB more memory than the process has and a few seconds; `test_checkpoint` has the
checkpoints that are merely damaged.
"""

import io
import json
import os
import pickle
import socket
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import chdir
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from tchub.zoo.devices import get_device
from tchub.zoo.features import get_schema
from tchub.zoo.models import (
    Checkpoint,
    CheckpointConfig,
    CheckpointError,
    CorruptCheckpointError,
    create,
    get_architecture,
    list_architectures,
)
from tchub.zoo.models.registry import MAX_SIZE, most_of

from scripts.fuzz.limits import limited

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small sound checkpoint."""
    torch.manual_seed(0)
    model = create("tilenet", hidden=8, embedding=4, width=get_schema("nest-cpu").width).eval()
    names, version = ("tilenet-epyc", "1.0.0", "tilenet"), get_schema("nest-cpu").version
    config = CheckpointConfig(*names, model.config.as_dict(), "nest-cpu", "epyc", feature_version=version)
    Checkpoint(config, model, get_device("epyc")).save(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def bounds(folder: Path) -> Iterator[None]:
    with limited(256 << 20, 30):
        yield


def refusal(folder: Path) -> str:
    """The message of the error that loading ends in."""
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.load(folder)
    assert caught.value.remedy
    return caught.value.message


def change_header(folder: Path, change: Callable[[dict], object]) -> None:
    """Rewrites the header of the weights; the numbers stay."""
    data = (folder / WEIGHTS).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    changed = change(header)
    text = json.dumps(header if changed is None else changed).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


class Harm:
    """What a pickle can do: it runs when it is loaded."""

    def __reduce__(self):
        return Path.touch, (Path("harmed"),)


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model/data.pkl", content)
    return file.getvalue()


DISGUISES = {
    "a pickle": pickle.dumps(Harm()),
    "an old pickle": pickle.dumps(Harm(), protocol=0),
    "a zip with a pickle, as torch.save writes it": zipped(pickle.dumps(Harm())),
    "a zip bomb": zipped(bytes(64 << 20)),
    "a program": b"\x7fELF" + bytes(200),
    "a script": b"#!/bin/sh\ntouch harmed\n",
    "a Python file": b"import os\nos.system('touch harmed')\n",
    "nothing": b"",
}


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
@pytest.mark.parametrize("what", DISGUISES)
def test_a_file_in_disguise_is_refused_and_not_run(folder, name, what, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / name).write_bytes(DISGUISES[what])
    refusal(folder)
    assert not (folder / "harmed").exists()


def replace_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        path.unlink()
        make(path)

    return act


def make_socket(path: Path) -> None:
    with chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)  # a socket's path must be short


STRANGE = {
    "a pipe that nobody writes to": replace_by(os.mkfifo),
    "a folder": replace_by(Path.mkdir),
    "a socket": replace_by(make_socket),
    "a link to a device without an end": replace_by(lambda path: path.symlink_to("/dev/zero")),
    "a link to a terminal": replace_by(lambda path: path.symlink_to("/dev/tty")),
    "a link to itself": replace_by(lambda path: path.symlink_to(path)),
    "a link to nothing": replace_by(lambda path: path.symlink_to("nowhere")),
    "a hole of a terabyte": lambda path: os.truncate(path, 1 << 40),
}


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
@pytest.mark.parametrize("what", STRANGE)
def test_what_is_no_file_of_a_sane_size_is_refused_without_waiting(folder, name, what):
    STRANGE[what](folder / name)
    refusal(folder)


def claim(folder: Path, size: int) -> None:
    """A header that says it is this long, in a file that is."""
    with (folder / WEIGHTS).open("r+b") as file:
        file.write(struct.pack("<Q", size))
        file.truncate(size + 8)


@pytest.mark.parametrize("size", [(256 << 10) + 1, 100_000_000, 200 << 20])
def test_a_header_above_the_cap_is_not_read(folder, size):
    """safetensors itself allows 100 MB."""
    claim(folder, size)
    assert "header is larger" in refusal(folder)


@pytest.mark.parametrize("size", [0, 1, 2**63, 2**64 - 1])
def test_a_header_of_an_impossible_length(folder, size):
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", size) + bytes(100))
    assert "cut short" in refusal(folder)


def first(header: dict) -> dict:
    return header["body.0.bias"]


def swap(header: dict) -> None:
    """Two tensors of one size on one place."""
    header["body.3.bias"]["data_offsets"] = header["body.0.bias"]["data_offsets"]


BAD_HEADERS = [
    (swap, "invalid offset"),
    (lambda h: first(h).update(data_offsets=[2**40, 2**40 + 32]), "invalid offset"),
    (lambda h: first(h).update(data_offsets=[64, 32]), "invalid offset"),
    (lambda h: first(h).update(data_offsets=[-32, 0]), "invalid value"),
    (lambda h: first(h).update(shape=[True]), "invalid type"),
    (lambda h: first(h).update(shape=[2**32, 2**32]), "overflow"),
    (lambda h: first(h).update(dtype="F64"), "invalid shape, data type"),
    (lambda h: first(h).update(dtype="I32"), "is of type"),
    (lambda h: first(h).update(dtype="PICKLE"), "invalid"),
    (lambda h: h.update({"extra": first(h) | {"shape": [0], "data_offsets": [0, 0]}}), "does not have"),
    (lambda h: h.update(renamed=h.pop("body.0.bias")), "lacks the tensor"),
    (lambda h: h.update(__metadata__={"a": {"b": []}}), "expected a string"),
    (lambda h: [h], "invalid type"),
    (lambda h: h.update(a=json.loads("[" * 500 + "]" * 500)), "recursion limit"),
]


@pytest.mark.parametrize(("change", "why"), BAD_HEADERS)
def test_a_header_that_lies(folder, change, why):
    change_header(folder, change)
    assert why in refusal(folder)


def test_a_name_that_is_said_twice(folder):
    data = (folder / WEIGHTS).read_bytes()
    size = int.from_bytes(data[:8], "little")
    text = data[8 : 8 + size].rstrip()[:-1] + b',"kernel":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    assert "twice" in refusal(folder)


NETWORKS = [arch for kind in ("model", "knowledge base", "ensemble") for arch in list_architectures(kind)]


@pytest.mark.parametrize(("arch", "size"), [("tcl", 10**18), *((arch, MAX_SIZE) for arch in NETWORKS)])
def test_settings_that_ask_for_a_giant_are_refused_before_it_is_made(folder, arch, size):
    """The largest that a setting may be, and beyond: no memory is taken for weights that the file does not hold."""
    whole = [f.name for f in fields(get_architecture(arch).config) if type(f.default) is int]
    model = {name: most_of(name) if size == MAX_SIZE else size for name in whole}
    schema = get_schema(get_architecture(arch).schemas[0])
    config = json.loads((folder / "config.json").read_text())
    config |= {"arch": arch, "feature_schema": schema.name, "feature_version": schema.version}
    config["model"] = model | {"width": schema.width, "hardware": schema.hardware}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CorruptCheckpointError):
        Checkpoint.load(folder)


BAD_CONFIGS = {
    "twice": lambda text: text.replace("{", '{"arch": "tcl", ', 1),
    "NaN": lambda text: text.replace("0.1", "NaN", 1),
    "too large": lambda text: text.replace("0.1", "1e999", 1),
    "64 bits": lambda text: text.replace('"format": 1', '"format": 1' + "0" * 30),
    "deeper": lambda text: text.replace('"lineage": {}', '"lineage": ' + '{"a":' * 40 + "0" + "}" * 40),
    "larger than": lambda text: text + " " * (1 << 20),
}


@pytest.mark.parametrize("why", BAD_CONFIGS)
def test_a_config_that_two_readers_could_take_for_two_things_or_that_exhausts_one(folder, why):
    path = folder / "config.json"
    text = BAD_CONFIGS[why](path.read_text())
    assert text != path.read_text()
    path.write_text(text)
    assert why in refusal(folder)
