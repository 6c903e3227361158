from __future__ import annotations

import datetime
import logging
import ssl
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from service.config import ServiceSettings, SettingsError
from service.security import watched_files
from service.security.tls import Certificates
from tests.units.service.security.authorities import Authority, Signed

OLD = "old"
NEW = "new"


@pytest.fixture(autouse=True)
def _checked_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "INTERVAL_S", 0)


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
def test_changed_certificates_are_used_by_new_connections_alone(
    name: str | None, tmp_path: Path
) -> None:
    old = Authority(tmp_path, OLD)
    new = Authority(tmp_path, NEW)
    signed = old.sign("server")
    listening = Certificates(signed.cert, signed.key).ssl_context()
    first = Handshake(listening, trusting(old), name)
    assert new.sign("server") == signed
    Handshake(listening, trusting(new), name)
    with pytest.raises(ssl.SSLCertVerificationError):
        Handshake(listening, trusting(old), name)
    first.client.write(b"still")
    assert first.server.read(5) == b"still"


def test_half_changed_certificates_keep_the_old_pair_until_both_are_there(tmp_path: Path) -> None:
    old = Authority(tmp_path, OLD)
    new = Authority(tmp_path, NEW)
    signed = old.sign("server")
    listening = Certificates(signed.cert, signed.key).ssl_context()
    renewed = new.sign("renewed")
    renewed.cert.replace(signed.cert)
    Handshake(listening, trusting(old))
    renewed.key.replace(signed.key)
    Handshake(listening, trusting(new))


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


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_of_tls_are_rejected(version: ssl.TLSVersion, tmp_path: Path) -> None:
    ours = Authority(tmp_path)
    signed = ours.sign("server")
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
        problem = channel.unary_unary("/test/Echo").future(b"x", timeout=10).exception()
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
        server = grpc.server(
            pool, [grpc.method_handlers_generic_handler("test", {"Echo": handler})]
        )
        certificates = Certificates(signed.cert, signed.key, ours.file)
        address = (
            f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', certificates.grpc_credentials())}"
        )
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


def test_unusable_certificates_are_rejected_with_their_files(tmp_path: Path) -> None:
    ours = Authority(tmp_path)
    signed = ours.sign("server")
    next_certificate = ours.sign("other")
    empty = tmp_path / "empty.pem"
    absent = tmp_path / "absent.pem"
    empty.write_bytes(b"")
    for chain, key, authorities, problem in (
        (signed.cert, next_certificate.key, None, "server.pem.*other.key.*KEY_VALUES_MISMATCH"),
        (empty, signed.key, None, "empty.pem.* are not a certificate chain"),
        (signed.cert, signed.key, empty, "empty.pem.* are not a certificate chain"),
    ):
        with pytest.raises(ValueError, match=problem):
            Certificates(chain, key, authorities)
    settings = ServiceSettings(root=tmp_path, tls_cert=absent, tls_key=signed.key)
    with pytest.raises(SettingsError, match=r"^--tls-cert, .*No such file.*absent.pem"):
        Certificates.of(settings)
    assert Certificates.of(ServiceSettings(root=tmp_path)) is None


DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def test_certificates_report_when_the_first_of_a_file_expires_at_start_and_when_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rowcast")
    ours = Authority(tmp_path)
    reported = dict[str, float]()
    signed = ours.sign("server", NOW - DAY)
    certificates = Certificates(signed.cert, signed.key, ours.file, reported.__setitem__)
    assert reported["server"] == (NOW - DAY).timestamp()
    ours.sign("server", NOW + 5 * DAY)
    # The certificate is valid until 2120.
    signed.cert.write_bytes(signed.cert.read_bytes() + b"a remark\n" + ours.file.read_bytes())
    certificates.ssl_context()
    assert reported["server"] == (NOW + 5 * DAY).timestamp()
    assert reported["client_ca"] > (NOW + 365 * DAY).timestamp()
    loaded = "certificate_loaded"
    expected = [
        "certificate_expired",
        loaded,
        "certificate_expires_soon",
        loaded,
        "secrets_reloaded",
    ]
    assert [record.message for record in caplog.records] == expected
    assert [record.levelno for record in caplog.records][:3:2] == [logging.ERROR, logging.WARNING]
