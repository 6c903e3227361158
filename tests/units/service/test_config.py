"""Settings from options, the environment and defaults, and the options that the command line makes
of them.
"""

from __future__ import annotations

import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from service.cli.serve import command
from service.config import ServiceSettings, SettingsError, read_settings, service_links


@pytest.fixture(autouse=True)
def _root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROWCAST_ROOT", str(tmp_path))


def test_read_settings_prefers_options_to_the_environment_to_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROWCAST_MAX_K", "7")
    monkeypatch.setenv("ROWCAST_POLL_INTERVAL_S", "3.5")
    monkeypatch.setenv("ROWCAST_REQUIRE", "films, books")
    settings = read_settings({"max_k": 9, "poll_interval_s": None})
    assert (settings.max_k, settings.poll_interval_s, settings.http_port) == (9, 3.5, 8080)
    assert (settings.require, read_settings({"require": ("x",)}).require) == (
        ("films", "books"),
        ("x",),
    )


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        setattr(read_settings({}), "max_k", 3)  # noqa: B010 - mypy would reject the plain way


@pytest.mark.parametrize("option", ["--ports-file", "--state-file"])
def test_output_file_that_is_not_a_file_is_rejected_at_start(option: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, kind in ((tmp_path, "a directory"), (tmp_path / "pipe", "a pipe")):
        done = CliRunner().invoke(command(), [option, str(name)])
        assert done.exit_code == 2
        variable = f"ROWCAST_{option[2:].replace('-', '_').upper()}"
        assert f"{option} (or {variable}): {name} is {kind}, which a rename" in done.stderr


@pytest.mark.parametrize(
    ("variable", "remedy"),
    [
        ("ROWCAST_HTPP_PORT", "did you mean ROWCAST_HTTP_PORT"),
        ("ROWCAST_ZZZZZZ", "rowcast-serve --help"),
    ],
)
def test_read_settings_with_an_unknown_variable_is_rejected_with_the_nearest_name(
    variable: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(SettingsError, match=f"{variable}, which is not a setting; .*{remedy}"):
        read_settings({})


@pytest.mark.parametrize(
    "name",
    [
        "EXPORT_WORKERS",
        "SERVICE_HOST",
        "SERVICE_PORT_HTTP",
        "PORT",
        "PORT_8080_TCP_ADDR",
        "A_PORT_9090_TCP",
    ],
)
def test_read_settings_leaves_variables_of_other_programs_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"ROWCAST_{name}", "tcp://10.0.0.1:80")
    read_settings({})


PORTS = [name for name in ServiceSettings.model_fields if name.endswith("port")]


@pytest.mark.parametrize("name", ["", "serve", "http", "a_b", *(name[:-5] for name in PORTS)])
@pytest.mark.parametrize("protocol", ["tcp", "udp", "sctp"])
def test_services_of_any_name_are_not_settings(
    name: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = f"ROWCAST_{name}".rstrip("_").upper()
    link = f"{service}_PORT_9_{protocol.upper()}"
    variables = {
        f"{service}_SERVICE_HOST": "10.0.0.1",
        f"{service}_SERVICE_PORT": "9",
        f"{service}_SERVICE_PORT_GRPC": "9",
        f"{service}_PORT": f"{protocol}://10.0.0.1:9",
        link: f"{protocol}://10.0.0.1:9",
        f"{link}_PROTO": protocol,
        f"{link}_PORT": "9",
        f"{link}_ADDR": "10.0.0.1",
    }
    before = read_settings({})
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert read_settings({}) == before
    is_hidden = f"{name}_port" in PORTS
    assert service_links() == ([f"{service}_PORT"] if is_hidden else [])


def test_port_of_an_option_overrides_a_service_and_is_not_taken_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROWCAST_HTTP_PORT", "tcp://10.0.0.1:80")
    assert read_settings({"http_port": "81"}).http_port == 81
    with pytest.raises(SettingsError, match=r"--http-port .*valid integer"):
        read_settings({"http_port": "tcp://10.0.0.1:80"})
    monkeypatch.setenv("ROWCAST_HTTP_PORT", "http://10.0.0.1:80")
    with pytest.raises(SettingsError, match=r"ROWCAST_HTTP_PORT.*valid integer"):
        read_settings({})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"http_port": 70000}, "--http-port .*'70000'.*65535"),
        ({"max_concurrent_requests": 0}, "--max-concurrent-requests"),
        (
            {"host": ""},
            "--host .*''.*at least 1 character",
        ),  # which would listen on every interface
        (
            {"max_inflight_bytes": 1 << 20},
            "--max-request-bytes .*'16777216'.*max_inflight_bytes, 1048576",
        ),
        (
            {"max_inflight_bytes": 32 << 20},
            "--max-response-bytes .*'67108864'.*max_inflight_bytes, 33554432",
        ),
        ({"device": "gpu", "workers": 2}, "--workers .*'2'.*runs in one process"),
        ({"device": "gpu", "precision": "int8"}, "--device .*int8 towers run on the CPU"),
        ({"verify": "some"}, "--verify .*'some'.*'sizes' or 'full'"),
        (
            {"admin_port": "eighty"},
            r"--admin-port \(or ROWCAST_ADMIN_PORT\) is 'eighty': .*integer",
        ),
        (
            {"tls_cert": "cert.pem"},
            r"--tls-key \(or ROWCAST_TLS_KEY\) is not given: --tls-cert and --tls-key must",
        ),
        ({"tls_client_ca": "ca.pem"}, "--tls-client-ca .*require TLS"),
        ({"root": Path("/nowhere")}, "--root .*'/nowhere' is not a directory"),
        ({"colour": "red"}, "--colour"),
    ],
)
def test_read_settings_out_of_limits_names_the_setting(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        read_settings(options)


@pytest.mark.parametrize(("location", "what"), [("films", "one model"), ("films/3", "one bundle")])
def test_read_settings_with_a_directory_below_the_root_names_the_root(
    tmp_path: Path, location: str, what: str
) -> None:
    (tmp_path / "films/3").mkdir(parents=True)
    (tmp_path / "films/3/manifest.json").touch()
    with pytest.raises(
        SettingsError,
        match=f"is the directory of {what}; set the root above it, '{re.escape(str(tmp_path))}'",
    ):
        read_settings({"root": tmp_path / location})
    assert read_settings({"root": tmp_path}).root == tmp_path


def test_read_settings_without_a_root_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROWCAST_ROOT")
    with pytest.raises(SettingsError, match=r"--root \(or ROWCAST_ROOT\) must be given"):
        read_settings({})


def test_help_lists_every_setting_with_its_type_unit_limits_and_variable() -> None:
    help_text = " ".join(
        CliRunner().invoke(command(), ["--help"], terminal_width=200).output.split()
    )
    types = {
        "http-port": "int",
        "admin-port": "int",
        "poll-interval-s": "float",
        "root": "path",
        "verify": "sizes|full",
    }
    for name, kind in types.items():
        assert f"--{name} <{kind}>" in help_text
    assert help_text.count("(at least 0, at most 65535)") == 5
    for name, field in ServiceSettings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in help_text
        assert f"[env: ROWCAST_{name.upper()}]" in help_text
        assert field.description
        unit = "second" if name.endswith("_s") else ""
        if "bytes" in name:
            unit = "byte"
        assert unit in field.description.lower(), name


def test_version_is_printed_without_a_root() -> None:
    done = CliRunner().invoke(command(), ["--version"])
    assert (done.exit_code, done.output) == (0, f"rowcast-serve {version('rowcast')}\n")


def test_print_settings_prints_the_effective_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWCAST_MAX_K", "7")
    done = CliRunner().invoke(
        command(), ["--require", "a", "--require", "b", "--no-admin", "--print-settings"]
    )
    assert done.exit_code == 0
    settings = orjson.loads(done.stdout)
    assert set(settings) == set(ServiceSettings.model_fields)
    assert (settings["max_k"], settings["require"], settings["admin"]) == (7, ["a", "b"], False)
