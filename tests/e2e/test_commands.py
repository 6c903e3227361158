"""Candidates that operators withdraw, and versions that they choose: in every worker when the
command returns, and after a restart.
"""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import grpc
import httpx
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.codec.stubs import embedding_service_pb2 as pb
from tests.e2e.process import WAIT_S, Process, until
from tests.e2e.services import (
    Launch,
    Write,
    client_of,
    ctl,
    versions_of,
    wait_for,
)
from tests.units.service.grpc_api.requests import call, retrieve

FEATURES = {"context": {"user": 3}, "k": 40}
CALLS = {"retrieve": FEATURES, "recommend": FEATURES | {"pool_size": 40}}


def ids_of(service: Process, call_name: str) -> set[int]:
    """The candidates that a worker returns, on a connection of its own: any worker."""
    with client_of(service) as client:
        response = client.post(
            f"/v1/models/movies:{call_name}", json=CALLS[call_name], headers={"connection": "close"}
        )
    assert response.status_code == 200, response.text
    return set(response.json()["ids"])


def ids_of_all_calls(service: Process) -> set[int]:
    """The candidates that are returned by any worker in any call."""
    return {each for call_name in CALLS for _ in range(8) for each in ids_of(service, call_name)}


def readiness(service: Process) -> set[bool]:
    """Whether each worker, over both transports, and the health address say that they serve."""
    states = set[bool]()
    for port in ("health", "http"):
        url = f"http://127.0.0.1:{service.ports[port]}/readyz"
        for _ in range(8):
            states.add(httpx.get(url, timeout=WAIT_S).status_code == 200)
    for port in ("health_grpc", "grpc"):
        for number in range(8):
            options = [("grpc.use_local_subchannel_pool", 1), ("test.channel", number)]
            address = f"127.0.0.1:{service.ports[port]}"
            with grpc.insecure_channel(address, options) as channel:
                check = health_pb2_grpc.HealthStub(channel).Check
                response = check(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
            states.add(response.status == health_pb2.HealthCheckResponse.SERVING)
    return states


def check_choice_of_versions(service: Process, write: Write) -> None:
    """Labels, rolls back and pins a second version."""
    write(version=2)
    status = json.loads(ctl(service, "label", "movies", "next", "2").stdout)
    assert len(status["processes"]) == 2
    assert [version["version"] for version in status["models"][0]["versions"]] == [2, 1]
    assert versions_of(service) == versions_of(service, "movies/labels/next") == {2}
    for command, expected in (("rollback", {1}), ("unpin", {2}), ("pin", {1})):
        done = ctl(service, command, "movies", *("1" for _ in expected if command == "pin"))
        assert done.returncode == 0, done.stderr
        assert versions_of(service) == expected
    assert ctl(service, "pin", "movies", "7").returncode == 2


@pytest.mark.slow
def test_commands_hold_for_every_worker_and_after_a_restart(write: Write, launch: Launch) -> None:
    every = {int(each) for each in write().ids}
    first, second = sorted(every)[:2]
    service = launch("--workers", "2", "--health-grpc-port", "0")
    wait_for(service, "2")
    assert ids_of_all_calls(service) == every
    done = threading.Event()
    acknowledged = list[float]()
    responses = list[tuple[float, set[int]]]()

    def call_repeatedly() -> None:
        for number in count():
            if done.is_set():
                return
            sent = time.monotonic()
            responses.append((sent, ids_of(service, list(CALLS)[number % 2])))

    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(call_repeatedly) for _ in range(2)]
        status = ctl(service, "deny", "add", "movies", str(first), "999999")
        acknowledged.append(time.monotonic())
        until(lambda: sum(sent > acknowledged[0] for sent, _ in list(responses)) >= 20)
        done.set()
        for each in calls:
            each.result()
    assert (status.returncode, json.loads(status.stdout)["models"][0]["wanted"]) == (
        0,
        {"denied": 2},
    )
    assert any(first in ids for _, ids in responses), "it was returned before"
    for sent, ids in responses:
        assert sent < acknowledged[0] or ids == every - {first}
    with grpc.insecure_channel(f"127.0.0.1:{service.ports['grpc']}") as channel:
        message = retrieve()
        message.k = 40
        response = pb.RetrieveResponse.FromString(call(channel, "Retrieve", message).response)
        assert set(np.frombuffer(response.ids.int64s, "<i8").tolist()) == every - {first}
    with client_of(service) as client:
        ranked = client.post(
            "/v1/models/movies:rank",
            json={"context": {"user": 3}, "candidate_ids": [first, second]},
        )
    assert ranked.json()["ids"] == [first, second], "rank scores the ids that it is sent"
    check_choice_of_versions(service, write)
    assert ids_of_all_calls(service) == every - {first}
    for _ in range(3):
        assert ctl(service, "drain").returncode == 0
        assert readiness(service) == {False}
        assert ctl(service, "undrain").returncode == 0
        assert readiness(service) == {True}
    assert ctl(service, "drain").returncode == 0
    assert service.stop() == 0
    again = launch()
    with again.client() as client:
        until(lambda: "drain" in client.get("/readyz").json()["error"]["message"])
        response = client.post("/v1/models/movies:retrieve", json=FEATURES)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "NOT_READY")
        until(lambda: ctl(again, "undrain").returncode == 0)
    until(lambda: versions_of(again) == {1})
    assert ids_of_all_calls(again) == every - {first}
    assert ctl(again, "deny", "remove", "movies", str(first)).returncode == 0
    assert ids_of_all_calls(again) == every
    assert json.loads(ctl(again, "deny", "list", "movies").stdout)["ids"] == ["999999"]
