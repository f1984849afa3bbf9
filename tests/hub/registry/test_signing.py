"""`tchub index`: a publisher signs and replaces keys, a user refreshes, all on the command line."""

import json
import subprocess
from pathlib import Path

import pytest
from tchub.hub.registry.errors import IndexFileError
from tchub.hub.registry.signing import load_public, load_signer
from toy_checkpoints import publish, write_index


@pytest.fixture
def done(run):
    """Run tchub with --json; what it printed, after exit code 0."""

    def call(*args: str | Path):
        code, result = run.json(*args)
        assert code == 0, result
        return result

    return call


def make_key(path: Path, *options: str) -> Path:
    """A private key of openssl, and its public half beside it."""
    command = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(path), *options]
    subprocess.run(command, check=True, capture_output=True)
    path.chmod(0o600)
    public = ["openssl", "pkey", "-in", str(path), "-pubout", "-out", f"{path}.pub"]
    subprocess.run([*public, *(["-passin", options[-1]] if options else [])], check=True, capture_output=True)
    return path


@pytest.fixture
def key(tmp_path) -> Path:
    return make_key(tmp_path / "release.pem")


@pytest.fixture
def mirror(tmp_path, key, monkeypatch) -> Path:
    """A publisher's folder with an index that is not signed yet, and a user who trusts its first root."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    write_index(folder / "index.json", publish(tmp_path / "zoo", "tlp-epyc"))
    for name in ("TCHUB_INDEX", "TCHUB_KEY_PASSPHRASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TCHUB_INDEX_SOURCE", folder.as_uri())
    monkeypatch.setenv("TCHUB_TRUSTED_KEYS", str(folder / "metadata" / "1.root.json"))
    monkeypatch.setenv("COLUMNS", "200")
    return folder


def raise_serial(mirror: Path, **changes: object) -> None:
    """Change the index, as a publication does."""
    path = mirror / "index.json"
    raw = json.loads(path.read_text())
    path.write_text(json.dumps(raw | {"serial": raw["serial"] + 1} | changes))


def test_an_index_goes_from_a_publisher_to_a_user(mirror, key, run, done):
    signed = done("index", "sign", mirror, "--key", key)
    assert (signed["version"], signed["root_version"], len(signed["keys"])) == (1, 1, 1)
    code, out, err = run("index", "refresh")
    assert code == 0
    assert out.startswith(f"serial 0 (was none) from {mirror.as_uri()}\nsigned by the keys of root 1")
    assert "new: tlp-epyc@1.0.0" in out
    assert err == "next: tchub list\n"
    assert "(unchanged)" in run("index", "refresh")[1]
    assert "tlp-epyc" in run("list")[1]


def test_show_tells_the_state_and_warns_of_an_index_after_its_last_day(mirror, key, run, tmp_path, done):
    done("index", "sign", mirror, "--key", key)
    expires = done("index", "refresh")["expires"]
    _, out, err = run("index", "show")
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["shipped", "refreshed", "keys"]
    assert "held back" not in err
    (path,) = (tmp_path / "cache/index").glob("*/refreshed.json")
    path.write_text(path.read_text().replace(expires, "2020-01-01T00:00:00+00:00"))
    assert "was to be replaced by 2020-01-01" in run("index", "show")[2]


def test_a_refreshed_index_that_is_damaged_stops_show_but_not_list(mirror, key, run, tmp_path):
    run("index", "sign", mirror, "--key", key)
    run("index", "refresh")
    (path,) = (tmp_path / "cache/index").glob("*/refreshed.json")
    path.write_text("{}")
    code, _, err = run("index", "show")
    assert (code, "remedy: run: tchub index refresh" in err) == (1, True)
    code, out, err = run("list")
    assert (code, "tcl-epyc" in out) == (0, True)
    assert err.startswith("warning: the refreshed index is left out")
    code, _, err = run("index", "refresh")
    assert (code, "could not be used" in err) == (0, True)


def test_keys_are_replaced_step_by_step(mirror, key, run, done, tmp_path):
    new = make_key(tmp_path / "new.pem")
    (old,) = done("index", "sign", mirror, "--key", key)["keys"]
    done("index", "refresh")
    both = done("index", "sign", mirror, "--key", key, "--trust", f"{new}.pub")
    assert (both["root_version"], len(both["keys"])) == (2, 2)
    raise_serial(mirror)
    alone = done("index", "sign", mirror, "--key", new, "--revoke", old)
    assert (alone["root_version"], old in alone["keys"]) == (3, False)
    code, _, err = run("index", "sign", mirror, "--key", key)
    assert (code, "none of the given keys" in err) == (1, True)
    update = done("index", "refresh")
    assert (update["keys"], update["serial"]) == (3, 1)
    for version in (2, 3):
        (mirror / "metadata" / f"{version}.root.json").unlink()
    assert done("index", "refresh")["keys"] == 3, "the roots are in the cache"


def test_a_single_key_is_replaced_by_signing_with_both(mirror, key, run, done, tmp_path):
    new = make_key(tmp_path / "new.pem")
    (old,) = done("index", "sign", mirror, "--key", key)["keys"]
    change = ("--trust", f"{new}.pub", "--revoke", old)
    code, _, err = run("index", "sign", mirror, "--key", key, *change)
    assert (code, "a key that stays" in err) == (1, True)
    assert done("index", "sign", mirror, "--key", key, "--key", new, *change)["root_version"] == 2
    assert done("index", "refresh")["keys"] == 2


def test_an_index_that_changed_needs_a_higher_serial(mirror, key, run, done):
    done("index", "sign", mirror, "--key", key)
    assert done("index", "sign", mirror, "--key", key)["version"] == 2, "the same index may be signed anew"
    raise_serial(mirror, serial=0)
    code, _, err = run("index", "sign", mirror, "--key", key)
    assert (code, "set its serial to 1 or more" in err) == (1, True)


@pytest.mark.parametrize("text", ["{}", '{"format": 1, "checkpoints": [{}]}'])
def test_an_index_that_clients_would_not_take_is_not_signed(mirror, key, run, text):
    (mirror / "index.json").write_text(text)
    assert run("index", "sign", mirror, "--key", key)[0] == 1
    assert not (mirror / "metadata").exists()


def test_a_locked_key_is_unlocked_by_the_environment_or_by_hand(mirror, run, done, tmp_path, monkeypatch):
    path = make_key(tmp_path / "locked.pem", "-aes256", "-pass", "pass:open sesame")
    monkeypatch.setattr("click.prompt", lambda *_, **__: "open sesame")
    done("index", "sign", mirror, "--key", path)
    monkeypatch.setenv("TCHUB_KEY_PASSPHRASE", "open barley")
    code, _, err = run("index", "sign", mirror, "--key", path)
    assert (code, "the passphrase is wrong" in err) == (1, True)


def test_a_private_key_is_for_its_owners_eyes_alone(key, tmp_path):
    assert load_signer(key, str).public_key == load_public(Path(f"{key}.pub"))
    key.chmod(0o640)
    with pytest.raises(IndexFileError, match="others may read") as caught:
        load_signer(key, str)
    assert "chmod 600" in caught.value.remedy
    for load in (lambda path: load_signer(path, str), load_public):
        with pytest.raises(IndexFileError, match="No such file"):
            load(tmp_path / "none.pem")
        (tmp_path / "text").write_text("text")
        (tmp_path / "text").chmod(0o600)
        with pytest.raises(IndexFileError, match="key in it"):
            load(tmp_path / "text")


def test_a_key_that_is_not_trusted_cannot_be_taken_back(mirror, key, run, done):
    done("index", "sign", mirror, "--key", key)
    for name in ("0" * 16, ""):
        code, _, err = run("index", "sign", mirror, "--key", key, "--revoke", name)
        assert (code, "trusts no key" in err) == (1, True)
