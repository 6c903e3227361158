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
from tests.e2e.process import WAIT_S
from tests.repository.docs.blocks import marked
from tests.units.service import reference
from tests.units.service.cases import MODEL
from tests.units.service.running import RunningService

ROOT = Path(__file__).parents[5]
PYTHON = ROOT / "build/triton/venv/bin/python"
PROGRAM = Path(__file__).with_name("triton_program.py")
QUICK_START = ROOT / "examples/quickstart/bundles"

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


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_client_reads_responses_states_and_errors(
    transport: str, by_transport: dict[str, Any], small: SmallBundle
) -> None:
    returned = by_transport[transport]
    first = reference.query_vector(small, 5, ["m-0", "m-1"], "oslo", 0.5)
    second = reference.query_vector(small, 6, ["m-2"], "são paulo", 2.0)
    assert np.array(returned["vectors"]) == pytest.approx(np.array([first, second]), 1e-4, 1e-4)
    assert returned["compressed"] == returned["vectors"]
    assert len(returned["rating"]) == 1
    vector = reference.query_vector(small, 5)
    assert returned["ids"] == [movie for movie, _ in reference.neighbors(small, vector, 3)]
    assert (returned["ready"], returned["another version ready"]) == (True, False)
    assert "no signature 'qery'; did you mean 'query'?" in returned["error"]


def test_example_of_the_page_prints_neighbors() -> None:
    (block,) = marked(f"run by {Path(__file__).relative_to(ROOT)}")
    running = RunningService(QUICK_START, protocols=("open-inference",))
    printed = run("-c", block.text.replace("localhost:9090", running.grpc))
    running.close()
    assert printed.startswith("[[")
