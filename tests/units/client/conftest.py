"""One service for the tests of the client that need a real one, and the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from rowcast_client.commands import main

from tests.bundles.small import SmallBundle, write_small_bundle
from tests.units.client.servers import Way
from tests.units.service.running import RunningService


@dataclass(frozen=True)
class Service:
    """A service of the model "movies", version 2."""

    running: RunningService
    movies: SmallBundle

    def url(self, way: Way) -> str:
        """Returns the address for one way to send calls."""
        if way.transport == "http":
            return self.running.http
        return f"grpc://{self.running.grpc}"


@pytest.fixture(scope="module")  # its threads log, which other files' tests would read
def service(small_towers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    root = tmp_path_factory.mktemp("service")
    movies = write_small_bundle(root, small_towers, version=2)
    running = RunningService(root, poll_interval_s=3600)
    yield Service(running, movies)
    running.close()


@pytest.fixture
def rowcast(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command line `rowcast` with the given arguments; returns its exit status."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["rowcast", *arguments])
        try:
            main()
        except SystemExit as done:
            return int(done.code or 0)
        return 0

    return run
