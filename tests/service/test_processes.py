"""`rowcast-serve` as real processes: what it does at start, as it serves with one worker or several, and at its end."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bundle.manifest import dump
from service.processes import listen_shared
from service.request_log.record import read_newest
from tests.service import reference
from tests.service.grpc_api.requests import call, lookup, retrieve
from tests.service.process import PROGRAM, WAIT_S, Process, until
from tests.service.security.authorities import Authority
from tests.service.small_bundle import SmallBundle
from tests.sparse_tables import NAME, add_sparse_table

Write = Callable[..., SmallBundle]
Launch = Callable[..., Process]
RETRIEVE, BODY = "/v1/models/movies:retrieve", {"features": {"user": 3}, "k": 2}
OLD, NEW = "old-0123456789abcdef", "new-0123456789abcdef"
each_number_of_workers = pytest.mark.parametrize("workers", ["1", "2"])


@contextmanager
def client_of(service: Process, token: str = "", trusted: Path | None = None) -> Iterator[httpx.Client]:
    """A client of a service that listens already."""
    url = f"{'http' if trusted is None else 'https'}://127.0.0.1:{service.ports['http']}"
    verify = trusted is not None and ssl.create_default_context(cafile=str(trusted))
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(base_url=url, verify=verify, headers=headers, timeout=WAIT_S) as client:
        yield client


def is_ready(client: httpx.Client) -> bool:
    return client.get("/readyz").status_code == 200


def versions_of(service: Process, path: str = "movies") -> set[int | None]:
    """The versions that answer on connections of their own, which reach every worker."""
    url = f"http://127.0.0.1:{service.ports['http']}/v1/models/{path}:retrieve"
    return {httpx.post(url, json=BODY, timeout=WAIT_S).json().get("version") for _ in range(8)}


def count_of(service: Process, sample: str) -> float:
    with client_of(service) as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(sample))


def wait_for(service: Process, workers: str) -> None:
    """Waits until every worker is ready: each says so only of itself."""
    service.event("listening")
    until(lambda: count_of(service, "rowcast_workers") == int(workers) and count_of(service, "rowcast_ready") == 1)


def workers_of(service: Process) -> list[psutil.Process]:
    children = psutil.Process(service.process.pid).children()
    running = [each for each in children if each.status() != psutil.STATUS_ZOMBIE]
    return [each for each in running if "spawn_main" in str(each.cmdline())]


def ctl(service: Process, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, "ctl", "--ports-file", str(service.ports_file), "--json", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=WAIT_S)


@contextmanager
def half_sent(service: Process) -> Iterator[Callable[[], bytes]]:
    """A request in progress, half of its body sent; the value sends the rest and returns the answer."""
    body = json.dumps(BODY).encode()
    with socket.create_connection(("127.0.0.1", service.ports["http"]), timeout=WAIT_S) as connection:
        connection.sendall(
            b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (RETRIEVE.encode(), len(body))
        )
        connection.sendall(body[:5])

        def finish() -> bytes:
            connection.sendall(body[5:])
            return connection.recv(1 << 16)

        yield finish


def nearest(small: SmallBundle) -> list[tuple[Any, float]]:
    return reference.neighbors(small, reference.query_vector(small, 3), 2)


def assert_found(neighbors: list[dict[str, Any]], expected: list[tuple[Any, float]]) -> None:
    assert [each["id"] for each in neighbors] == [movie for movie, _ in expected]
    assert [each["score"] for each in neighbors] == pytest.approx([score for _, score in expected], 1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--root /nowhere", "--root (or ROWCAST_ROOT) is '/nowhere': '/nowhere' is no directory; create it first"),
        ("--max-k 0", "--max-k (or ROWCAST_MAX_K) is '0': "),
        ("--htpp-port 1", "--htpp-port"),
        ("--record-rate 1 --record-dir /dev/null/x", "--record-dir"),
        ("--admin-host 0.0.0.0", "--admin-tokens must be given"),
        ("--tokens {}/none", "{}/none"),
        ("--tokens {}/bad", "{}/bad"),
        ("--admin-tokens {}/bad", "{}/bad"),
        ("--tls-cert {}/bad", "--tls-cert and --tls-key must be given together"),
        ("--tls-cert {}/bad --tls-key {}/bad", "{}/bad"),
        ("--tls-client-ca {}/bad", "require TLS"),
    ],
)
def test_service_with_unusable_settings_exits_2_and_names_them(
    options: str, message: str, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad").write_text("nothing\n")
    given = ["--root", str(root), *options.format(*[tmp_path] * 2).split()]
    done = subprocess.run([*PROGRAM, *given], check=False, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 2
    assert message.format(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr


@each_number_of_workers
@pytest.mark.parametrize("endpoint", ["http", "grpc", "admin"])
def test_service_whose_port_is_taken_exits_2_and_names_it(endpoint: str, workers: str, launch: Launch) -> None:
    with listen_shared("127.0.0.1", 0) as taken:  # as another service of several workers takes it
        port = str(taken.getsockname()[1])
        service = launch(f"--{endpoint}-port", port, "--workers", workers)
        assert service.process.wait(WAIT_S) == 2
    problem = service.event("cannot_start")["problem"]
    assert f"127.0.0.1:{port}: Address already in use; is another service running there?" in problem


@each_number_of_workers
def test_service_without_a_required_model_exits_7(workers: str, write: Write, launch: Launch) -> None:
    (write().directory / "indexes/movies/vectors.bin").write_bytes(b"")
    service = launch("--require", "movies", "--workers", workers)
    assert service.event("version_failed")["model"] == "movies"
    assert service.event("required_models_missing")["models"] == ["movies"]
    assert service.process.wait(WAIT_S) == 7


@each_number_of_workers
def test_service_begins_empty_and_serves_what_is_published(workers: str, write: Write, launch: Launch) -> None:
    service = launch(
        "--workers", workers, "--poll-interval-s", "3600" if workers == "1" else "0.05", "--host", "0.0.0.0"
    )
    assert len(service.event("endpoints_open")["problems"]) == 2
    assert set(service.ports) == {"http", "grpc", "admin"}
    with client_of(service) as client:
        assert client.get("/livez").status_code == 200
        until(lambda: "no bundle" in client.get("/readyz").json()["error"]["message"])
        assert client.post(RETRIEVE, json=BODY).json()["error"]["code"] == "NOT_READY"
        small = write()
        if workers == "1":
            service.process.send_signal(signal.SIGHUP)
        until(lambda: is_ready(client))
        neighbors = client.post(RETRIEVE, json=BODY).json()["neighbors"]
    assert_found(neighbors, nearest(small))
    for each in workers_of(service) or [service.process]:
        assert "tensorflow" not in Path(f"/proc/{each.pid}/maps").read_text()
    assert service.stop() == 0


def test_service_with_a_tower_without_a_compiled_form_serves_its_saved_model(write: Write, launch: Launch) -> None:
    small = write(saved_model_only=frozenset({"query"}))
    service = launch("--require", "movies")
    with service.client() as client:
        service.event("version_available")
        neighbors = client.post(RETRIEVE, json=BODY).json()["neighbors"]
    assert_found(neighbors, nearest(small))


@each_number_of_workers
def test_service_maps_tables_larger_than_memory(workers: str, write: Write, launch: Launch) -> None:
    rows = add_sparse_table(write().directory, 64 << 30)
    service = launch("--workers", workers, "--scrub-bytes-per-s", "0")
    with service.client() as client:
        until(lambda: is_ready(client))
        ids = [0, rows // 2, rows - 1, rows]
        answer = client.post("/v1/models/movies:lookup", json={"feature": NAME, "ids": ids})
    assert answer.json()["found"] == [True, True, True, False]
    for each in [psutil.Process(service.process.pid), *workers_of(service)]:
        assert each.memory_full_info().uss < 200 << 20


@each_number_of_workers
def test_service_that_drains_loses_no_request(workers: str, write: Write, launch: Launch) -> None:
    write()
    service = launch("--workers", workers, "--drain-delay-s", "1.5")
    with service.client() as client, half_sent(service) as finish:
        until(lambda: is_ready(client))
        with grpc.insecure_channel(f"127.0.0.1:{service.ports['grpc']}") as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            while next(watch).status != health_pb2.HealthCheckResponse.SERVING:  # of a worker that still loads
                continue
            service.process.send_signal(signal.SIGTERM)
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            service.event("draining")
            until(lambda: not is_ready(client))
            with client_of(service) as another:  # while load balancers learn of it, new connections are served
                answer = another.post(RETRIEVE, json=BODY)
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")
            assert call(channel, "Retrieve", retrieve()).code == "OK"
        assert finish().startswith(b"HTTP/1.1 200 ")
    assert service.process.wait(WAIT_S) == 0
    assert service.event("stopped")["drained"]


@each_number_of_workers
def test_service_under_load_that_is_terminated_answers_every_request(
    workers: str, write: Write, launch: Launch
) -> None:
    write()
    service = launch("--workers", workers, "--drain-delay-s", "0.2")
    statuses, stopping = list[int](), threading.Event()

    def send(_: int) -> None:
        with client_of(service) as client:
            while True:
                try:
                    statuses.append(client.post(RETRIEVE, json=BODY).status_code)
                except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError):
                    if stopping.is_set():  # no new connection is accepted
                        return
                    raise

    wait_for(service, workers)
    with ThreadPoolExecutor(6) as senders:
        sent = [senders.submit(send, number) for number in range(6)]
        until(lambda: len(statuses) > 100)
        stopping.set()
        assert service.stop() == 0
        for each in sent:
            each.result()
    assert set(statuses) == {200}


def test_service_gives_up_a_request_that_outlasts_the_drain(write: Write, launch: Launch) -> None:
    write()
    service = launch("--drain-timeout-s", "0.2")
    service.event("ready")
    with half_sent(service):
        assert service.stop(signal.SIGINT) == 0


def test_second_signal_exits_at_once_with_130(write: Write, launch: Launch) -> None:
    write()
    service = launch("--drain-timeout-s", "60", "--drain-delay-s", "60")
    service.event("ready")
    service.process.send_signal(signal.SIGTERM)
    service.event("draining")
    assert service.stop() == 130


def test_killed_worker_is_replaced_and_its_counts_are_kept(write: Write, launch: Launch) -> None:
    write()
    service = launch("--workers", "2")
    wait_for(service, "2")
    assert versions_of(service) == {1}
    answered = 'rowcast_requests_total{call="retrieve",code="OK"'
    before, killed = count_of(service, answered), workers_of(service)[0]
    assert before == 8
    killed.kill()
    until(lambda: len(workers_of(service)) == 2 and killed not in workers_of(service))
    until(lambda: count_of(service, "rowcast_workers") == 2 and count_of(service, "rowcast_ready") == 1)
    assert count_of(service, answered) == before
    assert versions_of(service) == {1}
    assert service.stop() == 0


def test_workers_drain_when_the_parent_is_killed(write: Write, launch: Launch) -> None:
    write()
    service = launch("--workers", "2")
    service.event("listening")
    workers = workers_of(service)
    service.process.kill()
    assert psutil.wait_procs(workers, timeout=WAIT_S)[1] == []
    assert service.event("stopped")["drained"]


@each_number_of_workers
def test_service_notifies_systemd(
    workers: str, tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        service, received = launch("--workers", workers), list[bytes]()
        for awaited in ({b"READY=1", b"WATCHDOG=1"}, {b"STOPPING=1"}):
            while not awaited <= set(received):
                received.append(manager.recv(100))
            if b"STOPPING=1" not in awaited:
                service.process.send_signal(signal.SIGTERM)
        assert received.count(b"READY=1") == 1
        assert service.process.wait(WAIT_S) == 0


@each_number_of_workers
def test_ctl_arranges_versions_that_a_restart_keeps(workers: str, write: Write, launch: Launch) -> None:
    write()
    service = launch("--workers", workers)
    wait_for(service, workers)
    write(version=2)
    status = json.loads(ctl(service, "label", "movies", "next", "2").stdout)
    assert len(status["processes"]) == int(workers)
    assert [each["version"] for each in status["models"][0]["versions"]] == [2, 1]
    assert versions_of(service) == versions_of(service, "movies/labels/next") == {2}
    for command, expected in (("rollback", {1}), ("unpin", {2}), ("pin", {1})):
        done = ctl(service, command, "movies", *("1" for _ in expected if command == "pin"))
        assert done.returncode == 0, done.stderr
        assert versions_of(service) == expected
    assert ctl(service, "pin", "movies", "7").returncode == 2
    assert ctl(service, "drain").returncode == 0
    assert service.stop() == 0
    again = launch("--workers", workers)
    with again.client() as client:
        until(lambda: "drain" in client.get("/readyz").json()["error"]["message"])
        answer = client.post(RETRIEVE, json=BODY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "NOT_READY")
        until(lambda: ctl(again, "undrain").returncode == 0)
    until(lambda: versions_of(again) == {1})


def test_requests_of_both_transports_are_recorded_and_keep_a_broken_version_out(
    write: Write, root: Path, launch: Launch
) -> None:
    write()
    service = launch("--record-rate", "1")
    with service.client() as client, grpc.insecure_channel(f"127.0.0.1:{service.ports['grpc']}") as channel:
        until(lambda: is_ready(client))
        assert client.post(RETRIEVE, json=BODY).status_code == 200
        assert client.post("/v1/models/movies/versions/1:retrieve", json=BODY).status_code == 200  # not recorded
        assert client.post(RETRIEVE, json={"k": 2}).status_code == 400
        assert call(channel, "Lookup", lookup(5)).code == "OK"
        until(lambda: len(read_newest(root / ".rowcast-recordings/movies", 9)) == 2)
        broken = write(version=2)
        features = {**broken.manifest.features}
        features["city"] = features["city"].model_copy(update={"default": None})
        page = dump(broken.manifest.model_copy(update={"features": features}))
        (broken.directory / "manifest.json").write_bytes(page)
        failed = service.event("version_failed")
        assert (failed["version"], "1 of 2 recorded requests" in failed["problem"]) == (2, True)
        assert client.post(RETRIEVE, json=BODY).json()["version"] == 1
        write(version=3)
        replayed = service.event("requests_replayed")
        assert (replayed["version"], replayed["requests"], replayed["failed"]) == (3, 3, 0)
        until(lambda: client.post(RETRIEVE, json=BODY).json()["version"] == 3)


@each_number_of_workers
def test_new_versions_under_load_cost_no_failed_or_mixed_answer(workers: str, write: Write, launch: Launch) -> None:
    expected = {1: nearest(write())}
    service = launch("--workers", workers)
    answers, done = list[tuple[str, Any]](), threading.Event()
    message = retrieve().SerializeToString()

    def send(transport: int) -> None:
        address = f"127.0.0.1:{service.ports['grpc']}"
        with client_of(service) as client, grpc.insecure_channel(address) as channel:
            while not done.is_set():
                if transport:
                    outcome = call(channel, "Retrieve", message)
                    answers.append((outcome.code, 0))
                else:
                    answer = client.post(RETRIEVE, json=BODY)
                    answers.append((str(answer.status_code), answer.json()))

    wait_for(service, workers)
    with ThreadPoolExecutor(4) as senders:
        sent = [senders.submit(send, number % 2) for number in range(4)]
        for version in (2, 3, 4):
            expected[version] = nearest(write(version=version))
            until(lambda version=version: versions_of(service) == {version})  # type: ignore[misc]
        done.set()
        for each in sent:
            each.result()
    assert {code for code, _ in answers} == {"OK", "200"}
    for answer in [answer for _, answer in answers if answer]:
        assert_found(answer["neighbors"], expected[answer["version"]])


@each_number_of_workers
def test_service_takes_new_certificates_and_tokens_while_it_serves(
    workers: str, write: Write, launch: Launch, tmp_path: Path
) -> None:
    write()
    before, after = Authority(tmp_path, "before"), Authority(tmp_path, "after")
    signed, tokens = before.sign("server"), tmp_path / "tokens"
    tokens.write_text(f"ranker {OLD}\n")
    secrets = ("--tls-cert", str(signed.cert), "--tls-key", str(signed.key), "--tokens", str(tokens))
    service = launch(*secrets, "--workers", workers)
    service.event("listening")
    with client_of(service, OLD, before.file) as kept:
        until(lambda: is_ready(kept))
        assert kept.get("/v1/models").status_code == 200
        with client_of(service, NEW, before.file) as unknown:
            assert unknown.get("/v1/models").status_code == 401
        after.sign("server")
        tokens.write_text(f"ranker {OLD}\nranker {NEW}\n")

        def renewed() -> bool:
            try:
                with client_of(service, NEW, after.file) as client:
                    return client.get("/v1/models").status_code == 200
            except httpx.ConnectError:
                return False

        until(lambda: all(renewed() for _ in range(8)))
        assert kept.get("/v1/models").status_code == 200
        with client_of(service, NEW, before.file) as outdated, pytest.raises(httpx.ConnectError, match="CERTIFICATE_V"):
            outdated.get("/livez")
    assert service.stop() == 0
