"""Models that run in the batch of training only: they are served for any number of examples, and
compared with themselves in their own batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.differential.random_models.serving import response_to
from tests.units.export.job_runs import assert_refused, prepare, publish

pytest.importorskip("flax")

from tests.models import fixed_batch_ranker as ranker

pytestmark = pytest.mark.slow

CONTEXT: dict[str, Any] = {"user": 77, "history": [3, 69, 3]}
CANDIDATES = {"movie": [0, 69, 12, 8, 5], "price": [0.5, -1.0, 0.0, 2.0, 1.5]}
MODEL = """
import jax.numpy as jnp

from tests.models.fixed_batch_ranker import BATCH, feature_specs, scores, shapes


def of_joined(weights, inputs):
    found = scores(weights, inputs, inputs["price"], BATCH)
    return found - found.mean()


def build_joined():
    return shapes(), of_joined, feature_specs()


def build_without_sizes():
    specs = feature_specs()
    for spec in specs.values():
        del spec["input_shape"], spec["output_shape"]
    del specs["history"]
    return shapes(), lambda _, inputs: jnp.reshape(inputs["user"], (BATCH, -1))[:, 0], specs


def build_of_another_batch():
    def of_another(weights, inputs):
        return scores(weights, inputs, inputs["price"], BATCH + 1)

    return shapes(), of_another, feature_specs()


def build_of_words():
    def of_words(weights, inputs):
        scores(weights, inputs, inputs["price"], BATCH)
        return inputs["history"][:, 0] + jnp.repeat(inputs["price"], 3)

    return shapes(), of_words, feature_specs()
"""


def write_model(folder: Path) -> Path:
    ranker.write(folder)
    (folder / "model.py").write_text(MODEL)
    return folder


@pytest.mark.parametrize(
    "factory",
    ["build", pytest.param("build_with_own_lookup", marks=pytest.mark.nightly), "build_nnx"],
)
def test_any_number_of_examples_is_served_as_the_model_computes_each(
    factory: str, tmp_path: Path
) -> None:
    if factory != "build":
        pytest.importorskip("jax_tpu_embedding")
    published = publish(ranker.recipe(factory), write_model(tmp_path))
    assert f"a batch of {ranker.BATCH} examples, as feature_specs" in " ".join(published.notes)
    expected = [
        ranker.score(**CONTEXT, movie=movie, price=price)
        for movie, price in zip(*CANDIDATES.values(), strict=True)
    ]
    (output,) = published.manifest.towers["ranking"].outputs
    head = output.name
    request = {"context": CONTEXT, "candidate_features": CANDIDATES}
    body = {"tower": "ranking", "heads": [head], "requests": [request]}

    (result,) = response_to(tmp_path / "bundles", "rank", body)["results"]

    actual = result["heads"][head]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "factory", ["build_with_sizes_of_inputs", "build_nnx_with_sizes_of_inputs"]
)
def test_size_that_the_factory_sets_from_an_input_needs_no_batch(
    factory: str, tmp_path: Path
) -> None:
    """The remedies of the messages."""
    if "nnx" in factory:
        pytest.importorskip("jax_tpu_embedding")
    assert prepare(ranker.recipe(factory), write_model(tmp_path)).traced.notes == ()


HISTORY = {"dtype": "int32"}
REFUSED: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "joined examples": ("build_joined", {}, ("reduce_sum (model.py:9)", "inputs[NAME].shape[0]")),
    "no batch": ("build_without_sizes", {"history": None}, ("x.shape[0]", "input_shape=(batch")),
    "another batch": (
        "build_of_another_batch",
        {},
        ("(fixed_batch_ranker.py:", f"In a batch of {ranker.BATCH}"),
    ),
    "a row for each id": ("build_of_words", {}, ("[24] for 8 examples",)),
    "another number of ids": (
        "build_of_words",
        {"history": {**HISTORY, "shape": [5]}},
        ("'history'", "no multiple of 5"),
    ),
    "ids in bags": (
        "build_of_words",
        {"history": {**HISTORY, "kind": "ragged"}},
        ("'history'", "inputs.history.shape = [3]"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_model_whose_batch_cannot_be_opened_is_rejected(case: str, tmp_path: Path) -> None:
    factory, changes, words = REFUSED[case]
    page = ranker.recipe("build", code={"factory": f"model.py:{factory}"})
    inputs = page["inputs"] | changes
    page["inputs"] = {name: part for name, part in inputs.items() if part is not None}
    assert_refused(page, write_model(tmp_path), *words)
