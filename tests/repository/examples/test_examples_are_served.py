"""Tiny versions of the examples are trained, exported and served: the service responds as the
trained model did, over HTTP and over gRPC.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from examples.demo_models import EXAMPLES, serve_and_compare
from tests.repository.examples.showing import Serve, train_and_export

IN_EVERY_RUN = ("dlrm", "ple", "hstu")
"""A ranker, one with heads and formulas, and a retrieval that JAX trained."""
APART = ("keras3_jax",)
"""Keras has one backend in a process."""
OF_JAX = ("flax_dlrm", "flax_two_tower", "hstu", "jax_tpu_embedding", "keras3_jax")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Even though .* does not apply to tf.data"),
]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in IN_EVERY_RUN else [pytest.mark.nightly])
        for name, example in EXAMPLES.items()
        if not example.requirements
    ],
)
def test_service_returns_what_the_trained_model_does(
    name: str, serve: Serve, tmp_path: Path
) -> None:
    if name in OF_JAX and not find_spec("flax"):
        pytest.skip("flax is not installed")
    served = serve(name, tmp_path / name, apart=name in APART)
    assert served.within
    for tower in served.manifest.towers.values():
        assert "litert" in {form.kind for form in tower.forms}
    for index in served.manifest.indexes.values():
        assert index.recall.value == 1.0


@pytest.mark.nightly
def test_demo_serves_an_example_and_finds_no_difference(tmp_path: Path) -> None:
    train_and_export("cotrained", tmp_path)
    assert serve_and_compare("cotrained", tmp_path).within
