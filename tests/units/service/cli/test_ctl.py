"""`rowcast-serve ctl` against an admin listener: what it does, prints and exits with."""

from __future__ import annotations

import json
import os
import platform
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import pytest
import typer
from typer.testing import CliRunner, Result

from service.cli.ctl import CTL
from service.observability import logging
from tests.bundles.small import SmallBundle
from tests.units.service.running import RunningService, flip
from tests.units.service.security.authorities import Authority

TOKEN = "0123456789abcdef-mine"
Start = Callable[..., "Service"]
Write = Callable[..., SmallBundle]


def ctl(*arguments: str, **environment: str) -> Result:
    app = typer.Typer(rich_markup_mode=None)
    app.callback()(lambda: None)
    app.add_typer(CTL, name="ctl")
    return CliRunner().invoke(app, ["ctl", *arguments], env=environment)


class Service:
    """A service over version 1 of a model, and `ctl` against it."""

    def __init__(self, directory: Path, write: Write, **options: Any) -> None:
        self.root = directory / "bundles"
        self.write = write
        write()
        self.running = RunningService(self.root, **options)
        self.url = self.running.admin
        self.ports_file = directory / "ports.json"
        self.ports_file.write_text(json.dumps({"admin": int(self.url.rpartition(":")[2])}))

    def ctl(self, *arguments: str) -> Result:
        return ctl("--admin", self.url, *arguments)

    def status(self, *arguments: str) -> dict[str, Any]:
        done = self.ctl("--json", *arguments)
        assert done.exit_code == 0, done.stderr
        status: dict[str, Any] = json.loads(done.stdout)
        return status


@pytest.fixture
def start(tmp_path: Path, write: Write) -> Iterator[Start]:
    started: list[Service] = []

    def begin(**options: Any) -> Service:
        started.append(Service(tmp_path, write, **options))
        return started[-1]

    yield begin
    for service in started:
        service.running.close()


EFFECTS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("label", "movies", "next", "2"), {"labels": ["next"]}),
    (("rollback", "movies"), {"current": 1}),
    (("unpin", "movies"), {"current": 2}),
    (("unlabel", "movies", "next"), {"wanted": {}, "labels": []}),
    (("pin", "movies", "1"), {"current": 1}),
    (("load", "movies", "2"), {"wanted": {"pinned": [1], "loaded": [2]}}),
    (("unload", "movies"), {"current": None}),
    (("load", "movies"), {"current": 1}),
    (("log-level", "debug"), {"log_level": "debug"}),
    (("log-level", "setting"), {"log_level": "info"}),
    (("drain",), {"draining": True}),
    (("undrain",), {"draining": False}),
]
"""Commands, one after the other, and what the status shows after each."""


def test_commands_are_in_effect_when_they_return(start: Start) -> None:
    service = start()
    service.write(version=2)
    for command, expected in EFFECTS:
        status = service.status(*command)
        (model,) = status["models"]
        labels = [label for entry in model["versions"] for label in entry["labels"]]
        status_by_name = {**status, **model, "labels": labels}
        assert {name: status_by_name[name] for name in expected} == expected, command
    printed = service.ctl("status").stdout
    assert printed.startswith(f"{service.root}: revision ")
    assert "1 available, current" in printed
    assert "draining" in service.ctl("drain").stdout
    # Options are accepted before and after the command.
    assert service.ctl("status", "--json").exit_code == 0
    assert service.ctl("pin", "movies", "1", "--wait-s=30", "--json").exit_code == 0
    assert service.ctl("status", "--wait-s").exit_code == 2


def test_deny_list_takes_ids_and_files_and_prints_what_it_holds(
    start: Start, tmp_path: Path
) -> None:
    service = start()
    file = tmp_path / "recalled"
    file.write_text("1007\n\n  m-7 \n")
    steps: list[tuple[tuple[str, ...], int, str]] = [
        (("add", "movies", "5", "--file", str(file)), 0, "denied 3"),
        (("list", "movies"), 0, "1007\n5\nm-7\n"),
        (("list", "movies", "--json"), 0, '"m-7"'),
        (("add", "movies", "5"), 0, "nothing changed"),
        (("remove", "movies", "5", "6"), 2, "'6'"),
        (("remove", "movies", "--file", str(file)), 0, ""),
        (("add", "movies", "--", "-5", "--json"), 0, ""),
        (("list", "movies"), 0, "--json\n-5\n5\n"),
        (("add", "movies"), 2, "no ids"),
        (("add", "movies", "--file", "/nowhere"), 2, "/nowhere"),
        (("add", "films", "5"), 2, "NOT_FOUND"),
    ]
    for arguments, code, words in steps:
        done = service.ctl("deny", *arguments)
        printed = done.stdout + done.stderr
        assert (done.exit_code, words in printed) == (code, True), printed
    file.write_text("\n".join(map(str, range(100, 100_100))))
    many = service.ctl("deny", "add", "movies", "--file", str(file))
    assert (many.exit_code, "at most 100000" in many.stderr) == (2, True)


def test_report_has_versions_settings_states_and_problems_and_no_secret(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: TextIO
) -> None:
    operators, mine, client = (tmp_path / name for name in ("operators", "mine", "client"))
    operators.write_text(f"me {TOKEN}\n")
    mine.write_text(TOKEN)
    client.write_text("ranker another-0123456789abcdef\n")
    signed = Authority(tmp_path).sign("server")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-environment")
    logging.logger("x").error("root_unreadable", extra=logging.fields(problem="Permission denied"))
    logging.logger("x").info("listening")
    tls = {"tls_cert": signed.cert, "tls_key": signed.key}
    service = start(admin_host="0.0.0.0", admin_tokens=operators, tokens=client, **tls)
    options = ("--token-file", str(mine), "--ca", str(tmp_path / "authority.pem"), "report")
    printed = service.ctl(*options)
    assert printed.exit_code == 0, printed.stderr
    report = json.loads(printed.stdout)
    assert report["packages"]["rowcast"] == version("rowcast")
    assert report["python"] == platform.python_version()
    assert report["cpu"]["found"]
    assert report["settings"]["tls_key"] == str(signed.key)
    assert report["status"]["models"][0]["versions"][0]["state"] == "available"
    assert [(line["event"], line["problem"]) for line in report["problems"]] == [
        ("root_unreadable", "Permission denied")
    ]
    key = signed.key.read_text().splitlines()[1]
    for secret in (TOKEN, "another-0123456789abcdef", "of-the-environment", key):
        assert secret not in printed.stdout
    assert service.ctl(*options, "--output", str(tmp_path / "report.json")).exit_code == 0
    assert set(json.loads((tmp_path / "report.json").read_text())) == set(report)
    os.mkfifo(tmp_path / "pipe")
    for output in ("no/report.json", "pipe"):
        failed = service.ctl(*options, "--output", str(tmp_path / output))
        assert (failed.exit_code, "--output" in failed.stderr) == (2, True)


def test_command_that_is_not_in_effect_in_time_exits_5_and_reports_why(start: Start) -> None:
    service = start()
    flip(service.write(version=2).directory / "indexes/movies/vectors.bin")
    done = service.ctl("pin", "movies", "2")
    assert (done.exit_code, "vectors.bin" in done.stderr) == (5, True)
    assert "1 available, current" in done.stdout
    goes_on = threading.Event()
    service.running.loop.call_soon_threadsafe(goes_on.wait)
    try:
        assert service.ctl("--wait-s", "0", "drain").exit_code == 5
    finally:
        goes_on.set()


def test_token_is_sent_where_the_service_requires_one(start: Start, tmp_path: Path) -> None:
    operators = tmp_path / "operators"
    mine = tmp_path / "mine"
    operators.write_text(f"me {TOKEN}\n")
    mine.write_text(f"{TOKEN}\n")
    ports = ("--ports-file", str(start(admin_tokens=operators).ports_file))
    rejected = ctl(*ports, "drain")
    assert (rejected.exit_code, "UNAUTHENTICATED" in rejected.stderr) == (4, True)
    assert ctl(*ports, "--token-file", str(mine), "drain").exit_code == 0
    assert ctl(*ports, "status", ROWCAST_CTL_TOKEN=TOKEN).exit_code == 0


def test_tls_checks_the_certificates_of_both_sides(start: Start, tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    theirs = Authority(tmp_path, "theirs")
    signed = ours.sign("server")
    me = theirs.sign("me")
    cert_and_key = tmp_path / "both.pem"
    cert_and_key.write_bytes(me.cert.read_bytes() + me.key.read_bytes())
    tls = {"tls_cert": signed.cert, "tls_key": signed.key, "tls_client_ca": theirs.file}
    service = start(admin_host="0.0.0.0", **tls)
    ports = ("--ports-file", str(service.ports_file))
    done = ctl(*ports, "--ca", str(ours.file), "--cert", str(cert_and_key), "status")
    assert (done.exit_code, "1 available, current" in done.stdout) == (0, True), done.stderr
    for options in (
        [],
        ["--ca", str(theirs.file), "--cert", str(cert_and_key)],
        ["--ca", str(ours.file)],
    ):
        assert ctl(*ports, *options, "status").exit_code == 3


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--admin", "http://127.0.0.1:1", "status"], 3, "cannot be reached"),
        (["--admin", "http://127.0.0.1:x", "status"], 3, "cannot be reached"),
        (["--admin", "ftp://127.0.0.1", "status"], 2, "http://HOST:PORT"),
        (["--ports-file", "/nowhere/ports.json", "status"], 2, "/nowhere/ports.json"),
        (["--ports-file", __file__, "status"], 2, __file__),
        (["--ca", __file__, "--admin", "https://127.0.0.1:1", "status"], 2, __file__),
        (["--token-file", "/nowhere/token", "status"], 2, "/nowhere/token"),
        (["pin", "movies"], 2, "VERSION"),
    ],
)
def test_service_that_cannot_be_reached_is_reported_in_one_line(
    arguments: list[str], code: int, words: str
) -> None:
    done = ctl(*arguments)
    assert (done.exit_code, words in done.stderr) == (code, True), done.stderr
    assert done.exception is None or isinstance(done.exception, SystemExit)
