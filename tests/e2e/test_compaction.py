"""A log that is compacted while it is written, by processes that are killed meanwhile: nothing
acknowledged is lost, and workers and copies on other machines go on.
"""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from bundle.changes.log_lock import LogLock
from tests.e2e.process import until
from tests.e2e.services import Launch, Write, wait_for, wait_for_workers
from tests.e2e.test_changes import admin_of, sequences_of, upsert

KEYS = range(5000, 5003)
HISTORY = 150
"""The number of changes of each candidate before the first compaction."""
KILLS = 5
KILLS_THOROUGH = 100


@pytest.mark.slow
def test_killed_compactions_lose_nothing_and_copies_go_on(
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
                if killed.is_set() and sequence >= HISTORY:
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
            for _ in range(kills):
                compaction = threads.submit(compact)
                time.sleep(random.uniform(0, 0.2))
                writer = lock.writer()
                assert writer is not None
                with suppress(psutil.NoSuchProcess):  # the last one is not replaced yet
                    psutil.Process(writer.pid).send_signal(signal.SIGKILL)
                assert compaction.result() in {0, 200, 503}
                wait_for_workers(service, 2)
        finally:
            killed.set()
        expected = {key: sender.result() for key, sender in zip(KEYS, senders, strict=True)}

    # Whatever was written beside the log by a writer that was killed is gone, too.
    upsert_again = {key: last + 1 for key, last in expected.items()}
    with admin_of(service) as client:
        for key, sequence in upsert_again.items():
            upsert(client, key, sequence)
        size_before = log.stat().st_size
        assert client.post("/changes/compact", json={}).json()["changes"] == len(KEYS)
    assert log.stat().st_size < size_before
    assert {path.name for path in log.parent.iterdir()} == {"changes.log", "changes.log.lock"}
    for _ in range(8):  # connections of their own reach every worker
        until(lambda: sequences_of(service) == upsert_again)
    until(lambda: sequences_of(copy) == upsert_again)
    service.kill()
    restarted = launch("--workers", "1", "--changes-dir", str(tmp_path / "log"))
    wait_for(restarted, "1")
    assert sequences_of(restarted) == upsert_again
