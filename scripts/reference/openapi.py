"""The OpenAPI document of a service with default settings. A service adds examples of its models."""

from __future__ import annotations

import json
from pathlib import Path

from service.app import Worker
from service.config import ServiceSettings
from service.coordinator import Coordinator

SUFFIX = ".json"


def page() -> str:
    """Returns the document."""
    worker = Worker(ServiceSettings(root=Path()), Coordinator(), grpc_port=None)
    return json.dumps(worker.http_app().openapi(), indent=1, ensure_ascii=False) + "\n"
