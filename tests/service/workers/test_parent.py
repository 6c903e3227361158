"""A service of several processes: shared ports, one voice, what ends is started again, signals reach all."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import httpx
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.rpc.servicer import SERVICE
from service.wire.stubs import embedding_service_pb2 as pb
from tests.service.process import PATIENCE_S, Lines, Process, until
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
Serve = Callable[..., Process]


@pytest.fixture
def serve(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Serve]:
    private = tmp_path / "private"
    private.mkdir()
    monkeypatch.setenv("TMPDIR", str(private))
    started: list[Process] = []

    def start(*options: str) -> Process:
        started.append(Process(root, "--workers", "2", *options))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.stop()
    until(lambda: not any(private.iterdir()))  # workers whose parent was killed clear up too
    for each in started:
        each.kill()


def retrieve(client: httpx.Client) -> httpx.Response:
    return client.post("/v1/models/movies:retrieve", json={"features": {"user": 3}, "k": 2})


def workers_of(service: Process) -> list[psutil.Process]:
    return sorted(psutil.Process(service.process.pid).children(), key=lambda each: each.pid)


def value(page: str, name: str) -> float:
    """A sample of a page of metrics; 0 if it is not there."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    return float(found[1]) if found else 0.0


def metric(client: httpx.Client, name: str) -> float:
    return value(client.get("/metrics").text, name)


def ready(client: httpx.Client) -> bool:
    return client.get("/readyz").status_code == 200


ANSWERED = 'rowcast_requests_total{call="retrieve",code="OK",door="http"}'


def test_workers_share_ports_speak_as_one_and_are_started_again(write: Write, serve: Serve) -> None:
    write()
    service = serve()
    with ExitStack() as opened:
        first = opened.enter_context(service.client())
        clients = [first, *(opened.enter_context(httpx.Client(base_url=first.base_url)) for _ in range(5))]
        for client in clients:
            client.timeout = httpx.Timeout(PATIENCE_S)
        until(lambda: ready(first))
        answers = [retrieve(client) for client in clients * 4]
        assert [each.json()["version"] for each in answers] == [1] * 24
        assert len({each.headers["x-request-id"] for each in answers}) == 24  # not forked with one state of chance
        assert {metric(client, ANSWERED) for client in clients} == {24}
        page = first.get("/metrics").text
        held = [value(page, f'rowcast_worker_connections{{door="http",worker="{each}"}}') for each in (0, 1)]
        assert sum(held) == 6
        assert min(held) >= 2
        assert value(page, 'rowcast_workers{state="answering"}') == 2
        assert value(page, "rowcast_ready") == 1
        (model,) = first.get("/v1/models").json()["models"]
        assert [(each["version"], each["state"]) for each in model["versions"]] == [(1, "available")]
        admin = f"http://127.0.0.1:{service.ports['admin']}/v1"
        for order, statuses in (("drain", [503] * 6), ("undrain", [400] * 6)):  # in effect in all once it returns
            assert httpx.post(f"{admin}/{order}", json={}).status_code == 200
            assert [client.post("/v1/models/movies:retrieve", json={}).status_code for client in clients] == statuses

        victim = workers_of(service)[1]
        victim.kill()
        assert service.event("worker_ended")["signal"] == "SIGKILL"
        until(lambda: len(workers_of(service)) == 2 and victim not in workers_of(service))
        with httpx.Client(base_url=first.base_url, timeout=PATIENCE_S) as client:
            assert ready(client)  # as long as the new one has no open doors, it is in nobody's way
            assert retrieve(client).status_code == 200
            assert metric(client, ANSWERED) == 25  # no count is lost, so that no rate sees a restart
            until(lambda: metric(client, 'rowcast_workers{state="answering"}') == 2)
            assert metric(client, "rowcast_worker_restarts_total") == 1
    assert service.stop() == 0


def test_workers_answer_grpc_on_one_port_and_its_health_is_that_of_all(write: Write, serve: Serve) -> None:
    service = serve("--poll-s", "3600")
    kinds = health_pb2.HealthCheckResponse
    body = pb.RetrieveRequest(k=2, features={"user": pb.Column(int64s=(3).to_bytes(8, "little"))}).SerializeToString()
    service.event("listening")
    with ExitStack() as opened:
        options = [("grpc.use_local_subchannel_pool", 1)]  # else equal channels share a connection
        channels = [
            opened.enter_context(grpc.insecure_channel(f"127.0.0.1:{service.ports['grpc']}", options=options))
            for _ in range(4)
        ]
        watches = [health_pb2_grpc.HealthStub(each).Watch(health_pb2.HealthCheckRequest()) for each in channels]
        assert {next(each).status for each in watches} == {kinds.NOT_SERVING}
        write()
        service.process.send_signal(signal.SIGHUP)  # reaches every worker
        assert {next(each).status for each in watches} == {kinds.SERVING}
        answers = [each.unary_unary(f"/{SERVICE}/Retrieve")(body, timeout=PATIENCE_S) for each in channels * 2]
        assert {pb.RetrieveResponse.FromString(each).model.version for each in answers} == {1}
        with service_client(service) as client:
            page = client.get("/metrics").text
        held = [value(page, f'rowcast_worker_connections{{door="grpc",worker="{each}"}}') for each in (0, 1)]
        assert sum(held) == 4  # who holds them is test_accepting's
        assert service.stop() == 0


def service_client(service: Process) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{service.ports['http']}", timeout=PATIENCE_S)


def test_sigterm_under_load_loses_no_call_of_any_worker(write: Write, serve: Serve) -> None:
    write()
    service = serve()
    service.event("listening")
    stopping = False
    answered: list[int] = []

    def ask_on(_: int) -> None:
        with service_client(service) as client:
            while True:
                try:
                    answered.append(retrieve(client).status_code)
                except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError):
                    if stopping:
                        return
                    raise
                if stopping and answered[-1] == 503:
                    return

    with service_client(service) as client:
        until(lambda: ready(client))
    with ThreadPoolExecutor(6) as callers:
        jobs = [callers.submit(ask_on, number) for number in range(6)]
        until(lambda: len(answered) > 60)
        stopping = True
        for worker in workers_of(service):  # systemd, by default, signals every process of a service
            worker.terminate()
        assert service.stop() == 0
        for job in jobs:
            job.result()
    assert set(answered) <= {200, 503}


def test_worker_that_is_told_to_leave_costs_no_call(write: Write, serve: Serve) -> None:
    write()
    service = serve()
    over = False
    answered: list[int | grpc.StatusCode] = []
    message = pb.RetrieveRequest(k=2, features={"user": pb.Column(int64s=(3).to_bytes(8, "little"))})

    def ask_http(_: int) -> None:
        with service_client(service) as client:
            while not over:
                answered.append(retrieve(client).status_code)

    def ask_grpc(_: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"127.0.0.1:{service.ports['grpc']}", options) as channel:
            ask = channel.unary_unary(f"/{SERVICE}/Retrieve")
            while not over:
                answered.append(ask.future(message.SerializeToString(), timeout=PATIENCE_S).code())

    with service.client() as client:
        until(lambda: ready(client))
        with ThreadPoolExecutor(6) as callers:
            jobs = [*(callers.submit(ask_http, n) for n in range(3)), *(callers.submit(ask_grpc, n) for n in range(3))]
            until(lambda: len(answered) > 60)
            leaving = workers_of(service)[0]
            leaving.terminate()
            until(lambda: not leaving.is_running() or leaving.status() == psutil.STATUS_ZOMBIE)
            before = len(answered)
            until(lambda: len(answered) > before + 60)
            over = True
            for job in jobs:
                job.result()
    assert set(answered) == {200, grpc.StatusCode.OK}


def test_second_signal_ends_every_worker_at_once_with_130(write: Write, serve: Serve) -> None:
    write()
    service = serve("--drain-s", "60")
    with service.client() as client:
        until(lambda: ready(client))
        processes = workers_of(service)
        with socket.create_connection(("127.0.0.1", service.ports["http"]), timeout=PATIENCE_S) as held:
            held.sendall(b"POST /v1/models/movies:retrieve HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
            for _ in range(3):  # the held request is read meanwhile
                assert client.get("/livez").status_code == 200
            service.process.send_signal(signal.SIGINT)
            service.event("draining")
            assert service.stop() == 130
    assert not any(each.is_running() for each in processes)


def test_workers_end_in_good_order_when_their_parent_is_killed(write: Write, serve: Serve) -> None:
    write()
    service = serve()
    with service.client() as client:
        until(lambda: ready(client))
        processes = workers_of(service)
        assert len(processes) == 2
        service.process.kill()
        _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S)
        assert not alive
    assert service.event("stopped")["drained"]


def test_required_model_that_cannot_be_loaded_ends_all_with_7(write: Write, serve: Serve) -> None:
    (write().directory / "indexes/movies/vectors.bin").write_bytes(b"")
    service = serve("--require", "movies")
    assert service.event("required_models_missing")["models"] == ["movies"]
    assert service.process.wait(PATIENCE_S) == 7


def test_port_that_is_taken_exits_2_before_any_worker_is_started(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        service = serve("--grpc-port", str(taken.getsockname()[1]))
        assert service.process.wait(PATIENCE_S) == 2
        assert str(taken.getsockname()[1]) in service.event("cannot_start")["problem"]


def test_stopped_worker_is_told_as_silent_and_its_counts_stay(write: Write, serve: Serve) -> None:
    write()
    service = serve()
    with ExitStack() as opened:
        clients = [opened.enter_context(service.client())]
        clients.append(opened.enter_context(service_client(service)))
        until(lambda: ready(clients[0]))
        for client in clients:
            assert retrieve(client).status_code == 200
        pages = [metric(client, ANSWERED) for client in clients]
        assert pages == [2, 2]
        victim = workers_of(service)[0]
        os.kill(victim.pid, signal.SIGSTOP)
        try:
            with service_client(service) as client:  # left to the one that runs, though it holds as many
                page = client.get("/metrics").text
        finally:
            os.kill(victim.pid, signal.SIGCONT)
        assert value(page, 'rowcast_workers{state="silent"}') == 1
        assert value(page, ANSWERED) == 2
    assert service.stop() == 0


SCRIPT = """
import signal, sys, time
from pathlib import Path
from service import logs
from service.settings import ServiceSettings
from service.workers import parent
from service.workers.board import State

parent._STUCK_LOOKS = 2
logs.configure("info")
def work(place):
    restarts = place.board.restarts(place.index)
    place.board.tell(place.index, State.READY)
    {body}
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    while not ended:
        place.board.beat(place.index)
        time.sleep(0.1)
    return 0
settings = ServiceSettings(root=Path(sys.argv[1]), workers=2, http_port=0, grpc_port=0, admin_port=0)
sys.exit(parent.Parent(settings, work).run())
"""


@pytest.fixture
def parent(root: Path) -> Iterator[Callable[[str], Lines]]:
    """Starts a parent whose workers run a line of code and then only beat until they are told to end."""
    started: list[Lines] = []

    def start(body: str) -> Lines:
        started.append(Lines([sys.executable, "-c", SCRIPT.format(body=body), str(root)]))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def test_worker_whose_loop_stands_still_is_killed_and_started_again(parent: Callable[[str], Lines]) -> None:
    service = parent("if place.index == 1 and not restarts: time.sleep(600)")
    assert service.event("worker_stuck")["worker"] == 1
    ended = service.event("worker_ended")
    assert (ended["worker"], ended["signal"]) == (1, "SIGKILL")
    assert service.event("worker_started")["worker"] == 1
    assert service.stop() == 0


def test_worker_that_keeps_failing_is_started_again_later_and_later(parent: Callable[[str], Lines]) -> None:
    service = parent("if place.index == 0 and restarts < 3: time.sleep(0.3); return 9")
    ended = [service.event("worker_ended") for _ in range(3)]
    assert [each["code"] for each in ended] == [9, 9, 9]
    assert [each["restart_in_s"] for each in ended] == [0.1, 0.2, 0.4]
    assert service.event("worker_started")["worker"] == 0
    assert service.stop() == 0


def test_worker_that_fails_before_the_service_was_open_ends_it_with_its_code(parent: Callable[[str], Lines]) -> None:
    service = parent("place.board.tell(place.index, State.STARTING)\n    if place.index: return 2")
    assert service.process.wait(PATIENCE_S) == 2


def test_exception_in_a_worker_is_told_and_ends_a_service_that_never_was_open_with_1(
    parent: Callable[[str], Lines],
) -> None:
    service = parent("place.board.tell(place.index, State.STARTING)\n    if place.index: raise ValueError('odd')")
    assert "odd" in service.event("crashed")["traceback"]
    assert service.process.wait(PATIENCE_S) == 1
