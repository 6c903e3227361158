"""Services in the process of the tests, over bundles that they write."""

from __future__ import annotations

import logging as stdlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

from service.observability import logging
from tests.service.running import RunningService


@pytest.fixture
def serve(root: Path) -> Iterator[Callable[..., RunningService]]:
    """Starts services in this process, with both transports on loopback; ends them
    after the test.
    """
    started: list[RunningService] = []

    def start(**settings: Any) -> RunningService:
        started.append(RunningService(root, **settings))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[TextIO]:
    """Has this process log to a file."""
    root = stdlib.getLogger()
    handlers = root.handlers
    level = root.level
    with (tmp_path / "log").open("w") as lines:
        logging.configure("info", lines)
        yield lines
        logging.shutdown()
    root.handlers = handlers
    root.setLevel(level)
    stdlib.getLogger(logging.ROOT_LOGGER).setLevel(stdlib.NOTSET)
