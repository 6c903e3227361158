"""`rowcast-serve ctl` against a service that runs: what it does, prints and exits with."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from service.command_line import command
from service.start import run
from tests.service.process import PATIENCE_S, PROGRAM, Process, until
from tests.service.running import flip
from tests.service.security.authorities import Authority
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]


def ctl(*arguments: str, **environment: str) -> Result:
    """Runs the command line in this process."""
    return CliRunner().invoke(command(run), ["ctl", *arguments], env=environment)


def told(service: Process, *arguments: str) -> dict[str, Any]:
    done = ctl("--admin", f"http://127.0.0.1:{service.ports['admin']}", "--json", *arguments)
    assert done.exit_code == 0, done.stderr
    page: dict[str, Any] = json.loads(done.stdout)
    return page


@pytest.fixture(params=[1, 2], ids=["alone", "two workers"])
def service(request: pytest.FixtureRequest, write: Write, root: Path) -> Iterator[Process]:
    write()
    running = Process(root, "--workers", str(request.param))
    try:
        yield running
    finally:
        running.kill()


def answers(client: httpx.Client, path: str = "movies") -> set[int]:
    """Versions that answer now, of several calls on connections of their own."""
    versions = set()
    for _ in range(6):
        body = {"features": {"user": 3}, "k": 2}
        answer = httpx.post(client.base_url.join(f"/v1/models/{path}:retrieve"), json=body, timeout=PATIENCE_S)
        versions.add(answer.json()["version"])
    return versions


def test_operator_brings_a_version_back_and_forth_while_it_is_served(service: Process, write: Write) -> None:
    with service.client() as client:
        until(lambda: client.get("/readyz").status_code == 200)  # else version 2 may be the first to be loaded
        write(version=2)
        page = told(service, "label", "movies", "next", "2")
        assert [each["version"] for each in page["models"][0]["versions"]] == [2, 1]
        assert answers(client) == {2}
        assert answers(client, "movies/labels/next") == {2}
        assert told(service, "rollback", "movies")["models"][0]["current"] == 1
        wait_for(client, {1})
        assert answers(client, "movies/versions/2") == {2}
        told(service, "unpin", "movies")
        wait_for(client, {2})
        told(service, "pin", "movies", "1")
        wait_for(client, {1})
    assert service.stop() == 0


def wait_for(client: httpx.Client, versions: set[int]) -> None:
    """The other worker follows within a tenth of a second, if it gets to run."""
    until(lambda: answers(client) == versions)


def test_what_was_asked_for_survives_a_restart(write: Write, root: Path) -> None:
    write()
    write(version=2)
    first = Process(root)
    try:
        first.event("listening")
        told(first, "pin", "movies", "1")
        told(first, "drain")
        first.stop()
    finally:
        first.kill()
    again = Process(root)
    try:
        with again.client() as client:
            until(lambda: "drained" in client.get("/readyz").json()["error"]["message"])  # not only still loading
            body = {"features": {"user": 3}, "k": 2}
            refused = client.post("/v1/models/movies:retrieve", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "NOT_READY")
            again.event("version_available")
            told(again, "undrain")
            assert client.post("/v1/models/movies:retrieve", json=body).json()["version"] == 1
    finally:
        again.kill()


def test_version_that_cannot_be_loaded_exits_5_and_says_why(write: Write, root: Path) -> None:
    write()
    service = Process(root)
    try:
        service.event("version_available")
        flip(write(version=2).directory / "indexes/movies/vectors.bin")
        done = ctl("--admin", f"http://127.0.0.1:{service.ports['admin']}", "pin", "movies", "2")
        assert done.exit_code == 5
        assert "version 2 is to be loaded, it is refused: " in done.stderr
        assert "vectors.bin" in done.stderr
        assert "1 available, current" in done.stdout
        shutil.rmtree(root / "movies" / "2")
        assert ctl("--admin", f"http://127.0.0.1:{service.ports['admin']}", "pin", "movies", "7").exit_code == 2
    finally:
        service.kill()


def test_operator_needs_the_token_that_the_service_asks_for(write: Write, root: Path, tmp_path: Path) -> None:
    write()
    operators, mine = tmp_path / "operators", tmp_path / "mine"
    operators.write_text("me 0123456789abcdef-mine\n")
    mine.write_text("0123456789abcdef-mine\n")
    service = Process(root, "--admin-tokens", str(operators))
    try:
        service.event("version_available")
        ports = ("--ports-file", str(service.ports_file))
        refused = ctl(*ports, "drain")
        assert (refused.exit_code, "UNAUTHENTICATED" in refused.stderr) == (4, True)
        done = ctl(*ports, "--token-file", str(mine), "drain")
        assert (done.exit_code, "drained: calls are refused" in done.stdout) == (0, True)
        line = service.event("controlled")
        assert (line["what"], line["caller"]) == ("drain", "me")
        assert ctl(*ports, "log-level", "debug", ROWCAST_CTL_TOKEN="0123456789abcdef-mine").exit_code == 0
    finally:
        service.kill()


def test_operator_from_elsewhere_is_spoken_to_over_tls_where_callers_are(
    write: Write, root: Path, tmp_path: Path
) -> None:
    write()
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    signed, me = ours.sign("server"), theirs.sign("me")
    both = tmp_path / "both.pem"
    both.write_bytes(me.cert.read_bytes() + me.key.read_bytes())
    token = tmp_path / "token"
    token.write_text("0123456789abcdef-mine")
    (tmp_path / "operators").write_text("me 0123456789abcdef-mine\n")
    closed = ("--tls-cert", str(signed.cert), "--tls-key", str(signed.key), "--tls-client-ca", str(theirs.file))
    service = Process(root, *closed, "--admin-host", "0.0.0.0", "--admin-tokens", str(tmp_path / "operators"))
    try:
        service.event("version_available")
        ports = ("--ports-file", str(service.ports_file), "--token-file", str(token))
        done = ctl(*ports, "--ca", str(ours.file), "--cert", str(both), "status")
        assert (done.exit_code, "1 available, current" in done.stdout) == (0, True), done.stderr
        for strange in ([], ["--ca", str(theirs.file), "--cert", str(both)], ["--ca", str(ours.file)]):
            assert ctl(*ports, *strange, "status").exit_code == 3
    finally:
        service.kill()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--admin", "http://127.0.0.1:1", "status"], 3, "cannot be reached"),
        (["--admin", "ftp://127.0.0.1", "status"], 2, "http://HOST:PORT was expected"),
        (["--ports-file", "/nowhere/ports.json", "status"], 2, "/nowhere/ports.json cannot be used: No such file"),
        (["--ports-file", __file__, "status"], 2, f"{__file__} cannot be used: "),
        (["--ca", __file__, "--admin", "https://127.0.0.1:1", "status"], 2, f"{__file__} cannot be used: NO_CERT"),
        (["--token-file", "/nowhere/token", "--ca", __file__, "status"], 2, "/nowhere/token cannot be used"),
        (["pin", "movies"], 2, "VERSION"),
    ],
)
def test_service_that_cannot_be_asked_is_told_in_one_line(arguments: list[str], code: int, message: str) -> None:
    ended = [*PROGRAM, "ctl", *arguments]
    done = subprocess.run(ended, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
