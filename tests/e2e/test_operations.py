"""What operators do to a running service: versions, certificates and tokens; and what it counts."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from tests.e2e.conftest import Standing
from tests.e2e.process import WAIT_S, until
from tests.e2e.services import (
    BODY,
    RETRIEVE,
    Launch,
    Write,
    assert_found,
    client_of,
    count_of,
    is_ready,
    nearest,
    versions_of,
    wait_for,
)
from tests.units.service.grpc_api.requests import call, retrieve
from tests.units.service.security.authorities import Authority

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "deploy"
OLD = "old-0123456789abcdef"
NEW = "new-0123456789abcdef"


def test_new_versions_under_load_cause_no_failed_or_mixed_response(
    write: Write, launch: Launch
) -> None:
    expected = {1: nearest(write())}
    service = launch("--workers", "2")
    responses = list[tuple[str, Any]]()
    done = threading.Event()
    message = retrieve().SerializeToString()

    def send(transport: int) -> None:
        address = f"127.0.0.1:{service.ports['grpc']}"
        with client_of(service) as client, grpc.insecure_channel(address) as channel:
            while not done.is_set():
                if transport:
                    outcome = call(channel, "Retrieve", message)
                    responses.append((outcome.code, 0))
                else:
                    response = client.post(RETRIEVE, json=BODY)
                    responses.append((str(response.status_code), response.json()))

    wait_for(service, "2")
    with ThreadPoolExecutor(4) as senders:
        sent = [senders.submit(send, number % 2) for number in range(4)]
        for version in (2, 3):
            expected[version] = nearest(write(version=version))
            until(lambda version=version: versions_of(service) == {version})  # type: ignore[misc]
        done.set()
        for each in sent:
            each.result()
    assert {code for code, _ in responses} == {"OK", "200"}
    for response in [response for _, response in responses if response]:
        assert_found(response, expected[response["version"]])


def test_service_takes_new_certificates_and_tokens_while_it_serves(
    write: Write, launch: Launch, tmp_path: Path
) -> None:
    write()
    before = Authority(tmp_path, "before")
    after = Authority(tmp_path, "after")
    signed = before.sign("server")
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ranker {OLD}\n")
    secrets = (
        "--tls-cert",
        str(signed.cert),
        "--tls-key",
        str(signed.key),
        "--tokens",
        str(tokens),
    )
    service = launch(*secrets)
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
        with (
            client_of(service, NEW, before.file) as outdated,
            pytest.raises(httpx.ConnectError, match="CERTIFICATE_V"),
        ):
            outdated.get("/livez")
    assert service.stop() == 0


@pytest.mark.parametrize(
    ("endpoint", "page", "probes"),
    [
        ("http", "/v1/models", ("/livez", "/readyz")),
        ("admin", "/v1/status", ()),
        ("health", "/metrics", ("/livez", "/readyz")),
    ],
)
def test_no_endpoint_shows_a_page_to_a_host_that_is_another_machine(
    endpoint: str, page: str, probes: tuple[str, ...], standing: Standing
) -> None:
    url = f"http://127.0.0.1:{standing.service.ports[endpoint]}"
    with httpx.Client(base_url=url, timeout=WAIT_S) as client:
        for host, status in (("localhost", 200), ("[::1]:80", 200), ("pages.example", 403)):
            assert client.get(page, headers={"host": host}).status_code == status
        for probe in probes:
            assert client.get(probe, headers={"host": "10.0.0.7"}).status_code == 200


def test_metrics_of_all_workers_count_requests_and_what_towers_computed(
    standing: Standing,
) -> None:
    samples = (
        'rowcast_request_seconds_bucket{call="retrieve"',
        'rowcast_model_table_bytes{model="movies"}',
    )
    requests_ok = 'rowcast_requests_total{call="retrieve",code="OK"'
    service = standing.service

    def examples() -> Counter[str]:
        parts = ("context", "trunk", "watch")
        name = "rowcast_tower_examples_total"
        labels = [f'{name}{{model="movies",part="{part}",tower="ranking"}}' for part in parts]
        counts = [int(count_of(service, label)) for label in labels]
        return Counter(dict(zip(parts, counts, strict=True)))

    requests_before = count_of(service, requests_ok)
    before = examples()
    alone = {"connection": "close"}
    body = {
        "context_id": 21,
        "candidate_ids": standing.small.ids[:9].tolist(),
        "formula": "watch",
    }
    with client_of(service) as client:
        assert client.post(RETRIEVE, json=BODY, headers=alone).status_code == 200
        assert client.post("/v1/models/movies:rank", json=body, headers=alone).status_code == 200
    # Each worker writes its metrics from time to time, and not all at once.
    until(lambda: count_of(service, requests_ok) == requests_before + 1)
    until(lambda: all(count_of(service, sample) > 0 for sample in samples))
    counted = Counter({"context": 1, "trunk": 9, "watch": 9})
    until(lambda: examples() - before == counted)
