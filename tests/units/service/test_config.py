"""Settings from options, the environment and defaults, and the options that the command line makes
of them.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner, Result

from service.cli.serve import command
from service.config import ServiceSettings
from service.workers.start import fitted
from tests.e2e.process import Process

GIB = 1 << 30
SHARD = {"shard": "1/2", "host": "0.0.0.0"}
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"http_port": 70000}, "--http-port", "65535"),
    ({"http_port": "tcp://10.0.0.1:80"}, "--http-port", "integer"),
    ({"http_port": 9000, "grpc_port": 9000}, "--grpc-port", "a port of its own"),
    ({"max_concurrent_requests": 0}, "--max-concurrent-requests", "'0'"),
    # Which would listen on every interface.
    ({"host": ""}, "--host", "at least 1 character"),
    ({"max_inflight_bytes": 1 << 20}, "--max-request-bytes", "max_inflight_bytes"),
    ({"max_inflight_bytes": 32 << 20}, "--max-response-bytes", "max_inflight_bytes"),
    ({"device": "gpu", "workers": 2}, "--workers", "one process"),
    ({"device": "gpu", "precision": "int8"}, "--device", "CPU"),
    ({"verify": "some"}, "--verify", "'full'"),
    ({"admin_port": "eighty"}, "ROWCAST_ADMIN_PORT", "integer"),
    ({"tls_cert": "cert.pem"}, "--tls-key", "--tls-cert"),
    ({"tls_client_ca": "ca.pem"}, "--tls-client-ca", "TLS"),
    ({"root": "/nowhere"}, "--root", "not a directory; create it"),
    ({"root": __file__}, "--root", "not a directory; name the directory"),
    ({"protocols": "triton"}, "--protocols", "its clients speak 'open-inference'"),
    ({"follow_changes_token": "t"}, "--follow-changes-token", "without --follow-changes"),
    ({"follow_changes_ca": "ca.pem"}, "--follow-changes-ca", "without --follow-changes"),
    ({"tokens": "/nowhere"}, "--tokens", "No such file"),
    # Without the library, too.
    ({"verify_signatures": "/nowhere"}, "--verify-signatures", ""),
    ({"tls_cert": "/nowhere", "tls_key": "/nowhere"}, "--tls-cert", "No such file"),
    ({"tls_cert": __file__, "tls_key": __file__}, __file__, "--tls-cert"),
    ({"record_rate": 1, "record_dir": "/dev/null/x"}, "--record-dir", "/dev/null/x"),
    ({"admin_host": "0.0.0.0"}, "--admin-tokens", "set --admin-tokens, too"),
    (SHARD, "--tokens", "all rows and vectors"),
    ({"shard_addresses": "127.0.0.1"}, "--shard-addresses", "HOST:PORT"),
    ({"shard_addresses": "a:1", "shard_token": "/nowhere"}, "--shard-token", "No such file"),
    ({"follow_changes": "writer:8080"}, "--follow-changes", "http://writer:8080"),
    ({"follow_changes": "http://a", "follow_changes_ca": "/nowhere"}, "--follow-changes-ca", ""),
    ({"allowed_hosts": "rowcast.example.com:80"}, "--allowed-hosts", "scheme and port"),
    ({"allowed_hosts": "http://rowcast.example.com"}, "--allowed-hosts", "scheme and port"),
]
"""Settings, the option at fault, and words of the remedy."""
NOT_OURS = ("SERVICE_HOST", "PORT_8080_TCP_ADDR", "X_PORT", "HTTP_PORT")
"""What Kubernetes sets for services of other names."""


@pytest.fixture(autouse=True)
def _root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROWCAST_ROOT", str(tmp_path))


def serve(*arguments: str, **options: Any) -> Result:
    listed = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    return CliRunner().invoke(command(), [*arguments, *listed], terminal_width=200)


def printed(*arguments: str, **options: Any) -> dict[str, Any]:
    """Returns the effective settings."""
    done = serve("--print-settings", *arguments, **options)
    assert done.exit_code == 0, done.stderr
    settings: dict[str, Any] = orjson.loads(done.stdout)
    return settings


def test_options_are_preferred_to_the_environment_and_that_to_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROWCAST_MAX_K", "7")
    monkeypatch.setenv("ROWCAST_POLL_INTERVAL_S", "3.5")
    monkeypatch.setenv("ROWCAST_REQUIRE", "films, books")
    settings = printed("--no-admin", max_k=9)
    assert set(settings) == set(ServiceSettings.model_fields)
    names = ("max_k", "poll_interval_s", "http_port", "require", "admin")
    assert [settings[name] for name in names] == [9, 3.5, 8080, ["films", "books"], False]
    assert printed("--require", "a", "--require", "b")["require"] == ["a", "b"]
    keys = printed("--verify-signatures", "a.pub", "--verify-signatures", "b.pub")
    assert keys["verify_signatures"] == ["a.pub", "b.pub"]


@pytest.mark.parametrize(("options", "option", "words"), WRONG)
def test_setting_that_cannot_be_used_exits_2_and_is_named(
    options: dict[str, Any], option: str, words: str
) -> None:
    done = serve(**options)
    assert (done.exit_code, option in done.stderr) == (2, True), done.stderr
    assert words in " ".join(done.stderr.split())


@pytest.mark.parametrize("option", ["--ports-file", "--state-file"])
def test_output_file_that_is_not_a_file_is_rejected_at_start(option: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, kind in ((tmp_path, "directory"), (tmp_path / "pipe", "pipe")):
        done = serve(option, str(name))
        assert (done.exit_code, option in done.stderr, kind in done.stderr) == (2, True, True)


@pytest.mark.parametrize("location", ["films", "films/3"])
def test_directory_below_the_root_names_the_root(tmp_path: Path, location: str) -> None:
    (tmp_path / "films/3").mkdir(parents=True)
    (tmp_path / "films/3/manifest.json").touch()
    done = serve(root=tmp_path / location)
    assert (done.exit_code, f"'{tmp_path}'" in done.stderr) == (2, True), done.stderr
    assert printed(root=tmp_path)["root"] == str(tmp_path)


def test_root_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROWCAST_ROOT")
    done = serve()
    assert (done.exit_code, "ROWCAST_ROOT" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("variable", "remedy"), [("HTPP_PORT", "ROWCAST_HTTP_PORT"), ("ZZZZZZ", "--help")]
)
def test_unknown_variable_is_rejected_with_the_nearest_name(
    variable: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"ROWCAST_{variable}", "1")
    done = serve()
    assert (done.exit_code, remedy in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("arguments", [("--access-log", "yes"), ("bundles",)])
def test_value_without_its_option_gets_the_form_of_options(arguments: tuple[str, ...]) -> None:
    done = serve(*arguments)
    assert (done.exit_code, "--OPTION=VALUE" in done.stderr) == (2, True), done.stderr


def test_variables_of_kubernetes_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = printed()
    for name in NOT_OURS:
        monkeypatch.setenv(f"ROWCAST_{name}", "tcp://10.0.0.1:80")
    assert printed() == before
    assert printed(http_port=81)["http_port"] == 81


def test_variables_that_other_programs_read_are_named_in_a_warning(tmp_path: Path) -> None:
    names = ["ROWCAST_CLIENT_URL", "ROWCAST_CTL_ROOT", "ROWCAST_EXPORT_WORKRES", "ROWCAST_URL"]
    (tmp_path / "bundles").mkdir()
    process = Process(tmp_path / "bundles", variables=dict.fromkeys(names, "http://127.0.0.1:8080"))
    try:
        warning = process.event("variables_of_other_programs_ignored", level="warning")
        assert warning["variables"] == names
        process.event("listening")
    finally:
        process.kill()


def test_help_lists_every_setting_with_its_type_unit_limits_and_variable() -> None:
    text = " ".join(serve("--help").output.split())
    for option in ("http-port <int>", "poll-interval-s <float>", "verify <sizes|full>"):
        assert f"--{option}" in text
    assert "(at least 0, at most 65535)" in text
    for name, field in ServiceSettings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert f"[env: ROWCAST_{name.upper()}]" in text
        unit = "second" if name.endswith("_s") else ""
        if "bytes" in name:
            unit = "byte"
        assert field.description
        assert unit in field.description.lower(), name
    assert serve("--version").output == f"rowcast-serve {version('rowcast')}\n"


@pytest.mark.parametrize(
    ("given", "open_files", "memory", "connections", "inflight_bytes"),
    [
        ({}, 1 << 16, 64 * GIB, 20_000, GIB),
        ({}, 16_384, 64 * GIB, 7_680, GIB),  # the limit of deploy/rowcast-serve.service
        ({}, 1024, 64 * GIB, 256, GIB),  # the limit of buildah, and of a login
        ({}, 4, 64 * GIB, 2, GIB),
        ({"workers": 2}, 1 << 16, GIB, 20_000, GIB // 8),
        ({"workers": 8}, 1 << 16, GIB, 20_000, 64 << 20),  # one largest response
        ({"max_connections": 9, "max_inflight_bytes": 2 * GIB}, 1024, GIB, 9, 2 * GIB),
    ],
)
def test_defaults_fit_the_limits_and_what_is_given_stays(
    given: dict[str, Any], open_files: int, memory: int, connections: int, inflight_bytes: int
) -> None:
    settings = fitted(ServiceSettings(root=Path.cwd(), **given), open_files, memory)
    assert (settings.max_connections, settings.max_inflight_bytes) == (connections, inflight_bytes)
