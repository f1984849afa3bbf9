"""`tchub corpus`: from a log to a checked corpus, by the command line."""

import json
import re
import shlex
from pathlib import Path

import pytest
from cli_kit import Shell
from tchub.zoo.corpus import Corpus
from tchub.zoo.training.programs import corpus_device


def ansor_line(n: int, vthread: int, model: str = "t4") -> str:
    hardware = [-1, 16, 64, 0, 0, 1024, 8, 32]
    task = [json.dumps(["matmul_of_named_rows_and_columns", n, 64, 64]), f"cuda -model={model}", hardware, "", 0, []]
    steps = [["SP", 2, 0, n, [vthread], 1]]
    return json.dumps({"i": [task, [[], steps]], "r": [[1e-3 * vthread], 0, 0.5, 1.6e9], "v": "v0.6"})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "log.json"
    file.write_text("\n".join([ansor_line(n, v) for n in (64, 128, 256) for v in (1, 2, 4)] + ["{broken"]))
    return file


def imported(run: Shell, log: Path, out: Path, *options: object) -> Path:
    code, _ = run.json("corpus", "import", log, "--device", "t4", "--out", out, *options)
    assert code == 0
    return out


def test_a_log_becomes_a_corpus(run, log, tmp_path):
    out = tmp_path / "c"
    code, result = run.json("corpus", "import", log, "--device", "t4", "--out", out, "--licence", "MIT")
    assert (code, result["broken"]) == (0, {"not-json": 1})
    assert (result["framework"], result["tasks"], result["valid_programs"]) == ("ansor", 3, 9)
    meta = Corpus.open(out).meta
    assert (meta["device"], meta["family"], meta["licence"]) == ("t4", "t4", "MIT")
    code, result = run.json("corpus", "check", out)
    (stats,) = result["corpora"]
    assert (stats["programs_by_framework"], stats["programs_by_licence"]) == ({"ansor": 9}, {"MIT": 9})
    assert code == 0


def test_names_of_a_log_and_of_a_corpus_put_nothing_but_text_onto_a_terminal(run, log, tmp_path):
    evil = "\x1b]0;evil\x07\u202e"
    log.write_text(f"{log.read_text()}\n{evil}broken\n")
    code, out, err = run("corpus", "import", log, "--device", "t4", "--out", tmp_path / "c", "--licence", f"MIT{evil}")
    assert code == 0
    shown = out + err + "".join(run("corpus", "check", tmp_path / "c")[1:])
    assert "broken" in shown
    assert "MIT]0;evil" in shown
    meta = json.loads((tmp_path / "c" / "corpus.json").read_text())
    (tmp_path / "c" / "corpus.json").write_text(json.dumps(meta | {"split": {"test": [evil], "train": []}}))
    code, out, err = run("corpus", "check", tmp_path / "c")
    assert (code, "]0;evil" in err) == (1, True)
    assert not set(evil) & set(shown + out + err) - set("]0;evil")


def test_the_command_that_is_kept_makes_the_same_corpus_again(run, log, tmp_path):
    (tmp_path / "tasks.json").write_text(json.dumps({"t4": {}}))
    options = ["--tasks", f"{tmp_path}/tasks.json:t4", "--framework", "ansor", "--licence", "MIT", "--source", "a b"]
    first = Corpus.open(imported(run, log, tmp_path / "first", *options, "--allow-mixed", "--min-programs", 2))
    tchub, *parts, folder = shlex.split(first.meta["command"])
    assert (tchub, folder) == ("tchub", "DIR")
    assert run.json(*parts, tmp_path / "second")[0] == 0
    second = Corpus.open(tmp_path / "second")
    assert {**second.meta, "created": ""} == {**first.meta, "created": ""}


def test_a_device_of_ones_own_is_found_by_import(run, log, tmp_path):
    assert run("devices", "add", "tx4")[0] == run("devices", "a", "b")[0] == run("devices", "--from", "t4")[0] == 2
    code, result = run.json("devices", "add", "tx4", "--from", "t4")
    assert (code, result["name"], Path(result["path"]).is_file()) == (0, "tx4", True)
    log.write_text(ansor_line(64, 8, "tx4"))
    _, _, err = run("corpus", "import", log, "--device", "tx4", "--out", tmp_path / "c")
    assert "no device" not in err
    assert corpus_device(Corpus.open(tmp_path / "c")).spec.sources["cuda_cores"] == "assumed: as t4"
    assert run.json("devices", "tx4")[1]["family"] == "tx4"


def test_mixed_devices_are_an_error_with_a_remedy(run, log, tmp_path):
    log.write_text(log.read_text() + "\n" + ansor_line(64, 8, "v100"))
    code, error = run.json("corpus", "import", log, "--device", "t4", "--out", tmp_path / "c")
    assert (code, error["error"]) == (1, "CorpusError")
    assert "--allow-mixed" in error["remedy"]
    imported(run, log, tmp_path / "c", "--allow-mixed")


def test_a_split_file_decides(run, log, tmp_path):
    names = {f"m{n}": json.dumps(["matmul_of_named_rows_and_columns", n, 64, 64]) for n in (64, 128, 256)}
    keys = {name: {"workload_key": key} for name, key in names.items()}
    (tmp_path / "tasks.json").write_text(json.dumps({"t4": keys}))
    (tmp_path / "splits.json").write_text(json.dumps({"mine": {"train": ["m64", "m128"], "test": ["m256"]}}))
    options = ("--tasks", tmp_path / "tasks.json", "--split", f"{tmp_path / 'splits.json'}:mine")
    out = imported(run, log, tmp_path / "c", *options)
    assert run.json("corpus", "check", out)[1]["corpora"][0]["split"] == {"train": 2, "val": 0, "test": 1}


def test_what_one_corpus_tests_another_may_not_train_on(run, log, tmp_path):
    folders = [imported(run, log, tmp_path / name) for name in "ab"]
    for folder, tested in zip(folders, (0, 1), strict=True):
        meta = json.loads((folder / "corpus.json").read_text())
        train = sorted(Corpus.open(folder).tasks)
        meta["split"] = {"test": [train.pop(tested)], "train": train}
        (folder / "corpus.json").write_text(json.dumps(meta))
    code, error = run.json("corpus", "check", *folders)
    assert (code, "no leak across corpora" in error["message"]) == (1, True)
    assert {Path(leak["trained_by"]).name for leak in error["leaks"]} == {"a", "b"}
    assert re.search(r"FAIL  \S{26,} tested by ", run("corpus", "check", *folders)[1])
    allowed = [part for folder in folders for part in ("--protocol-allows", folder)]
    code, result = run.json("corpus", "check", *folders, *allowed)
    assert (code, result["leaks"]) == (0, [])


def test_two_corpora_of_a_device_become_one(run, log, tmp_path):
    one = imported(run, log, tmp_path / "one")
    log.write_text("\n".join(ansor_line(n, v) for n in (256, 512) for v in (2, 8)))
    two = imported(run, log, tmp_path / "two")
    code, result = run.json("corpus", "import", one, two, "--out", tmp_path / "both")
    assert (code, result["tasks"], result["programs"], result["given"], result["changed"]) == (0, 4, 12, 13, True)
    code, result = run.json("corpus", "import", two, "--out", tmp_path / "both")
    assert (code, result["programs"], result["changed"]) == (0, 12, False)


def test_several_logs_or_no_device_are_wrong_usage(run, log, tmp_path):
    assert run("corpus", "import", log, log, "--device", "t4", "--out", tmp_path / "c")[0] == 2
    assert run("corpus", "import", log, "--out", tmp_path / "c")[0] == 2
