"""Models that run in the batch of training only: they are served for any number of examples, and
compared with themselves in their own batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from export.errors import ExportError
from export.jobs import bundle_job
from export.jobs.preparation import Prepared
from export.jobs.progress import Progress
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from tests.differential.random_models.serving import response_to

pytest.importorskip("flax")

from tests.models import fixed_batch_ranker as ranker

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


def prepared(folder: Path, page: dict[str, Any]) -> Prepared:
    ranker.write(folder)
    (folder / "model.py").write_text(MODEL)
    return bundle_job.prepare(ExportJob.model_validate(page), folder, ExportSettings())


def rejected(folder: Path, factory: str, without: str = "", **inputs: Any) -> str:
    page = ranker.recipe("build", code={"factory": f"model.py:{factory}"})
    page["inputs"] |= inputs
    page["inputs"].pop(without, None)
    with pytest.raises(ExportError) as caught:
        prepared(folder, page)
    return str(caught.value)


@pytest.mark.parametrize("factory", ["build", "build_with_own_lookup", "build_nnx"])
def test_any_number_of_examples_is_served_as_the_model_computes_each(
    factory: str, tmp_path: Path
) -> None:
    if factory != "build":
        pytest.importorskip("jax_tpu_embedding")
    job = prepared(tmp_path, ranker.recipe(factory))
    (note,) = job.traced.notes
    assert f"runs in a batch of {ranker.BATCH} examples, as feature_specs state" in note
    bundle_job.run(job, ExportSettings(), Progress(Console(quiet=True)))
    expected = [
        ranker.score(**CONTEXT, movie=movie, price=price)
        for movie, price in zip(*CANDIDATES.values(), strict=True)
    ]
    (head,) = job.traced.spec.towers["ranking"].paths
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
    assert prepared(tmp_path, ranker.recipe(factory)).traced.notes == ()


def test_model_that_joins_the_examples_of_its_batch_is_rejected(tmp_path: Path) -> None:
    message = rejected(tmp_path, "build_joined")
    assert message.startswith("JAX operation reduce_sum (model.py:9): it joins the examples")
    assert "model.global_batch_size = inputs[NAME].shape[0] of nnx" in message


def test_batch_that_no_specification_states_is_rejected(tmp_path: Path) -> None:
    message = rejected(tmp_path, "build_without_sizes", without="history")
    assert "let sizes come from the inputs (x.shape[0], or -1 in a reshape)" in message
    assert "input_shape=(batch, ids of one example)" in message


def test_model_of_another_batch_than_its_specifications_is_rejected(tmp_path: Path) -> None:
    message = rejected(tmp_path, "build_of_another_batch")
    assert message.startswith("the model's call raised")
    assert "(fixed_batch_ranker.py:" in message
    assert f"In a batch of {ranker.BATCH}, as feature_specs state, the model's call" in message


def test_result_for_each_id_is_rejected(tmp_path: Path) -> None:
    message = rejected(tmp_path, "build_of_words")
    assert "the call returns [24] for 8 examples, the batch that feature_specs state" in message


def test_positions_that_do_not_divide_the_batch_are_rejected(tmp_path: Path) -> None:
    message = rejected(tmp_path, "build_of_words", history={"dtype": "int32", "shape": [5]})
    assert "input 'history' has [5] ids in each example" in message
    assert "24 activations in a batch, which is no multiple of 5" in message


def test_ids_that_are_declared_as_a_bag_are_rejected_with_their_number(tmp_path: Path) -> None:
    message = rejected(tmp_path, "build_of_words", history={"dtype": "int32", "kind": "ragged"})
    assert "state a batch of 8 examples by 'user', and of 24 by 'history'" in message
    assert 'inputs.history.kind = "dense" and inputs.history.shape = [3]' in message
