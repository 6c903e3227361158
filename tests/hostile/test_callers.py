"""Hostile clients of a running service: its memory stays bounded, and it serves other clients
meanwhile.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.grpc_api.servicer import SERVICE
from tests.bundles.small import write_small_bundle
from tests.e2e.process import WAIT_S, Process, until
from tests.e2e.services import (
    BODY,
    RETRIEVE,
    client_of,
    count_of,
    health_url,
    workers_of,
)
from tests.hostile.callers import (
    GRPC_ATTACKS,
    HALF_MESSAGE,
    HTTP_ATTACKS,
    MIB,
    TLS_ATTACKS,
    TOKEN,
    Attack,
    Connect,
    connections,
    endless_headers,
    half_open_calls,
    leave,
    leave_calls,
    no_handshakes,
    secured,
    send,
    settings_beside_calls,
)
from tests.units.service.clients import SIMPLE
from tests.units.service.security.authorities import Authority

pytestmark = pytest.mark.slow

MAX_GROWTH_BYTES = 256 * MIB
"""Of one attack: max_inflight_bytes, two bodies of 16 MiB that are joined or decoded, 10 KiB for
each of 10,000 connections, and what allocators keep; far below the gigabytes that are sent and
decompressed.
"""
LIMITS = (
    *("--request-timeout-s", "20", "--body-timeout-s", "2", "--keep-alive-s", "5"),
    *("--max-concurrent-requests", "64", "--max-inflight-bytes", str(64 * MIB)),
    # Above the idle ones of an attack, whatever this machine's limit on open files is.
    *("--max-connections", "20000"),
)
SERVED = 5
"""The number of responses that each other client gets while an attack holds."""
FLOODS = 20
MAX_LEFT_BYTES = 100 * MIB
"""What many attacks in a row leave: memory between small objects, which cannot be returned."""
CONNECTIONS = 60
"""Of a service that permits few."""
RANK = "/v1/models/movies:rank"
RANKING = {"context": {"user": 5}, "candidate_ids": [1000, 1007, 1014, 1021]}


class Attacked:
    """A running service, and how well-behaved clients reach it."""

    def __init__(self, root: Path, authority: Authority | None, *options: str) -> None:
        self.authority = authority
        secrets: list[str] = []
        if authority is not None:
            signed = authority.sign("server")
            tokens = root.parent / "tokens"
            tokens.write_text(f"tests {TOKEN}\n")
            secrets = [
                "--tls-cert",
                str(signed.cert),
                "--tls-key",
                str(signed.key),
                "--tokens",
                str(tokens),
            ]
        self.process = Process(root, *options, *secrets)
        try:
            self.process.event("ready")
            until(self.process.ports_file.exists)
        except BaseException:
            self.process.kill()
            raise
        self.ports = self.process.ports

    def client(self) -> AbstractContextManager[httpx.Client]:
        return client_of(
            self.process, TOKEN, None if self.authority is None else self.authority.file
        )

    def channel(self) -> grpc.Channel:
        address = f"127.0.0.1:{self.ports['grpc']}"
        if self.authority is None:
            return grpc.insecure_channel(address)
        return grpc.secure_channel(
            address, grpc.ssl_channel_credentials(self.authority.file.read_bytes())
        )


@pytest.fixture(scope="module")
def root(small_towers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root") / "bundles"
    root.mkdir()
    write_small_bundle(root, small_towers)
    return root


@pytest.fixture(scope="module")
def service(root: Path) -> Iterator[Attacked]:
    attacked = Attacked(root, None, *LIMITS)
    yield attacked
    attacked.process.kill()


@pytest.fixture(scope="module")
def secured_service(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    attacked = Attacked(root, Authority(tmp_path_factory.mktemp("authority")), *LIMITS)
    yield attacked
    attacked.process.kill()


def endure(port: str, attack: Attack, service: Attacked) -> None:
    """Attacks an endpoint; checks that other clients get responses meanwhile, and that the service
    stays small.
    """
    (worker,) = workers_of(service.process)
    process = Path(f"/proc/{worker.pid}")
    (process / "clear_refs").write_text("5")  # from here on its peak is counted
    before = _memory(process, "VmRSS")
    done = threading.Event()
    responses = Counter[str]()
    failures = list[str]()

    def send(caller: str) -> None:
        metadata = (("authorization", f"Bearer {TOKEN}"),)
        with service.client() as client, service.channel() as channel:
            retrieve = channel.unary_unary(f"/{SERVICE}/Retrieve")
            while not done.wait(0.02):
                try:
                    if caller == "gRPC":
                        retrieve(SIMPLE.body(), timeout=WAIT_S, metadata=metadata)
                    elif caller == "one connection":
                        client.post(RETRIEVE, json=BODY).raise_for_status()
                    elif caller == "new connections":
                        with service.client() as new:
                            new.post(RETRIEVE, json=BODY).raise_for_status()
                    else:
                        client.get("/readyz").raise_for_status()
                except (httpx.HTTPError, grpc.RpcError) as problem:
                    # A rejection for overload is a response, too, but never to a probe.
                    if caller == "probe" or not _is_overload(problem):
                        failures.append(f"{caller}: {problem!r}")
                else:
                    responses[caller] += 1

    callers = ("gRPC", "one connection", "new connections", "probe")

    def until_served() -> None:
        """Waits until each caller has got some more responses."""
        earlier = Counter(responses)
        until(
            lambda: (
                bool(failures)
                or all(responses[caller] >= earlier[caller] + SERVED for caller in callers)
            )
        )

    with ThreadPoolExecutor(len(callers)) as pool:
        sending = [pool.submit(send, caller) for caller in callers]
        try:
            for _ in attack(service.ports[port]) or ():
                until_served()
            until_served()
        finally:
            done.set()
    for each in sending:
        each.result()
    assert failures == []
    grown = _memory(process, "VmHWM") - before
    assert grown < MAX_GROWTH_BYTES, f"{grown / MIB:.0f} MiB"
    assert worker.is_running()


def _memory(process: Path, name: str) -> int:
    """Returns bytes of memory, by the kernel's name."""
    actual = re.search(rf"{name}:\s+(\d+) kB", (process / "status").read_text())
    assert actual is not None
    return int(actual[1]) << 10


def _is_overload(problem: Exception) -> bool:
    """Whether a request was rejected since there were too many."""
    if isinstance(problem, httpx.HTTPStatusError):
        return problem.response.status_code == 429
    return isinstance(problem, grpc.Call) and problem.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("port", "attack"),
    [
        *(("http", attack) for attack in HTTP_ATTACKS),
        *(("grpc", attack) for attack in GRPC_ATTACKS),
    ],
)
def test_service_under_attack_stays_small_and_serves_other_clients(
    port: str, attack: Attack, service: Attacked
) -> None:
    endure(port, attack, service)


@pytest.mark.nightly
@pytest.mark.parametrize("attack", [settings_beside_calls, endless_headers])
def test_floods_in_a_row_leave_little_memory(root: Path, attack: Attack) -> None:
    service = Attacked(root, None, *LIMITS)
    try:
        (worker,) = workers_of(service.process)
        process = Path(f"/proc/{worker.pid}")
        before = _memory(process, "VmRSS")
        for _ in range(FLOODS):
            for _ in attack(service.ports["grpc"]) or ():
                pass  # no other client is to be served meanwhile
        # What the floods took is freed, and returned within seconds.
        until(lambda: _memory(process, "VmRSS") < before + MAX_LEFT_BYTES)
        assert worker.is_running()
    finally:
        service.process.kill()


@pytest.mark.parametrize(
    ("port", "attack"),
    [
        ("http", no_handshakes),
        ("grpc", no_handshakes),
        *(pytest.param("http", attack, marks=pytest.mark.nightly) for attack in TLS_ATTACKS),
    ],
)
def test_service_with_tls_under_attack_stays_small_and_serves_other_clients(
    port: str, attack: Attack, secured_service: Attacked
) -> None:
    endure(port, attack, secured_service)


@pytest.mark.parametrize("secure", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_clients_that_leave_at_any_moment_are_cancelled_and_no_problem_of_the_service(
    root: Path, secure: bool, tmp_path: Path
) -> None:
    authority = None
    connect: Connect = connections
    if secure:
        authority = Authority(tmp_path)
        connect = secured
    service = Attacked(root, authority, *LIMITS, "--admin-port", "0")
    try:
        endure("http", partial(leave, connect=connect), service)
        leave(service.ports["health"])
        leave(service.ports["admin"])
        if not secure:
            endure("grpc", leave_calls, service)
            assert count_of(
                service.process, 'rowcast_requests_total{call="lookup",code="CANCELLED"'
            )
        pages = httpx.get(
            f"{health_url(service.process)}/metrics", timeout=WAIT_S, verify=False
        ).text
        assert re.search(r'requests_total.*code="CANCELLED".*http"} [1-9]', pages)
        assert not re.search(r'requests_total.*code="INTERNAL".* [1-9]', pages)
        service.process.stop()
        lines = service.process.last_lines()
    finally:
        service.process.kill()
    problems = [line for line in lines if line["level"] not in {"info", "debug"}]
    # The end of the service, and the test's own file of tokens.
    assert {line["event"] for line in problems} <= {"not_ready", "secrets_exposed"}, problems
    assert service.process.others == []


@pytest.fixture(scope="module")
def patient_service(root: Path) -> Iterator[Attacked]:
    """A service of few connections, which waits long for what they send."""
    timeouts = "--body-timeout-s", "120", "--request-timeout-s", "120"
    limits = "--max-inflight-bytes", str(128 * MIB), "--max-connections", str(CONNECTIONS)
    attacked = Attacked(root, None, *limits, *timeouts)
    yield attacked
    attacked.process.kill()


def test_half_open_grpc_calls_cost_their_own_connections(patient_service: Attacked) -> None:
    """Bounds: an eighth of the messages received at a time, and a share of all calls, for each
    connection.
    """
    check = health_pb2.HealthCheckRequest()
    with patient_service.channel() as channel:
        retrieve = channel.unary_unary(f"/{SERVICE}/Retrieve")
        retrieve(SIMPLE.body(), timeout=WAIT_S)
        for count, calls, data in (
            *((1, 900, b""), (4, 900, b"")),
            *((1, 900, HALF_MESSAGE), (50, 20, HALF_MESSAGE)),
        ):
            with half_open_calls(patient_service.ports["grpc"], count, calls, data):
                for _ in range(10):
                    # A half-open call is given up after 120 s.
                    retrieve(SIMPLE.body(), timeout=WAIT_S)
                    health_pb2_grpc.HealthStub(channel).Check(check, timeout=WAIT_S)


def test_http_connections_beyond_max_connections_get_503(patient_service: Attacked) -> None:
    service = patient_service
    ready = f"http://127.0.0.1:{service.ports['http']}/readyz"
    healthy = f"{health_url(service.process)}/readyz"
    # The supervisor learns from the next heartbeat that the worker is ready.
    until(lambda: httpx.get(healthy, verify=False).status_code == 200)
    with connections(service.ports["http"], CONNECTIONS):
        # uvicorn counts a connection once it has accepted it.
        until(lambda: httpx.get(ready, verify=False).status_code == 503)
        rejected = httpx.get(ready, verify=False)
        assert (rejected.status_code, rejected.headers["connection"]) == (503, "close")
        assert httpx.get(healthy, verify=False).status_code == 200
    until(lambda: httpx.get(ready, verify=False).status_code == 200)


def test_admin_listener_with_silent_connections_serves_operators(service: Attacked) -> None:
    with connections(service.ports["admin"], 100) as silent:
        for connection in silent[:50]:
            send(connection, b"GET ")
        response = httpx.get(
            f"http://127.0.0.1:{service.ports['admin']}/v1/status", timeout=WAIT_S, verify=False
        )
    assert response.status_code == 200


@pytest.mark.nightly  # test_service_states.py fills a service by one request
def test_overloaded_service_computes_no_rejected_request_and_recovers(root: Path) -> None:
    """Bound: three requests in progress, of 48 clients that retry whatever the response was."""
    service = Attacked(
        root, None, "--threads", "1", "--max-concurrent-requests", "3", "--inline-max-us", "0"
    )

    value = partial(count_of, service.process)
    try:
        with service.client() as client, ThreadPoolExecutor(48) as pool:
            before = value('rowcast_examples_total{call="rank"}')
            sending = [pool.submit(client.post, RANK, json=RANKING) for _ in range(240)]
            while not all(each.done() for each in sending):
                assert {
                    client.get(path).status_code for path in ("/livez", "/readyz", "/metrics")
                } == {200}
            responses = [each.result() for each in sending]
            assert all(
                each.status_code == 200 or int(each.headers["retry-after"]) >= 1
                for each in responses
            )
            statuses = Counter(each.status_code for each in responses)
            assert set(statuses) == {200, 429}
            # Counts appear with the next heartbeat of the worker.
            until(lambda: value('rowcast_rejected_requests_total{call="rank"') == statuses[429])
            until(lambda: value('rowcast_examples_total{call="rank"}') == before + statuses[200])
            assert service.process.event("overloaded")["reason"] == "requests"
            assert client.post(RANK, json=RANKING).status_code == 200
            until(lambda: value("rowcast_inflight_requests") + value("rowcast_queue_requests") == 0)
    finally:
        service.process.kill()
