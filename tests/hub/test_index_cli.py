"""`tchub index`: a publisher signs and hands on trust, a user refreshes, all on the command line."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
from tchub.hub.cli import main
from toy_checkpoints import publish, write_index


@pytest.fixture
def run(capsys):
    """Run tchub; exit code, stdout, stderr."""

    def call(*args: str | Path) -> tuple[int, str, str]:
        return main([str(arg) for arg in args]), *capsys.readouterr()

    return call


@pytest.fixture
def done(run):
    """Run tchub with --json; what it printed, after exit code 0."""

    def call(*args: str | Path):
        code, out, err = run(*args, "--json")
        assert code == 0, err
        return json.loads(out)

    return call


@pytest.fixture
def mirror(tmp_path, monkeypatch) -> Path:
    """A publisher's folder with an index that is not signed yet, and a user who trusts `release.pem`."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    write_index(folder / "index.json", publish(tmp_path / "zoo", "tlp-epyc"))
    for name in ("TCHUB_INDEX", "TCHUB_KEY_PASSPHRASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TCHUB_INDEX_SOURCE", folder.as_uri())
    monkeypatch.setenv("TCHUB_TRUSTED_KEYS", str(tmp_path / "release.pem.pub"))
    monkeypatch.setenv("COLUMNS", "200")
    return folder


@pytest.fixture
def key(mirror, tmp_path, done) -> Path:
    """The publisher's key."""
    done("index", "keygen", "--out", tmp_path / "release.pem")
    return tmp_path / "release.pem"


def test_an_index_goes_from_a_publisher_to_a_user(mirror, key, run, done):
    signed = done("index", "sign", mirror / "index.json", "--key", key)
    assert done("index", "verify", mirror / "index.json")["key"] == signed["key"]
    found = done("index", "refresh")
    assert found["added"] == ["tlp-epyc@1.0.0"]
    assert found["key"] == signed["key"]
    assert "tlp-epyc" in run("list")[1]


def test_refresh_and_show_say_what_happened(mirror, key, run):
    run("index", "sign", mirror / "index.json", "--key", key)
    code, out, err = run("index", "refresh")
    assert code == 0
    assert out.startswith(f"serial 0 (was none) from {mirror.as_uri()}\nsigned by key ")
    assert "new: tlp-epyc@1.0.0" in out
    assert err == "next: tchub list\n"
    assert "(unchanged)" in run("index", "refresh")[1]
    shown = run("index", "show")[1].splitlines()
    assert [line.split()[0] for line in shown[:3]] == ["shipped", "refreshed", "key"]


def test_show_as_json_tells_indexes_keys_old_names_and_deprecated_ones(mirror, key, done):
    found = done("index", "show")
    assert found["refreshed"] is None
    assert found["shipped"]["checkpoints"] > 20
    done("index", "sign", mirror / "index.json", "--key", key)
    done("index", "refresh")
    found = done("index", "show")
    assert found["refreshed"]["source"] == mirror.as_uri()
    assert found["refreshed"]["key"] == found["keys"]["trusted"][0]["id"]
    assert (found["aliases"], found["deprecated"]) == ({}, {})


def test_show_warns_of_an_index_after_its_last_day(mirror, key, run, done, monkeypatch):
    path = mirror / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"expires": "2999-12-31"}))
    done("index", "sign", path, "--key", key)
    done("index", "refresh")
    assert done("index", "show")["refreshed"]["expires"] == "2999-12-31"
    assert "held back" not in run("index", "show")[2]
    monkeypatch.setattr("tchub.hub.registry.trust.today", lambda: date(3000, 1, 1))
    assert "was to be replaced by 2999-12-31" in run("index", "show")[2]


def test_show_of_an_own_index_file_says_so(mirror, key, done, monkeypatch):
    monkeypatch.setenv("TCHUB_INDEX", str(mirror / "index.json"))
    found = done("index", "show")
    assert found["override"] == {"serial": 0, "checkpoints": 1, "path": str(mirror / "index.json")}
    assert found["shipped"] is None
    monkeypatch.setenv("HOME", str(mirror.parent))
    monkeypatch.setenv("TCHUB_INDEX", f"~/{mirror.name}/index.json")
    assert done("index", "show") == found
    assert [row["name"] for row in done("list")] == ["tlp-epyc"]


def test_a_refreshed_index_that_is_damaged_stops_show_but_not_list(mirror, key, run, tmp_path):
    run("index", "sign", mirror / "index.json", "--key", key)
    run("index", "refresh")
    (tmp_path / "cache/index/refreshed.json").write_text("{}")
    code, _, err = run("index", "show")
    assert code == 1
    assert "remedy: run: tchub index refresh" in err
    code, out, err = run("list")
    assert code == 0
    assert "tcl-epyc" in out
    assert err.startswith("warning: the refreshed index is left out")
    code, _, err = run("index", "refresh")
    assert code == 0
    assert "could not be used" in err


@pytest.mark.parametrize(("verb", "options"), [("verify", []), ("trust", ["--revoke", "0" * 16, "--reason", "lost"])])
def test_a_file_that_is_not_there_is_said_in_words(key, run, tmp_path, verb, options):
    code, _, err = run("index", verb, tmp_path / "none.json", *options)
    assert code == 1
    assert "none.json cannot be used: there is no such file" in err
    assert "remedy: check the path" in err


def test_the_next_set_of_keys_may_lie_in_a_new_folder(key, done, tmp_path):
    new = tmp_path / "new.pem"
    done("index", "keygen", "--out", new)
    made = done("index", "trust", tmp_path / "release.pem.pub", "--add", f"{new}.pub", "--out", tmp_path / "a" / "b")
    assert json.loads((tmp_path / "a/b/keys-2.json").read_text())["keys"] == made["keys"]


def test_keys_are_rotated_step_by_step(mirror, key, run, done, tmp_path):
    done("index", "sign", mirror / "index.json", "--key", key)
    done("index", "refresh")
    new = tmp_path / "new.pem"
    done("index", "keygen", "--out", new, "--days", "30")
    old = json.loads((tmp_path / "release.pem.pub").read_text())["keys"][0]["id"]
    why = ("--revoke", old, "--reason", "a stolen laptop")
    following = done("index", "trust", tmp_path / "release.pem.pub", "--add", f"{new}.pub", *why, "--out", mirror)
    assert following["path"] == str(mirror / "keys-2.json")
    assert [bool(one["revoked"]) for one in following["keys"]] == [True, False]
    done("index", "sign", mirror / "keys-2.json", "--key", key)
    code, _, err = run("index", "refresh")
    assert (code, "which was taken back" in err) == (1, True)
    done("index", "sign", mirror / "index.json", "--key", new)
    assert done("index", "refresh")["keys"] == 2


def test_a_set_of_keys_that_is_out_is_never_replaced(mirror, key, run, done, tmp_path):
    for name in ("second", "third"):
        done("index", "keygen", "--out", tmp_path / f"{name}.pem")
    first, out = tmp_path / "release.pem.pub", ("--out", mirror)
    done("index", "trust", first, "--add", tmp_path / "second.pem.pub", *out)
    for path in (mirror / "keys-2.json", mirror / "index.json"):
        done("index", "sign", path, "--key", key)
    code, _, err = run("index", "trust", first, "--add", tmp_path / "third.pem.pub", *out)
    assert (code, "keys-2.json is there already" in err) == (1, True)
    assert "make the next set from it" in err
    assert done("index", "refresh")["keys"] == 2
    done("index", "trust", mirror / "keys-2.json", "--add", tmp_path / "third.pem.pub", *out)
    done("index", "sign", mirror / "keys-3.json", "--key", key)
    assert done("index", "refresh")["keys"] == 3


def test_the_public_half_of_a_key_that_was_moved_away_is_not_given_to_another(key, run, tmp_path):
    public = tmp_path / "release.pem.pub"
    before = public.read_bytes()
    key.rename(tmp_path / "safe.pem")
    code, _, err = run("index", "keygen", "--out", key)
    assert (code, "release.pem.pub is there already" in err) == (1, True)
    assert public.read_bytes() == before
    assert not key.exists(), "no private key without its public half"


def test_a_locked_key_is_unlocked_by_the_environment_or_by_hand(mirror, run, done, tmp_path, monkeypatch):
    path = tmp_path / "locked.pem"
    monkeypatch.setattr("click.prompt", lambda *_, **__: "open sesame")
    done("index", "keygen", "--out", path, "--passphrase")
    assert "ENCRYPTED" in path.read_text()
    done("index", "sign", mirror / "index.json", "--key", path)
    monkeypatch.setenv("TCHUB_KEY_PASSPHRASE", "open barley")
    code, _, err = run("index", "sign", mirror / "index.json", "--key", path)
    assert code == 1
    assert "the passphrase is wrong" in err


def test_a_tampered_index_is_refused_with_the_class_of_the_error(mirror, key, run):
    run("index", "sign", mirror / "index.json", "--key", key)
    path = mirror / "index.json"
    path.write_bytes(path.read_bytes().replace(b"tlp", b"tcl"))
    for command in (("verify", path), ("refresh",)):
        code, out, err = run("index", *command, "--json")
        assert code == 1
        assert json.loads(out)["error"] == "WrongSignatureError"
        assert "remedy:" in err


@pytest.mark.parametrize("options", [[], ["--revoke", "0" * 16], ["--add", "x.pub", "--reason", "none"]])
def test_trust_wants_a_change_and_a_reason(tmp_path, run, options):
    assert run("index", "trust", tmp_path / "keys.json", *options)[0] == 2


@pytest.mark.parametrize("command", ["refresh", "show", "verify", "keygen", "sign", "trust"])
def test_help_has_examples(run, command):
    code, out, _ = run("index", command, "--help")
    assert code == 0
    assert f"tchub index {command}" in out.split("Examples:")[1]
