"""Settings from options, the environment and defaults."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from service.command_line import command, texts
from service.plain_options import plain_options
from service.settings import ServiceSettings, SettingsError, read_settings


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROWCAST_ROOT", str(tmp_path))


def test_option_wins_over_environment_and_environment_over_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWCAST_K_MAX", "7")
    monkeypatch.setenv("ROWCAST_POLL_S", "3.5")
    settings = read_settings({"k_max": 9, "poll_s": None})
    assert (settings.k_max, settings.poll_s, settings.http_port) == (9, 3.5, 8080)


def test_required_models_come_as_options_or_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWCAST_REQUIRE", "films, books")
    assert read_settings({"require": None}).require == ("films", "books")
    assert read_settings({"require": ("x",)}).require == ("x",)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        setattr(read_settings({}), "k_max", 3)  # noqa: B010 - mypy would refuse the plain way


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"ROWCAST_HTPP_PORT": "1"}, "ROWCAST_HTPP_PORT, which is no setting; did you mean ROWCAST_HTTP_PORT"),
        ({"ROWCAST_ZZZZZZ": "1"}, "rowcast-serve --help"),
    ],
)
def test_unknown_variable_is_refused_with_the_nearest_name(environment: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_settings({}, environment)


@pytest.mark.parametrize(
    "variable",
    [
        "ROWCAST_EXPORT_WORKERS",
        "ROWCAST_SERVICE_HOST",
        "ROWCAST_SERVICE_PORT",
        "ROWCAST_SERVICE_PORT_HTTP",
        "ROWCAST_PORT",
        "ROWCAST_PORT_8080_TCP_ADDR",
        "ROWCAST_STAGING_PORT_9090_TCP",
        "PATH",
    ],
)
def test_variables_of_others_are_left_alone(variable: str) -> None:
    read_settings({}, {variable: "tcp://10.0.0.1:80"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"http_port": 70000}, "--http-port .*'70000'.*65535"),
        ({"in_flight_max": 0}, "--in-flight-max"),
        ({"host": ""}, "--host .*''.*at least 1 character"),  # which would listen on every interface
        ({"intake_bytes_max": 1 << 20}, "--intake-bytes-max .*'1048576'.*body_bytes_max, 16777216"),
        ({"device": "gpu", "workers": 2}, "--workers .*'2'.*runs in one process"),
        ({"verify": "some"}, "--verify .*'some'.*'sizes' or 'full'"),
        ({"admin_port": "eighty"}, r"--admin-port \(or ROWCAST_ADMIN_PORT\) is 'eighty': .*integer"),
        ({"tls_cert": "cert.pem"}, r"--tls-key \(or ROWCAST_TLS_KEY\) is not given: --tls-cert and --tls-key go"),
        ({"root": Path("/nowhere")}, "--root .*'/nowhere' is no directory"),
        ({"colour": "red"}, "--colour"),
    ],
)
def test_setting_out_of_its_limits_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_settings(options)


@pytest.mark.parametrize(("given", "what"), [("films", "one model's"), ("films/3", "a bundle")])
def test_root_below_the_root_is_refused_with_the_right_one(tmp_path: Path, given: str, what: str) -> None:
    (tmp_path / "films/3").mkdir(parents=True)
    (tmp_path / "films/3/manifest.json").touch()
    with pytest.raises(SettingsError, match=f"is {what}; give the root above it, '{re.escape(str(tmp_path))}'"):
        read_settings({"root": tmp_path / given})
    assert read_settings({"root": tmp_path}).root == tmp_path


def test_root_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROWCAST_ROOT")
    with pytest.raises(SettingsError, match=r"--root \(or ROWCAST_ROOT\) must be given"):
        read_settings({})


def test_every_setting_is_documented() -> None:
    told = texts()
    assert list(told) == list(ServiceSettings.model_fields)
    for name, text in told.items():
        assert text, name
        if name.endswith("_s"):
            assert "second" in text, name
        if "bytes" in name:
            assert "byte" in text, name


def test_every_setting_is_an_option_with_its_variable() -> None:
    shown = CliRunner().invoke(command(lambda options, only_print: 0), ["--help"], terminal_width=200).output
    for name in ServiceSettings.model_fields:
        assert f"--{name.replace('_', '-')}" in shown
        assert f"ROWCAST_{name.upper()}" in shown.replace("\n", " ")


def test_command_line_passes_on_what_was_given_and_the_exit_code() -> None:
    seen: list[tuple[dict[str, Any], bool]] = []

    def run(options: dict[str, Any], only_print: bool) -> int:
        seen.append((options, only_print))
        return 7

    arguments = ["--root", "/tmp", "--k-max", "3", "--require", "a", "--require", "b", "--print-settings"]
    assert CliRunner().invoke(command(run), arguments).exit_code == 7
    options, only_print = seen[0]
    assert only_print
    given = {name: value for name, value in options.items() if value is not None}
    assert given == {"root": "/tmp", "k_max": "3", "require": ("a", "b")}
    assert read_settings(given).k_max == 3


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--root /tmp --k-max 3",
        "--root=/tmp --http-port=0 --http-port 1",
        "--require a --require=b,c --tls-cert= --tokens x=y",
    ],
)
def test_plain_options_are_read_as_by_the_library(words: str) -> None:
    seen: list[dict[str, Any]] = []

    def run(options: dict[str, Any], only_print: bool) -> int:
        seen.append({name: value for name, value in options.items() if value not in (None, ())})
        return 0

    assert CliRunner().invoke(command(run), words.split()).exit_code == 0
    assert [plain_options(words.split())] == seen


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "ctl status",
        "--root /tmp pull a b",
        "--no-admin",
        "--admin",
        "--print-settings",
        "--htpp-port 1",
        "--http_port 1",
        "--root",
        "--root --k-max 3",
        "-- --root",
    ],
)
def test_all_other_words_are_left_to_the_library(words: str) -> None:
    assert plain_options(words.split()) is None


def test_command_line_refuses_an_unknown_option() -> None:
    app = command(lambda options, only_print: 0)
    assert CliRunner().invoke(app, ["--htpp-port", "1"]).exit_code == 2


def test_help_tells_the_kind_of_each_value_and_its_limits() -> None:
    shown = CliRunner().invoke(command(lambda options, only_print: 0), ["--help"], terminal_width=200).output
    kinds = {"http-port": "int", "admin-port": "int", "poll-s": "float", "root": "path", "verify": "sizes|full"}
    for name, kind in kinds.items():
        assert f"--{name} <{kind}>" in shown
    assert shown.count("(at least 0, at most 65535)") == 3


def test_settings_can_be_printed_as_json() -> None:
    page = json.loads(read_settings({}).model_dump_json())
    assert set(page) == set(ServiceSettings.model_fields)
