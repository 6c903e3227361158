"""Changes of a service with several workers, which is backed up meanwhile, while its processes are
killed: nothing acknowledged is lost, nothing is applied twice, and every worker, a copy on another
machine and a restored backup serve it.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from bundle.changes.file import FILE_NAME
from tests.e2e.process import WAIT_S, Process, until
from tests.e2e.services import Launch, Write, client_of, wait_for, wait_for_workers, workers_of

KEYS = range(5000, 5003)
PAUSE_S = 0.01
"""Between the changes of one sender, whose kills last for seconds."""
KILLS = 2


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
def test_killed_workers_lose_nothing_and_apply_nothing_twice(
    request: pytest.FixtureRequest, write: Write, launch: Launch, tmp_path: Path
) -> None:
    write()
    service = launch("--workers", "2", "--changes-dir", str(tmp_path / "changes"))
    wait_for(service, "2")
    follow = ("--follow-changes", f"http://127.0.0.1:{service.ports['admin']}")
    copy = launch(*follow, "--changes-dir", str(tmp_path / "copy"))
    kills = KILLS * max(1, request.config.getoption("--thorough"))
    have_begun = threading.Barrier(len(KEYS) + 1)
    killed = threading.Event()

    def send(key: int) -> int:
        """Returns the last sequence that was acknowledged."""
        with admin_of(service) as client:
            for sequence in itertools.count(1):
                upsert(client, key, sequence)
                if sequence == 1:
                    have_begun.wait()
                if killed.is_set():
                    return sequence
                time.sleep(PAUSE_S)
        raise AssertionError

    def back_up(number: int) -> int:
        """Returns the status of the response; 0: its worker was killed."""
        path = str(tmp_path / f"backup-{number}.sqlite")
        with admin_of(service) as client, suppress(httpx.TransportError):
            return client.post("/changes/backup", params={"path": path}, json={}).status_code
        return 0

    with ThreadPoolExecutor(len(KEYS) + 1) as threads:
        senders = [threads.submit(send, key) for key in KEYS]
        have_begun.wait()
        try:
            for number in range(kills):
                backup = threads.submit(back_up, number)
                time.sleep(random.uniform(0, 0.2))
                with suppress(ProcessLookupError):  # the last one is not replaced yet
                    os.kill(random.choice(workers_of(service)).pid, signal.SIGKILL)
                assert backup.result() in {0, 200, 503}
                wait_for_workers(service, 2)
        finally:
            killed.set()
        expected = {key: sender.result() for key, sender in zip(KEYS, senders, strict=True)}

    until_all_serve(service, expected)
    wait_for(copy, "1")
    until(lambda: sequences_of(copy) == expected)
    copy.kill()
    assert back_up(kills) == 200
    with admin_of(service) as client:
        assert upsert(client, KEYS[0], expected[KEYS[0]])["outdated"] == [KEYS[0]]
        later = {key: last + 1 for key, last in expected.items()}
        for key, sequence in later.items():
            upsert(client, key, sequence)
    until_all_serve(service, later)
    copy = launch(*follow, "--changes-dir", str(tmp_path / "copy"))
    wait_for(copy, "1")
    assert sequences_of(copy) == later, "it caught up before it was ready"
    service.kill()
    with sqlite3.connect(tmp_path / "changes" / "movies" / FILE_NAME) as database:
        (count,) = database.execute(
            "select count(*) from states where kind = 'candidates'"
        ).fetchone()
        assert count == len(KEYS), "an update replaces"
    database.close()
    restarted = launch("--workers", "1", "--changes-dir", str(tmp_path / "changes"))
    wait_for(restarted, "1")
    assert sequences_of(restarted) == later

    restored = tmp_path / "restored" / "movies" / FILE_NAME
    restored.parent.mkdir(parents=True)
    (tmp_path / f"backup-{kills}.sqlite").rename(restored)
    from_backup = launch("--workers", "1", "--changes-dir", str(restored.parent.parent))
    wait_for(from_backup, "1")
    assert sequences_of(from_backup) == expected
