"""What operators do to a running service: versions, commands, recordings, certificates
and tokens.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from bundle.format.manifest import dump
from service.observability.derived_metrics import DERIVED
from service.observability.metrics import COUNTERS, GAUGES, HISTOGRAMS
from service.request_log.record import read_newest
from service.workers import supervisor_metrics
from tests.e2e.process import until
from tests.e2e.services import (
    BODY,
    RETRIEVE,
    Launch,
    Write,
    assert_found,
    client_of,
    ctl,
    is_ready,
    nearest,
    versions_of,
    wait_for,
)
from tests.repository.deploy.test_monitoring import metrics_of
from tests.units.service.grpc_api.requests import call, lookup, retrieve
from tests.units.service.security.authorities import Authority

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "deploy"
OLD = "old-0123456789abcdef"
NEW = "new-0123456789abcdef"


def test_requests_of_both_transports_are_recorded_and_keep_a_broken_version_out(
    write: Write, root: Path, launch: Launch
) -> None:
    write()
    service = launch("--record-rate", "1")
    with (
        service.client() as client,
        grpc.insecure_channel(f"127.0.0.1:{service.ports['grpc']}") as channel,
    ):
        until(lambda: is_ready(client))
        assert client.post(RETRIEVE, json=BODY).status_code == 200
        # The call was not recorded.
        assert client.post("/v1/models/movies/versions/1:retrieve", json=BODY).status_code == 200
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
        until(lambda: failed in json.loads(ctl(service, "report").stdout)["problems"])
        assert client.post(RETRIEVE, json=BODY).json()["version"] == 1
        write(version=3)
        replayed = service.event("requests_replayed", version=3)
        assert (replayed["requests"], replayed["failed"]) == (3, 0)
        until(lambda: client.post(RETRIEVE, json=BODY).json()["version"] == 3)


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
    service = launch(*secrets, "--workers", "2")
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


def test_dashboard_and_alerts_name_metrics_that_the_service_has() -> None:
    names = {f"rowcast_{name}_total" for name in (*COUNTERS, *supervisor_metrics.COUNTERS)}
    names |= {f"rowcast_{name}" for name in (*HISTOGRAMS, *GAUGES, *DERIVED)}
    for file in ("grafana/rowcast.json", "alerts.yaml"):
        assert metrics_of((DEPLOY / file).read_text()) <= names


def test_metrics_of_a_running_service_count_its_requests_and_what_its_towers_computed(
    write: Write, launch: Launch
) -> None:
    small = write(parts=True, users=True)
    service = launch()
    samples = (
        'requests_total{call="retrieve"',
        'request_seconds_bucket{call="retrieve"',
        'model_table_bytes{model="movies"}',
    )
    with service.client() as client:
        until(lambda: is_ready(client))
        assert client.post(RETRIEVE, json=BODY).status_code == 200

        def are_served() -> bool:
            page = client.get("/metrics").text
            return all(f"\nrowcast_{sample}" in page for sample in samples)

        until(are_served)  # each worker writes its metrics from time to time

        def examples() -> Counter[str]:
            pattern = r'rowcast_tower_examples_total\{.*part="(\w+)",tower="ranking"\} (\S+)'
            found = re.findall(pattern, client.get("/metrics").text)
            return Counter({part: int(float(count)) for part, count in found})

        before = examples()
        body = {"context_id": 21, "candidate_ids": small.ids[:9].tolist(), "formula": "watch"}
        assert client.post("/v1/models/movies:rank", json=body).status_code == 200
        counted = Counter({"context": 1, "trunk": 9, "watch": 9})
        until(lambda: examples() - before == counted)
