from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.config import ServiceSettings, SettingsError, read_settings
from service.loopback import on_loopback
from service.security.exposure import warn_of_exposed_secrets, warn_of_open_endpoints
from tests.units.service.security.authorities import Authority


def test_on_loopback_is_true_of_addresses_that_only_this_machine_reaches() -> None:
    assert all(map(on_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(on_loopback, ("0.0.0.0", "::", "10.0.0.1", "db.example.org")))


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
def test_warn_of_open_endpoints_lists_what_is_missing_where_others_reach_it(
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
    logged_problems = [
        logged_problem
        for record in caplog.records
        for logged_problem in record.__dict__["rowcast_fields"]["problems"]
    ]
    assert [
        logged_problem[: len(problem)]
        for logged_problem, problem in zip(logged_problems, problems, strict=True)
    ] == problems
    assert {record.message for record in caplog.records} <= {"endpoints_open"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "shard.example"])
def test_shard_that_other_machines_reach_requires_tokens_or_client_certificates(
    host: str, tmp_path: Path
) -> None:
    shard: dict[str, Any] = {"root": tmp_path, "shard": "1/2"}
    with pytest.raises(SettingsError, match="can read all rows and vectors of this shard"):
        read_settings({**shard, "host": host})
    read_settings({**shard, "host": host, "tokens": tmp_path / "tokens"})
    certificates = {name: tmp_path / name for name in ("tls_cert", "tls_key", "tls_client_ca")}
    read_settings({**shard, "host": host, **certificates})
    read_settings({**shard, "host": "127.0.0.1"})
    read_settings({"root": tmp_path, "host": host})


def test_warn_of_exposed_secrets_names_files_that_everybody_can_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    signed = Authority(tmp_path).sign("server")
    tokens = tmp_path / "tokens"
    tokens.write_text("ranker ranker-0123456789\n")
    tokens.chmod(0o440)
    settings = ServiceSettings(
        root=tmp_path, tls_cert=signed.cert, tls_key=signed.key, tokens=tokens
    )
    signed.key.chmod(0o640)
    warn_of_exposed_secrets(settings)
    assert not caplog.records
    signed.key.chmod(0o644)
    warn_of_exposed_secrets(settings)
    assert [record.__dict__["rowcast_fields"]["files"] for record in caplog.records] == [
        [str(signed.key)]
    ]
