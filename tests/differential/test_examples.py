"""Every example's tiny bundle, as it was once written, gives the results today that its trained
model gave then.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bundle.storage.catalog import read_manifest
from bundle.storage.integrity import check_files
from examples import replay, served, trained
from examples.demo_models import EXAMPLES
from tests.differential.write_examples import ARCHIVES, BYTES_MAX, unpacked

pytestmark = pytest.mark.slow

NAMES = sorted(path.name.removesuffix(".tar.xz") for path in ARCHIVES.iterdir())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them, unpacked: a root with a model for each example."""
    return unpacked(tmp_path_factory.mktemp("golden_examples"))


@pytest.fixture(scope="module")
def service(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[served.Service]:
    """One service of all models, over both transports."""
    log = tmp_path_factory.mktemp("log") / "serve.log"
    with served.serving(root, NAMES[-1], 1, log) as running:
        assert not served.tensorflow_mapped(running.process)
        yield running


def test_every_example_has_a_small_golden_bundle() -> None:
    # Those that JAX trains do so at tiny scale in tests/repository/examples instead.
    in_jax = {"flax_dlrm", "flax_two_tower", "hstu", "jax_tpu_embedding", "keras3_jax"}
    assert sorted({*EXAMPLES} - in_jax) == NAMES
    assert max(path.stat().st_size for path in ARCHIVES.iterdir()) <= BYTES_MAX


@pytest.mark.parametrize("name", NAMES)
def test_golden_example_gives_the_scores_of_its_trained_model(
    name: str, root: Path, service: served.Service
) -> None:
    check_files(root / name / "1", read_manifest(root / name / "1"), tables="full")
    assert httpx.get(f"{service.http}/v1/models/{name}", verify=False).status_code == 200
    bodies, expected = trained.read_requests(root / name)
    for actual in (
        replay.over_http(service.http, name, bodies),
        replay.over_grpc(service.grpc, name, bodies),
    ):
        assert replay.compare(bodies, actual, expected).of_limit <= 1
