"""Triton's own clients, over HTTP and gRPC: what they send is computed, and they read what comes
back. `make test-triton` installs them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bundles.small import SmallBundle, write_small_bundle
from tests.repository.docs.blocks import marked
from tests.units.service import reference
from tests.units.service.cases import MODEL
from tests.units.service.running import RunningService

ROOT = Path(__file__).parents[4]
PYTHON = ROOT / "build/triton/venv/bin/python"
PROGRAM = Path(__file__).with_name("triton_program.py")
QUICK_START = ROOT / "examples/quickstart/bundles"
WAIT_S = 120

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="Triton's clients are not installed: make test-triton"
)


def run(*arguments: str) -> str:
    done = subprocess.run(
        [str(PYTHON), *arguments], capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> SmallBundle:
    root = tmp_path_factory.mktemp("bundles")
    return write_small_bundle(root, small_towers, MODEL, id_kind="string")


@pytest.fixture(scope="module")
def service(small: SmallBundle) -> Iterator[RunningService]:
    running = RunningService(small.directory.parents[1], protocols=("open-inference",))
    yield running
    running.close()


@pytest.fixture(scope="module")
def by_transport(service: RunningService) -> dict[str, Any]:
    address = service.http.removeprefix("http://")
    return dict(json.loads(run(str(PROGRAM), MODEL, address, service.grpc)))


@pytest.fixture(params=["http", "grpc"])
def returned(request: pytest.FixtureRequest, by_transport: dict[str, Any]) -> dict[str, Any]:
    return dict(by_transport[request.param])


def test_client_reads_the_vectors_of_the_reference(
    returned: dict[str, Any], small: SmallBundle
) -> None:
    first = reference.query_vector(small, 5, ["m-0", "m-1"], "oslo", 0.5)
    second = reference.query_vector(small, 6, ["m-2"], "são paulo", 2.0)
    assert np.array(returned["vectors"]) == pytest.approx(np.array([first, second]), 1e-4, 1e-4)
    assert returned["vectors of a compressed request"] == returned["vectors"]
    assert returned["vectors of a request in JSON"] == returned["vectors"]
    assert returned["response"] == ["42", MODEL, "1"]


def test_client_chooses_outputs(returned: dict[str, Any]) -> None:
    every = returned["all outputs"]
    assert list(every) == ["score", "watch", "rating"]
    assert returned["chosen outputs"] == {"rating": every["rating"]}


def test_client_reads_ids_that_are_strings(returned: dict[str, Any], small: SmallBundle) -> None:
    vector = reference.query_vector(small, 5)
    assert returned["ids"] == [movie for movie, _ in reference.neighbors(small, vector, 3)]
    assert returned["counts"] == [3]


def test_client_reads_descriptions_and_states(returned: dict[str, Any]) -> None:
    assert (returned["live"], returned["ready"], returned["server"]) == (True, True, "rowcast")
    assert (returned["model ready"], returned["version ready"]) == (True, False)
    assert returned["index"] == [[MODEL, "1", "READY"]]
    assert returned["model"]["versions"] == ["1"]
    inputs = {tensor["name"]: tensor["datatype"] for tensor in returned["model"]["inputs"]}
    assert (inputs["user"], inputs["movie"], inputs["year"]) == ("INT64", "BYTES", "FP32")


def test_client_raises_what_is_wrong(returned: dict[str, Any]) -> None:
    assert "no signature 'qery'; did you mean 'query'?" in returned["error"]["message"]
    assert returned["error"]["status"] in {"400", "StatusCode.INVALID_ARGUMENT"}


def test_example_of_the_page_prints_neighbors() -> None:
    (block,) = marked(f"run by {Path(__file__).relative_to(ROOT)}")
    running = RunningService(QUICK_START, protocols=("open-inference",))
    printed = run("-c", block.text.replace("localhost:9090", running.grpc))
    running.close()
    assert printed.startswith("[[")
