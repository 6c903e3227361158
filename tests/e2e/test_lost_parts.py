"""Services that lose a part: a worker by a signal, files that somebody cleans, a secret that is
away, a version that is deleted. The rest goes on, and the log says what happened.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from tests.e2e.process import PROGRAM, WAIT_S, Process, until
from tests.e2e.services import (
    Launch,
    Write,
    client_of,
    count_of,
    ctl,
    health_url,
    is_ready,
    run_directory_of,
    versions_of,
    wait_for,
    wait_for_workers,
    workers_of,
)
from tests.units.service.security.authorities import Authority

ENDS_THE_PROCESS = """
import os, signal, sys

def end(event, arguments):  # stands for a crash in a library
    file = str(arguments[0]) if event == "open" else ""
    if "movies/2/" in file and file.endswith(".tflite"):
        os.kill(os.getpid(), signal.SIGSEGV)

sys.addaudithook(end)
"""


def find_and_run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, "ctl", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=WAIT_S)


def serves(service: Process, version: int) -> bool:
    return versions_of(service) == {version}


@pytest.mark.nightly
@pytest.mark.slow
def test_version_whose_load_ends_a_worker_is_failed_and_the_older_one_serves(
    write: Write, launch: Launch, tmp_path: Path
) -> None:
    write()
    (tmp_path / "sitecustomize.py").write_text(ENDS_THE_PROCESS)
    service = launch(PYTHONPATH=str(tmp_path))
    wait_for(service, "1")
    write(version=2)
    ended = service.event("worker_ended")
    assert (ended["reason"], ended["model"], ended["version"]) == ("SIGSEGV", "movies", 2)
    failed = service.event("version_failed", model="movies", version=2)
    assert (
        f"process {ended['pid']} ended (SIGSEGV) while it loaded this version"
        in (failed["problem"])
    )
    wait_for_workers(service, 1)
    assert serves(service, 1)
    (model,) = json.loads(ctl(service, "status").stdout)["models"]
    assert [(version["version"], version["state"]) for version in model["versions"]] == [
        (2, "failed"),
        (1, "available"),
    ]
    assert count_of(service, 'rowcast_worker_ends_total{reason="SIGSEGV"}') == 1
    assert service.stop() == 0


@pytest.mark.nightly
@pytest.mark.slow
def test_commands_and_health_checks_do_not_wait_for_a_worker_that_hangs(
    write: Write, launch: Launch
) -> None:
    write()
    service = launch("--workers", "2")
    wait_for(service, "2")
    hung = workers_of(service)[0]
    hung.suspend()
    for number in range(4):
        done = ctl(service, "--wait-s", "0", "deny", "add", "movies", f"{number}")
        assert done.returncode == 5, done.stderr  # accepted; one worker does not follow it yet
    with httpx.Client(base_url=health_url(service), timeout=WAIT_S, verify=False) as health:
        assert health.get("/livez").json() == {"live": True}
        assert health.get("/metrics").status_code == 200
    hung.resume()
    assert ctl(service, "deny", "add", "movies", "7").returncode == 0
    assert service.stop() == 0


def replace_first_worker(service: Process) -> None:
    before = workers_of(service)
    before[0].kill()
    until(lambda: len(workers_of(service)) == 2 and before[0] not in workers_of(service))


@pytest.mark.nightly
@pytest.mark.slow
def test_service_whose_run_directory_is_emptied_removed_or_a_file_goes_on(
    write: Write, launch: Launch
) -> None:
    write()
    service = launch("--workers", "2")
    wait_for(service, "2")
    directory = run_directory_of(service)
    with httpx.Client(base_url=health_url(service), timeout=WAIT_S, verify=False) as health:
        for file in directory.iterdir():
            file.unlink()
        scrape = health.get("/metrics")
        assert (scrape.status_code, scrape.json()["error"]["code"]) == (500, "INTERNAL")
        assert "something has cleaned its directory" in scrape.json()["error"]["message"]
        until(lambda: is_ready(health))
        replace_first_worker(service)
        until(lambda: is_ready(health))
        assert serves(service, 1)
        service.process.send_signal(signal.SIGHUP)  # as the message says
        until(lambda: health.get("/metrics").status_code == 200)
        wait_for_workers(service, 2)

        shutil.rmtree(directory)
        until(directory.is_dir)
        until(lambda: is_ready(health))
        assert directory.stat().st_mode & 0o777 == 0o700
        assert serves(service, 1)
        service.process.send_signal(signal.SIGHUP)
        until(lambda: health.get("/metrics").status_code == 200)
        wait_for_workers(service, 2)

        aside = directory.with_name(f"{directory.name}-aside")
        directory.rename(aside)
        directory.write_text("")  # in its place: nobody, not even root, can write below a file
        assert str(directory) in service.event("run_directory_lost")["problem"]
        time.sleep(6)  # longer than a worker may be silent
        until(lambda: is_ready(health))
        assert health.get("/metrics").status_code == 500
    assert serves(service, 1)
    assert service.stop() == 0
    directory.unlink()
    shutil.rmtree(aside)


@pytest.mark.nightly
@pytest.mark.slow
def test_worker_without_its_tokens_or_key_is_started_again_until_they_are_back(
    write: Write, launch: Launch, tmp_path: Path
) -> None:
    write()
    tokens = tmp_path / "tokens"
    tokens.write_text("operator 0123456789abcdefghijklmnopqrstuv\n")
    authority = Authority(tmp_path, "authority")
    signed = authority.sign("server")
    other = Authority(tmp_path, "other").sign("other")
    secrets = ("--tls-cert", str(signed.cert), "--tls-key", str(signed.key))
    service = launch("--workers", "2", "--admin-tokens", str(tokens), *secrets)
    wait_for(service, "2")
    for file, wrong in ((tokens, b"nothing"), (signed.key, other.key.read_bytes())):
        right = file.read_bytes()
        file.write_bytes(wrong)
        before = workers_of(service)
        before[0].kill()
        assert service.event("worker_ended")["reason"] == "SIGKILL"
        assert str(file) in json.dumps(service.event("cannot_start"))
        assert service.event("worker_ended")["reason"] == "exit status 1"
        assert before[1] in workers_of(service)
        with client_of(service, trusted=authority.file) as client:
            assert client.get("/readyz").status_code == 200
        file.write_bytes(right)
        wait_for_workers(service, 2)
    assert service.stop() == 0
    assert not service.others, "not all of the log is JSON"


@pytest.mark.nightly
@pytest.mark.slow
def test_command_finds_the_service_of_its_root_though_its_port_is_taken(
    write: Write, launch: Launch, root: Path
) -> None:
    write()
    other = root.with_name("other")
    other.mkdir()
    with ExitStack() as stack:
        with suppress(OSError):  # another program has it, which is as good
            stack.enter_context(socket.create_server(("127.0.0.1", 8090)))
        service = launch()
        taken = service.event("port_taken", endpoint="admin")
        assert "8090" in taken["problem"]
        service.event("listening")
    assert taken["port"] == service.ports["admin"] != 8090
    stranger = launch("--admin-port", "0", "--root", str(root / ".." / "other"))
    stranger.event("listening")
    done = find_and_run("--root", str(root), "deny", "add", "movies", "7")
    assert done.returncode == 0, done.stderr
    url = f"http://127.0.0.1:{service.ports['admin']}"
    assert f"process {service.process.pid} at {url} serves {root}" in done.stderr
    assert json.loads(ctl(stranger, "status").stdout)["revision"] == 0
    ambiguous = find_and_run("drain")
    assert (ambiguous.returncode, ambiguous.stdout) == (2, "")
    assert "several services run on this machine" in ambiguous.stderr
    health = f"http://127.0.0.1:{service.ports['health']}"
    for command in ("status", "drain"):
        elsewhere = find_and_run("--admin", health, command)
        assert (elsewhere.returncode, "--admin-port" in elsewhere.stderr) == (3, True)
    assert service.stop() == 0
    assert find_and_run("--root", str(other), "status").returncode == 0
    gone = find_and_run("--root", str(root), "status")
    assert gone.returncode == 3
    assert f"a service of {root} does not run on this machine" in gone.stderr
    assert str(root / ".." / "other") in gone.stderr
    assert stranger.stop() == 0
