"""`rowcast-serve ctl` against an admin listener: what it does, prints and exits with."""

from __future__ import annotations

import json
import os
import platform
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import pytest
import typer
import uvicorn
from typer.testing import CliRunner, Result

from service.admin.api import create_admin_app
from service.cli.ctl import CTL
from service.config import ServiceSettings
from service.coordinator import Coordinator
from service.observability import logging
from service.security.tls import Certificates
from service.security.tokens import TokenStore
from tests.units.service.admin.workers import Worker, publish
from tests.units.service.security.authorities import Authority

TOKEN = "0123456789abcdef-mine"
Start = Callable[..., "Service"]


def ctl(*arguments: str, **environment: str) -> Result:
    app = typer.Typer(rich_markup_mode=None)
    app.callback()(lambda: None)
    app.add_typer(CTL, name="ctl")
    return CliRunner().invoke(app, ["ctl", *arguments], env=environment)


class Service:
    """An admin listener, and a worker that serves version 1 and looks for others again
    and again.
    """

    def __init__(self, directory: Path, **options: Any) -> None:
        self.root = directory / "bundles"
        coordinator = Coordinator()
        publish(self.root, 1)
        settings = ServiceSettings(root=self.root, **options)
        self.worker = Worker(settings, coordinator)
        tokens = None if settings.admin_tokens is None else TokenStore(settings.admin_tokens)
        certificates = Certificates.of(settings)
        tls = None if certificates is None else lambda *_: certificates.ssl_context()
        app = create_admin_app(settings, coordinator, tokens)
        config = uvicorn.Config(app, log_config=None, lifespan="off", ssl_context_factory=tls)
        self._server = uvicorn.Server(config)
        self._stopping = threading.Event()
        listener = socket.create_server(("127.0.0.1", 0))
        self.ports_file = directory / "ports.json"
        self.ports_file.write_text(json.dumps({"admin": listener.getsockname()[1]}))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        serve = partial(self._server.run, [listener])
        self._threads = [threading.Thread(target=target) for target in (serve, self._scan)]
        for thread in self._threads:
            thread.start()

    def _scan(self) -> None:
        while not self._stopping.wait(0.02):
            self.worker.scan()

    def ctl(self, *arguments: str) -> Result:
        return ctl("--admin", self.url, *arguments)

    def status(self, *arguments: str) -> dict[str, Any]:
        done = self.ctl("--json", *arguments)
        assert done.exit_code == 0, done.stderr
        status: dict[str, Any] = json.loads(done.stdout)
        return status

    def hang(self) -> None:
        """Stops the worker, which then no longer follows any command."""
        self._stopping.set()
        self._threads[1].join()
        self.worker.close()

    def close(self) -> None:
        self._server.should_exit = True
        self._threads[0].join()
        self.hang()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Service] = []

    def begin(**options: Any) -> Service:
        started.append(Service(tmp_path, **options))
        return started[-1]

    yield begin
    for service in started:
        service.close()


def test_commands_are_in_effect_when_they_return(start: Start) -> None:
    service = start()
    publish(service.root, 2)
    (model,) = service.status("label", "movies", "next", "2")["models"]
    assert [(version["version"], version["labels"]) for version in model["versions"]] == [
        (2, ["next"]),
        (1, []),
    ]
    assert service.status("rollback", "movies")["models"][0]["current"] == 1
    assert service.status("unpin", "movies")["models"][0]["current"] == 2
    assert service.status("unlabel", "movies", "next")["models"][0]["wanted"] == {}
    assert service.status("pin", "movies", "1")["models"][0]["current"] == 1
    assert service.status("load", "movies", "2")["models"][0]["wanted"] == {
        "pinned": [1],
        "loaded": [2],
    }
    assert service.status("unload", "movies")["models"][0]["current"] is None
    assert service.status("load", "movies")["models"][0]["current"] == 1
    assert service.status("log-level", "debug")["log_level"] == "debug"
    assert service.status("log-level", "setting")["log_level"] == "info"
    assert service.status("drain")["draining"]
    assert not service.status("undrain")["draining"]


def test_deny_list_takes_ids_and_files_and_prints_what_it_holds(
    start: Start, tmp_path: Path
) -> None:
    service = start()
    file = tmp_path / "recalled"
    file.write_text("1007\n\n  m-7 \n")
    assert (
        "movies: denied 3" in service.ctl("deny", "add", "movies", "5", "--file", str(file)).stdout
    )
    assert service.ctl("deny", "list", "movies").stdout == "1007\n5\nm-7\n"
    assert json.loads(service.ctl("--json", "deny", "list", "movies").stdout)["ids"] == [
        "1007",
        "5",
        "m-7",
    ]
    repeated = service.ctl("deny", "add", "movies", "5")
    assert (repeated.exit_code, "nothing changed" in repeated.stderr) == (0, True)
    unknown = service.ctl("deny", "remove", "movies", "5", "6")
    assert (unknown.exit_code, "1 of 2 ids are not denied, such as '6'" in unknown.stderr) == (
        2,
        True,
    )
    assert service.ctl("deny", "remove", "movies", "--file", str(file)).exit_code == 0
    assert service.ctl("deny", "add", "movies", "--", "-5").exit_code == 0
    assert service.ctl("deny", "list", "movies").stdout == "-5\n5\n"
    file.write_text("\n".join(map(str, range(100, 100_100))))
    many = service.ctl("deny", "add", "movies", "--file", str(file))
    assert (
        many.exit_code,
        "would have 100002 ids; at most 100000 are accepted" in many.stderr,
    ) == (2, True)
    for arguments, message in (
        ([], "no ids were given"),
        (["--file", "/nowhere"], "--file /nowhere cannot be read: No su"),
    ):
        done = service.ctl("deny", "add", "movies", *arguments)
        assert (done.exit_code, message in done.stderr) == (2, True)


def test_options_are_accepted_before_and_after_the_command(start: Start) -> None:
    service = start()
    before = service.ctl("--json", "status")
    after = service.ctl("status", "--json")
    assert (before.exit_code, after.exit_code) == (0, 0)
    assert json.loads(before.stdout).keys() == json.loads(after.stdout).keys()
    for waiting in (["--wait-s", "30"], ["--wait-s=30"]):
        assert service.ctl("pin", "movies", "1", *waiting, "--json").exit_code == 0
    assert service.ctl("deny", "add", "movies", "--json", "--", "--json").exit_code == 0
    assert service.ctl("deny", "list", "movies").stdout == "--json\n"
    assert service.ctl("status", "--wait-s").exit_code == 2


def test_status_is_printed_as_text(start: Start) -> None:
    service = start()
    service.status("label", "movies", "stable", "1")
    done = service.ctl("status")
    lines = done.stdout.splitlines()
    assert (done.exit_code, lines[0].partition(" MiB")[0]) == (0, f"{service.root}: revision 1, 1")
    assert lines[1:] == [
        'movies: labels {"stable":1}',
        "  1 [stable] available, current, up to 1 MiB in addition to its tables",
    ]
    assert "draining: calls are rejected" in service.ctl("drain").stdout


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
    service = start(admin_tokens=operators, tokens=client, tls_cert=signed.cert, tls_key=signed.key)
    service.url = service.url.replace("http:", "https:")
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
    failed = service.ctl(*options, "--output", str(tmp_path / "no" / "report.json"))
    assert (failed.exit_code, failed.stderr.partition(": ")[2]) == (
        2,
        f"--output {tmp_path}/no/report.json cannot be written: No such file or directory\n",
    )
    os.mkfifo(tmp_path / "pipe")
    failed = service.ctl(*options, "--output", str(tmp_path / "pipe"))
    assert failed.exit_code == 2
    assert f"--output: {tmp_path}/pipe is a pipe, which a rename would" in failed.stderr


def test_version_that_cannot_be_loaded_exits_5_and_reports_why(start: Start) -> None:
    service = start()
    service.worker.failing[2] = "vectors.bin differs from its checksum"
    publish(service.root, 2)
    done = service.ctl("pin", "movies", "2")
    assert done.exit_code == 5
    assert "version 2 should be loaded, but is failed: vectors.bin" in done.stderr
    assert "1 available, current" in done.stdout


def test_command_that_is_not_in_effect_in_time_exits_5(start: Start) -> None:
    service = start()
    service.hang()
    assert service.ctl("--wait-s", "0", "drain").exit_code == 5


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
    service = start(tls_cert=signed.cert, tls_key=signed.key, tls_client_ca=theirs.file)
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
    ("arguments", "code", "message"),
    [
        (["--admin", "http://127.0.0.1:1", "status"], 3, "cannot be reached"),
        (["--admin", "ftp://127.0.0.1", "status"], 2, "http://HOST:PORT was expected"),
        (["--admin", "http://127.0.0.1:x", "status"], 3, "cannot be reached"),
        (
            ["--ports-file", "/nowhere/ports.json", "status"],
            2,
            "/nowhere/ports.json cannot be used: No such file",
        ),
        (["--ports-file", __file__, "status"], 2, f"{__file__} cannot be used: "),
        (
            ["--ca", __file__, "--admin", "https://127.0.0.1:1", "status"],
            2,
            f"{__file__} cannot be used: NO_CERT",
        ),
        (
            ["--token-file", "/nowhere/token", "--ca", __file__, "status"],
            2,
            "/nowhere/token cannot be used",
        ),
        (["pin", "movies"], 2, "VERSION"),
    ],
)
def test_service_that_cannot_be_reached_is_reported_in_one_line(
    arguments: list[str], code: int, message: str
) -> None:
    done = ctl(*arguments)
    assert (done.exit_code, message in done.stderr) == (code, True), done.stderr
    assert done.exception is None or isinstance(done.exception, SystemExit)
