"""Specified features among the inputs of a recipe: which bag a tower takes in place of ids."""

from __future__ import annotations

import re
from typing import Any

import pytest

from export.errors import NotConvertible, UsageError
from export.front_end.specs import TableFacts
from export.graphs.loading import tf
from export.recipe.schema import InputSection
from export.tensorflow_models.lookups.activations import PooledTable, plan_activations
from export.tensorflow_models.lookups.records import of_table
from export.tensorflow_models.lookups.specified import look_up
from tests.units.export.tensorflow_models.graph.traced_calls import ids, numbers
from tests.units.export.tensorflow_models.lookups.interceptions import (
    RAGGED,
    SPARSE,
    intercept,
    table_of,
)

TAGS = PooledTable("tags/all", 9, 4, "sqrtn")
USERS = PooledTable("users", 5, 3, "sum")
WEIGHTS = tf.RaggedTensorSpec([None, None], tf.float32, ragged_rank=1)


def part(kind: Any = "dense", dtype: Any = "int64", **options: Any) -> InputSection:
    return InputSection(kind=kind, dtype=dtype, **options)


def weights(kind: Any = "ragged", ids: str = "tags") -> InputSection:
    return part(kind, "float32", weights_for=ids)


def test_planned_bags_are_the_specified_inputs_with_their_weights() -> None:
    inputs = {"tags": part("ragged"), "w": weights(), "user": part(), "age": part(dtype="float32")}
    table_of = {"tags": TAGS, "other tags": TAGS, "user": USERS, "unused": USERS}
    planned = plan_activations(table_of, inputs)
    assert {name: (bag.table, bag.weights) for name, bag in planned.bags.items()} == {
        "tags": (TAGS, "w"),
        "user": (USERS, None),
    }
    shapes = {name: variable.shape.as_list() for name, variable in planned.variables.items()}
    assert shapes == {"tags/all": [9, 4], "users": [5, 3]}
    assert {variable.dtype for variable in planned.variables.values()} == {tf.float32}
    assert all(variable.trainable for variable in planned.variables.values())
    assert planned.variables["tags/all"].name == "tags_all:0"
    assert planned.plain_inputs(["age", "w", "user", "tags", "hour"]) == ["age", "hour"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"tags": part(dtype="float32")},
            "input 'tags' is float32, and the feature specification of that name reads a table by "
            'ids: write inputs.tags.dtype = "int32", or rename one of them',
        ),
        (
            {"tags": part(shape=(4,))},
            "input 'tags' has [4] ids in each example, which its feature specification combines: "
            'write inputs.tags.kind = "ragged", and leave its shape out',
        ),
        (
            {"tags": part("ragged", weights_for="other"), "other": part("ragged")},
            "input 'tags' has the name of a feature specification, and the recipe states that it "
            "holds the weights of 'other'; rename the input",
        ),
        *(
            (
                {"tags": part(of_ids), "w": weights(of_weights)},
                f"input 'w' is {of_weights} and holds the weights of 'tags', which is {of_ids}: "
                'write kind = "ragged" for both',
            )
            for of_ids, of_weights in [
                ("ragged", "sparse"),
                ("sparse", "ragged"),
                ("ragged", "dense"),
                ("dense", "ragged"),
                ("dense", "dense"),
            ]
        ),
    ],
)
def test_input_that_is_not_what_its_specification_needs_is_rejected(
    inputs: dict[str, InputSection], message: str
) -> None:
    with pytest.raises(NotConvertible, match=f"^{re.escape(message)}$"):
        plan_activations({"tags": TAGS}, inputs)


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_weights_of_the_kind_of_their_ids_are_planned(kind: str) -> None:
    planned = plan_activations({"tags": TAGS}, {"tags": part(kind), "w": weights(kind)})
    assert planned.bags["tags"].weights == "w"


def test_tower_takes_activations_in_place_of_ids_and_other_inputs() -> None:
    inputs = {"tags": part("ragged"), "w": weights(), "user": part(), "words": part("sparse")}
    planned = plan_activations({"tags": TAGS, "user": USERS, "words": TAGS}, inputs)
    values = {"tags": RAGGED, "w": WEIGHTS, "user": ids(), "age": numbers()}

    def call(_: Any, features: Any) -> Any:
        activations = planned.looked_up(features)
        assert list(activations) == ["age", "tags", "user"]
        return activations

    intercepted = intercept(call, **values)
    bag, single = intercepted.combined
    assert bag.path == "tags"
    assert bag.table == TableFacts("tags_all", "tags/all", 9, 4)
    assert bag.variable is planned.variables["tags/all"]
    assert (bag.kind, bag.encoding, bag.combiner) == ("bag", "ragged", "sqrtn")
    assert isinstance(bag.weights, tf.RaggedTensor)
    assert single.table == TableFacts("users", "users", 5, 3)
    assert (single.kind, single.encoding, single.combiner) == ("single", "dense", None)
    assert single.weights is None
    assert intercepted.result["user"].shape.as_list() == [None, 3]


def test_bag_without_weights_has_none() -> None:
    planned = plan_activations({"words": TAGS}, {"words": part("sparse")})
    intercepted = intercept(lambda _, features: planned.looked_up(features)["words"], words=SPARSE)
    assert [lookup.weights for lookup in intercepted.combined] == [None]


def test_tower_without_the_weights_of_its_ids_is_rejected() -> None:
    planned = plan_activations({"tags": TAGS}, {"tags": part("ragged"), "w": weights()})
    message = "a tower takes input 'tags' and not its weights, 'w': add them to its `inputs`"
    with pytest.raises(UsageError, match=f"^{message}$"):
        intercept(lambda _, features: planned.looked_up(features), tags=RAGGED)


def test_specified_lookup_outside_of_a_trace_is_rejected() -> None:
    with pytest.raises(RuntimeError, match="exist only while a model is traced"):
        look_up(of_table(table_of(), tf.constant([1])))
