"""A static mirror: downloads, busy and broken servers, redirects and secrets, addresses."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mirror_server import broken_off, dripping, endless, make_certificate, running, silent, status
from registry_kit import refused
from tchub.hub.registry import Store
from tchub.hub.registry.errors import IntegrityError, NotInSourceError, SourceError
from tchub.hub.registry.mirror import Mirror
from tchub.zoo.files import StorageError
from toy_checkpoints import make_registry, publish

VERSION = "tcl-epyc/1.0.0"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls") / "server.pem")


def arrived(dest: Path) -> dict[str, bytes]:
    """What was fetched, by the path that it has on the mirror."""
    return {f"/{VERSION}/{path.name}": path.read_bytes() for path in dest.iterdir()}


def test_a_mirror_without_the_checkpoint_says_where_it_looked(server, entry, source, dest):
    server.files.clear()
    with pytest.raises(NotInSourceError, match=r"has no tcl-epyc/1\.0\.0/") as caught:
        source.fetch(entry, dest)
    assert f"check the address {server.url}/{VERSION}/" in caught.value.remedy


# Busy and broken servers


def test_a_busy_server_is_asked_again_when_it_said(server, entry, source, dest):
    server.answers = [status(429, Retry_After="1"), status(503)]
    began = time.monotonic()
    Mirror(server.url, patience=2).fetch(entry, dest)
    assert arrived(dest) == server.files
    assert time.monotonic() - began >= 1
    assert server.paths[:3] == [f"/{VERSION}/config.json"] * 3


def test_a_server_that_asks_for_a_long_pause_is_not_waited_for(server, entry, source, dest):
    server.answers = [status(429, Retry_After="3600")]
    with refused("network", "HTTP 429") as caught:
        source.fetch(entry, dest)
    assert "in 3600 s" in caught.value.remedy
    assert len(server.seen) == 1


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_server_that_fails_every_time_is_given_up(server, entry, source, dest, code):
    server.answers = [status(code)] * 9
    with refused("network", f"HTTP {code}") as caught:
        source.fetch(entry, dest)
    assert caught.value.fields["status"] == code
    assert len(server.seen) == 4


@settings(max_examples=10)
@given(breaks=st.lists(st.integers(0, 100), max_size=3))
def test_wherever_it_breaks_off_every_byte_arrives(tmp_path_factory, breaks):
    tmp = tmp_path_factory.mktemp("mirror")
    entry = publish(tmp / "zoo", "tcl-epyc")
    with running() as server:
        server.add(tmp / "zoo")
        data = server.files[f"/{VERSION}/config.json"]
        server.answers = [broken_off(data, length) for length in breaks]
        (tmp / "dest").mkdir()
        Mirror(server.url, patience=5).fetch(entry, tmp / "dest")
        assert arrived(tmp / "dest") == server.files


def test_a_download_that_breaks_every_time_is_given_up(server, entry, source, dest):
    server.answers = [broken_off(server.files[f"/{VERSION}/config.json"], 100)] * 9
    with refused("network", "broke off 4 times, the last time after 100 of"):
        source.fetch(entry, dest)


def test_a_server_that_hangs_ends_in_bounded_time(server, entry, source, dest):
    server.answers, source.patience = [silent(20)] * 9, 0.1
    began = time.monotonic()
    with refused("network"):
        source.fetch(entry, dest)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("rest", ["X-Slow: ", "Transfer-Encoding: chunked\r\n\r\n", "Content-Length: {size}\r\n\r\n"])
def test_a_server_that_drips_ends_in_bounded_time(server, entry, source, dest, rest):
    head = "HTTP/1.1 200 OK\r\n" + rest.format(size=entry.files["config.json"].size)
    server.answers, source.patience = [dripping(head.encode(), 20)] * 9, 0.1
    began = time.monotonic()
    with refused("network", "hangs, or is too slow"):
        source.fetch(entry, dest)
    assert time.monotonic() - began < 5


# Sizes and bytes


def test_another_announced_size_is_refused_before_a_byte_is_stored(server, entry, source, dest):
    server.files[f"/{VERSION}/config.json"] += b" "
    with pytest.raises(IntegrityError, match="wrong size"):
        source.fetch(entry, dest)
    assert (dest / "config.json").stat().st_size == 0


def test_an_endless_body_is_cut_off_at_the_size_of_the_index(server, entry, source, dest):
    server.answers = [endless]
    with pytest.raises(IntegrityError, match="wrong size"):
        source.fetch(entry, dest)
    assert (dest / "config.json").stat().st_size <= entry.files["config.json"].size


def test_a_disk_that_is_full_while_a_file_arrives(server, entry, source, tmp_path):
    def fill(folder: Path) -> None:
        (folder / "model.safetensors").symlink_to("/dev/full")
        source.fetch(entry, folder)

    with pytest.raises(StorageError, match="No space left") as caught:
        Store(tmp_path / "store").add(entry, fill)
    assert "TCHUB_CACHE" in caught.value.remedy
    assert list((tmp_path / "store" / "tcl-epyc").iterdir()) == []


def test_a_small_file_is_read_up_to_a_limit(server, source):
    server.files["/index.json"] = b"x" * 100
    assert source.read("index.json", 100) == b"x" * 100
    for answers in ([], [endless]):
        server.answers = answers
        with pytest.raises(SourceError, match="more than 99 bytes"):
            source.read("index.json", 99)


def test_a_compressed_answer_is_refused(server, source):
    server.answers = [status(200, Content_Encoding="gzip")]
    with refused("content", "compressed"):
        source.read("index.json", 100)
    assert server.seen[0][1]["accept-encoding"] == "identity"


# Redirects and secrets


def test_a_redirect_is_followed_and_the_token_stays_with_the_mirrors_host(server, source, monkeypatch):
    monkeypatch.setenv("TCHUB_MIRROR_TOKEN", "secret")
    server.token = "secret"
    with running() as other:
        other.files["/elsewhere"] = b"data"
        server.answers = [status(302, Location=f"{other.url.replace('127.0.0.1', 'localhost')}/elsewhere")]
        assert source.read("index.json", 10) == b"data"
        assert server.seen[0][1]["authorization"] == "Bearer secret"
        assert "authorization" not in other.seen[0][1]


def test_a_mirror_that_a_lock_file_or_an_index_lists_is_sent_no_token(server, entry, tmp_path, monkeypatch):
    monkeypatch.setenv("TCHUB_MIRROR_TOKEN", "secret")
    listed = replace(entry, sources=(server.url,))
    registry = make_registry(tmp_path, listed)
    server.token = "secret"
    with refused("token") as caught:
        registry.pull("tcl-epyc")
    assert "TCHUB_SOURCES" in caught.value.remedy
    assert all("authorization" not in headers for _, headers in server.seen)
    monkeypatch.setenv("TCHUB_SOURCES", server.url)
    assert registry.pull("tcl-epyc").source == server.url


def test_a_certificate_is_checked(certificate, monkeypatch):
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    with running(certificate) as server:
        server.files["/index.json"] = b"data"
        mirror = Mirror(server.url, patience=5)
        with refused("network", "could not be read: SSLError"):
            mirror.read("index.json", 10)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        assert mirror.read("index.json", 10) == b"data"


@pytest.mark.parametrize(
    ("where", "reason", "text"),
    [
        ("http://example.org/x", "insecure", "not encrypted"),
        ("ftp://127.0.0.1/x", "insecure", "not encrypted"),
        ("file:///etc/passwd", "insecure", "not encrypted"),
        ("http://[", "network", "InvalidURL"),
        ("http://127.0.0.1:99999/", "network", "InvalidURL"),
        ("/index.json", "network", "TooManyRedirects"),
    ],
)
def test_a_redirect_that_leads_away_from_tls_nowhere_or_in_circles_is_refused(server, source, where, reason, text):
    server.answers = [status(302, Location=where)] * 20
    with refused(reason, text):
        source.read("index.json", 10)
    assert len(server.seen) <= 5


def test_a_redirect_from_tls_to_a_plain_server_of_this_machine_is_not_followed(certificate, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with running(certificate) as server, running() as local:
        server.answers = [status(302, Location=f"{local.url}/admin")]
        with refused("insecure"):
            Mirror(server.url, patience=5).read("index.json", 10)
        assert local.seen == []


def test_the_proxy_of_the_environment_leads_to_other_machines_and_sees_no_token(server, monkeypatch):
    monkeypatch.setenv("https_proxy", server.url)
    monkeypatch.setenv("TCHUB_MIRROR_TOKEN", "secret")
    with refused("network", "ProxyError"):
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
        assert source.read("index.json", 10) == b"data"
        assert proxy.seen == []
        assert "proxy-authorization" not in other.seen[0][1], "the proxy's password is for the proxy"


@pytest.mark.parametrize("token", [None, "wrong", "with\nnewline", "ünicode"])
@pytest.mark.parametrize("code", [401, 500])
def test_no_error_shows_the_token(server, entry, source, dest, monkeypatch, token, code):
    if token:
        monkeypatch.setenv("TCHUB_MIRROR_TOKEN", token)
    server.answers = [status(code)] * 9
    with pytest.raises(SourceError) as caught:
        source.fetch(entry, dest)
    assert caught.value.remedy
    assert token is None or token not in repr(caught.value.as_dict())


@pytest.mark.parametrize("code", [401, 403])
def test_a_refusal_names_the_variable_of_the_token(server, entry, source, dest, code):
    server.answers = [status(code)]
    with refused("token") as caught:
        source.fetch(entry, dest)
    assert "TCHUB_MIRROR_TOKEN" in caught.value.remedy


def test_the_password_of_netrc_holds_where_no_token_is_set(server, source, tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ada password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    server.files["/index.json"] = b"data"
    source.read("index.json", 10)
    assert server.seen[0][1]["authorization"].startswith("Basic ")


# Addresses and offline


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        *((f"{uri}/zoo", "insecure") for uri in ("http://example.org", "http://localhost.example.org", "ftp://a.org")),
        *((f"https://{uri}", "form") for uri in ("", "me:pw@example.org", "example.org/?key=pw", "[x")),
    ],
)
def test_an_address_without_tls_or_with_a_password_is_refused_without_repeating_it(uri, reason):
    with refused(reason) as caught:
        Mirror(uri)
    assert "pw" not in caught.value.message
