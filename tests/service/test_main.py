"""`rowcast-serve` as a process: start, readiness, switch, signals, exit codes. Both doors are real."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.rpc.servicer import SERVICE
from service.wire.stubs import embedding_service_pb2 as pb
from tests.service import oracles
from tests.service.process import PATIENCE_S, PROGRAM, Process
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
Serve = Callable[..., Process]


def retrieve(client: httpx.Client) -> httpx.Response:
    return client.post("/v1/models/movies:retrieve", json={"features": {"user": 3}, "k": 2})


def test_empty_root_is_live_and_not_ready_then_serves_what_is_dropped_in(write: Write, serve: Serve) -> None:
    service = serve()
    with service.client() as client:
        assert client.get("/livez").status_code == 200
        assert service.event("not_ready")["problem"] == "no bundle has come into the root yet"
        assert client.get("/readyz").json()["error"]["message"] == "no bundle has come into the root yet"
        assert retrieve(client).json()["error"]["code"] == "NOT_READY"
        write()
        service.event("version_available")
        assert client.get("/readyz").status_code == 200
        assert retrieve(client).json()["version"] == 1
        write(version=2)
        assert service.event("version_available")["version"] == 2
        assert retrieve(client).json()["version"] == 2
        metrics = client.get("/metrics").text
    assert "rowcast_ready 1.0" in metrics
    assert 'rowcast_version{model="movies",state="available",version="2"} 1.0' in metrics
    assert service.stop() == 0


def test_running_service_has_no_tensorflow_in_its_process(write: Write, serve: Serve) -> None:
    write()
    service = serve()
    with service.client() as client:
        service.event("version_available")
        assert retrieve(client).status_code == 200
        mapped = Path(f"/proc/{service.process.pid}/maps").read_text()
    assert "libtensorflow" not in mapped
    assert service.stop() == 0


def test_tower_that_only_tensorflow_runs_is_served_too(write: Write, serve: Serve) -> None:
    small = write(saved_model_only=frozenset({"query"}))
    service = serve()
    with service.client() as client:
        service.event("version_available")
        neighbors = retrieve(client).json()["neighbors"]
    assert service.stop() == 0
    expected = oracles.neighbors(small, oracles.query_vector(small, 3), 2)
    assert [each["id"] for each in neighbors] == [movie for movie, _ in expected]
    assert [each["score"] for each in neighbors] == pytest.approx([score for _, score in expected], 1e-4)


def test_sigterm_under_load_loses_no_admitted_call(write: Write, serve: Serve) -> None:
    write()
    service = serve()
    service.event("version_available")
    address = f"http://127.0.0.1:{service.ports['http']}"
    answered: list[int] = []
    busy = threading.Event()

    def ask_on(_: int) -> None:
        with httpx.Client(base_url=address, timeout=PATIENCE_S) as client:
            while True:
                try:
                    response = retrieve(client)
                except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError):
                    if draining.is_set():  # an idle connection was closed, or no new one is taken
                        return
                    raise
                answered.append(response.status_code)
                if len(answered) > 50:
                    busy.set()
                if response.status_code == 503:
                    return

    draining = threading.Event()
    with ThreadPoolExecutor(8) as callers:
        jobs = [callers.submit(ask_on, number) for number in range(8)]
        assert busy.wait(PATIENCE_S)
        draining.set()
        assert service.stop() == 0
        for job in jobs:
            job.result()
    assert set(answered) <= {200, 503}
    assert answered.count(200) > 50


def held_request(service: Process) -> socket.socket:
    """A request whose body never comes: HTTP cannot drain while it is open."""
    line = socket.create_connection(("127.0.0.1", service.ports["http"]), timeout=PATIENCE_S)
    line.sendall(b"POST /v1/models/movies:retrieve HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
    return line


def test_second_signal_while_draining_exits_at_once_with_130(write: Write, serve: Serve) -> None:
    write()
    service = serve("--drain-s", "60")
    with service.client() as client:
        service.event("ready")
        assert client.get("/readyz").status_code == 200
        with held_request(service):
            for _ in range(3):  # the held request is read meanwhile
                assert client.get("/livez").status_code == 200
            service.process.send_signal(signal.SIGTERM)
            service.event("draining")
            began = time.monotonic()
            assert service.stop() == 130
            assert time.monotonic() - began < 10


def test_drain_gives_up_on_a_held_request_after_its_time(write: Write, serve: Serve) -> None:
    write()
    service = serve("--drain-s", "0.2")
    service.event("version_available")
    with held_request(service):
        assert service.stop(signal.SIGINT) == 0


def test_required_model_that_cannot_be_loaded_exits_7(write: Write, serve: Serve) -> None:
    broken = write()
    (broken.directory / "indexes/movies/vectors.bin").write_bytes(b"")
    service = serve("--require", "movies")
    assert service.event("version_refused")["model"] == "movies"
    assert service.event("required_models_missing")["models"] == ["movies"]
    assert service.process.wait(PATIENCE_S) == 7


def test_required_model_that_loads_is_served(write: Write, serve: Serve) -> None:
    write()
    service = serve("--require", "movies")
    with service.client() as client:
        service.event("version_available")
        assert retrieve(client).status_code == 200
    assert service.stop() == 0


def test_port_that_is_taken_exits_2_and_names_it(root: Path, serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for option in ("--http-port", "--grpc-port"):
            service = serve(option, port)
            assert service.process.wait(PATIENCE_S) == 2
            assert port in service.event("cannot_start")["problem"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--root (or ROWCAST_ROOT) must be given"),
        (["--root", "/nowhere"], "is no directory"),
        (["--root", "/", "--k-max", "0"], "--k-max"),
        (["--root", "/", "--record-rate", "1", "--record-dir", "/dev/null/x"], "--record-dir"),
    ],
)
def test_wrong_settings_exit_2_and_say_which(arguments: list[str], message: str) -> None:
    done = subprocess.run([*PROGRAM, *arguments], check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "gpu"], "--device gpu needs TensorFlow, which is not installed; install rowcast[gpu]"),
        (["--precision", "bf16"], "--precision bf16 needs TensorFlow, which is not installed"),
        (["--device", "gpu", "--precision", "int8"], "int8 is LiteRT's, which runs on the CPU"),
    ],
)
def test_options_that_need_tensorflow_exit_2_without_it(tmp_path: Path, options: list[str], message: str) -> None:
    program = "import sys; sys.modules['tensorflow'] = None; from service.main import main; main()"
    command = [sys.executable, "-c", program, "--root", str(tmp_path), *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr.startswith("error: ")) == (2, True)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_gpu_that_tensorflow_does_not_see_exits_2(tmp_path: Path) -> None:
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    command = [*PROGRAM, "--root", str(tmp_path), "--device", "gpu"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=hidden, timeout=2 * PATIENCE_S)
    assert done.returncode == 2
    assert re.fullmatch(
        r"error: TensorFlow 2\.\S+ .*sees no GPU here; install .*, or leave --device out\n", done.stderr
    )


def test_print_settings_shows_the_effective_ones_and_exits_0(tmp_path: Path) -> None:
    environment = {**os.environ, "ROWCAST_K_MAX": "7"}
    command = [*PROGRAM, "--root", str(tmp_path), "--print-settings"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE_S, check=True)
    assert json.loads(done.stdout)["k_max"] == 7


def test_sigterm_under_grpc_load_ends_calls_and_watches_at_once(write: Write, serve: Serve) -> None:
    write()
    service = serve("--drain-s", "60")
    service.event("ready")
    body = pb.RetrieveRequest(k=2, features={"user": pb.Column(int64s=(3).to_bytes(8, "little"))}).SerializeToString()
    codes: list[grpc.StatusCode] = []
    busy = threading.Event()
    with grpc.insecure_channel(f"127.0.0.1:{service.ports['grpc']}") as channel:
        kinds = health_pb2.HealthCheckResponse
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == kinds.SERVING
        method = channel.unary_unary(f"/{SERVICE}/Retrieve")

        def ask_on(_: int) -> None:
            while not codes or codes[-1] is grpc.StatusCode.OK:
                code = method.future(body, timeout=PATIENCE_S).code()
                codes.append(code)
                if len(codes) > 50:
                    busy.set()
                if code is not grpc.StatusCode.OK:
                    return

        with ThreadPoolExecutor(8) as callers:
            jobs = [callers.submit(ask_on, number) for number in range(8)]
            assert busy.wait(PATIENCE_S)
            began = time.monotonic()
            assert service.stop() == 0
            assert time.monotonic() - began < 20
            for job in jobs:
                job.result()
        assert [answer.status for answer in watch] == [kinds.NOT_SERVING]
    assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}


def test_sighup_has_the_root_looked_at_again_and_ends_nothing(write: Write, serve: Serve) -> None:
    service = serve("--poll-s", "3600")
    service.event("not_ready")
    write()
    service.process.send_signal(signal.SIGHUP)
    assert service.event("version_available")["version"] == 1
    assert service.stop() == 0
