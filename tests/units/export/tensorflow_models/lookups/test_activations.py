"""Specified features among the inputs of a recipe: what contradicts them is rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bundle.format.manifest import Manifest
from export.errors import ExportError
from export.jobs import bundle_job
from export.jobs.progress import Progress
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from tests.models import sparsecore_ranker as ranker

pytest.importorskip("jax")

MORE = """

def build_without_specs():
    return shapes(), {"score": score}


def build_with_one_spec():
    return shapes(), {"score": score}, {"user": feature_specs()["user"]}


def build_with_own_lookup():
    own = {"hours": (24, 3), "users": (2,)}
    more = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in own.items()}

    def both(parameters, inputs):
        found = score(parameters, inputs)["score"]
        hour = jnp.take(parameters["hours"], inputs["hour"], axis=0)
        return {"score": found + hour.sum(-1) + parameters["users"].sum()}

    return {**shapes(), **more}, {"score": both}, feature_specs()


def build_with_shapes(rows, ids):
    specs = feature_specs()
    specs["liked"] |= {"input_shape": (rows, ids), "output_shape": (rows, 4)}
    return shapes(), {"score": score}, specs


def build_combining():
    return build_with_shapes(32, 4)


def build_for_each_id():
    return build_with_shapes(32, 1)


def build_for_renamed():
    return shapes(), {"score": score}, {"users": {"table_spec": TABLES["users"]}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("activations")
    ranker.write(folder, more=MORE)
    return folder


def rejected(
    folder: Path, inputs: dict[str, Any] | None = None, without: str = "", **changes: Any
) -> str:
    page = ranker.recipe(**changes)
    page["inputs"] = {**page["inputs"], **(inputs or {})}
    page["inputs"].pop(without, None)
    page["features"] = {}
    with pytest.raises(ExportError) as caught:
        bundle_job.prepare(ExportJob.model_validate(page), folder, ExportSettings())
    return str(caught.value)


DENSE = {"liked": {"dtype": "int32", "shape": [4]}}


def test_dense_ids_of_a_bag_are_rejected(folder: Path) -> None:
    message = rejected(folder, DENSE, code={"factory": "model.py:build_combining"})
    assert "[4] ids in each example, which its feature specification combines" in message
    assert 'inputs.liked.kind = "ragged"' in message


def test_dense_ids_of_a_specification_without_shapes_are_rejected(folder: Path) -> None:
    message = rejected(folder, DENSE)
    assert "its feature specification does not state whether it combines them" in message
    assert 'inputs.liked.kind = "ragged"' in message
    assert "input_shape=(batch * 4, 1) and output_shape=(batch * 4, 4)" in message


def test_weights_of_ids_with_an_activation_each_are_rejected(folder: Path) -> None:
    weights = {"dtype": "float32", "shape": [4], "weights_for": "liked"}
    message = rejected(
        folder,
        {**DENSE, "weights": weights},
        code={"factory": "model.py:build_for_each_id"},
    )
    assert "input 'weights' holds the weights of 'liked', which has an activation" in message


def test_numbers_in_place_of_ids_are_rejected(folder: Path) -> None:
    message = rejected(folder, {"user": {"dtype": "float32"}})
    assert "input 'user' is float32" in message
    assert 'inputs.user.dtype = "int32"' in message


def test_weights_of_another_kind_are_rejected(folder: Path) -> None:
    sparse = {"dtype": "float32", "kind": "sparse", "weights_for": "tags"}
    message = rejected(folder, {"tag_weights": sparse})
    assert (
        "input 'tag_weights' is sparse and holds the weights of 'tags', which is ragged" in message
    )


def test_input_of_weights_with_the_name_of_a_feature_is_rejected(folder: Path) -> None:
    weights = {"dtype": "int32", "kind": "ragged", "weights_for": "tags"}
    message = rejected(folder, {"liked": weights}, without="tag_weights")
    assert "input 'liked' has the name of a feature specification" in message


def test_tower_without_the_weights_of_its_ids_is_rejected(folder: Path) -> None:
    tower = {
        **ranker.recipe()["towers"]["ranking"],
        "inputs": ["user", "movie", "liked", "genres", "tags", "dense"],
    }
    message = rejected(folder, towers={"ranking": tower})
    assert "takes input 'tags' and not its weights, 'tag_weights'" in message


def test_ids_without_a_specification_are_rejected(folder: Path) -> None:
    message = rejected(folder, code={"factory": "model.py:build_with_one_spec"})
    assert "input 'liked' is RaggedTensor" in message
    assert "feature_specs (it has user)" in message


def test_ids_of_a_model_without_specifications_are_rejected(folder: Path) -> None:
    message = rejected(folder, code={"factory": "model.py:build_without_specs"})
    assert "let the factory return its specification among feature_specs" in message


def test_feature_that_is_specified_by_another_name_is_rejected(folder: Path) -> None:
    inputs = {name: {"dtype": "int32"} for name in ranker.FEATURES}
    message = rejected(
        folder, inputs, without="tag_weights", code={"factory": "model.py:build_for_renamed"}
    )
    assert "call 'score' raised" in message
    assert "gets no activation for users, which feature_specs describe" in message


def test_feature_that_the_function_takes_and_the_recipe_lacks_is_named(folder: Path) -> None:
    message = rejected(folder, without="liked")
    assert "KeyError" in message
    assert "'liked'" in message


def published(folder: Path, page: dict[str, Any]) -> Manifest:
    prepared = bundle_job.prepare(ExportJob.model_validate(page), folder, ExportSettings())
    done = bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True)))
    return done.manifest


def test_function_may_look_up_other_tables_itself(tmp_path: Path) -> None:
    random = np.random.default_rng(8)
    hours = random.normal(0, 1, (24, 3)).astype(np.float32)
    # A parameter may have the name of a specified table.
    other_inputs = {"hours": hours, "users": np.ones(2, np.float32)}
    ranker.write(tmp_path, more=MORE, others=other_inputs)
    page = ranker.recipe(code={"factory": "model.py:build_with_own_lookup", "table_threshold": 0})
    page["inputs"]["hour"] = {"dtype": "int32"}
    manifest = published(tmp_path, page)
    assert manifest.tables["hours"].source.key == "params.hours"
    assert manifest.tables["users"].source.key == "embedding.movies_users.table"


def test_stacks_among_the_parameters_are_found(tmp_path: Path) -> None:
    ranker.write(tmp_path, stacks_at="params.SparseCoreEmbed_0.sc_embedding_variables.value")
    manifest = published(tmp_path, ranker.recipe())
    key = "params.SparseCoreEmbed_0.sc_embedding_variables.value.movies_users.table"
    assert manifest.tables["users"].source.key == key
