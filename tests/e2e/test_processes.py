"""`rowcast-serve` as real processes: what it does at start and at its end, with one worker and with
several.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.observability.metrics import GAUGES
from service.workers.sockets import listen
from tests.bundles.sparse_tables import NAME
from tests.e2e.conftest import Standing
from tests.e2e.process import WAIT_S, Process, until
from tests.e2e.services import (
    BODY,
    RETRIEVE,
    Launch,
    Write,
    assert_found,
    client_of,
    count_of,
    health_url,
    is_ready,
    nearest,
    run_directory_of,
    versions_of,
    wait_for,
    wait_for_workers,
    workers_of,
)
from tests.units.service.grpc_api.requests import call, retrieve

pytestmark = pytest.mark.slow

UNHURRIED = ("--drain-timeout-s", str(WAIT_S))


@contextmanager
def half_sent(service: Process) -> Iterator[Callable[[], bytes]]:
    """A request in progress, half of its body sent; the value sends the other half and
    returns the response.
    """
    body = json.dumps(BODY).encode()
    address = ("127.0.0.1", service.ports["http"])
    with socket.create_connection(address, timeout=WAIT_S) as connection:
        connection.sendall(
            b"POST %b HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
            b"content-length: %d\r\n\r\n" % (RETRIEVE.encode(), len(body))
        )
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body[:5])

        def finish() -> bytes:
            connection.sendall(body[5:])
            return connection.recv(1 << 16)

        yield finish


def output_beside_the_log(service: Process) -> list[str]:
    """What a service that has ended wrote that was no line of its log."""
    service.kill()  # waits for the last line
    return service.others


@pytest.mark.parametrize("endpoint", ["http", "grpc", "health-grpc"])
def test_service_whose_port_is_taken_exits_2_and_names_it(endpoint: str, launch: Launch) -> None:
    with listen(
        "HTTP", "127.0.0.1", 0, shared=True
    ) as taken:  # as another service of several workers takes it
        port = str(taken.getsockname()[1])
        service = launch(f"--{endpoint}-port", port, "--workers", "2")
        assert service.process.wait(WAIT_S) == 2
    problem = service.event("cannot_start")["problem"]
    assert f"127.0.0.1:{port}: Address already in use; is another service running there?" in problem
    assert f"--{endpoint}-port names another port" in problem


@pytest.mark.nightly
def test_service_without_a_required_model_exits_7(write: Write, launch: Launch) -> None:
    (write().directory / "indexes/movies/vectors.bin").write_bytes(b"")
    service = launch("--require", "movies", "--workers", "2")
    assert service.event("version_failed")["model"] == "movies"
    missing = service.event("required_models_missing")
    assert missing["models"] == ["movies"]
    assert "'movies' (version 1: " in missing["problem"]
    assert service.process.wait(WAIT_S) == 7


def test_service_begins_empty_serves_what_is_published_and_ends_by_its_own_health(
    write: Write, launch: Launch
) -> None:
    options = ("--host", "0.0.0.0", "--health-grpc-port", "0", "--drain-delay-s", str(WAIT_S))
    service = launch("--workers", "2", *options)
    assert len(service.event("endpoints_open")["problems"]) == 2
    assert set(service.ports) == {"http", "grpc", "admin", "health", "health_grpc"}
    states = health_pb2.HealthCheckResponse
    with (
        client_of(service) as client,
        httpx.Client(base_url=health_url(service), timeout=WAIT_S, verify=False) as health,
        grpc.insecure_channel(f"127.0.0.1:{service.ports['health_grpc']}") as channel,
    ):
        check = health_pb2_grpc.HealthStub(channel).Check
        for each in (client, health):
            assert each.get("/livez").status_code == 200
            until(lambda: "no bundle" in each.get("/readyz").json()["error"]["message"])  # noqa: B023
        until(lambda: check(health_pb2.HealthCheckRequest()).status == states.NOT_SERVING)
        assert client.post(RETRIEVE, json=BODY).json()["error"]["code"] == "NOT_READY"
        small = write()
        until(lambda: is_ready(health))
        until(lambda: check(health_pb2.HealthCheckRequest()).status == states.SERVING)
        until(lambda: is_ready(client))
        assert_found(client.post(RETRIEVE, json=BODY).json(), nearest(small))
        assert health.head("/livez").content == b""
        assert health.get("/v1/models").status_code == 404
        assert health.post("/readyz").status_code == 405
        assert "rowcast_workers 2.0" in health.get("/metrics").text

        service.process.send_signal(signal.SIGTERM)
        until(lambda: "shutting down" in health.get("/readyz").text)
    assert service.stop() == 130


@pytest.mark.nightly
def test_service_with_a_tower_without_a_compiled_form_serves_its_saved_model(
    write: Write, launch: Launch
) -> None:
    small = write(saved_model_only=frozenset({"query"}))
    service = launch("--require", "movies")
    with service.client() as client:
        until(lambda: is_ready(client))
        actual = client.post(RETRIEVE, json=BODY).json()
    assert_found(actual, nearest(small))
    (worker,) = workers_of(service)
    assert "libtensorflow" in Path(f"/proc/{worker.pid}/maps").read_text()


def test_service_maps_tables_larger_than_memory_by_a_small_supervisor(standing: Standing) -> None:
    rows = standing.vast_rows
    with client_of(standing.service) as client:
        ids = [0, rows // 2, rows - 1, rows]
        response = client.post("/v1/models/vast:lookup", json={"feature": NAME, "ids": ids})
    assert response.json()["found"] == [True, True, True, False]
    workers = workers_of(standing.service)
    supervisor = psutil.Process(standing.service.process.pid)
    for each in (supervisor, *workers):
        assert each.memory_full_info().uss < 200 << 20
    # Libraries that the workers load, too, count in part.
    assert supervisor.memory_full_info().pss < 30e6
    for worker in workers:
        assert "tensorflow" not in Path(f"/proc/{worker.pid}/maps").read_text()


def test_service_that_drains_serves_until_balancers_know_of_it_or_a_second_signal_comes(
    write: Write, launch: Launch
) -> None:
    write()
    service = launch("--drain-delay-s", str(WAIT_S))
    wait_for(service, "1")
    with (
        client_of(service) as client,
        grpc.insecure_channel(f"127.0.0.1:{service.ports['grpc']}") as channel,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        service.process.send_signal(signal.SIGTERM)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        service.event("draining")
        until(lambda: not is_ready(client))
        with client_of(service) as another:
            response = another.post(RETRIEVE, json=BODY)
        assert (response.status_code, response.headers["connection"]) == (200, "close")
        assert call(channel, "Retrieve", retrieve()).code == "OK"
    assert service.stop() == 130


def test_service_that_is_terminated_completes_what_it_has_begun(
    write: Write, launch: Launch
) -> None:
    write()
    service = launch(*UNHURRIED)
    wait_for(service, "1")
    with half_sent(service) as finish:
        service.process.send_signal(signal.SIGTERM)
        service.event("draining")
        assert finish().startswith(b"HTTP/1.1 200 ")
    assert service.process.wait(WAIT_S) == 0
    assert service.event("stopped")["drained"]
    assert output_beside_the_log(service) == []


@pytest.mark.nightly
def test_service_under_load_that_is_terminated_completes_every_request(
    write: Write, launch: Launch
) -> None:
    write()
    service = launch("--workers", "2", "--drain-delay-s", "0.2", *UNHURRIED)
    statuses = list[int]()
    stopping = threading.Event()

    def send(_: int) -> None:
        with client_of(service) as client:
            while True:
                try:
                    statuses.append(client.post(RETRIEVE, json=BODY).status_code)
                except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError):
                    if stopping.is_set():  # no new connection is accepted
                        return
                    raise

    wait_for(service, "2")
    with ThreadPoolExecutor(6) as senders:
        sent = [senders.submit(send, number) for number in range(6)]
        until(lambda: len(statuses) > 100)
        stopping.set()
        assert service.stop() == 0
        for each in sent:
            each.result()
    assert set(statuses) == {200}


def summed_gauges(service: Process, endpoint: str) -> dict[str, float]:
    """Returns the gauges that are sums over all workers, by their sample, as an endpoint has
    them.
    """
    url = f"http://127.0.0.1:{service.ports[endpoint]}/metrics"
    page = httpx.get(url, timeout=WAIT_S).raise_for_status().text
    names = tuple(f"rowcast_{name}" for name, (*_, merge) in GAUGES.items() if merge == "livesum")
    gauges = [line.rpartition(" ") for line in page.splitlines() if line.startswith(names)]
    assert gauges
    return {sample: float(value) for sample, _, value in gauges}


def test_killed_workers_are_replaced_and_leave_their_counts_and_no_files(
    write: Write, launch: Launch
) -> None:
    write()
    service = launch("--workers", "2")
    wait_for(service, "2")
    directory = run_directory_of(service)
    assert versions_of(service) == {1}
    requests_ok = 'rowcast_requests_total{call="retrieve",code="OK"'
    until(lambda: count_of(service, requests_ok) == 8)  # workers write their counts every second
    first_workers = workers_of(service)
    pids = {worker.pid for worker in first_workers}
    for worker in first_workers:
        worker.kill()
        # Nobody has read the metrics of the health address meanwhile.
        while (replacement := service.event("ready")["pid"]) in pids:
            continue
        pids.add(replacement)
        gauges = summed_gauges(service, "http")
        assert gauges["rowcast_workers"] == 2
        assert gauges == summed_gauges(service, "health")
        until(lambda: count_of(service, requests_ok) == 8)
    live = {"ended", *(str(worker.pid) for worker in workers_of(service))}

    def are_files_removed() -> bool:
        # Each scrape removes the files of workers that have ended by then.
        assert count_of(service, requests_ok) == 8
        return {file.stem.rpartition("_")[2] for file in directory.glob("*.db")} <= live

    until(are_files_removed)
    assert versions_of(service) == {1}
    assert service.stop() == 0


@pytest.mark.nightly
def test_hung_worker_is_replaced(write: Write, launch: Launch) -> None:
    write()
    service = launch("--workers", "2", "--worker-timeout-s", "5", "--health-grpc-port", "0")
    wait_for(service, "2")
    hung = workers_of(service)[0]
    hung.suspend()
    while hung.pid not in service.event("workers_hung")["pids"]:
        continue  # on a busy machine, another one may seem to hang
    until(lambda: hung not in workers_of(service))
    wait_for_workers(service, 2)
    assert versions_of(service) == {1}
    assert service.stop() == 0


@pytest.mark.nightly
def test_hung_worker_neither_keeps_others_from_draining_nor_the_service_from_ending(
    write: Write, launch: Launch
) -> None:
    write()
    options = ("--drain-delay-s", "0", "--drain-timeout-s", "1")
    service = launch("--workers", "2", *options)
    wait_for(service, "2")
    hung, other = workers_of(service)
    hung.suspend()
    service.process.send_signal(signal.SIGTERM)
    assert service.event("stopped")["drained"]
    other.wait(WAIT_S)
    assert service.event("workers_hung")["pids"] == [hung.pid]
    assert service.process.wait(WAIT_S) == 0


def test_workers_drain_when_the_parent_is_killed(write: Write, launch: Launch) -> None:
    write()
    service = launch(*UNHURRIED)
    service.event("listening")
    workers = workers_of(service)
    service.process.kill()
    assert psutil.wait_procs(workers, timeout=WAIT_S)[1] == []
    assert service.event("stopped")["drained"]


@pytest.mark.nightly
def test_service_notifies_systemd(
    tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        service = launch("--workers", "2")
        received = list[bytes]()
        for awaited in ({b"READY=1", b"WATCHDOG=1"}, {b"STOPPING=1"}):
            while not awaited <= set(received):
                received.append(manager.recv(100))
            if b"STOPPING=1" not in awaited:
                service.process.send_signal(signal.SIGTERM)
        assert received.count(b"READY=1") == 1
        assert service.process.wait(WAIT_S) == 0


@contextmanager
def nobody_loads(root: Path) -> Iterator[None]:
    """Takes the version out of the root, so that a new worker cannot serve what the others do."""
    aside = root.with_name("aside")
    (root / "movies/1").rename(aside)
    yield
    aside.rename(root / "movies/1")


def listeners_of(worker: psutil.Process, port: int) -> int:
    """Returns how many sockets of a worker listen on a port."""
    connections = worker.net_connections("tcp")
    listening = [
        connection for connection in connections if connection.status == psutil.CONN_LISTEN
    ]
    return sum(each.laddr.port == port for each in listening)


def waiting_replacement(service: Process, before: list[psutil.Process]) -> psutil.Process:
    """Waits for a worker that was started later and cannot serve what the others do; returns it."""
    while "is current in the other workers" not in service.event("not_ready")["problem"]:
        pass
    (waiting,) = [worker for worker in workers_of(service) if worker not in before]
    return waiting


def codes_of_new_connections(service: Process) -> set[str | int]:
    """Returns the codes of retrievals on connections of their own, over both transports."""
    codes = set[str | int]()
    with client_of(service) as client:
        for _ in range(32):
            response = client.post(RETRIEVE, json=BODY, headers={"connection": "close"})
            codes.add(response.status_code)
    for number in range(8):
        options = [("grpc.use_local_subchannel_pool", 1), ("test.channel", number)]
        with grpc.insecure_channel(f"127.0.0.1:{service.ports['grpc']}", options) as channel:
            codes.add(call(channel, "Retrieve", retrieve()).code)
    return codes


def codes_of_changes(service: Process) -> set[int]:
    """Returns the statuses of changes by the admin API on connections of their own."""
    url = f"http://127.0.0.1:{service.ports['admin']}/v1/models/movies/candidates/delete"
    body = {"items": [{"id": 1}]}
    return {httpx.post(url, json=body, timeout=WAIT_S, verify=False).status_code for _ in range(16)}


def replace_worker(service: Process) -> None:
    """Kills a worker, which the supervisor replaces."""
    killed = workers_of(service)[0]
    killed.kill()
    killed.wait(WAIT_S)


@pytest.mark.nightly
def test_replacement_that_finds_other_versions_has_the_others_look_at_once(
    write: Write, launch: Launch, root: Path
) -> None:
    write()
    service = launch("--workers", "2", "--poll-interval-s", "3600")
    wait_for(service, "2")
    write(version=2)
    replace_worker(service)
    until(lambda: versions_of(service) == {2})
    shutil.rmtree(root / "movies" / "2")  # served from memory until a replacement lacks it
    wait_for_workers(service, 2)
    replace_worker(service)
    until(lambda: versions_of(service) == {1})
    assert service.stop() == 0


@pytest.mark.nightly
def test_reloaded_worker_serves_until_its_replacement_is_loaded(
    write: Write, launch: Launch, root: Path
) -> None:
    write()
    service = launch("--workers", "1")
    wait_for(service, "1")
    before = workers_of(service)
    with nobody_loads(root):
        service.process.send_signal(signal.SIGHUP)
        waiting = waiting_replacement(service, before)
        assert codes_of_new_connections(service) == {200, "OK"}
        assert codes_of_changes(service) == {200}
        assert listeners_of(waiting, service.ports["http"]) == 0
    until(lambda: workers_of(service) == [waiting])
    assert codes_of_new_connections(service) == {200, "OK"}
    assert codes_of_changes(service) == {200}
    assert service.stop() == 0
