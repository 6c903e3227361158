"""Services in the process of the tests, over bundles that they write."""

from __future__ import annotations

import logging as stdlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

from service.observability import logging
from tests.units.service.changes.keyed import KeyedBundles
from tests.units.service.running import RunningService

COPIES_TOKEN = "secret-of-copies"


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
    for running in reversed(started):  # a router before its shards
        running.close()


@pytest.fixture
def copies_token(tmp_path: Path) -> Path:
    """The file with the token by which followers copy."""
    path = tmp_path / "token"
    path.write_text("\ufeff" + COPIES_TOKEN)
    return path


@pytest.fixture
def hosted(copies_token: Path) -> Callable[..., dict[str, Any]]:
    """Returns the settings of a service on a host of its own."""
    tokens = copies_token.with_name("tokens-of-copies")
    tokens.write_text(f"copies {COPIES_TOKEN}\nreader {COPIES_TOKEN}-of-a-reader\n")

    def hosted(host: str, followed: str = "") -> dict[str, Any]:
        directory = copies_token.parent / host
        settings = {"changes_dir": directory, "tokens": tokens, "changes_from": ("copies",)}
        if followed:
            settings |= {"follow_changes": followed, "follow_changes_token": copies_token}
        return settings

    return hosted


@pytest.fixture
def bundles(root: Path, small_towers: Path) -> KeyedBundles:
    return KeyedBundles(root, small_towers)


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
