"""Tiny versions of the examples are trained, exported and served: the service responds as the
trained model did, over HTTP and over gRPC.

Before a change lands, tests/cases/models plans them all, and tests/differential/test_examples.py
serves bundles that they once wrote.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from examples.demo_models import EXAMPLES, serve_and_compare
from tests.repository.examples.showing import train_and_export

APART = ("keras3_jax",)
"""Keras has one backend in a process."""
OF_JAX = ("flax_dlrm", "flax_two_tower", "hstu", "jax_tpu_embedding", "keras3_jax")

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Even though .* does not apply to tf.data"),
]


@pytest.mark.parametrize(
    "name", [name for name, example in EXAMPLES.items() if not example.requirements]
)
def test_service_returns_what_the_trained_model_does(name: str, tmp_path: Path) -> None:
    if name in OF_JAX and not find_spec("flax"):
        pytest.skip("flax is not installed")
    manifest = train_and_export(name, tmp_path, apart=name in APART).manifest
    assert serve_and_compare(name, tmp_path).within
    for tower in manifest.towers.values():
        assert "litert" in {form.kind for form in tower.forms}
    for index in manifest.indexes.values():
        assert index.recall.value == 1.0
