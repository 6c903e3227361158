"""One service for all tests of a module that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.bundles.small import write_small_bundle
from tests.units.service.running import RunningService

MAX_REQUEST_BYTES = 1 << 20


@pytest.fixture(scope="module")
def service(
    small_towers: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    root = tmp_path_factory.mktemp("root")
    write_small_bundle(root, small_towers, "movies", 1)
    running = RunningService(
        root, max_request_bytes=MAX_REQUEST_BYTES, body_timeout_s=1, keep_alive_s=1
    )
    yield running
    running.close()


@pytest.fixture
def channel(service: RunningService) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(service.grpc, [("grpc.max_send_message_length", -1)]) as channel:
        yield channel
