"""The service as users and the image install it: from its wheel, by the pinned versions, without
TensorFlow.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from rowcast_client import Client

from examples import replay, trained
from tests.bundles.small import SmallBundle, write_small_bundle
from tests.differential.write_examples import unpacked
from tests.e2e.process import WAIT_S, Process

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
CONSTRAINTS = REPOSITORY / "deploy" / "constraints.txt"
README = REPOSITORY / "README.md"
COMMAND = re.compile(r"^curl -fsS localhost:(\d+)/.*?}'$", re.DOTALL | re.MULTILINE)


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
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as in the Dockerfile."""
    place = tmp_path_factory.mktemp("build")
    run(sys.executable, "-m", "venv", "--without-pip", "build", directory=place)
    pip = (sys.executable, "-m", "pip", "--python", place / "build/bin/python")
    install(pip, "hatch-vcs", "hatchling", "numpy", directory=place)
    options = ("--no-deps", "--no-build-isolation", "--wheel-dir", place)
    run(*pip, "wheel", *options, REPOSITORY, directory=place)
    (wheel,) = place.glob("rowcast-*.whl")
    return wheel


def install(pip: Sequence[str | Path], *packages: str | Path, directory: Path) -> None:
    options = ("--no-compile", "--constraint", CONSTRAINTS)
    run(*pip, "install", *options, *packages, directory=directory)


@pytest.fixture(scope="module")
def unpacked_wheel(wheel: Path) -> Path:
    """A directory of packages that has the wheel alone."""
    packages = wheel.with_name("packages")
    pip = (sys.executable, "-m", "pip")
    install(pip, "--no-deps", "--target", packages, wheel, directory=wheel.parent)
    return packages


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The bin directory of an environment made by the steps of the Dockerfile's target `serve`."""
    place = wheel.parent
    run(sys.executable, "-m", "venv", "--without-pip", "serve", directory=place)
    pip = (sys.executable, "-m", "pip", "--python", place / "serve/bin/python")
    install(pip, f"{wheel}[serve]", directory=place)
    return place / "serve/bin"


def module_names(tree: ast.Module) -> Iterator[str]:
    """Names of the modules that a module imports, and those in strings that name nothing else."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module)
        elif isinstance(node, ast.Constant) and re.fullmatch(
            r"\w+(\.\w+)+(:\w+)?", str(node.value)
        ):
            yield str(node.value).partition(":")[0]


def assert_responses(url: str, small: SmallBundle) -> None:
    """Asserts that the service at an address retrieves and ranks what numpy computes."""
    with Client(url, timeout_s=WAIT_S) as client:
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


@pytest.mark.nightly
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
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in CONSTRAINTS.read_text().splitlines()
    }
    assert names - {"rowcast"} <= pinned


@pytest.mark.nightly
def test_wheel_has_one_package_whose_modules_name_no_other_one_of_the_tree(
    unpacked_wheel: Path,
) -> None:
    assert {path.name for path in unpacked_wheel.iterdir()} == {
        "bin",
        "rowcast",
        next(unpacked_wheel.glob("*.dist-info")).name,
    }
    package = unpacked_wheel / "rowcast"
    assert list(package.glob("bundle/native/_rows*.so")), "built without compiled row reads"
    for file in package.rglob("*.py"):
        for name in module_names(ast.parse(file.read_text())):
            path = package.joinpath(*name.split("."))
            is_ours = path.is_dir() or path.with_name(f"{path.name}.py").is_file()
            assert not is_ours, f"{file} names {name}, which is rowcast.{name}"


@pytest.mark.nightly
def test_demo_of_the_wheel_responds_beside_a_users_modules_of_the_same_names(
    unpacked_wheel: Path, tmp_path: Path
) -> None:
    for name in ("bundle", "export", "runtime", "service"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the module of the user')")
    ports = [
        option for name in ("http", "grpc", "admin", "health") for option in (f"--{name}-port", "0")
    ]
    path = os.pathsep.join([str(tmp_path), str(unpacked_wheel)])
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [unpacked_wheel / "bin/rowcast-serve", "--demo", *ports],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as demo:
        try:
            assert demo.stdout is not None
            text = ""
            while not (printed := COMMAND.search(text)):
                line = demo.stdout.readline()
                assert line, f"it ended after {text!r}"
                text += line
            assert printed[0].replace(f":{printed[1]}/", ":8080/") in README.read_text()
            response = run("bash", "-c", printed[0], directory=tmp_path)
            assert json.loads(response)["ids"] == [151, 130, 47]
            demo.send_signal(signal.SIGTERM)
            assert demo.wait(WAIT_S) == 0
            assert not [*tmp_path.glob("rowcast-demo-*")]
        finally:
            demo.kill()


@pytest.mark.nightly
def test_install_of_serve_gives_the_scores_of_every_trained_example(
    installed: Path, small_towers: Path, tmp_path: Path
) -> None:
    root = unpacked(tmp_path / "examples")
    names = sorted(path.name for path in root.iterdir())
    assert {"dlrm", "dcn_v2", "wide_deep", "wide_deep_hashed", "ple", "snap_tf1"} <= {*names}
    small = write_small_bundle(root, small_towers, "movies", 1)
    required = [option for name in [*names, "movies"] for option in ("--require", name)]
    program = [str(installed / "rowcast-serve")]
    service = Process(root, *required, program=program, directory=tmp_path)
    try:
        service.event("ready")
        ports = service.ports
        http = f"http://127.0.0.1:{ports['http']}"
        grpc = f"grpc://127.0.0.1:{ports['grpc']}"
        assert_responses(http, small)
        assert_responses(grpc, small)
        for name in names:
            bodies, expected = trained.read_requests(root / name)
            for actual in (
                replay.over_http(http, name, bodies),
                replay.over_grpc(grpc, name, bodies),
            ):
                assert replay.compare(bodies, actual, expected).of_limit <= 1, name
        assert service.stop() == 0
    finally:
        service.kill()
