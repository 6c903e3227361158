"""`rowcast-serve ctl` against an admin listener: what it does, prints and exits with."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import pytest
from typer.testing import CliRunner, Result

from service.cli import serve as program
from service.observability import logging
from service.workers.announcement import Announcement, announce
from tests.bundles.small import SmallBundle
from tests.units.service.running import RunningService, flip
from tests.units.service.security.authorities import Authority

TOKEN = "0123456789abcdef-mine"
Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]


def ctl(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(program.command(), ["ctl", *arguments], env=environment)


def printed(service: RunningService, command: str) -> str:
    """Returns what a command prints that succeeds."""
    done = ctl("--admin", service.admin, *command.split())
    assert done.exit_code == 0, done.stderr
    return done.stdout


def ports_of(service: RunningService, tmp_path: Path) -> tuple[str, str]:
    """Returns the option by which a service is found."""
    file = tmp_path / "ports.json"
    file.write_text(json.dumps({"admin": int(service.admin.rpartition(":")[2])}))
    return "--ports-file", str(file)


PAGES = {
    "label movies next 2": "movies: labels next = 2\n",
    "rollback movies": "movies: rolled back to 1 until a version above 2 appears, labels ",
    "pin movies 1": "movies: pinned 1\n",
    "load movies 2": "movies: pinned 1, loaded 2\n",
    "unload movies": "movies: unloaded, pinned 1, loaded 2\n",
    "load movies": "movies: pinned 1, loaded 2\n",
}
"""What a person reads of the desired state after some of the commands below."""
EFFECTS: list[tuple[str, dict[str, Any] | str]] = [
    ("label movies next 2", {"labels": ["next"]}),
    ("unload movies 2", "remove them first"),
    ("unlabel movies b", "'next'"),
    ("rollback movies 2", "before the current version 2"),
    ("rollback movies", {"current": 1}),
    ("unpin movies", {"current": 2}),
    ("unlabel movies next", {"wanted": {}, "labels": []}),
    ("pin movies 1", {"current": 1}),
    ("rollback movies", "no version before 1"),
    ("unload movies 1", "the only one that is pinned"),
    ("load movies 2", {"wanted": {"pinned": [1], "loaded": [2]}}),
    ("unload movies", {"current": None}),
    ("rollback movies", "no current version"),
    ("load movies", {"current": 1}),
    ("log-level debug", {"log_level": "debug"}),
    ("log-level setting", {"log_level": "info"}),
    ("drain", {"draining": True}),
    ("undrain", {"draining": False}),
]
"""Commands, one after the other, and what the status shows after each, or why it is rejected."""


def test_commands_are_in_effect_when_they_return(write: Write, serve: Serve, root: Path) -> None:
    write()
    write(version=2)
    service = serve()
    for command, expected in EFFECTS:
        if isinstance(expected, str):
            rejected = ctl("--admin", service.admin, *command.split())
            assert expected in rejected.stderr, command
            assert rejected.exit_code in {2, 4}
            continue
        status = json.loads(printed(service, f"--json {command}"))
        (model,) = status["models"]
        labels = [label for entry in model["versions"] for label in entry["labels"]]
        status_by_name = {**status, **model, "labels": labels}
        assert {name: status_by_name[name] for name in expected} == expected, command
        assert PAGES.get(command, "") in printed(service, "status"), command
    done = ctl("--admin", service.admin, "load", "movies")
    assert "nothing changed: movies is not unloaded; name a version" in done.stderr
    page = printed(service, "status")
    assert page.startswith(f"{root}: revision ")
    assert "1 available, current" in page
    assert "draining" in printed(service, "drain")
    # Options are accepted before and after the command.
    assert json.loads(printed(service, "pin movies 1 --wait-s=30 --json"))


def test_change_whose_output_cannot_be_written_is_in_effect_and_says_so(
    write: Write, serve: Serve
) -> None:
    write()
    service = serve()
    line = f"--admin {service.admin} deny add movies 1007"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "service.cli.main", "ctl", *line.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr.count("\n")) == (6, 1)
    assert "succeeded, but standard output cannot be written: No space left" in done.stderr
    assert printed(service, "deny list movies") == "1007\n"


def test_deny_list_takes_ids_and_files_and_prints_what_it_holds(
    write: Write, serve: Serve, tmp_path: Path
) -> None:
    write(id_kind="string")
    service = serve()
    file = tmp_path / "recalled"
    file.write_text("1007\n\n  m-7 \n", encoding="utf-8-sig")
    steps = [
        (f"add movies 5 --file {file}", 0, "denied 3"),
        ("list movies", 0, "1007\n5\nm-7\n"),
        ("list movies --json", 0, '"m-7"'),
        ("add movies 5", 0, "nothing changed"),
        ("remove movies 5 6", 2, "'6'"),
        (f"remove movies --file {file}", 0, ""),
        ("add movies -5", 2, "write -- before an argument that begins with -"),
        ("add movies -- -5 --json", 0, ""),
        ("list movies", 0, "--json\n-5\n5\n"),
        ("add movies", 2, "no ids"),
        ("add movies --file /nowhere", 2, "/nowhere"),
        ("add films 5", 2, "NOT_FOUND"),
        (f"add movies --file {tmp_path / 'many'}", 2, "at most 100000"),
    ]
    (tmp_path / "many").write_text("\n".join(map(str, range(100, 100_100))))
    for arguments, code, words in steps:
        done = ctl("--admin", service.admin, "deny", *arguments.split())
        page = done.stdout + done.stderr
        assert (done.exit_code, words in page) == (code, True), page


@pytest.mark.parametrize("as_started", ["{root}/../{root.name}", "{link}", "{root}"])
def test_service_is_found_by_any_path_of_its_root(
    write: Write, serve: Serve, root: Path, as_started: str
) -> None:
    write()
    service = serve()
    link = root.with_name("link")
    link.symlink_to(root)
    started = Announcement(1, as_started.format(root=root, link=link), service.admin)
    with announce(started):
        for path in (root, link, root / ".." / root.name):
            done = ctl("--root", str(path), "status")
            assert done.exit_code == 0, done.stderr
        done = ctl("--root", str(root.parent), "status")
        listed = f"{started.root} (process {os.getpid()})"
        assert (done.exit_code, done.stderr.count(listed)) == (3, 1)


def test_report_has_versions_settings_states_and_problems_and_no_secret(
    write: Write,
    serve: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stream: TextIO,
) -> None:
    write()
    operators, mine, client = (tmp_path / name for name in ("operators", "mine", "client"))
    operators.write_text(f"me {TOKEN}\n")
    mine.write_text("\ufeff" + TOKEN)
    client.write_text("ranker another-0123456789abcdef\n")
    signed = Authority(tmp_path).sign("server")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-environment")
    logging.logger("x").error("root_unreadable", extra=logging.fields(problem="Permission denied"))
    logging.logger("x").info("listening")
    tls = {"tls_cert": signed.cert, "tls_key": signed.key}
    service = serve(admin_host="0.0.0.0", admin_tokens=operators, tokens=client, **tls)
    options = ["--admin", service.admin, "--ca", str(tmp_path / "authority.pem")]
    rejected = ctl(*options, "drain")
    assert (rejected.exit_code, "UNAUTHENTICATED" in rejected.stderr) == (4, True)
    assert ctl(*options, "status", ROWCAST_CTL_TOKEN=TOKEN).exit_code == 0
    options += ["--token-file", str(mine), "report"]
    done = ctl(*options)
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["packages"]["rowcast"] == version("rowcast")
    assert report["python"] == platform.python_version()
    assert report["cpu"]["found"]
    assert report["settings"]["tls_key"] == str(signed.key)
    assert report["status"]["models"][0]["versions"][0]["state"] == "available"
    problems = [(line["event"], line["problem"]) for line in report["problems"]]
    assert problems == [("root_unreadable", "Permission denied")]
    key = signed.key.read_text().splitlines()[1]
    for secret in (TOKEN, "another-0123456789abcdef", "of-the-environment", key):
        assert secret not in done.stdout
    assert ctl(*options, "--output", str(tmp_path / "report.json")).exit_code == 0
    assert set(json.loads((tmp_path / "report.json").read_text())) == set(report)
    (tmp_path / "folder").mkdir()
    for output in ("no/report.json", "folder"):
        failed = ctl(*options, "--output", str(tmp_path / output))
        assert (failed.exit_code, "--output" in failed.stderr) == (2, True)


def test_command_that_is_not_in_effect_in_time_exits_5_and_reports_why(
    write: Write, serve: Serve
) -> None:
    write()
    service = serve()
    flip(write(version=2).directory / "indexes/movies/vectors.bin")
    done = ctl("--admin", service.admin, "pin", "movies", "2")
    assert (done.exit_code, "vectors.bin" in done.stderr) == (5, True)
    assert "1 available, current" in done.stdout
    goes_on = threading.Event()
    service.loop.call_soon_threadsafe(goes_on.wait)
    try:
        assert ctl("--admin", service.admin, "--wait-s", "0", "drain").exit_code == 5
    finally:
        goes_on.set()


def test_tls_checks_the_certificates_of_both_sides(
    write: Write, serve: Serve, tmp_path: Path
) -> None:
    write()
    ours = Authority(tmp_path, "ours")
    theirs = Authority(tmp_path, "theirs")
    signed = ours.sign("server")
    me = theirs.sign("me")
    cert_and_key = tmp_path / "both.pem"
    cert_and_key.write_bytes(me.cert.read_bytes() + me.key.read_bytes())
    tls = {"tls_cert": signed.cert, "tls_key": signed.key, "tls_client_ca": theirs.file}
    ports = ports_of(serve(admin_host="0.0.0.0", **tls), tmp_path)
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


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_endpoint_that_is_no_admin_api_gets_the_option_of_the_right_port(
    serve: Serve, kind: str
) -> None:
    service = serve()
    address = service.http
    if kind == "grpc":
        address = f"http://{service.grpc}"
    done = ctl("--admin", address, "status")
    assert (done.exit_code, "--admin-port" in done.stderr) == (3, True), done.stderr
    assert done.stderr.isprintable() or done.stderr.count("\n") == 1


def test_misspelt_variable_is_rejected_with_the_nearest_name() -> None:
    done = ctl("status", ROWCAST_CTL_ADMNI="http://127.0.0.1:1")
    assert (done.exit_code, "ROWCAST_CTL_ADMIN?" in done.stderr) == (2, True), done.stderr
