"""Specified features among the inputs of a recipe: what contradicts them is rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models import sparsecore_ranker as ranker
from tests.units.export.job_runs import assert_refused, prepare

pytest.importorskip("jax")

MORE = """

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


DENSE = {"liked": {"dtype": "int32", "shape": [4]}}
WEIGHTS = {"dtype": "float32", "shape": [4], "weights_for": "liked"}
RAGGED_WEIGHTS = {"dtype": "int32", "kind": "ragged", "weights_for": "tags"}
SPARSE_WEIGHTS = {"dtype": "float32", "kind": "sparse", "weights_for": "tags"}
IDS = {name: {"dtype": "int32"} for name in ranker.FEATURES}
NO_WEIGHTS = {
    **ranker.recipe()["towers"]["ranking"],
    "inputs": ["user", "movie", "liked", "genres", "tags", "dense"],
}
REFUSED: dict[str, tuple[dict[str, Any], str, dict[str, Any], tuple[str, ...]]] = {
    "dense ids of a bag": (
        DENSE,
        "",
        {"code": {"factory": "model.py:build_combining"}},
        ("[4] ids", "combines", 'inputs.liked.kind = "ragged"'),
    ),
    "dense ids without shapes": (
        DENSE,
        "",
        {},
        ("does not state", 'inputs.liked.kind = "ragged"', "input_shape=(batch * 4, 1)"),
    ),
    "weights of ids with an activation each": (
        {**DENSE, "weights": WEIGHTS},
        "",
        {"code": {"factory": "model.py:build_for_each_id"}},
        ("'weights'", "'liked'", "leave the weights out"),
    ),
    "weights of another kind": (
        {"tag_weights": SPARSE_WEIGHTS},
        "",
        {},
        ("'tag_weights' is sparse", "'tags', which is ragged"),
    ),
    "weights with the name of a feature": (
        {"liked": RAGGED_WEIGHTS},
        "tag_weights",
        {},
        ("'liked'", "rename the input"),
    ),
    "stacks without a layout": (
        {},
        "",
        {"checkpoint": {"path": "checkpoint"}},
        ("'users'", "create_proto"),
    ),
    "tower without weights": (
        {},
        "",
        {"towers": {"ranking": NO_WEIGHTS}},
        ("'tags'", "'tag_weights'"),
    ),
    "ids without a specification": (
        {},
        "",
        {"code": {"factory": "model.py:build_with_one_spec"}},
        ("'liked'", "feature_specs (it has user)"),
    ),
    "feature of another name": (
        IDS,
        "tag_weights",
        {"code": {"factory": "model.py:build_for_renamed"}},
        ("call 'score' raised", "no activation for users"),
    ),
}
"""Inputs, an input that is left out, other sections of the recipe, and words of the message."""


@pytest.mark.parametrize(("inputs", "without", "changes", "words"), REFUSED.values(), ids=REFUSED)
def test_inputs_that_contradict_their_specifications_are_refused(
    inputs: dict[str, Any],
    without: str,
    changes: dict[str, Any],
    words: tuple[str, ...],
    folder: Path,
) -> None:
    page = ranker.recipe(**changes)
    page["inputs"] = {**page["inputs"], **inputs}
    page["inputs"].pop(without, None)
    page["features"] = {}
    assert_refused(page, folder, *words)


def keys_of_tables(page: dict[str, Any], folder: Path) -> dict[str, str]:
    return {table.name: table.key for table in prepare(page, folder).inventory.tables}


def test_function_may_look_up_other_tables_itself(tmp_path: Path) -> None:
    # A parameter may have the name of a specified table.
    others = {"hours": np.ones((24, 3), np.float32), "users": np.ones(2, np.float32)}
    ranker.write(tmp_path, more=MORE, others=others)
    page = ranker.recipe(code={"factory": "model.py:build_with_own_lookup", "table_threshold": 0})
    page["inputs"]["hour"] = {"dtype": "int32"}
    keys = keys_of_tables(page, tmp_path)
    assert keys["hours"] == "params.hours"
    assert keys["users"] == "embedding.movies_users.table"


def test_stacks_among_the_parameters_are_found(tmp_path: Path) -> None:
    path = "params.SparseCoreEmbed_0.sc_embedding_variables.value"
    ranker.write(tmp_path, stacks_at=path)
    assert keys_of_tables(ranker.recipe(), tmp_path)["users"] == f"{path}.movies_users.table"
