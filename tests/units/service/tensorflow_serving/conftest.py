"""A service that speaks TensorFlow Serving's protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import pytest

from tests.units.service.running import RunningService

PROTOCOLS = ("tensorflow-serving",)


@pytest.fixture
def service(write: Callable[..., Any], serve: Callable[..., RunningService]) -> RunningService:
    write(parts=True)
    return serve(protocols=PROTOCOLS)


@pytest.fixture
def rest(service: RunningService) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.http, timeout=30) as client:
        yield client


@pytest.fixture
def channel(service: RunningService) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(service.grpc) as channel:
        yield channel
