"""Files of tokens and certificates: what is read of them, what is refused, how they change while
they are used, and what is warned of.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import ssl
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from service.config import ServiceSettings
from service.errors import PermissionDenied, Unauthenticated
from service.security import watched_files
from service.security.exposure import warn_of_exposed_secrets, warn_of_open_endpoints
from service.security.hosts import AllowedHosts
from service.security.principal import Principal
from service.security.tls import Certificates
from service.security.tokens import TokenStore
from tests.units.service.security.authorities import Authority, Signed

RANKER = "ranker-0123456789"
ADS = "ads-0123456789abcdef"
PROBE = "probe-0123456789abc"
DIGEST = hashlib.sha256(RANKER.encode()).hexdigest()
DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)


@pytest.fixture(autouse=True)
def _checked_every_time(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(watched_files, "INTERVAL_S", 0)
    caplog.set_level(logging.INFO, "rowcast")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    clients = f"ads {ADS} ads,ads_next\nprometheus {PROBE} -\n"
    path.write_text(f"# clients\n\nranker sha256:{DIGEST}\n{clients}")
    return path


@pytest.mark.parametrize(
    ("sent", "principal"),
    [
        (f"Bearer {RANKER}", Principal("ranker", None)),
        (f"bearer  {ADS}", Principal("ads", frozenset({"ads", "ads_next"}))),
        (f"Bearer {PROBE}", Principal("prometheus", frozenset())),
        *[
            (text, None)
            for text in (
                *(None, "", "Bearer", "Bearer ", f"Basic {RANKER}", "Bearer " + "x" * 513),
                *(f"Bearer {RANKER[:-1]}", f"Bearer {RANKER.upper()}", "Bearer \xff\x00\ud800"),
                *(f"Bearer {RANKER},Bearer {ADS}", f"Bearer sha256:{DIGEST}"),
            )
        ],
    ],
)
def test_token_of_the_file_names_its_client_and_no_other_text_does(
    sent: str | None, principal: Principal | None, file: Path
) -> None:
    if principal is not None:
        assert TokenStore(file).authenticate(sent) == principal
        return
    with pytest.raises(Unauthenticated) as rejected:
        TokenStore(file).authenticate(sent)
    assert RANKER[:8].lower() not in str(rejected.value).lower()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# none\n", "no token"),
        ("ranker\n", "line 1"),
        (f"\nbad/name {RANKER}\n", "line 2"),
        (f"a {RANKER} x y\n", "line 1"),
        ("a short\n", "16 to 512"),
        ("a sha256:12\n", "64 hexadecimal"),
        (f"a {RANKER}\nb {RANKER}\n", "'a'"),
        (f"a {16 * chr(0x130)}\n", "ASCII"),
        (f"a {RANKER} movies*\n", r"'movies\*'"),
        (f"a {RANKER} movies,\n", "no name"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_malformed_file_of_tokens_is_refused_by_its_line(
    text: str | bytes, words: str, file: Path
) -> None:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=words) as rejected:
        TokenStore(file)
    assert RANKER not in str(rejected.value)


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records]


def exposures(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The fields of each warning of what is exposed."""
    return [
        record.__dict__["rowcast_fields"]
        for record in caplog.records
        if record.name == "rowcast.service.security.exposure"
    ]


def test_tokens_of_a_changed_file_are_read_and_the_last_usable_ones_stay(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = TokenStore(file)
    new = "Bearer another-token-0123456789"
    file.write_text("newcomer another-token-0123456789\n")
    assert tokens.authenticate(new).name == "newcomer"
    with pytest.raises(Unauthenticated):
        tokens.authenticate(f"Bearer {RANKER}")
    file.write_text("broken\n")
    for _ in range(3):
        assert tokens.authenticate(new).name == "newcomer"
    file.unlink()
    for _ in range(3):
        assert tokens.authenticate(new).name == "newcomer"
    file.write_text(f"ranker {RANKER}\n")
    assert tokens.authenticate(f"Bearer {RANKER}").name == "ranker"
    unreadable = ["secrets_unreadable"] * 2
    assert events(caplog) == ["secrets_reloaded", *unreadable, "secrets_reloaded"]
    assert RANKER not in caplog.text


def test_tokens_for_models_that_do_not_exist_are_logged(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ads").mkdir()
    TokenStore(file, tmp_path)
    unknown = [record for record in caplog.records if record.message == "tokens_for_no_model"]
    assert [record.__dict__["rowcast_fields"]["models"] for record in unknown] == [["ads_next"]]


class Handshake:
    """Both ends of a connection in memory."""

    def __init__(
        self,
        server: ssl.SSLContext,
        client: ssl.SSLContext,
        name: str | None = "localhost",
        session: ssl.SSLSession | None = None,
    ) -> None:
        up = ssl.MemoryBIO()
        down = ssl.MemoryBIO()
        self.server = server.wrap_bio(up, down, server_side=True)
        self.client = client.wrap_bio(down, up, server_hostname=name, session=session)
        waiting: list[Any] = [self.client, self.server]
        for _ in range(10):
            for end in list(waiting):
                try:
                    end.do_handshake()
                    waiting.remove(end)
                except ssl.SSLWantReadError:
                    pass
        assert not waiting
        self.server.write(b"hello")
        assert self.client.read(5) == b"hello"  # TLS 1.3 sends its tickets before


def trusting(authority: Authority, signed: Signed | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.file))
    context.check_hostname = False
    if signed is not None:
        context.load_cert_chain(signed.cert, signed.key)
    return context


@pytest.mark.parametrize("name", ["localhost", None])
def test_changed_certificates_are_used_by_new_connections_once_both_files_are_there(
    name: str | None, tmp_path: Path
) -> None:
    old = Authority(tmp_path, "old")
    new = Authority(tmp_path, "new")
    signed = old.sign("server")
    listening = Certificates(signed.cert, signed.key).ssl_context()
    first = Handshake(listening, trusting(old), name)
    renewed = new.sign("renewed")
    renewed.cert.replace(signed.cert)
    Handshake(listening, trusting(old), name)
    renewed.key.replace(signed.key)
    Handshake(listening, trusting(new), name)
    with pytest.raises(ssl.SSLCertVerificationError):
        Handshake(listening, trusting(old), name)
    first.client.write(b"still")
    assert first.server.read(5) == b"still"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("name", ["localhost", None])
def test_changed_client_authority_rejects_old_clients_resumed_sessions_too(
    name: str | None, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    ours = Authority(tmp_path, "ours")
    theirs = Authority(tmp_path, "theirs")
    signed = ours.sign("server")
    friend_context = trusting(ours, ours.sign("friend"))
    unknown = trusting(ours, theirs.sign("stranger"))
    for context in (friend_context, unknown):
        context.maximum_version = version
    listening = Certificates(signed.cert, signed.key, ours.file).ssl_context()
    session = Handshake(listening, friend_context, name).client.session
    for context in (unknown, trusting(ours)):
        with pytest.raises(ssl.SSLError):
            Handshake(listening, context, name)
    theirs.file.replace(ours.file)
    Handshake(listening, unknown, name)
    for resumed in (None, session):
        with pytest.raises(ssl.SSLError):
            Handshake(listening, friend_context, name, resumed)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_of_tls_are_rejected(tmp_path: Path) -> None:
    ours = Authority(tmp_path)
    signed = ours.sign("server")
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        old = trusting(ours)
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version = version
        old.maximum_version = version
        with pytest.raises(ssl.SSLError):
            Handshake(Certificates(signed.cert, signed.key).ssl_context(), old)


def echoes(address: str, trusted: bytes, signed: Signed) -> bool:
    credentials = grpc.ssl_channel_credentials(
        trusted, signed.key.read_bytes(), signed.cert.read_bytes()
    )
    with grpc.secure_channel(address, credentials) as channel:
        problem = channel.unary_unary("/test/Echo").future(b"x").exception()
    assert problem is None or problem.code() is grpc.StatusCode.UNAVAILABLE
    return problem is None


def test_grpc_credentials_follow_certificate_and_client_authority(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    theirs = Authority(tmp_path, "theirs")
    signed = ours.sign("server")
    friend = ours.sign("friend")
    stranger = theirs.sign("stranger")
    trusted = ours.file.read_bytes()
    foreign_authority = theirs.file.read_bytes()
    handler = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    with futures.ThreadPoolExecutor(1) as pool:
        handlers = [grpc.method_handlers_generic_handler("test", {"Echo": handler})]
        server = grpc.server(pool, handlers)
        credentials = Certificates(signed.cert, signed.key, ours.file).grpc_credentials()
        address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', credentials)}"
        server.start()
        assert echoes(address, trusted, friend)
        assert not echoes(address, trusted, stranger)
        assert not echoes(address, foreign_authority, friend)
        ours.file.write_bytes(foreign_authority)
        assert echoes(address, trusted, stranger)
        assert not echoes(address, trusted, friend)
        theirs.sign("server")
        assert echoes(address, foreign_authority, stranger)
        server.stop(None).wait()


def test_unusable_certificates_are_refused_with_their_files(tmp_path: Path) -> None:
    ours = Authority(tmp_path)
    signed = ours.sign("server")
    other = ours.sign("other")
    empty = tmp_path / "empty.pem"
    empty.write_bytes(b"")
    for chain, key, authorities, words in (
        (signed.cert, other.key, None, "server.pem.*other.key"),
        (empty, signed.key, None, "empty.pem"),
        (signed.cert, signed.key, empty, "empty.pem"),
    ):
        with pytest.raises(ValueError, match=words):
            Certificates(chain, key, authorities)


def test_certificates_report_when_the_first_of_a_file_expires_at_start_and_when_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = Authority(tmp_path)
    reported = dict[str, float]()
    signed = ours.sign("server", NOW - DAY)
    certificates = Certificates(signed.cert, signed.key, ours.file, reported.__setitem__)
    assert reported["server"] == (NOW - DAY).timestamp()
    ours.sign("server", NOW + 5 * DAY)
    # The certificate is valid until 2120.
    signed.cert.write_bytes(signed.cert.read_bytes() + b"a remark\n" + ours.file.read_bytes())
    listening = certificates.ssl_context()
    listening.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)
    assert reported["server"] == (NOW + 5 * DAY).timestamp()
    assert reported["client_ca"] > (NOW + 365 * DAY).timestamp()
    levels = {record.message: record.levelno for record in caplog.records}
    assert levels["certificate_expired"] == logging.ERROR
    assert levels["certificate_expires_soon"] == logging.WARNING
    assert {"certificate_loaded", "secrets_reloaded"} <= set(levels)


@pytest.mark.parametrize(
    ("host", "closed", "problems"),
    [
        ("127.0.0.1", (), []),
        ("0.0.0.0", (), ["no TLS", "no tokens"]),
        ("0.0.0.0", ("tls",), ["no tokens"]),
        ("0.0.0.0", ("tokens",), ["no TLS"]),
        ("::", ("tls", "tls_client_ca"), []),
        ("10.0.0.1", ("tls", "tokens"), []),
    ],
)
def test_endpoints_that_others_reach_unprotected_are_warned_of(
    host: str,
    closed: tuple[str, ...],
    problems: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options: dict[str, Any] = {name: tmp_path / name for name in closed if name != "tls"}
    if "tls" in closed:
        options |= {"tls_cert": tmp_path / "cert", "tls_key": tmp_path / "key"}
    warn_of_open_endpoints(ServiceSettings(root=tmp_path, host=host, **options))
    found = [problem for fields in exposures(caplog) for problem in fields["problems"]]
    assert [problem.startswith(words) for problem, words in zip(found, problems, strict=True)] == [
        True
    ] * len(problems)


def test_secrets_that_everybody_can_read_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    signed = Authority(tmp_path).sign("server")
    settings = ServiceSettings(root=tmp_path, tls_cert=signed.cert, tls_key=signed.key)
    signed.key.chmod(0o640)
    warn_of_exposed_secrets(settings)
    assert not exposures(caplog)
    signed.key.chmod(0o644)
    warn_of_exposed_secrets(settings)
    (fields,) = exposures(caplog)
    assert fields["files"] == [str(signed.key)]


LOOPBACK = ("localhost", "LOCALHOST:8080", "127.0.0.1:8080", "[::1]:8080", "127.8.8.8")
FOREIGN = ("", "example.com:8080", "127.0.0.1.example.com", "user@evil", "localhost, evil")
ADDRESSES = ("10.0.0.1", "10.0.0.1:8081", "[2001:db8::1]:8081")
SHOP = ("Example.com", "shop.example.com")
HERE = "127.0.0.1"
ANYWHERE = "0.0.0.0"
HOSTS: list[tuple[AllowedHosts, tuple[str, ...], tuple[str, ...]]] = [
    (AllowedHosts(HERE, ()), LOOPBACK, FOREIGN + ADDRESSES),
    (AllowedHosts(ANYWHERE, ()), LOOPBACK + FOREIGN + ADDRESSES, ()),
    (AllowedHosts(HERE, (), authenticates=True), LOOPBACK + FOREIGN + ADDRESSES, ()),
    (AllowedHosts(HERE, SHOP), (*LOOPBACK, "example.com", "EXAMPLE.com:80"), ("a.example.com",)),
    (AllowedHosts(ANYWHERE, SHOP), ("example.com", "shop.example.com:1"), LOOPBACK + ADDRESSES),
    (AllowedHosts(HERE, (), accepts_addresses=True), LOOPBACK, FOREIGN + ADDRESSES),
    (
        AllowedHosts(ANYWHERE, SHOP, accepts_addresses=True),
        ("example.com", *ADDRESSES),
        ("", "a.example.com", "127.0.0.1.example.com", "localhost, evil"),
    ),
]


@pytest.mark.parametrize(("hosts", "accepted", "refused"), HOSTS)
def test_hosts_of_web_pages_after_rebinding_are_refused(
    hosts: AllowedHosts, accepted: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    for host in accepted:
        hosts.check(host)
    for host in refused:
        with pytest.raises(PermissionDenied, match="allowed_hosts"):
            hosts.check(host)
