"""The service in this process, between its transports and its bundles."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
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
    (response,), _ = responses_to(root, call, [body])
    return response


def responses_to(
    root: Path, call: str, bodies: Iterable[Mapping[str, Any]], **settings: Any
) -> tuple[list[dict[str, Any]], str]:
    """Loads version 1 of the model `random` of a root, and responds to requests, one at a time.

    Args:
      root: The root of the bundles.
      call: "embed" or "rank".
      bodies: The bodies as clients send them in JSON.
      settings: Further settings of the service.

    Returns:
      The responses, and the metrics after them.
    """
    return asyncio.run(_responses(root, call, bodies, settings))


async def _responses(
    root: Path, call: str, bodies: Iterable[Mapping[str, Any]], more: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], str]:
    settings = ServiceSettings(root=root, max_load_bytes=MEMORY_BYTES, **more)
    versions = VersionManager()
    metrics = Metrics()
    engine = Engine(versions, settings, metrics, threads=1)
    dataplane = Dataplane(engine, settings, metrics)
    target = Target("random")
    responses = []
    try:
        loader = Loader(
            settings, 1, lambda loaded, throttle: warm_up(engine, loaded, settings, throttle)
        )
        versions.add(loader.load("random", 1))
        versions.arrange("random", Arrangement(1, frozenset((1,))))
        for body in bodies:
            context = RequestContext(call, "trial", time.monotonic() + WAIT_S)
            pieces = await dataplane.call(
                OPERATIONS[call],
                json.dumps(body).encode(),
                False,
                target,
                context,
                as_protobuf=False,
            )
            responses.append(json.loads(b"".join(pieces)))
    finally:
        dataplane.close()
        engine.close()
        versions.close()
        versions.wait_closed()
    metrics.flush()
    return responses, metrics.render().decode()
