"""What a service has served keeps out a version that would fail it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc
import httpx

from bundle.format.manifest import dump
from service.request_log.record import read_newest
from tests.bundles.small import SmallBundle
from tests.e2e.process import WAIT_S, until
from tests.e2e.services import BODY, RETRIEVE
from tests.units.service.grpc_api.requests import call, lookup
from tests.units.service.running import RunningService, log_lines


def test_requests_of_both_transports_are_recorded_and_keep_a_broken_version_out(
    write: Callable[..., SmallBundle], root: Path, serve: Callable[..., RunningService]
) -> None:
    write()
    service = serve(record_rate=1.0, poll_interval_s=3600)
    with httpx.Client(base_url=service.http, timeout=WAIT_S, verify=False) as client:
        assert client.post(RETRIEVE, json=BODY).status_code == 200
        # Neither a request to a version nor one that failed is recorded.
        assert client.post("/v1/models/movies/versions/1:retrieve", json=BODY).status_code == 200
        assert client.post(RETRIEVE, json={"k": 2}).status_code == 400
    with grpc.insecure_channel(service.grpc) as channel:
        assert call(channel, "Lookup", lookup(5)).code == "OK"
    until(lambda: len(read_newest(root / ".rowcast-recordings/movies", 9)) == 2)

    broken = write(version=2)
    features = {**broken.manifest.features}
    features["city"] = features["city"].model_copy(update={"default": None})
    manifest = broken.manifest.model_copy(update={"features": features})
    (broken.directory / "manifest.json").write_bytes(dump(manifest))
    service.scan()
    assert "1 of 2 recorded requests" in service.problem(2)
    assert service.states() == {2: "failed", 1: "available"}

    write(version=3)
    with log_lines() as lines:
        service.scan()
    assert '"requests_replayed"' in lines.getvalue()
    assert service.states()[3] == "available"
