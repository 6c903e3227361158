"""Changes that wait while another process writes the changes, and many large ones at once: whatever
needs no turn responds, no worker is killed, and no change is made late.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from bundle.changes.file import FILE_NAME
from service.codec.stubs import embedding_service_pb2 as pb
from tests.e2e.process import WAIT_S, Process, until
from tests.e2e.services import (
    BODY,
    RETRIEVE,
    Launch,
    Write,
    client_of,
    ctl,
    wait_for,
    workers_of,
)

pytestmark = pytest.mark.slow

TOKEN = "0123456789abcdef-of-the-trainer"
MODEL = "/v1/models/movies"
UPSERT = f"{MODEL}/candidates/upsert"
TIMEOUT_S = 10.0
"""Longer than the supervisor waits for a sign of life."""
PAUSE_S = 0.1
"""Between the calls that are to get a response meanwhile."""
OVER_HTTP = 45
OVER_GRPC = 12
OVER_ADMIN = 20
LARGE_IDS = 30_000


@pytest.fixture
def service(write: Write, launch: Launch, tmp_path: Path) -> Process:
    write()
    tokens = tmp_path / "tokens"
    tokens.write_text(f"trainer {TOKEN}\n")
    tokens.chmod(0o600)
    timeouts = ("--worker-timeout-s", "8", "--request-timeout-s", str(TIMEOUT_S))
    service = launch("--tokens", str(tokens), "--changes-from", "trainer", *timeouts)
    wait_for(service, "1")
    return service


@contextmanager
def written_by_another(root: Path) -> Iterator[None]:
    """Another process writes the changes, and does not end."""
    path = root / "movies" / FILE_NAME
    with closing(sqlite3.connect(path, WAIT_S, isolation_level=None)) as database:
        database.execute("begin immediate")
        yield


def candidate(key: int) -> dict[str, Any]:
    return {"id": key, "features": {"movie": 1007, "genres": [], "year": 0.5}}


def send(client: httpx.Client, key: int) -> tuple[int, str]:
    response = client.post(UPSERT, json={"items": [candidate(key)]})
    return response.status_code, response.json().get("error", {}).get("code", "")


def send_over_grpc(channel: grpc.Channel, key: int) -> str:
    message = pb.ChangeRequest(
        model=pb.ModelSpec(name="movies"),
        kind=pb.CHANGE_KIND_CANDIDATES,
        action=pb.CHANGE_ACTION_DELETE,
        ids=pb.Ids(int64s=key.to_bytes(8, "little")),
        stream="deletions",
        offset=key,
    )
    call = channel.unary_unary("/rowcast.embedding.v1.EmbeddingService/Change")
    metadata = [("authorization", f"Bearer {TOKEN}")]
    try:
        call(message.SerializeToString(), timeout=TIMEOUT_S, metadata=metadata)
    except grpc.RpcError as problem:
        code: str = problem.code().name
        return code
    return "OK"


def cancelled_changes(client: httpx.Client) -> float:
    labels = ('call="change"', 'code="CANCELLED"')
    lines = client.get("/metrics").text.splitlines()
    counts = [line for line in lines if all(label in line for label in labels)]
    return sum(float(line.split()[-1]) for line in counts if "requests_total" in line)


def sequence_of(service: Process) -> int:
    status = ctl(service, "changes", "status", "movies")
    sequence: int = json.loads(status.stdout)["sequence"]
    return sequence


def check_many_large_changes_at_once(service: Process) -> None:
    items = [{"id": key} for key in range(10**6, 10**6 + LARGE_IDS)]
    body = gzip.compress(json.dumps({"items": items}).encode(), 1)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}

    def delete(client: httpx.Client) -> int:
        url = f"{MODEL}/candidates/delete"
        return client.post(url, content=body, headers=headers).status_code

    with client_of(service, TOKEN) as client, ThreadPoolExecutor(12) as senders:
        deletions = [senders.submit(delete, client) for _ in range(12)]
        while not all(waiting.done() for waiting in deletions):
            assert client.get("/livez").status_code == 200
            time.sleep(PAUSE_S)
        statuses = {waiting.result() for waiting in deletions}
    assert 200 in statuses
    assert statuses <= {200, 429, 504}


def test_changes_that_wait_or_are_large_delay_nothing_else_and_are_not_made_late(
    service: Process, root: Path
) -> None:
    (worker,) = workers_of(service)
    admin_url = f"http://127.0.0.1:{service.ports['admin']}"
    with (
        client_of(service, TOKEN) as client,
        httpx.Client(base_url=admin_url, timeout=WAIT_S, verify=False) as admin,
        grpc.insecure_channel(f"127.0.0.1:{service.ports['grpc']}") as channel,
        ThreadPoolExecutor(OVER_HTTP + OVER_GRPC + OVER_ADMIN) as senders,
    ):
        assert send(client, 5001) == (200, "")
        sequence = sequence_of(service)
        with written_by_another(root):
            # Later senders find no thread, or wait for the other process in one.
            over_http = [senders.submit(send, client, 6000 + n) for n in range(OVER_HTTP)]
            over_admin = [senders.submit(send, admin, 7000 + n) for n in range(OVER_ADMIN)]
            over_grpc = [
                senders.submit(send_over_grpc, channel, 8000 + n) for n in range(OVER_GRPC)
            ]
            changes: list[Future[Any]] = [*over_http, *over_admin, *over_grpc]
            while not all(change.done() for change in changes):
                assert client.post(RETRIEVE, json=BODY).status_code == 200
                for path in ("/livez", "/readyz", "/metrics", "/v1/models", MODEL):
                    assert client.get(path).status_code == 200, path
                assert admin.get("/v1/status").status_code == 200
                denial = admin.post(f"{MODEL}/deny/add", json={"ids": [1003]})
                assert denial.status_code in {200, 202}
                time.sleep(PAUSE_S)
        late = {(504, "DEADLINE"), (429, "OVERLOADED")}
        statuses = Counter(waiting.result() for waiting in (*over_http, *over_admin))
        assert statuses.keys() <= late
        assert statuses[504, "DEADLINE"] >= OVER_HTTP
        codes = {waiting.result() for waiting in over_grpc}
        assert codes <= {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}

        before = cancelled_changes(client)

        def withdraws_three() -> bool:
            """Gives a change up; returns whether three were withdrawn by now."""
            with pytest.raises(httpx.TimeoutException):
                client.post(UPSERT, json={"items": [candidate(6000)]}, timeout=0.5)
            return cancelled_changes(client) >= before + 3

        # They are withdrawn before the other process ends.
        with written_by_another(root):
            until(withdraws_three)
        # The next state is the next one of the file: no change that failed was made.
        assert send(client, 5002) == (200, "")
        assert sequence_of(service) == sequence + 1
    check_many_large_changes_at_once(service)
    assert workers_of(service) == [worker]
