"""Changes of a service with several workers, whose log is compacted meanwhile, while its processes
are killed: nothing acknowledged is lost, nothing is applied twice, and every worker and a copy on
another machine serves it.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from bundle.changes.log_lock import LogLock
from tests.e2e.process import WAIT_S, Process, until
from tests.e2e.services import Launch, Write, client_of, wait_for, wait_for_workers, workers_of

KEYS = range(5000, 5003)
HISTORY = 60
"""The number of changes of each candidate before the first compaction."""
PAUSE_S = 0.01
"""Between the changes of one sender, whose kills last for seconds."""
KILLS = 2
KILLS_THOROUGH = 100


@contextmanager
def admin_of(service: Process) -> Iterator[httpx.Client]:
    """A client of the admin API."""
    url = f"http://127.0.0.1:{service.ports['admin']}/v1/models/movies"
    with httpx.Client(base_url=url, timeout=WAIT_S, verify=False) as client:
        yield client


def upsert(client: httpx.Client, key: int, sequence: int) -> dict[str, Any]:
    """Adds or replaces a candidate, again and again until it is acknowledged."""
    item = {
        "id": key,
        "features": {"movie": 1007, "genres": [], "year": 0.5},
        "attributes": {"year": -sequence},  # no movie has such a year by itself
        "sequence": sequence,
    }
    while True:
        with suppress(httpx.TransportError):  # the worker was killed
            response = client.post("/candidates/upsert", json={"items": [item]})
            if response.status_code != 503:  # the worker that replaces it loads the model
                break
        time.sleep(PAUSE_S)
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    return result


def sequences_of(service: Process) -> dict[int, int]:
    """Returns the sequences of the candidates that were added, as some worker has them."""
    body = {
        "context": {"user": 3},
        "k": 100,
        "attributes": ["year"],
        "filter": {"year": {"lt": 0}},
    }
    with client_of(service) as client:
        response = client.post(
            "/v1/models/movies:retrieve", json=body, headers={"connection": "close"}
        )
    assert response.status_code == 200, response.text
    content = response.json()
    sequences = [-year for year in content["attributes"]["year"]]
    return dict(zip(content["ids"], sequences, strict=True))


def until_all_serve(service: Process, expected: dict[int, int]) -> None:
    """Waits until each worker has all changes: connections of their own reach every one."""
    for _ in range(8):
        until(lambda: sequences_of(service) == expected)


@pytest.mark.slow
def test_killed_workers_and_compactions_lose_nothing_and_apply_nothing_twice(
    request: pytest.FixtureRequest, write: Write, launch: Launch, tmp_path: Path
) -> None:
    write()
    service = launch("--workers", "2", "--changes-dir", str(tmp_path / "log"))
    wait_for(service, "2")
    follow = ("--follow-changes", f"http://127.0.0.1:{service.ports['admin']}")
    copy = launch(*follow, "--changes-dir", str(tmp_path / "copy"))
    log = tmp_path / "log" / "movies" / "changes.log"
    lock = LogLock(log.with_name("changes.log.lock"))
    kills = KILLS
    if request.config.getoption("--thorough"):
        kills = KILLS_THOROUGH
    has_history = threading.Barrier(len(KEYS) + 1)
    killed = threading.Event()

    def send(key: int) -> int:
        """Returns the last sequence that was acknowledged."""
        with admin_of(service) as client:
            for sequence in itertools.count(1):
                upsert(client, key, sequence)
                if sequence == HISTORY:
                    has_history.wait()
                if sequence >= HISTORY:
                    time.sleep(PAUSE_S)
                    if killed.is_set():
                        return sequence
        raise AssertionError

    def compact() -> int:
        """Returns the status of the response; 0: its worker was killed."""
        with admin_of(service) as client, suppress(httpx.TransportError):
            return client.post("/changes/compact", json={}).status_code
        return 0

    with ThreadPoolExecutor(len(KEYS) + 1) as threads:
        senders = [threads.submit(send, key) for key in KEYS]
        has_history.wait()
        try:
            for number in range(kills):
                compaction = threads.submit(compact)
                time.sleep(random.uniform(0, 0.2))
                killed_process = random.choice(workers_of(service)).pid
                if number % 2:
                    writer = lock.writer()
                    assert writer is not None
                    killed_process = writer.pid
                with suppress(ProcessLookupError):  # the last one is not replaced yet
                    os.kill(killed_process, signal.SIGKILL)
                assert compaction.result() in {0, 200, 503}
                wait_for_workers(service, 2)
        finally:
            killed.set()
        expected = {key: sender.result() for key, sender in zip(KEYS, senders, strict=True)}

    until_all_serve(service, expected)
    wait_for(copy, "1")
    until(lambda: sequences_of(copy) == expected)
    copy.kill()
    with admin_of(service) as client:
        status = client.get("/changes").json()
        assert status["sequence"] >= sum(expected.values())
        assert upsert(client, KEYS[0], expected[KEYS[0]])["outdated"] == [KEYS[0]]

        # Whatever was written beside the log by a writer that was killed is gone, too.
        upsert_again = {key: last + 1 for key, last in expected.items()}
        for key, sequence in upsert_again.items():
            upsert(client, key, sequence)
        size_before = log.stat().st_size
        assert client.post("/changes/compact", json={}).json()["changes"] == len(KEYS)
    assert log.stat().st_size < size_before
    assert {path.name for path in log.parent.iterdir()} == {"changes.log", "changes.log.lock"}
    until_all_serve(service, upsert_again)
    copy = launch(*follow, "--changes-dir", str(tmp_path / "copy"))
    wait_for(copy, "1")
    assert sequences_of(copy) == upsert_again, "it caught up before it was ready"
    service.kill()
    restarted = launch("--workers", "1", "--changes-dir", str(tmp_path / "log"))
    wait_for(restarted, "1")
    assert sequences_of(restarted) == upsert_again
