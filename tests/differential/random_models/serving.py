"""The service in this process, between its transports and its bundles."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.codec.operations import OPERATIONS
from service.config import ServiceSettings
from service.contract.messages import Target
from service.dataplane import Dataplane
from service.engine.context import RequestContext
from service.engine.engine import Engine
from service.observability.metrics import Metrics
from service.versions.lifecycle import VersionManager
from service.versions.loader import Loader
from service.versions.policy import Arrangement
from service.warm_up import warm_up
from tests.e2e.process import WAIT_S

TIMEOUT_S = 3600.0
"""Ends what hangs: a busy host may take minutes for what takes a second alone."""
MEMORY_BYTES = 4 << 30
"""Enough for the libraries that are loaded already, whatever is free while other tests run."""


def response_to(root: Path, call: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Loads version 1 of the model `random` of a root, and responds to a request.

    Args:
      root: The root of the bundles.
      call: "embed" or "rank".
      body: The body as clients send it in JSON.
    """
    response: dict[str, Any] = asyncio.run(_response(root, call, json.dumps(body).encode()))
    return response


async def _response(root: Path, call: str, body: bytes) -> Any:
    settings = ServiceSettings(root=root, max_load_bytes=MEMORY_BYTES)
    versions = VersionManager()
    metrics = Metrics()
    engine = Engine(versions, settings, metrics, threads=1)
    dataplane = Dataplane(engine, settings, metrics)
    context = RequestContext(call, "trial", time.monotonic() + WAIT_S)
    target = Target("random")
    try:
        loader = Loader(
            settings, 1, lambda loaded, throttle: warm_up(engine, loaded, settings, throttle)
        )
        versions.add(loader.load("random", 1))
        versions.arrange("random", Arrangement(1, frozenset((1,))))
        pieces = await dataplane.call(
            OPERATIONS[call], body, False, target, context, as_protobuf=False
        )
    finally:
        dataplane.close()
        engine.close()
        versions.close()
        versions.wait_closed()
    return json.loads(b"".join(pieces))
