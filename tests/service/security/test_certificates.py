from __future__ import annotations

import datetime
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest

from service.metrics import Metrics
from service.security import followed_files
from service.security.certificates import HTTP, Certificates
from service.security.expiry import first_expiry
from service.security.guards import Guards, tell_exposed_secrets
from service.settings import ServiceSettings
from tests.service.security.authorities import Authority


@pytest.fixture(autouse=True)
def _looked_at_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_files, "LOOK_S", 0)


class Handshake:
    """Both ends of a connection in memory."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = server.wrap_bio(up, down, server_side=True)
        self.client = client.wrap_bio(down, up, server_hostname="localhost")
        waiting: list[Any] = [self.client, self.server]
        for _ in range(10):
            for end in list(waiting):
                try:
                    end.do_handshake()
                    waiting.remove(end)
                except ssl.SSLWantReadError:
                    pass
        assert not waiting


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.file))


def test_certificates_that_change_are_taken_by_new_connections_alone(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    signed = old.sign("server")
    certificates = Certificates(signed.cert, signed.key, None)
    listening = certificates.context(HTTP)
    first = Handshake(listening, trusting(old))
    assert new.sign("server") == signed
    Handshake(listening, trusting(new))
    with pytest.raises(ssl.SSLCertVerificationError):
        Handshake(listening, trusting(old))
    first.client.write(b"still")
    assert first.server.read(5) == b"still"


def test_certificates_half_changed_keep_the_old_pair_until_both_are_there(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    signed = old.sign("server")
    certificates = Certificates(signed.cert, signed.key, None)
    listening = certificates.context(HTTP)
    renewed = new.sign("renewed")
    renewed.cert.replace(signed.cert)
    Handshake(listening, trusting(old))
    renewed.key.replace(signed.key)
    Handshake(listening, trusting(new))


def test_certificates_with_an_authority_of_callers_take_no_other_caller(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    signed, friend, stranger = ours.sign("server"), ours.sign("friend"), theirs.sign("stranger")
    certificates = Certificates(signed.cert, signed.key, ours.file)
    listening = certificates.context(HTTP)
    known, unknown = trusting(ours), trusting(ours)
    known.load_cert_chain(friend.cert, friend.key)
    unknown.load_cert_chain(stranger.cert, stranger.key)
    Handshake(listening, known)
    with pytest.raises(ssl.SSLError):
        Handshake(listening, unknown)
    with pytest.raises(ssl.SSLError):
        Handshake(listening, trusting(ours))
    theirs.file.replace(ours.file)  # from now on the strangers are those that are known
    Handshake(listening, unknown)
    with pytest.raises(ssl.SSLError):
        Handshake(listening, known)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_certificates_are_not_shown_over_old_versions_of_tls(version: ssl.TLSVersion, tmp_path: Path) -> None:
    ours = Authority(tmp_path)
    signed = ours.sign("server")
    listening = Certificates(signed.cert, signed.key, None).context(HTTP)
    old = trusting(ours)
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version, old.maximum_version = version, version
    with pytest.raises(ssl.SSLError):
        Handshake(listening, old)


def test_certificates_that_are_none_are_refused_with_their_files(tmp_path: Path) -> None:
    ours = Authority(tmp_path)
    signed, other = ours.sign("server"), ours.sign("other")
    with pytest.raises(ValueError, match=rf"{signed.cert}.*KEY_VALUES_MISMATCH"):
        Certificates(signed.cert, other.key, None)
    (tmp_path / "empty.pem").write_bytes(b"")
    with pytest.raises(ValueError, match=r"empty.pem .*no certificate chain"):
        Certificates(tmp_path / "empty.pem", signed.key, None)
    with pytest.raises(ValueError, match=r"empty.pem holds no certificates"):
        Certificates(signed.cert, signed.key, tmp_path / "empty.pem")
    with pytest.raises(OSError, match=r"absent.pem"):
        Certificates(tmp_path / "absent.pem", signed.key, None)


DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)


@pytest.mark.parametrize(
    "end", [datetime.datetime(year, 2, 28, 23, 59, 58, tzinfo=datetime.UTC) for year in (2049, 2050, 9999)]
)
def test_expiry_of_a_file_is_that_of_the_certificate_that_ends_first(end: datetime.datetime, tmp_path: Path) -> None:
    ours = Authority(tmp_path)  # until 2120
    chain = ours.file.read_bytes() + b"a remark\n" + ours.sign("server", end).cert.read_bytes()
    assert first_expiry(chain) == min(end, datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)).timestamp()
    assert first_expiry(b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n") is None


def test_certificates_tell_when_they_expire_at_start_and_when_they_are_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rowcast")
    ours, metrics = Authority(tmp_path), Metrics()
    signed = ours.sign("server", NOW - DAY)
    guards = Guards(certificates=Certificates(signed.cert, signed.key, ours.file))
    guards.tell()
    metrics.certificates(guards.expiries)
    name = "rowcast_certificate_expires_timestamp_seconds"
    assert metrics.registry.get_sample_value(name, {"certificate": "server"}) == (NOW - DAY).timestamp()
    ours.sign("server", NOW + 5 * DAY)
    assert metrics.registry.get_sample_value(name, {"certificate": "server"}) == (NOW + 5 * DAY).timestamp()
    assert (metrics.registry.get_sample_value(name, {"certificate": "client_ca"}) or 0) > (NOW + 365 * DAY).timestamp()
    expected = [
        "certificate_expired",
        "certificate_read",
        "secrets_read",
        "certificate_expires_soon",
        "certificate_read",
    ]
    assert [record.message for record in caplog.records] == expected
    assert [record.levelno for record in caplog.records][::3] == [logging.ERROR, logging.WARNING]


def test_keys_and_tokens_that_everybody_may_read_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    signed = Authority(tmp_path).sign("server")
    (tmp_path / "tokens").write_text("ranker ranker-0123456789\n")
    settings = ServiceSettings(root=tmp_path, tls_cert=signed.cert, tls_key=signed.key, tokens=tmp_path / "tokens")
    for mode, exposed in ((0o640, []), (0o644, [signed.key])):
        signed.key.chmod(mode)
        (tmp_path / "tokens").chmod(0o440)
        caplog.clear()
        tell_exposed_secrets(settings)
        assert [str(each.__dict__["rowcast_fields"]["files"]) for each in caplog.records] == [
            str([str(file)]) for file in exposed
        ]
