"""Phases as answers tell them: the same ones at each door, and of a failed call those that it came through."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from service.rpc.servicer import SERVICE
from tests.service.asked import ASKED, PROTOBUF, SIMPLE, Service, serve
from tests.service.cases import MODEL
from tests.service.small_bundle import write_small_bundle

EVERY_PHASE = ["decode", "admit", "queue", "lookup", "compute", "search", "encode"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Service]:
    root = tmp_path_factory.mktemp("bundles")
    write_small_bundle(root, small_towers, MODEL, 1)
    yield from serve(root)


def milliseconds(told: str) -> dict[str, float]:
    phases = re.findall(r"([a-z]+);dur=([0-9]+\.[0-9]{3})(?:, |$)", told)
    assert ", ".join(f"{name};dur={value}" for name, value in phases) == told
    return {name: float(value) for name, value in phases}


def by_http(service: Service, headers: dict[str, str], body: bytes) -> dict[str, float]:
    answer = service.http.post(f"/v1/models/{MODEL}:retrieve", content=body, headers=headers)
    return milliseconds(answer.headers.get("server-timing", ""))


def by_grpc(service: Service, body: bytes, timeout: float = 30) -> dict[str, float]:
    call = service.channel.unary_unary(f"/{SERVICE}/Retrieve").future(body, timeout=timeout)
    call.exception()
    return milliseconds(dict(call.trailing_metadata()).get("server-timing", ""))


def told_by_each(service: Service, message: bytes, body: bytes) -> list[dict[str, float]]:
    return [by_http(service, {}, body), by_http(service, PROTOBUF, message), by_grpc(service, message)]


def test_answer_tells_every_phase_at_each_door(service: Service) -> None:
    for told in told_by_each(service, SIMPLE.body(), json.dumps(ASKED).encode()):
        assert list(told) == EVERY_PHASE
        assert 0 < sum(told.values()) < 30_000


def test_failed_call_tells_the_phases_it_came_through(service: Service) -> None:
    unknown = json.dumps({**ASKED, "attributes": ["no such"]}).encode()
    assert list(by_http(service, {}, unknown)) == ["decode", "admit", "queue"]


def test_call_that_was_not_decoded_tells_no_phase(service: Service) -> None:
    assert told_by_each(service, b"\xff", b"{") == [{}, {}, {}]


def test_call_whose_time_is_over_tells_no_phase_that_it_did_not_begin(service: Service) -> None:
    headers = {"x-request-timeout-ms": "0"}
    assert "compute" not in by_http(service, headers, json.dumps(ASKED).encode())
    with pytest.raises(grpc.RpcError):
        service.channel.unary_unary(f"/{SERVICE}/Retrieve")(SIMPLE.body(), timeout=-1)
