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
    task = [
        json.dumps(["matmul_of_named_rows_and_columns", n, 64, 64]),
        f"cuda -model={model}",
        [-1, 16, 64, 0, 0, 1024, 8, 32],
        "",
        0,
        [],
    ]
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


def test_a_log_becomes_a_corpus(run: Shell, log: Path, tmp_path: Path):
    out = tmp_path / "c"
    code, found = run.json("corpus", "import", log, "--device", "t4", "--out", out, "--licence", "MIT")
    assert code == 0
    assert (found["framework"], found["tasks"], found["valid_programs"]) == ("ansor", 3, 9)
    assert found["broken"] == {"not-json": 1}
    meta = Corpus.open(out).meta
    assert (meta["device"], meta["family"], meta["licence"]) == ("t4", "t4", "MIT")
    code, found = run.json("corpus", "check", out)
    (stats,) = found["corpora"]
    assert (stats["programs_by_framework"], stats["programs_by_licence"]) == ({"ansor": 9}, {"MIT": 9})
    assert run.json("corpus", "check", out)[0] == 0


def test_names_of_a_log_and_of_a_corpus_put_nothing_but_text_onto_a_terminal(run: Shell, log: Path, tmp_path: Path):
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


def test_the_command_that_is_kept_makes_the_same_corpus_again(run: Shell, log: Path, tmp_path: Path):
    (tmp_path / "tasks.json").write_text(json.dumps({"t4": {}}))
    options = ["--tasks", f"{tmp_path}/tasks.json:t4", "--framework", "ansor", "--licence", "MIT", "--source", "a b"]
    first = Corpus.open(imported(run, log, tmp_path / "first", *options, "--allow-mixed", "--min-programs", 2))
    command = first.meta["command"]
    tchub, *words = shlex.split(command)
    assert (tchub, words[-1]) == ("tchub", "DIR")
    assert run.json(*words[:-1], tmp_path / "second")[0] == 0
    second = Corpus.open(tmp_path / "second")
    assert {k: v for k, v in second.meta.items() if k != "created"} == {
        k: v for k, v in first.meta.items() if k != "created"
    }


def test_a_device_of_ones_own_is_found_by_import(run: Shell, log: Path, tmp_path: Path):
    assert run("devices", "add", "tx4")[0] == run("devices", "a", "b")[0] == run("devices", "--from", "t4")[0] == 2
    code, found = run.json("devices", "add", "tx4", "--from", "t4")
    assert (code, found["name"], Path(found["path"]).is_file()) == (0, "tx4", True)
    log.write_text(ansor_line(64, 8, "tx4"))
    _, _, err = run("corpus", "import", log, "--device", "tx4", "--out", tmp_path / "c")
    assert "no device" not in err
    assert corpus_device(Corpus.open(tmp_path / "c")).spec.sources["cuda_cores"] == "assumed: as t4"
    assert run.json("devices", "tx4")[1]["family"] == "tx4"


def test_mixed_devices_are_an_error_with_a_remedy(run: Shell, log: Path, tmp_path: Path):
    log.write_text(log.read_text() + "\n" + ansor_line(64, 8, "v100"))
    code, found = run.json("corpus", "import", log, "--device", "t4", "--out", tmp_path / "c")
    assert code == 1
    assert found["error"] == "CorpusError"
    assert "--allow-mixed" in found["remedy"]
    imported(run, log, tmp_path / "c", "--allow-mixed")


def test_a_split_file_decides(run: Shell, log: Path, tmp_path: Path):
    keys = {
        f"m{n}": {"workload_key": json.dumps(["matmul_of_named_rows_and_columns", n, 64, 64])} for n in (64, 128, 256)
    }
    (tmp_path / "tasks.json").write_text(json.dumps({"t4": keys}))
    (tmp_path / "splits.json").write_text(json.dumps({"mine": {"train": ["m64", "m128"], "test": ["m256"]}}))
    options = ("--tasks", tmp_path / "tasks.json", "--split", f"{tmp_path / 'splits.json'}:mine")
    out = imported(run, log, tmp_path / "c", *options)
    assert run.json("corpus", "check", out)[1]["corpora"][0]["split"] == {"train": 2, "val": 0, "test": 1}


def test_what_one_corpus_tests_another_may_not_train_on(run: Shell, log: Path, tmp_path: Path):
    folders = [imported(run, log, tmp_path / name) for name in "ab"]
    for folder, tested in zip(folders, (0, 1), strict=True):
        meta = json.loads((folder / "corpus.json").read_text())
        ids = sorted(Corpus.open(folder).tasks)
        meta["split"] = {"train": [t for t in ids if t != ids[tested]], "test": [ids[tested]]}
        (folder / "corpus.json").write_text(json.dumps(meta))
    code, found = run.json("corpus", "check", *folders)
    assert code == 1
    assert "no leak across corpora" in found["message"]
    assert {Path(leak["trained_by"]).name for leak in found["leaks"]} == {"a", "b"}
    text = run("corpus", "check", *folders)[1]
    assert re.search(r"FAIL  \S{26,} tested by ", text)
    allowed = [word for folder in folders for word in ("--protocol-allows", folder)]
    code, found = run.json("corpus", "check", *folders, *allowed)
    assert (code, found["leaks"]) == (0, [])


def test_two_corpora_of_a_device_become_one(run: Shell, log: Path, tmp_path: Path):
    one = imported(run, log, tmp_path / "one")
    log.write_text("\n".join(ansor_line(n, v) for n in (256, 512) for v in (2, 8)))
    two = imported(run, log, tmp_path / "two")
    code, found = run.json("corpus", "import", one, two, "--out", tmp_path / "both")
    assert (code, found["tasks"], found["programs"], found["given"], found["changed"]) == (0, 4, 12, 13, True)
    code, found = run.json("corpus", "import", two, "--out", tmp_path / "both")
    assert (code, found["programs"], found["changed"]) == (0, 12, False)


def test_several_logs_or_no_device_are_wrong_usage(run: Shell, log: Path, tmp_path: Path):
    assert run("corpus", "import", log, log, "--device", "t4", "--out", tmp_path / "c")[0] == 2
    assert run("corpus", "import", log, "--out", tmp_path / "c")[0] == 2
