"""Many more calls than a service takes: some are answered in time, the rest refused, and then all is as before."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.service.cases import MODEL
from tests.service.process import Process
from tests.service.small_bundle import write_small_bundle

CALLERS, EACH = 48, 12
DEADLINE_S = 10
BODY = b'{"context": {"user": 5}, "candidates": [1000, 1007, 1014, 1021]}'
HEAD = (
    f"POST /v1/models/{MODEL}:rank HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    f"x-request-timeout-ms: {DEADLINE_S * 1000}\r\ncontent-length: {len(BODY)}\r\n\r\n"
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Process]:
    """One that answers a call at a time, and lets few more wait."""
    root = tmp_path_factory.mktemp("overload") / "bundles"
    root.mkdir()
    write_small_bundle(root, small_towers, MODEL, 1)
    running = Process(root, "--threads", "1", "--in-flight-max", "3", "--inline-us-max", "0")
    yield running
    running.kill()


async def ask(port: int, seen: Counter[int], latencies_s: list[float]) -> None:
    """One caller, who comes again whatever the answer was."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(EACH):
        began = time.monotonic()
        writer.write(HEAD.encode() + BODY)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: ([0-9]+)", head)
        assert length is not None
        await reader.readexactly(int(length[1]))
        status = int(head[9:12])
        seen[status] += 1
        if status == 200:
            latencies_s.append(time.monotonic() - began)
        else:
            assert b"retry-after: " in head
    writer.close()


def shed(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith('rowcast_shed_total{call="rank"'))


def test_flood_is_answered_as_far_as_there_is_room_and_refused_beyond(service: Process) -> None:
    seen: Counter[int] = Counter()
    latencies_s: list[float] = []
    probes: list[int] = []

    async def flood(port: int) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as prober:
            callers = asyncio.gather(*[ask(port, seen, latencies_s) for _ in range(CALLERS)])
            while not callers.done():
                probes.extend([(await prober.get(path)).status_code for path in ("/livez", "/readyz", "/metrics")])
            await callers

    with service.client() as client:
        service.event("ready")
        assert client.post(f"/v1/models/{MODEL}:rank", content=BODY).status_code == 200
        asyncio.run(flood(service.ports["http"]))
        assert set(seen) == {200, 429}
        assert seen.total() == CALLERS * EACH
        assert shed(client) == seen[429]
        assert max(latencies_s) < DEADLINE_S
        assert set(probes) == {200}
        lines = client.get("/metrics").text.splitlines()
        assert {"rowcast_in_flight 0.0", "rowcast_queue_calls 0.0", "rowcast_queue_candidates 0.0"} <= set(lines)
        assert client.post(f"/v1/models/{MODEL}:rank", content=BODY).status_code == 200
        told = service.event("overloaded")
        assert told["reason"] == "calls"
