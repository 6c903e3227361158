"""What a service gets its clients in each of its states (without a model, damaged, draining, full,
failing, late), alike by every way in: code, status, and when to retry.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from service.codec.stubs import embedding_service_pb2 as pb
from service.errors import INTERNAL_MESSAGE
from tests.cases.random_requests import written
from tests.cases.ways import Ways, serving
from tests.differential import tensor_forms as forms
from tests.e2e.process import WAIT_S, until
from tests.units.service.cases import MODEL, Case, user
from tests.units.service.clients import SIMPLE
from tests.units.service.grpc_api.requests import call
from tests.units.service.running import FailingTower, RunningService, flip, log_lines

PROTOCOLS = ("open-inference", "tensorflow-serving")
QUERY = {"signature_name": "query"}
OTHERS: dict[str, dict[str, Any]] = {
    f"/v2/models/{MODEL}/infer": forms.json_body({"user": np.array([5])}, "query"),
    f"/v1/models/{MODEL}:predict": QUERY | {"instances": [{"user": 5}]},
}
"""Requests of the other protocols."""
METHOD = "/rowcast.embedding.v1.EmbeddingService/Retrieve"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Path:
    return written(tmp_path_factory.mktemp("bundles"), small_towers).directory.parents[1]


@pytest.fixture
def ways(root: Path) -> Iterator[Ways]:
    """A service that computes one request at a time, beside the event loop."""
    settings = {"max_concurrent_requests": 1, "retry_after_s": 2.5, "inline_max_us": 0}
    with serving(root, protocols=PROTOCOLS, poll_interval_s=3600, **settings) as ways:
        yield ways


def others(ways: Ways, status: int) -> list[httpx.Response]:
    """Sends requests of the other protocols, which have their own form of errors."""
    responses = [ways.clients.http.post(path, json=body) for path, body in OTHERS.items()]
    for response in responses:
        assert response.status_code == status, response.text
        assert status == 200 or list(response.json()) == ["error"]
    return responses


def expect(ways: Ways, code: str, status: int) -> None:
    ways.clients.expect(code)
    outcomes = ways.by_clients(SIMPLE)
    assert {outcome.code for outcome in outcomes.values()} == {code}
    others(ways, status)


def test_service_without_a_model_is_live_and_not_ready(tmp_path: Path) -> None:
    with serving(tmp_path, protocols=PROTOCOLS) as ways:
        expect(ways, "NOT_READY", 503)
        for path in ("/readyz", "/v2/health/ready"):
            response = ways.clients.http.get(path)
            assert (response.status_code, "no bundle" in response.text) == (503, True)
        for path in ("/livez", "/v2/health/live"):
            assert ways.clients.http.get(path).status_code == 200


def test_service_with_a_damaged_version_reports_data_loss(ways: Ways) -> None:
    versions = ways.service.worker.versions
    assert versions.damage(ways.service.current(MODEL), "tables/users: block 0")
    expect(ways, "DATA_LOSS", 500)


def test_draining_service_computes_nothing_more(ways: Ways) -> None:
    expect(ways, "OK", 200)
    ways.service.dataplane.engine.drain()
    expect(ways, "NOT_READY", 503)


def test_full_service_rejects_with_when_to_retry_and_a_failing_one_hides_its_bug(
    ways: Ways,
) -> None:
    tower = ways.service.waiting(MODEL)
    clients = ways.clients
    first = clients.channel.unary_unary(METHOD).future(SIMPLE.body(), timeout=WAIT_S)
    assert tower.entered.wait(WAIT_S)
    ids = ["id-1", "id-of-another", "id-1", "id-" * 30]
    try:
        expect(ways, "OVERLOADED", 429)
        for protobuf in (False, True):  # the second and later ones repeat the first
            repeated = [
                clients.post(SIMPLE, protobuf, **{"x-request-id": request_id}) for request_id in ids
            ]
            assert {response.headers["retry-after"] for response in repeated} == {"3"}
            assert [response.headers["x-request-id"] for response in repeated] == ids
            texts = {response.json()["error"]["message"] for response in repeated if not protobuf}
            for response in repeated if protobuf else []:
                texts.add(pb.ErrorDetails.FromString(response.content).message)
            assert len(texts) == 1
        for response in others(ways, 429):
            assert response.headers["retry-after"] == "3"
        # What must not be judged before it is read, and what no computation is needed for.
        url = f"/v1/models/{MODEL}:retrieve"
        late = {"x-request-timeout-ms": "soon"}
        assert clients.http.post(url, json=user(), headers=late).status_code == 400
        assert clients.http.get(url).status_code == 405
        assert clients.http.post(f"/v1/models/{MODEL}:unknown", json={}).status_code == 404
        for path in ("/livez", "/readyz", "/metrics", "/v1/models"):
            assert clients.http.get(path).status_code == 200
        _check_retry_of_grpc(clients.channel)
    finally:
        tower.release.set()
    assert first.result()
    rejected = ways.service.value("rowcast_rejected_requests_total", reason="requests")
    assert rejected == ways.service.value("rowcast_requests_total", code="OVERLOADED") > 10

    ways.service.with_network("query", FailingTower(tower))
    with log_lines() as lines:
        assert set(clients.all()) == {("INTERNAL", INTERNAL_MESSAGE)}
        for response in others(ways, 500):
            assert "secret" not in response.text
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    errors = [line for line in logged if line["level"] == "error"]
    assert len(errors) == 5
    assert all("secret of the tower" in line["traceback"] for line in errors)


def _check_retry_of_grpc(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary(METHOD)(SIMPLE.body(), timeout=WAIT_S)
    trailing = dict(raised.value.trailing_metadata())
    assert (trailing["retry-after"], trailing["grpc-retry-pushback-ms"]) == ("3", "3000")
    retry = error_details_pb2.RetryInfo()
    assert rpc_status.from_call(raised.value).details[2].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 3000


def test_request_past_its_deadline_fails_without_a_field_at_fault(ways: Ways) -> None:
    late = {"x-request-timeout-ms": "0"}
    for protobuf in (False, True):
        code, _ = ways.clients.by_http(SIMPLE, protobuf, **late)
        assert code in {"DEADLINE", "OVERLOADED"}
    error = ways.clients.post(SIMPLE, protobuf=False, **late).json()["error"]
    assert "violations" not in error
    channel = ways.clients.channel
    assert call(channel, "Retrieve", SIMPLE.body(), timeout=-1).code == "DEADLINE_EXCEEDED"
    for milliseconds, code in (("600000", "OK"), ("0", "DEADLINE"), ("soon", "INVALID_ARGUMENT")):
        metadata = [("x-request-timeout-ms", milliseconds)]
        assert call(channel, "Retrieve", SIMPLE.body(), metadata=metadata).code == code
    tower = ways.service.waiting(MODEL)
    try:
        assert (
            ways.clients.by_http(SIMPLE, False, **{"x-request-timeout-ms": "2000"})[0] == "DEADLINE"
        )
        assert tower.entered.is_set()
    finally:
        tower.release.set()


def test_large_response_is_encoded_beside_other_requests(root: Path) -> None:
    with serving(root, max_values=20_000, max_request_bytes=1 << 20) as ways:
        release = threading.Event()
        for _ in range(64):  # more than there are threads that encode
            waiting = ways.service.dataplane.offload(release.wait, WAIT_S)
            asyncio.run_coroutine_threadsafe(waiting, ways.service.loop)
        large = Case("lookup", "large", {"feature": "user", "ids": [7] * 10_000})
        outcomes: list[Any] = []
        sender = threading.Thread(target=lambda: outcomes.append(ways.by_json(large)))
        sender.start()
        try:
            assert ways.clients.by_grpc(SIMPLE)[0] == "OK"
            assert outcomes == []
        finally:
            release.set()
            sender.join()
        small = Case("lookup", "small", {"feature": "user", "ids": [7]})
        (vector,) = ways.by_json(small).value["vectors"]
    assert outcomes[0].value["vectors"] == [vector] * 10_000


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_client_that_leaves_is_cancelled_and_its_computation_ends(
    transport: str, ways: Ways
) -> None:
    def cancelled() -> float:
        return ways.service.value("rowcast_requests_total", code="CANCELLED", transport=transport)

    tower = ways.service.waiting(MODEL)
    try:
        if transport == "grpc":
            pending = ways.clients.channel.unary_unary(METHOD).future(SIMPLE.body())
            assert tower.entered.wait(WAIT_S)
            pending.cancel()
        else:
            connection = HTTPConnection(ways.service.http.removeprefix("http://"))
            headers = {"content-type": "application/json"}
            connection.request("POST", f"/v1/models/{MODEL}:retrieve", json.dumps(user()), headers)
            assert tower.entered.wait(WAIT_S)
            connection.close()
        until(lambda: cancelled() == 1)
        until(lambda: ways.service.dataplane.engine.inflight == 0)
    finally:
        tower.release.set()


SECRET = "confidential"
"""A directory of the machine."""
CLIENT = "0123456789-client"
CHANGES = f"/v1/models/{MODEL}/changes"
PAGES = ("/v1/models", f"/v1/models/{MODEL}", CHANGES, "/readyz", "/metrics", "/v2/health/ready")
STATES = [
    f"{CHANGES}/states?mark={mark}&sequence={sequence}"
    for mark, sequence in (("", 0), ("0" * 32, 7))
]


def damage_vectors(root: Path) -> None:
    for file in root.glob(f"{MODEL}/*/indexes/*/*.bin"):
        file.write_bytes(b"")


def damage_manifest(root: Path) -> None:
    for file in root.glob(f"{MODEL}/*/manifest.json"):
        file.write_bytes(b"{}")


def damage_changes(root: Path) -> None:
    flip(root / MODEL / "changes.sqlite")


def replace_changes(root: Path) -> None:
    changes = root / MODEL / "changes.sqlite"
    changes.unlink()
    changes.mkdir()


FAULTS: list[tuple[Callable[[Path], None], bool]] = [
    (damage_vectors, False),
    (damage_manifest, False),
    (damage_changes, False),
    (replace_changes, True),
]
"""What breaks, and whether the service runs meanwhile."""


def received_by_clients(service: RunningService, held: ExitStack) -> str:
    """Sends each kind of request, of which some must fail; returns all that comes back."""
    authorization = ("authorization", f"Bearer {CLIENT}")
    headers = dict([authorization, ("x-request-timeout-ms", "500")])
    http = held.enter_context(httpx.Client(base_url=service.http, headers=headers, timeout=WAIT_S))
    channel = held.enter_context(grpc.insecure_channel(service.grpc))
    model = pb.ModelSpec(name=MODEL)
    ids = pb.Ids(int64s=np.array([1], np.int64).tobytes())
    kind = pb.CHANGE_KIND_CANDIDATES
    change = pb.ChangeRequest(model=model, kind=kind, action=pb.CHANGE_ACTION_DELETE, ids=ids)
    responses = [http.get(path) for path in (*PAGES, *STATES)]
    responses.append(http.post(f"/v1/models/{MODEL}:retrieve", json=SIMPLE.json))
    deletion = {"items": [{"id": 1}]}
    responses.append(http.post(f"/v1/models/{MODEL}/candidates/delete", json=deletion))
    responses += [http.post(path, json=body) for path, body in OTHERS.items()]
    outcomes = [
        call(channel, method, message, token=CLIENT, timeout=5)
        for method, message in (
            ("ListModels", pb.ListModelsRequest()),
            ("GetModel", pb.GetModelRequest(model=model)),
            ("GetChanges", pb.GetChangesRequest(model=model)),
            ("Change", change),
            ("Retrieve", pb.RetrieveRequest(model=model)),
        )
    ]
    assert any(response.status_code >= 500 for response in responses)
    received = [f"{response.headers} {response.text}" for response in responses]
    return "\n".join([*received, *map(str, outcomes)])


@pytest.mark.parametrize(("break_it", "runs"), FAULTS)
def test_clients_read_no_paths_and_no_command_lines_and_operators_do(
    break_it: Callable[[Path], None], runs: bool, root: Path, tmp_path: Path
) -> None:
    place = tmp_path / SECRET
    shutil.copytree(root, place)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"client {CLIENT}\n")
    settings = {"tokens": tokens, "changes_from": ("client",), "protocols": PROTOCOLS}
    with ExitStack() as held, log_lines() as lines:
        service = RunningService(place, **settings)
        held.callback(service.close)
        headers = {"authorization": f"Bearer {CLIENT}"}
        path = f"{service.http}/v1/models/{MODEL}/candidates/delete"
        first = httpx.post(path, json={"items": [{"id": 2}]}, headers=headers, timeout=WAIT_S)
        first.raise_for_status()
        if runs:
            break_it(place)
            service.worker.poller.follow()
        else:
            service.close()
            break_it(place)
            service = RunningService(place, **settings)
            held.callback(service.close)
        received = received_by_clients(service, held)
        operators = httpx.get(f"{service.admin}/v1/status", timeout=WAIT_S).text
    assert SECRET in lines.getvalue() + operators
    for private in (SECRET, sys.executable, str(tmp_path)):
        assert private not in received
