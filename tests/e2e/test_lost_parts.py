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
    each_number_of_workers,
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


@pytest.mark.slow
@each_number_of_workers
def test_version_whose_load_ends_a_worker_is_failed_and_the_older_one_serves(
    workers: str, write: Write, launch: Launch, tmp_path: Path
) -> None:
    write()
    (tmp_path / "sitecustomize.py").write_text(ENDS_THE_PROCESS)
    service = launch("--workers", workers, PYTHONPATH=str(tmp_path))
    wait_for(service, workers)
    write(version=2)
    ended = service.event("worker_ended")
    assert (ended["reason"], ended["model"], ended["version"]) == ("SIGSEGV", "movies", 2)
    failed = service.event("version_failed", model="movies", version=2)
    assert (
        f"process {ended['pid']} ended (SIGSEGV) while it loaded this version"
        in (failed["problem"])
    )
    wait_for_workers(service, int(workers))
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
def test_service_whose_run_directory_is_emptied_goes_on_and_its_scrapes_fail(
    write: Write, launch: Launch
) -> None:
    write()
    service = launch("--workers", "2")
    wait_for(service, "2")
    directory = run_directory_of(service)
    for file in directory.iterdir():
        file.unlink()
    with httpx.Client(base_url=health_url(service)) as health:
        scrape = health.get("/metrics")
        assert (scrape.status_code, scrape.json()["error"]["code"]) == (500, "INTERNAL")
        assert "which something has cleaned" in scrape.json()["error"]["message"]
        until(lambda: is_ready(health))
        before = workers_of(service)
        before[0].kill()
        until(lambda: len(workers_of(service)) == 2 and before[0] not in workers_of(service))
        assert is_ready(health)
        assert serves(service, 1)
        service.process.send_signal(signal.SIGHUP)  # as the message says
        until(lambda: health.get("/metrics").status_code == 200)
    wait_for_workers(service, 2)
    assert service.stop() == 0


@pytest.mark.nightly
@pytest.mark.slow
def test_service_whose_run_directory_is_removed_creates_it_again(
    write: Write, launch: Launch
) -> None:
    write()
    service = launch("--workers", "1")
    wait_for(service, "1")
    directory = run_directory_of(service)
    shutil.rmtree(directory)
    with httpx.Client(base_url=health_url(service)) as health:
        until(directory.is_dir)
        until(lambda: is_ready(health))
        assert directory.stat().st_mode & 0o777 == 0o700
        assert serves(service, 1)
        workers_of(service)[0].kill()
        until(lambda: health.get("/metrics").status_code == 200)
    wait_for_workers(service, 1)
    assert serves(service, 1)
    assert service.stop() == 0


@pytest.mark.nightly
@pytest.mark.slow
def test_service_whose_run_directory_cannot_be_written_stays_ready(
    write: Write, launch: Launch
) -> None:
    write()
    service = launch("--workers", "1")
    wait_for(service, "1")
    directory = run_directory_of(service)
    directory.rename(directory.with_name(f"{directory.name}-aside"))
    directory.write_text("")  # a file in its place: nobody, not even root, can write below it
    assert str(directory) in service.event("run_directory_lost")["problem"]
    with httpx.Client(base_url=health_url(service)) as health:
        time.sleep(6)  # longer than a worker may be silent
        assert is_ready(health)
        assert health.get("/metrics").status_code == 500
    assert serves(service, 1)
    assert service.stop() == 0
    directory.unlink()
    shutil.rmtree(directory.with_name(f"{directory.name}-aside"))


@pytest.mark.nightly
@pytest.mark.slow
def test_worker_whose_secret_is_away_is_started_again_until_it_is_back(
    write: Write, launch: Launch, tmp_path: Path
) -> None:
    write()
    tokens = tmp_path / "tokens"
    tokens.write_text("operator 0123456789abcdefghijklmnopqrstuv\n")
    service = launch("--workers", "2", "--admin-tokens", str(tokens))
    wait_for(service, "2")
    tokens.rename(tmp_path / "away")
    before = workers_of(service)
    before[0].kill()
    assert service.event("worker_ended")["reason"] == "SIGKILL"
    assert service.event("worker_ended")["reason"] == "exit status 1"
    assert serves(service, 1)
    assert before[1] in workers_of(service)
    (tmp_path / "away").rename(tokens)
    wait_for_workers(service, 2)
    assert service.stop() == 0


@pytest.mark.nightly
@pytest.mark.slow
def test_worker_whose_certificate_has_another_key_is_started_again_until_they_match(
    write: Write, launch: Launch, tmp_path: Path
) -> None:
    write()
    authority = Authority(tmp_path, "authority")
    signed = authority.sign("server")
    other = Authority(tmp_path, "other").sign("other")
    service = launch(
        *("--workers", "2", "--tls-cert", str(signed.cert), "--tls-key", str(signed.key))
    )
    wait_for(service, "2")
    key = signed.key.read_bytes()
    signed.key.write_bytes(other.key.read_bytes())
    before = workers_of(service)
    before[0].kill()
    assert service.event("worker_ended")["reason"] == "SIGKILL"
    assert str(signed.key) in service.event("cannot_start")["problem"]
    assert service.event("worker_ended")["reason"] == "exit status 1"
    with client_of(service, trusted=authority.file) as client:
        assert client.get("/readyz").status_code == 200
    signed.key.write_bytes(key)
    wait_for_workers(service, 2)
    assert service.stop() == 0
    assert not service.others, "not all of the log is JSON"


@pytest.mark.slow
def test_workers_respond_from_one_version_after_the_newest_was_deleted(
    write: Write, launch: Launch, root: Path
) -> None:
    write()
    write(version=2)
    service = launch("--workers", "2")
    wait_for(service, "2")
    shutil.rmtree(root / "movies" / "2")
    assert serves(service, 2)
    before = workers_of(service)
    before[0].kill()
    before[0].wait()
    seen = list[set[int | None]]()

    def moved() -> bool:
        seen.append(versions_of(service))
        return seen[-1] == {1} and len(workers_of(service)) == 2

    until(moved)
    wait_for_workers(service, 2)
    assert serves(service, 1)
    mixed = [versions for versions in seen if len(versions) > 1]
    assert len(mixed) <= 1, "a request or two may see the switch itself"
    assert service.stop() == 0


@pytest.mark.slow
def test_commands_reach_a_worker_that_runs_while_another_hangs(
    write: Write, launch: Launch
) -> None:
    write()
    service = launch("--workers", "2", "--worker-timeout-s", "600")
    wait_for(service, "2")
    hung = workers_of(service)[0]
    hung.suspend()
    for number in range(4):
        done = ctl(service, "--wait-s", "0", "deny", "add", "movies", f"item-{number}")
        assert done.returncode == 5, done.stderr  # accepted; one worker does not follow it yet
    hung.resume()
    assert ctl(service, "deny", "add", "movies", "last").returncode == 0
    assert service.stop() == 0


@pytest.mark.nightly
@pytest.mark.slow
def test_port_of_operators_that_is_taken_is_told(write: Write, launch: Launch) -> None:
    write()
    with ExitStack() as stack:
        with suppress(OSError):  # another program has it, which is as good
            stack.enter_context(socket.create_server(("127.0.0.1", 8090)))
        service = launch()
        taken = service.event("port_taken", endpoint="admin")
        assert "8090" in taken["problem"]
        service.event("listening")
        assert taken["port"] == service.ports["admin"] != 8090
        assert service.stop() == 0


@pytest.mark.nightly
@pytest.mark.slow
def test_command_finds_the_service_of_its_root_whatever_port_it_has(
    write: Write, launch: Launch, root: Path
) -> None:
    write()
    other = root.with_name("other")
    other.mkdir()
    service = launch("--admin-port", "0")
    stranger = launch("--admin-port", "0", "--root", str(other))
    for each in (service, stranger):
        each.event("listening")
    done = find_and_run("--root", str(root), "deny", "add", "movies", "7")
    assert done.returncode == 0, done.stderr
    url = f"http://127.0.0.1:{service.ports['admin']}"
    assert done.stderr.startswith(
        f"rowcast-serve ctl: process {service.process.pid} at {url} serves {root}\n"
    )
    assert json.loads(ctl(stranger, "status").stdout)["revision"] == 0
    ambiguous = find_and_run("drain")
    assert (ambiguous.returncode, ambiguous.stdout) == (2, "")
    assert "several services run on this machine" in ambiguous.stderr
    assert service.stop() == 0
    gone = find_and_run("--root", str(root), "status")
    assert gone.returncode == 3
    assert f"a service of {root} does not run on this machine" in gone.stderr
    assert str(other) in gone.stderr
    assert stranger.stop() == 0
