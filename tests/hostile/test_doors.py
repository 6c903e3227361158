"""Callers without manners at both doors of a running service: its memory stays bounded, and others are answered."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import psutil
import pytest

from service.rpc.servicer import SERVICE
from tests.hostile.callers import GRPC_ATTACKS, HTTP_ATTACKS, Attack
from tests.service import small_model
from tests.service.asked import SIMPLE
from tests.service.cases import MODEL
from tests.service.process import Process
from tests.service.small_bundle import compiled_towers, write_small_bundle

GROWTH_BYTES_MAX = 64 << 20
"""Of one attack: below what it would take to hold what is sent and asked for, above what the limits allow: 16 MiB of
bodies, 8 MiB of unread answers, 200 connections at each door, and what the allocator keeps."""
LIMITS = (
    *("--timeout-s", "5", "--body-bytes-max", str(1 << 20), "--connections-max", "200", "--in-flight-max", "16"),
    *("--unread-bytes-max", str(8 << 20), "--idle-s", "10"),
)
BODY = b'{"features": {"user": 3}, "k": 2}'


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    cache = request.config.cache
    assert cache is not None, "the towers are kept in pytest's cache: run without -p no:cacheprovider"
    script = hashlib.sha256(Path(small_model.__file__).read_bytes()).hexdigest()[:16]
    root = tmp_path_factory.mktemp("bundles")
    write_small_bundle(root, compiled_towers(cache.mkdir(f"small_towers_{script}")), MODEL, 1)
    process = Process(root, *LIMITS)
    with process.client() as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.01)
    yield process
    process.kill()


class Others:
    """Callers with manners: each asks one thing again and again, and remembers how it went."""

    def __init__(self, service: Process) -> None:
        self._ports, self._process = service.ports, psutil.Process(service.process.pid)
        self._over = threading.Event()
        self.answers: dict[str, int] = {"kept": 0, "new": 0, "probe": 0, "grpc": 0}
        self.failures: list[str] = []
        self.before = self.most_bytes = self._process.memory_info().rss
        url = f"http://127.0.0.1:{self._ports['http']}"
        self._url = url
        self._threads = [threading.Thread(target=self._ask, args=(way,)) for way in self.answers]

    def __enter__(self) -> Others:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, way: str) -> None:
        path = f"/v1/models/{MODEL}:retrieve"
        with (
            httpx.Client(base_url=self._url, timeout=20) as client,
            grpc.insecure_channel(f"127.0.0.1:{self._ports['grpc']}") as channel,
        ):
            retrieve = channel.unary_unary(f"/{SERVICE}/Retrieve")
            while not self._over.is_set():
                try:
                    if way == "grpc":
                        retrieve(SIMPLE.body(), timeout=20)
                    elif way == "kept":
                        client.post(path, content=BODY).raise_for_status()
                    elif way == "new":
                        httpx.post(self._url + path, content=BODY, timeout=20).raise_for_status()
                    else:
                        client.get("/readyz").raise_for_status()
                except (httpx.HTTPError, grpc.RpcError) as problem:
                    if not _overloaded(problem):  # which is told at once, and over soon
                        self.failures.append(f"{way}: {problem!r}")
                else:
                    self.answers[way] += 1
                self.most_bytes = max(self.most_bytes, self._process.memory_info().rss)
                self._over.wait(0.02)


def _overloaded(problem: Exception) -> bool:
    if isinstance(problem, httpx.HTTPStatusError):
        return problem.response.status_code == 429
    return isinstance(problem, grpc.Call) and problem.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("door", "attack"),
    [*(("http", each) for each in HTTP_ATTACKS), *(("grpc", each) for each in GRPC_ATTACKS)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_door_under_attack_stays_small_and_answers_others(door: str, attack: Attack, service: Process) -> None:
    with Others(service) as others:
        attack(service.ports[door])
        end = time.monotonic() + 20
        before = dict(others.answers)
        while any(others.answers[way] == count for way, count in before.items()):
            assert time.monotonic() < end, f"no more answers: {before}, {others.failures[:3]}"
            time.sleep(0.01)
    assert others.failures == []
    assert others.most_bytes - others.before < GROWTH_BYTES_MAX
    assert service.process.poll() is None
