"""Which mirrors are asked at all, where they may lead, and who gets to see the token."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mirror_server import MirrorServer, make_certificate, running, status
from tchub.hub.registry import parse_source
from tchub.hub.registry.errors import InsecureSourceError, NetworkError, OfflineError, TokenError, UnknownSourceError
from tchub.hub.registry.mirror import Mirror
from toy_checkpoints import make_registry

# Redirects and secrets


def test_a_redirect_is_followed_and_the_token_stays_with_the_mirrors_host(server, source, monkeypatch):
    monkeypatch.setenv("TCHUB_MIRROR_TOKEN", "secret")
    server.token = "secret"
    with running() as other:
        other.files["/elsewhere"] = b"data"
        server.answers = [status(302, Location=f"{other.url.replace('127.0.0.1', 'localhost')}/elsewhere")]
        assert source.read("index.json", 10).data == b"data"
        assert server.seen[0][1]["authorization"] == "Bearer secret"
        assert "authorization" not in other.seen[0][1]


def test_a_mirror_that_a_lock_file_or_an_index_lists_is_sent_no_token(server, entry, tmp_path, monkeypatch):
    monkeypatch.setenv("TCHUB_MIRROR_TOKEN", "secret")
    listed = replace(entry, sources=(server.url,))
    registry = make_registry(tmp_path, listed)
    server.token = "secret"
    with pytest.raises(TokenError) as caught:
        registry.pull("tcl-epyc")
    assert "TCHUB_SOURCES" in caught.value.remedy
    assert all("authorization" not in headers for _, headers in server.seen)
    monkeypatch.setenv("TCHUB_SOURCES", server.url)
    assert registry.pull("tcl-epyc").source == server.url


def test_a_certificate_is_checked(tmp_path, monkeypatch):
    certificate = make_certificate(tmp_path / "server.pem")
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    with running(certificate) as server:
        server.files["/index.json"] = b"data"
        mirror = Mirror(server.url, patience=5)
        with pytest.raises(NetworkError, match="could not be read: SSLError"):
            mirror.read("index.json", 10)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        assert mirror.read("index.json", 10).data == b"data"


def test_a_redirect_within_the_mirror_keeps_the_token(server, source, monkeypatch):
    monkeypatch.setenv("TCHUB_MIRROR_TOKEN", "secret")
    server.files["/moved.json"] = b"data"
    server.answers = [status(301, Location="/moved.json")]
    assert source.read("index.json", 10).data == b"data"
    assert server.seen[1][1]["authorization"] == "Bearer secret"


@pytest.mark.parametrize("where", ["http://example.org/x", "ftp://127.0.0.1/x", "file:///etc/passwd"])
def test_a_redirect_away_from_tls_is_not_followed(server, source, where):
    server.answers = [status(302, Location=where)]
    with pytest.raises(InsecureSourceError, match="not encrypted"):
        source.read("index.json", 10)


def test_a_redirect_from_tls_to_a_plain_server_of_this_machine_is_not_followed(tmp_path, monkeypatch):
    certificate = make_certificate(tmp_path / "server.pem")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with running(certificate) as server, running() as local:
        server.answers = [status(302, Location=f"{local.url}/admin")]
        with pytest.raises(InsecureSourceError):
            Mirror(server.url, patience=5).read("index.json", 10)
        assert local.seen == []


@pytest.mark.parametrize("where", ["http://[", "//[x", "http://127.0.0.1:99999/"])
def test_a_redirect_to_no_address_is_a_typed_error(server, source, where):
    server.answers = [status(302, Location=where)]
    with pytest.raises(NetworkError, match="InvalidURL"):
        source.read("index.json", 10)


def test_the_proxy_of_the_environment_leads_to_other_machines_and_sees_no_token(server, monkeypatch):
    monkeypatch.setenv("https_proxy", server.url)
    monkeypatch.setenv("TCHUB_MIRROR_TOKEN", "secret")
    with pytest.raises(NetworkError, match="ProxyError"):
        Mirror("https://mirror.example.org/zoo", patience=2).read("index.json", 10)
    assert set(server.paths) == {"mirror.example.org:443"}
    assert "secret" not in str(server.seen)


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
def test_a_server_of_this_machine_is_asked_by_no_proxy_also_after_a_redirect(server, source, monkeypatch, variable):
    monkeypatch.setenv("TCHUB_MIRROR_TOKEN", "secret")
    with running() as other, running() as proxy:
        monkeypatch.setenv(variable, proxy.url.replace("//", "//user:password@"))
        server.answers = [status(302, Location=f"{other.url}/elsewhere")]
        other.files["/elsewhere"] = b"data"
        assert source.read("index.json", 10).data == b"data"
        assert proxy.seen == []
        assert "proxy-authorization" not in other.seen[0][1], "the proxy's password is for the proxy"


def test_the_password_of_netrc_holds_where_no_token_is_set(server, source, tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ada password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    server.files["/index.json"] = b"data"
    source.read("index.json", 10)
    assert server.seen[0][1]["authorization"].startswith("Basic ")


def test_redirects_in_a_circle_end(server, source):
    server.answers = [status(302, Location="/index.json")] * 20
    with pytest.raises(NetworkError, match="TooManyRedirects"):
        source.read("index.json", 10)
    assert len(server.seen) == 5


@pytest.mark.parametrize("token", [None, "wrong", "with\nnewline", "ünicode"])
@pytest.mark.parametrize("code", [401, 403, 429, 500])
def test_no_error_shows_the_token(server, entry, source, dest, monkeypatch, token, code):
    if token:
        monkeypatch.setenv("TCHUB_MIRROR_TOKEN", token)
    server.answers = [status(code)] * 9
    with pytest.raises((TokenError, NetworkError)) as caught:
        source.fetch(entry, dest)
    assert caught.value.remedy
    assert token is None or token not in repr(caught.value.as_dict())


@pytest.mark.parametrize("code", [401, 403])
def test_a_refusal_names_the_variable_of_the_token(server, entry, source, dest, code):
    server.answers = [status(code)]
    with pytest.raises(TokenError) as caught:
        source.fetch(entry, dest)
    assert "TCHUB_MIRROR_TOKEN" in caught.value.remedy


# Addresses and offline


@pytest.mark.parametrize(
    "uri", ["http://example.org/zoo", "http://10.0.0.1/zoo", "http://localhost.example.org", "ftp://example.org"]
)
def test_an_address_without_tls_is_refused(uri):
    with pytest.raises(InsecureSourceError) as caught:
        Mirror(uri)
    assert "https://" in caught.value.remedy


@pytest.mark.parametrize(
    "uri", ["https://example.org/zoo", "http://127.0.0.1:80", "http://[::1]:1/x", "http://localhost"]
)
def test_tls_and_this_machine_are_good(uri):
    assert Mirror(uri).uri == uri


@pytest.mark.parametrize("uri", ["https://", "https://me:pw@example.org", "https://example.org/?key=pw", "https://[x"])
def test_an_address_that_is_no_folders_is_refused_without_repeating_it(uri):
    with pytest.raises(UnknownSourceError) as caught:
        Mirror(uri)
    assert "pw" not in caught.value.message


@given(st.text(max_size=60), st.sampled_from(["https://", "http://", ""]))
def test_any_text_is_an_address_or_a_typed_error(text, scheme):
    with suppress(UnknownSourceError, InsecureSourceError):
        assert parse_source(scheme + text).uri


@pytest.mark.parametrize("variable", ["TCHUB_OFFLINE", "HF_HUB_OFFLINE", None])
def test_offline_no_request_is_made(server: MirrorServer, entry, source, dest, variable, monkeypatch):
    if variable:
        monkeypatch.setenv(variable, "1")
    for ask in (lambda **how: source.fetch(entry, dest, **how), lambda **how: source.read("index.json", 9, **how)):
        with pytest.raises(OfflineError, match="ruled out"):
            ask(**({} if variable else {"offline": True}))
    assert server.seen == []
