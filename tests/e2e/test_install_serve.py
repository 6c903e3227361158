"""The service as the image installs it: from its wheel, by the pinned versions, without
TensorFlow.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from rowcast_client import Client

from examples import replay, trained
from tests.bundles.small import SmallBundle, write_small_bundle
from tests.differential.write_examples import unpacked
from tests.e2e.process import PROGRAM, Process
from tests.e2e.services import workers_of

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
CONSTRAINTS = REPOSITORY / "deploy" / "constraints.txt"


def run(*command: str | Path, directory: Path) -> str:
    """Output of a command that has to succeed, run where none of this repository's packages lie."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        cwd=directory,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of an environment made by the steps of the Dockerfile's target `serve`."""
    place = tmp_path_factory.mktemp("install")
    pips = {}
    for name in ("build", "packages"):
        run(sys.executable, "-m", "venv", "--without-pip", name, directory=place)
        pips[name] = (sys.executable, "-m", "pip", "--python", place / name / "bin/python")
    install = ("install", "--no-compile", "--constraint", CONSTRAINTS)
    run(*pips["build"], *install, "hatchling", "numpy", directory=place)
    build = (
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        place / "wheels",
        REPOSITORY,
    )
    run(*pips["build"], *build, directory=place)
    (wheel,) = (place / "wheels").glob("rowcast-*.whl")
    run(*pips["packages"], *install, f"{wheel}[serve]", directory=place)
    return place / "packages/bin"


@pytest.fixture(scope="module")
def bundle(
    small_towers: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, SmallBundle]:
    """A root with one small model."""
    place = tmp_path_factory.mktemp("bundle")
    root = place / "bundles"
    root.mkdir()
    return root, write_small_bundle(root, small_towers, "movies", 1)


@contextmanager
def serving(
    root: Path, directory: Path, *program: str, require: Sequence[str] = ("movies",)
) -> Iterator[tuple[int, str, str]]:
    """A running service: the process id of its worker, and its HTTP and gRPC addresses. It has to
    drain with exit status 0.
    """
    models = [option for name in require for option in ("--require", name)]
    service = Process(root, *models, program=program or PROGRAM, directory=directory)
    try:
        service.event("ready")
        ports = service.ports
        yield (
            workers_of(service)[0].pid,
            f"http://127.0.0.1:{ports['http']}",
            f"grpc://127.0.0.1:{ports['grpc']}",
        )
        assert service.stop() == 0
    finally:
        service.kill()


def assert_responses(url: str, small: SmallBundle) -> None:
    """Asserts that the service at an address retrieves and ranks what numpy computes."""
    with Client(url) as client:
        query = small.vectors[3].astype(np.float64)
        actual = client.retrieve(
            vectors=query, k=5, exact=True, attributes=["title"], model="movies"
        )
        best = np.argsort(-(small.vectors @ query))[:5]
        assert actual[0].ids.tolist() == small.ids[best].tolist()
        assert actual[0][0].attributes["title"] == small.titles[best[0]]
        ranked = client.rank({"user": 7, "liked": [1007]}, small.ids[:6], model="movies")
        assert np.isfinite(ranked[0].scores).all()
        assert len(set(ranked[0].scores.tolist())) == 6


def test_install_of_serve_has_no_tensorflow_and_its_program_starts(
    installed: Path, tmp_path: Path
) -> None:
    listing = run(
        sys.executable, "-m", "pip", "--python", installed / "python", "list", directory=tmp_path
    )
    names = {line.split()[0].lower().replace("_", "-") for line in listing.splitlines()[2:]}
    assert {"rowcast", "scann", "ai-edge-litert"} <= names
    assert not {name for name in names if "tensorflow" in name or "keras" in name}
    assert "--root" in run(installed / "rowcast-serve", "--help", directory=tmp_path)
    missing = run(
        installed / "python",
        "-c",
        "from bundle import native; print(native.MISSING)",
        directory=tmp_path,
    )
    assert missing.strip() == "", "its wheel was built without compiled row reads"
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in CONSTRAINTS.read_text().splitlines()
    }
    assert names - {"rowcast"} <= pinned


@pytest.mark.nightly
def test_install_of_serve_serves_over_both_transports(
    installed: Path, bundle: tuple[Path, SmallBundle], tmp_path: Path
) -> None:
    root, small = bundle
    with serving(root, tmp_path, str(installed / "rowcast-serve")) as (_, http, grpc):
        assert_responses(http, small)
        assert_responses(grpc, small)


@pytest.mark.nightly
def test_install_of_serve_gives_the_scores_of_every_trained_example(
    installed: Path, tmp_path: Path
) -> None:
    root = unpacked(tmp_path / "examples")
    names = sorted(path.name for path in root.iterdir())
    assert {"dlrm", "dcn_v2", "wide_deep", "wide_deep_hashed", "ple", "snap_tf1"} <= {*names}
    with serving(root, tmp_path, str(installed / "rowcast-serve"), require=names) as (
        _,
        http,
        grpc,
    ):
        for name in names:
            bodies, expected = trained.read_requests(root / name)
            for actual in (
                replay.over_http(http, name, bodies),
                replay.over_grpc(grpc, name, bodies),
            ):
                assert replay.compare(bodies, actual, expected).of_limit <= 1, name


@pytest.mark.nightly
def test_service_where_tensorflow_is_installed_does_not_map_it(
    bundle: tuple[Path, SmallBundle], tmp_path: Path
) -> None:
    root, small = bundle
    listing = run(
        sys.executable,
        "-c",
        "import importlib.util as u; print(u.find_spec('tensorflow'))",
        directory=tmp_path,
    )
    assert "ModuleSpec" in listing, "this test proves something only where TensorFlow is installed"
    with serving(root, tmp_path) as (pid, http, grpc):
        assert_responses(http, small)
        assert_responses(grpc, small)
        mapped = {
            line.split()[-1]
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
            if "/" in line
        }
    assert any("scann" in path for path in mapped)
    assert not {path for path in mapped if "libtensorflow" in path or "/tensorflow/" in path}
