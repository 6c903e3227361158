"""One running service for the tests of the client."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.service import small_model
from tests.service.small_bundle import SmallBundle, compiled_towers, write_small_bundle


@dataclass(frozen=True)
class RunningService:
    """A `rowcast-serve` of its own process, with the two models it serves."""

    http: str
    grpc: str
    movies: SmallBundle
    named: SmallBundle


class Log:
    """Reads what a service logs, so that it never waits for a reader, and tells when both models are available."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: list[str] = []
        self.available = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(process,))
        self._thread.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.lines.append(line)
            if sum("version_available" in said for said in self.lines) == 2:
                self.available.set()
        self.available.set()

    def end(self) -> None:
        """Waits until the service has closed its log."""
        self._thread.join(60)


@pytest.fixture(scope="session")
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service of the models "movies", whose candidates are integers, and "named", whose candidates are strings."""
    script = Path(small_model.__file__).read_bytes()
    cache = request.config.cache
    assert cache is not None, "the towers are kept in pytest's cache: run without -p no:cacheprovider"
    towers = compiled_towers(cache.mkdir("small_towers_" + hashlib.sha256(script).hexdigest()[:16]))
    place = tmp_path_factory.mktemp("service")
    root, ports = place / "bundles", place / "ports.json"
    root.mkdir()
    movies = write_small_bundle(root, towers, "movies", 2, parts=True, users=True)
    named = write_small_bundle(root, towers, "named", 1, id_kind="string")
    command = [Path(sys.executable).parent / "rowcast-serve", "--root", root, "--http-port", "0", "--grpc-port", "0"]
    command += ["--require", "movies", "--require", "named", "--ports-file", ports]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROWCAST_")}
    process = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True, env=environment)
    log = Log(process)
    try:
        assert log.available.wait(60), log.lines
        assert process.poll() is None, log.lines
        bound = json.loads(ports.read_bytes())
        yield RunningService(f"http://127.0.0.1:{bound['http']}", f"grpc://127.0.0.1:{bound['grpc']}", movies, named)
    finally:
        process.terminate()
        log.end()
        process.wait(60)
        assert process.stderr is not None
        process.stderr.close()
    assert process.returncode == 0
