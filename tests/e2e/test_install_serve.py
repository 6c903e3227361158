"""The service as the image installs it: from its wheel, by the pinned versions, without TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from rowcast_client import Client

from tests.service.small_bundle import SmallBundle, compiled_towers, write_small_bundle

REPOSITORY = Path(__file__).parents[2]
CONSTRAINTS = REPOSITORY / "deploy" / "constraints.txt"


def run(*command: str | Path, directory: Path) -> str:
    """Output of a command that has to succeed, run where none of this repository's packages lie."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, cwd=directory, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of an environment made by the steps of the Dockerfile's target `serve`."""
    place = tmp_path_factory.mktemp("install")
    run(sys.executable, "-m", "venv", "build", directory=place)
    python = place / "build" / "bin" / "python"
    run(python, "-m", "pip", "install", "--constraint", CONSTRAINTS, "hatchling", "numpy", directory=place)
    build = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", place / "wheels", REPOSITORY)
    run(python, "-m", "pip", *build, directory=place)
    (wheel,) = (place / "wheels").glob("rowcast-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", "packages", directory=place)
    target = place / "packages" / "bin" / "python"
    install = ("--python", target, "install", "--constraint", CONSTRAINTS, f"{wheel}[serve]")
    run(python, "-m", "pip", *install, directory=place)
    return target.parent


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SmallBundle]:
    """A root with one small model."""
    place = tmp_path_factory.mktemp("bundle")
    root = place / "bundles"
    root.mkdir()
    return root, write_small_bundle(root, compiled_towers(place / "towers"), "movies", 1)


@contextmanager
def serving(program: Path, root: Path, directory: Path) -> Iterator[tuple[int, str, str]]:
    """A running service: its process id, and its HTTP and gRPC addresses. It has to drain with exit status 0."""
    ports = directory / "ports.json"
    options = ("--root", root, "--http-port", "0", "--grpc-port", "0", "--require", "movies", "--ports-file", ports)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ROWCAST_", "PYTHONPATH"))}
    process = subprocess.Popen(
        [*map(str, (program, *options))], stderr=subprocess.PIPE, text=True, cwd=directory, env=environment
    )
    lines: list[str] = []
    available = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        with process.stderr as log:
            for line in log:
                lines.append(line)
                if "version_available" in line:
                    available.set()
        available.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert available.wait(60), lines
        assert process.poll() is None, lines
        bound = json.loads(ports.read_bytes())
        yield process.pid, f"http://127.0.0.1:{bound['http']}", f"grpc://127.0.0.1:{bound['grpc']}"
    finally:
        process.terminate()
        process.wait(60)
        reader.join(60)
    assert process.returncode == 0, lines


def assert_answers(url: str, small: SmallBundle) -> None:
    """Asserts that the service at an address retrieves and ranks what numpy says."""
    with Client(url) as client:
        query = small.vectors[3].astype(np.float64)
        found = client.retrieve(vectors=query, k=5, exact=True, attributes=["title"], model="movies")
        best = np.argsort(-(small.vectors @ query))[:5]
        assert found[0].ids.tolist() == small.ids[best].tolist()
        assert found[0][0].attributes["title"] == small.titles[best[0]]
        ranked = client.rank({"user": 7, "liked": [1007]}, small.ids[:6], model="movies")
        assert np.isfinite(ranked[0].scores).all()
        assert len(set(ranked[0].scores.tolist())) == 6


@pytest.mark.install
def test_install_of_serve_has_no_tensorflow_and_its_program_starts(installed: Path, tmp_path: Path) -> None:
    listing = run(sys.executable, "-m", "pip", "--python", installed / "python", "list", directory=tmp_path)
    names = {line.split()[0].lower().replace("_", "-") for line in listing.splitlines()[2:]}
    assert {"rowcast", "scann", "ai-edge-litert"} <= names
    assert not {name for name in names if "tensorflow" in name or "keras" in name}
    assert "--root" in run(installed / "rowcast-serve", "--help", directory=tmp_path)
    missing = run(installed / "python", "-c", "from bundle import native; print(native.MISSING)", directory=tmp_path)
    assert missing.strip() == "", "its wheel was built without compiled row reads"
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in CONSTRAINTS.read_text().splitlines()}
    assert names - {"rowcast"} <= pinned


@pytest.mark.install
def test_install_of_serve_answers_over_both_transports(
    installed: Path, bundle: tuple[Path, SmallBundle], tmp_path: Path
) -> None:
    root, small = bundle
    with serving(installed / "rowcast-serve", root, tmp_path) as (_, http, grpc):
        assert_answers(http, small)
        assert_answers(grpc, small)


def test_service_where_tensorflow_is_installed_does_not_map_it(
    bundle: tuple[Path, SmallBundle], tmp_path: Path
) -> None:
    root, small = bundle
    listing = run(
        sys.executable, "-c", "import importlib.util as u; print(u.find_spec('tensorflow'))", directory=tmp_path
    )
    assert "ModuleSpec" in listing, "this test says something only where TensorFlow is installed"
    with serving(Path(sys.executable).parent / "rowcast-serve", root, tmp_path) as (pid, http, grpc):
        assert_answers(http, small)
        assert_answers(grpc, small)
        mapped = {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/" in line}
    assert any("scann" in path for path in mapped)
    assert not {path for path in mapped if "libtensorflow" in path or "/tensorflow/" in path}
