"""Defaults that depend on what a process may use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.config import ServiceSettings
from service.workers.start import fitted

GIB = 1 << 30


@pytest.mark.parametrize(
    ("settings_values", "open_files", "memory", "connections", "inflight_bytes"),
    [
        ({}, 1 << 16, 64 * GIB, 20_000, GIB),
        ({}, 16_384, 64 * GIB, 7_680, GIB),  # the limit of deploy/rowcast-serve.service
        ({}, 1024, 64 * GIB, 1, GIB),
        ({}, 1 << 16, GIB, 20_000, GIB // 4),
        ({"workers": 2}, 1 << 16, GIB, 20_000, GIB // 8),
        ({"workers": 8}, 1 << 16, GIB, 20_000, 64 << 20),  # one largest response
        ({"max_connections": 9, "max_inflight_bytes": 2 * GIB}, 1024, GIB, 9, 2 * GIB),
    ],
)
def test_defaults_fit_the_limits_and_what_is_given_stays(
    settings_values: dict[str, Any],
    open_files: int,
    memory: int,
    connections: int,
    inflight_bytes: int,
) -> None:
    settings = fitted(ServiceSettings(root=Path.cwd(), **settings_values), open_files, memory)
    assert (settings.max_connections, settings.max_inflight_bytes) == (connections, inflight_bytes)
