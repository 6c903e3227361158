"""One running service for the tests of the client."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from rowcast_client.commands import main

from tests.bundles.small import SmallBundle, write_small_bundle
from tests.e2e.process import Process
from tests.units.client.servers import Way


@dataclass(frozen=True)
class RunningService:
    """A `rowcast-serve` of its own process, with the two models it serves."""

    http: str
    grpc: str
    movies: SmallBundle
    named: SmallBundle

    def url(self, way: Way) -> str:
        """The address for one way to send calls."""
        return self.http if way.transport == "http" else self.grpc


@pytest.fixture(scope="session")
def service(
    small_towers: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    """A service of the models "movies", whose candidates are integers, and "named", whose
    candidates are strings.
    """
    folder = tmp_path_factory.mktemp("service")
    root = folder / "bundles"
    root.mkdir()
    movies = write_small_bundle(root, small_towers, "movies", 2, parts=True, users=True, keep=60)
    named = write_small_bundle(root, small_towers, "named", 1, id_kind="string")
    process = Process(root, "--require", "movies", "--require", "named")
    try:
        process.event("ready")
        ports = process.ports
        yield RunningService(
            f"http://127.0.0.1:{ports['http']}", f"grpc://127.0.0.1:{ports['grpc']}", movies, named
        )
    finally:
        process.kill()


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
