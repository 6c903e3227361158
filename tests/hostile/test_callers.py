"""Callers without manners at both doors of a running service: its memory stays bounded, and others are answered."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import psutil
import pytest

from service.control.orders import STATUS_PATH
from service.rpc.servicer import SERVICE
from tests.hostile.callers import GRPC_ATTACKS, HTTP_ATTACKS, TLS_ATTACKS, TOKEN, Attack, lines, send
from tests.service.asked import SIMPLE
from tests.service.cases import MODEL
from tests.service.process import Process
from tests.service.security.authorities import Authority
from tests.service.small_bundle import write_small_bundle

GROWTH_BYTES_MAX = 64 << 20
"""Of one attack: below what it would take to hold what is sent and asked for, above what the limits allow: 16 MiB of
bodies, 8 MiB of unread answers, 200 connections at each door, and what the allocator keeps."""
LIMITS = (
    *("--timeout-s", "5", "--body-bytes-max", str(1 << 20), "--connections-max", "200", "--in-flight-max", "16"),
    *("--unread-bytes-max", str(8 << 20), "--idle-s", "10"),
)
BODY = b'{"features": {"user": 3}, "k": 2}'


class Attacked:
    """A running service, and how callers with manners reach it."""

    def __init__(self, root: Path, authority: Authority | None) -> None:
        self.authority = authority
        closed: list[str] = []
        if authority is not None:
            signed, tokens = authority.sign("server"), root.parent / "tokens"
            tokens.write_text(f"tests {TOKEN}\n")
            closed = ["--tls-cert", str(signed.cert), "--tls-key", str(signed.key), "--tokens", str(tokens)]
        self.process = Process(root, *LIMITS, *closed)
        self.process.event("listening")
        with self.client() as client:
            while client.get("/readyz").status_code != 200:
                time.sleep(0.01)

    @property
    def ports(self) -> dict[str, int]:
        return self.process.ports

    def client(self) -> httpx.Client:
        url, verify = f"http://127.0.0.1:{self.ports['http']}", ssl.create_default_context()
        if self.authority is not None:
            url, verify = url.replace("http", "https"), ssl.create_default_context(cafile=str(self.authority.file))
        headers = {"authorization": f"Bearer {TOKEN}"}
        return httpx.Client(base_url=url, verify=verify, timeout=20, headers=headers)

    def channel(self) -> grpc.Channel:
        address = f"127.0.0.1:{self.ports['grpc']}"
        if self.authority is None:
            return grpc.insecure_channel(address)
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(self.authority.file.read_bytes()))


@pytest.fixture(scope="module")
def root(small_towers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bundles")
    write_small_bundle(root, small_towers, MODEL, 1)
    return root


@pytest.fixture(scope="module")
def service(root: Path) -> Iterator[Attacked]:
    attacked = Attacked(root, None)
    yield attacked
    attacked.process.kill()


@pytest.fixture(scope="module")
def closed_service(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    attacked = Attacked(root, Authority(tmp_path_factory.mktemp("authority")))
    yield attacked
    attacked.process.kill()


class Others:
    """Callers with manners: each asks one thing again and again, and remembers how it went."""

    def __init__(self, service: Attacked) -> None:
        self._service, self._process = service, psutil.Process(service.process.process.pid)
        self._over = threading.Event()
        self.answers: dict[str, int] = {"kept": 0, "new": 0, "probe": 0, "grpc": 0}
        self.failures: list[str] = []
        self.before = self.most_bytes = self._process.memory_info().rss
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
        metadata = (("authorization", f"Bearer {TOKEN}"),)
        with self._service.client() as client, self._service.channel() as channel:
            retrieve = channel.unary_unary(f"/{SERVICE}/Retrieve")
            while not self._over.is_set():
                try:
                    if way == "grpc":
                        retrieve(SIMPLE.body(), timeout=20, metadata=metadata)
                    elif way == "kept":
                        client.post(path, content=BODY).raise_for_status()
                    elif way == "new":
                        with self._service.client() as new:
                            new.post(path, content=BODY).raise_for_status()
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
def test_door_under_attack_stays_small_and_answers_others(door: str, attack: Attack, service: Attacked) -> None:
    endure(door, attack, service)


@pytest.mark.parametrize("attack", TLS_ATTACKS, ids=lambda attack: attack.__name__)
def test_door_over_tls_under_attack_stays_small_and_answers_others(attack: Attack, closed_service: Attacked) -> None:
    endure("http", attack, closed_service)


@pytest.mark.parametrize("attack", TLS_ATTACKS[:2], ids=lambda attack: attack.__name__)
def test_grpc_over_tls_under_attack_stays_small_and_answers_others(attack: Attack, closed_service: Attacked) -> None:
    endure("grpc", attack, closed_service)


def endure(door: str, attack: Attack, service: Attacked) -> None:
    """Attacks a door and holds it to what every door has to stand."""
    with Others(service) as others:
        attack(service.ports[door])
        end = time.monotonic() + 20
        before = dict(others.answers)
        while any(others.answers[way] == count for way, count in before.items()):
            assert time.monotonic() < end, f"no more answers: {before}, {others.failures[:3]}"
            time.sleep(0.01)
    assert others.failures == []
    assert others.most_bytes - others.before < GROWTH_BYTES_MAX
    assert service.process.process.poll() is None


def test_admin_listener_held_by_silent_connections_answers_operators(service: Attacked) -> None:
    with lines(service.ports["admin"], 40) as silent:
        for line in silent:
            send(line, b"GET ")
        answer = httpx.get(f"http://127.0.0.1:{service.ports['admin']}{STATUS_PATH}", timeout=20)
    assert answer.status_code == 200
