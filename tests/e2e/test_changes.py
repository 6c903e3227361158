"""Changes of a service with several workers, some of which are killed: nothing acknowledged is
lost, nothing is applied twice, and every worker serves it.
"""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.e2e.process import WAIT_S, Process, until
from tests.e2e.services import Launch, Write, client_of, wait_for, wait_for_workers, workers_of

SENDERS = 3
ROUNDS_MIN = 25
KILLS = 6
KILLS_THOROUGH = 100


@contextmanager
def admin_of(service: Process) -> Iterator[httpx.Client]:
    """A client of the admin API."""
    url = f"http://127.0.0.1:{service.ports['admin']}/v1/models/movies"
    with httpx.Client(base_url=url, timeout=WAIT_S) as client:
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
        try:
            response = client.post("/candidates/upsert", json={"items": [item]})
        except httpx.TransportError:  # the worker was killed
            continue
        if response.status_code == 503:  # the worker that replaces it loads the model
            continue
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


@pytest.mark.slow
def test_acknowledged_changes_are_soon_in_every_worker_and_never_lost_or_applied_twice(
    request: pytest.FixtureRequest, write: Write, launch: Launch
) -> None:
    write()
    service = launch("--workers", "2")
    wait_for(service, "2")
    with admin_of(service) as client:
        for sequence in range(1, 6):
            upsert(client, 5000, sequence)
            time.sleep(1)  # much longer than it takes, on a machine whose cores are busy
            assert [sequences_of(service)[5000] for _ in range(6)] == [sequence] * 6
    kills = KILLS_THOROUGH if request.config.getoption("--thorough") else KILLS
    killed = threading.Event()

    def send(sender: int) -> int:
        """Returns the last sequence that was acknowledged."""
        with admin_of(service) as client:
            for sequence in itertools.count(6):
                upsert(client, 5000 + sender, sequence)
                if killed.is_set() and sequence >= ROUNDS_MIN:
                    break
        return sequence

    def kill() -> None:
        for _ in range(kills):
            until(lambda: len(workers_of(service)) == 2)
            time.sleep(random.uniform(0, 0.5))
            random.choice(workers_of(service)).send_signal(signal.SIGKILL)
        killed.set()

    with ThreadPoolExecutor(SENDERS + 1) as threads:
        killing = threads.submit(kill)
        senders = [threads.submit(send, sender) for sender in range(SENDERS)]
        killing.result()
        expected = {5000 + sender: senders[sender].result() for sender in range(SENDERS)}

    wait_for_workers(service, 2)
    for _ in range(8):  # connections of their own reach every worker
        until(lambda: sequences_of(service) == expected)
    with admin_of(service) as client:
        status = client.get("/changes").json()
        assert upsert(client, 5000, expected[5000])["outdated"] == [5000]
    assert status["sequence"] >= sum(expected.values()) - 5 * (SENDERS - 1)

    service.kill()
    second = launch("--workers", "1")
    wait_for(second, "1")
    assert sequences_of(second) == expected
