"""Signatures: what vouches for an index, whose keys count and until when, and how trust is handed on."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import date

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from index_publisher import TODAY, YEAR, Publisher, altered
from tchub.hub.registry.errors import (
    ExpiredKeyError,
    IndexFileError,
    KeyFileError,
    NoTrustedKeyError,
    RevokedKeyError,
    RollbackError,
    UnknownKeyError,
    UntrustedError,
    WrongSignatureError,
)
from tchub.hub.registry.key_files import is_locked, load_key, make_key
from tchub.hub.registry.keys import Revocation
from tchub.hub.registry.rotation import Link, follow, link_name, successor
from tchub.hub.registry.signature import Signature, key_id, sign
from tchub.hub.registry.signed_file import check_file, read_keys, sign_file, write_keys
from tchub.hub.registry.trust import KeySet, root_keys
from toy_checkpoints import publish

KEY = {
    "id": "c62e4615bd39e222",
    "algorithm": "ed25519",
    "public": "eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHg=",
    "not_before": "2026-01-01",
    "not_after": "2027-12-31",
    "revoked": None,
}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["date", "reason"]), inner),
    max_leaves=4,
)
DATA = b'{"format": 1, "serial": 1, "checkpoints": []}\n'


@pytest.fixture
def publisher(tmp_path) -> Publisher:
    return Publisher.begin(tmp_path / "mirror")


def signed(publisher: Publisher, by: str = "first") -> bytes:
    """The signature's file for DATA."""
    return sign(DATA, publisher.private[by]).to_json().encode()


def test_a_trusted_key_vouches_for_the_exact_bytes(publisher):
    key = publisher.keys.require(DATA, signed(publisher), "index.json", TODAY)
    assert key.public == publisher.public("first")
    with pytest.raises(WrongSignatureError, match="is not what key"):
        publisher.keys.require(DATA + b"\n", signed(publisher), "index.json", TODAY)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, len(DATA) - 1), flip=st.integers(1, 255))
def test_any_tampered_byte_of_the_file_is_refused(publisher, at, flip):
    tampered = bytearray(DATA)
    tampered[at] ^= flip
    with pytest.raises(WrongSignatureError):
        publisher.keys.require(bytes(tampered), signed(publisher), "index.json", TODAY)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_tampered_byte_of_the_signature_is_refused_or_changes_nothing(publisher, data):
    good = signed(publisher)
    tampered = bytearray(good)
    tampered[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        key = publisher.keys.require(DATA, bytes(tampered), "index.json", TODAY)
    except UntrustedError:
        return
    # White space, or a further field: what is left is the same signature of the same key.
    assert Signature.parse(bytes(tampered), "") == Signature.parse(good, "")
    assert key.id == publisher.keys.keys[0].id


@given(st.binary(max_size=200) | st.just(b"x" * 10_000))
def test_any_bytes_in_place_of_a_signature_are_a_typed_error(data):
    with pytest.raises(WrongSignatureError):
        Signature.parse(data, "index.json.sig")


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"format": None}, {"algorithm": "none"}, {"signature": "AAAA"}, {"signature": 7}, {"key": "../x"}],
)
def test_a_signature_of_another_form_is_refused(publisher, change):
    text = json.dumps(json.loads(signed(publisher)) | change).encode()
    with pytest.raises(WrongSignatureError):
        publisher.keys.require(DATA, text, "index.json", TODAY)


def test_a_key_is_called_by_its_bytes(publisher):
    raw = publisher.keys.keys[0].as_dict()
    text = json.dumps({"format": 1, "serial": 1, "keys": [raw | {"id": key_id(b"x" * 32)}]}).encode()
    with pytest.raises(IndexFileError, match="no ed25519 key of that id"):
        KeySet.parse(text, "keys.json")


def test_an_unknown_key_counts_for_nothing(publisher, tmp_path):
    stranger = Publisher.begin(tmp_path / "elsewhere")
    with pytest.raises(UnknownKeyError, match="not trusted here") as caught:
        publisher.keys.require(DATA, signed(stranger), "index.json", TODAY)
    assert caught.value.fields["key"] == stranger.keys.keys[0].id


def test_a_stranger_who_takes_a_trusted_keys_name_is_found_out(publisher, tmp_path):
    stranger = Publisher.begin(tmp_path / "elsewhere")
    forged = Signature(publisher.keys.keys[0].id, Signature.parse(signed(stranger), "").data)
    with pytest.raises(WrongSignatureError):
        publisher.keys.require(DATA, forged.to_json().encode(), "index.json", TODAY)


@pytest.mark.parametrize("days", [-400, 400])
def test_a_key_counts_on_its_days_alone(publisher, days):
    day = date.fromordinal(TODAY.toordinal() + days)
    with pytest.raises(ExpiredKeyError, match=f"not {day}"):
        publisher.keys.require(DATA, signed(publisher), "index.json", day)
    assert publisher.keys.require(DATA, signed(publisher), "index.json", None), "what was taken before stays good"


def test_a_revoked_key_counts_for_nothing_on_any_day(publisher):
    keys = altered(publisher.keys, revoked=Revocation(TODAY, "a stolen laptop"))
    for day in (TODAY, None):
        with pytest.raises(RevokedKeyError, match="a stolen laptop"):
            keys.require(DATA, signed(publisher), "index.json", day)


def test_without_a_trusted_key_the_remedy_says_how_to_get_one(publisher):
    with pytest.raises(NoTrustedKeyError) as caught:
        KeySet().require(DATA, signed(publisher), "index.json", TODAY)
    assert "TCHUB_TRUSTED_KEYS" in caught.value.remedy


def test_trusted_to_begin_with_are_the_wheels_keys_or_the_users_own(publisher, tmp_path, monkeypatch):
    monkeypatch.delenv("TCHUB_TRUSTED_KEYS", raising=False)
    assert root_keys().serial == 1
    write_keys(tmp_path / "keys.json", publisher.keys)
    monkeypatch.setenv("TCHUB_TRUSTED_KEYS", str(tmp_path / "keys.json"))
    assert root_keys() == publisher.keys
    (tmp_path / "keys.json").write_text("{")
    with pytest.raises(IndexFileError):
        root_keys()


@given(st.binary(max_size=80) | st.recursive(st.none() | st.text(), st.lists).map(lambda v: json.dumps(v).encode()))
def test_any_bytes_in_place_of_keys_are_a_typed_error(data):
    with pytest.raises(IndexFileError):
        KeySet.parse(data, "keys.json")


@given(st.sampled_from(["id", "algorithm", "public", "not_before", "not_after", "revoked"]), json_values)
def test_any_value_in_any_field_of_a_key_gives_keys_or_a_typed_error(key, value):
    with suppress(IndexFileError):
        assert KeySet.from_dict({"format": 1, "keys": [KEY | {key: value}]}, "keys.json").keys


def links(publisher: Publisher):
    """What a client finds at the publisher's place."""

    def find(serial: int) -> Link | None:
        path = publisher.root / link_name(serial)
        if not path.exists():
            return None
        return Link(path.read_bytes(), path.with_name(path.name + ".sig").read_bytes())

    return find


def test_trust_is_handed_on_twice_and_the_first_key_is_gone(publisher):
    publisher.hand_on("second", by="first")
    publisher.hand_on("third", by="second", revoke=("first",))
    keys, followed = follow(publisher.keys, links(publisher), "mirror", TODAY)
    assert (keys, sorted(followed)) == (publisher.newest, [2, 3])
    assert keys.require(DATA, signed(publisher, "third"), "index.json", TODAY)
    with pytest.raises(RevokedKeyError):
        keys.require(DATA, signed(publisher, "first"), "index.json", TODAY)


def test_a_client_of_the_second_set_goes_on_from_there(publisher):
    second = publisher.hand_on("second", by="first")
    publisher.hand_on("third", by="second")
    (publisher.root / "keys-2.json").write_text("nobody needs it any more")
    assert follow(second, links(publisher), "mirror", TODAY)[0] == publisher.newest


def test_a_forged_set_of_keys_is_refused(publisher, tmp_path):
    stranger = Publisher.begin(tmp_path / "elsewhere")
    publisher.hand_on(by="first")
    forged = KeySet(2, (*publisher.keys.keys, *stranger.keys.keys))
    publisher.private["stranger"] = stranger.private["first"]
    publisher.put("keys-2.json", forged.to_json().encode(), by="stranger")
    with pytest.raises(UnknownKeyError, match=r"mirror/keys-2\.json"):
        follow(publisher.keys, links(publisher), "mirror", TODAY)


def test_a_key_that_was_taken_back_hands_nothing_on(publisher):
    publisher.hand_on("second", by="first", revoke=("first",))
    publisher.hand_on("evil", by="first")
    with pytest.raises(RevokedKeyError, match=r"keys-3\.json"):
        follow(publisher.keys, links(publisher), "mirror", TODAY)


def test_an_expired_key_hands_nothing_on_but_what_was_followed_before_stays(publisher):
    publisher.hand_on("second", by="first")
    with pytest.raises(ExpiredKeyError):
        follow(publisher.keys, links(publisher), "mirror", TODAY + 2 * YEAR)
    assert follow(publisher.keys, links(publisher), "cache", None)[0] == publisher.newest


def test_an_older_set_of_keys_does_not_pass_for_a_newer_one(publisher):
    old = publisher.hand_on("second", by="first")
    publisher.hand_on("third", by="first")
    publisher.put("keys-3.json", old.to_json().encode(), by="first")
    with pytest.raises(RollbackError, match="serial 2"):
        follow(publisher.keys, links(publisher), "mirror", TODAY)


def test_the_next_set_takes_back_only_what_is_there_and_adds_only_what_is_not(publisher):
    with pytest.raises(IndexFileError, match="holds no key 0123456789abcdef"):
        successor(publisher.keys, KeySet(), ["0123456789abcdef"], "lost", TODAY)
    with pytest.raises(IndexFileError, match="already"):
        successor(publisher.keys, publisher.keys, [], "", TODAY)


def test_a_private_key_is_for_its_owners_eyes_and_never_overwritten(tmp_path):
    path = tmp_path / "release.pem"
    key = make_key(path, None, TODAY, TODAY + YEAR)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().startswith("-----BEGIN PRIVATE KEY-----")
    assert load_key(path).public_key().public_bytes_raw() == key.public
    with pytest.raises(KeyFileError, match="cannot be written"):
        make_key(path, None, TODAY, TODAY + YEAR)
    path.chmod(0o644)
    with pytest.raises(KeyFileError) as caught:
        load_key(path)
    assert caught.value.remedy == f"chmod 600 {path}"


def test_a_private_key_can_be_locked(tmp_path):
    path = tmp_path / "release.pem"
    key = make_key(path, "open sesame", TODAY, TODAY + YEAR)
    assert is_locked(path)
    assert load_key(path, "open sesame").public_key().public_bytes_raw() == key.public
    for wrong in (None, "open barley"):
        with pytest.raises(KeyFileError, match="passphrase"):
            load_key(path, wrong)


@pytest.mark.parametrize("content", [b"", b"not a key", b"x" * 20_000])
def test_what_is_no_private_key_is_a_typed_error(tmp_path, content):
    path = tmp_path / "release.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyFileError):
        load_key(path)
    with pytest.raises(KeyFileError):
        load_key(tmp_path / "missing.pem")


def test_a_key_of_another_kind_is_refused(tmp_path):
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    text = generate_private_key(SECP256R1()).private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
    )
    path = tmp_path / "release.pem"
    path.write_bytes(text)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="Ed25519"):
        load_key(path)


def test_only_what_clients_can_read_is_signed(publisher, tmp_path):
    key = publisher.private["first"]
    path = tmp_path / "index.json"
    path.write_text('{"format": 1, "checkpoints": [{}]}')
    with pytest.raises(IndexFileError):
        sign_file(path, key)
    assert not (tmp_path / "index.json.sig").exists()
    path.write_text(publisher.publish(publish(tmp_path, "tcl-epyc"), serial=7).to_json())
    sign_file(path, key)
    found, content = check_file(path, publisher.keys, TODAY)
    assert (found.id, content.serial) == (publisher.keys.keys[0].id, 7)


def test_a_set_of_keys_is_signed_and_checked_like_an_index(publisher, tmp_path):
    path = tmp_path / "keys-2.json"
    write_keys(path, KeySet(2, publisher.keys.keys))
    with pytest.raises(WrongSignatureError, match=r"keys-2\.json\.sig cannot be read"):
        check_file(path, publisher.keys, TODAY)
    sign_file(path, publisher.private["first"])
    assert check_file(path, publisher.keys, TODAY)[1] == read_keys(path)
