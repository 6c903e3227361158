"""The signatures of a self-contained SavedModel, and the variables that it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.format.manifest import EmbeddedFeature
from export.checkpoint.inventory.specs import TableSpec
from export.checkpoint.layouts import Plain
from export.errors import DestinationError, UsageError
from export.front_end.interface import PartitionedModel, TracedTower
from export.front_end.specs import FeatureSpec, ModelSpec, TableFacts
from export.graphs.internals import variable_class
from export.graphs.loading import load_tensorflow, tf
from export.saved_model.graph import InlineGraph, build_graph, variable_key, write_graph
from tests.id_graphs import KeyDtype, vocabulary_ids
from tests.units.export.tensorflow_models.graph.traced_calls import numbers, tower_of, trace
from tests.units.export.traced_models import recipe

load_tensorflow()
ROWS = 5
STACK = TableSpec(
    name="users",
    key="stack",
    rows=ROWS,
    dim=2,
    dtype="bfloat16",
    layout=Plain(),
    stored=(8, 2),
    origin="named",
    path="",
    slices=1,
    files=1,
    bytes=0,
)
TABLES = {
    "users": STACK,
    "movies": replace(STACK, name="movies"),
    "tags": replace(STACK, name="tags", key="own", dtype="float32", stored=(5, 2)),
}
INT64 = {"dtype": "int64"}
RAGGED = {"dtype": "int64", "kind": "ragged"}
SPARSE = {"dtype": "int64", "kind": "sparse"}


def feature(name: str, encoding: Any = "dense", **entry: Any) -> FeatureSpec:
    changes = {"kind": "single", "role": "context", **entry}
    if encoding != "dense":
        changes |= {"kind": "bag", "combiner": "sum"}
    described = EmbeddedFeature.model_validate(changes)
    return FeatureSpec(name, described, encoding=encoding, has_rule="ids" in entry)


USER = feature("user", table="users")
MOVIE = feature("movie", table="movies")
TAG = feature("tag", "ragged", table="tags")
SHARED = tf.Variable([[2.0], [3.0]], name="shared")


def tower(name: str, *features: str) -> TracedTower:
    """Returns a tower whose score is what all its features are together, times two weights."""

    def call(activations: Mapping[str, Any]) -> dict[str, Any]:
        total = tf.add_n([activations[feature] for feature in features])
        return {"score": (total @ SHARED)[:, 0]}

    traced = tower_of(trace(call, **{feature: numbers(2) for feature in features}))
    return replace(traced, spec=replace(traced.spec, name=name))


def built(
    towers: tuple[TracedTower, ...],
    features: tuple[FeatureSpec, ...],
    inputs: Mapping[str, Any],
    **output: str,
) -> InlineGraph:
    facts = {name: TableFacts(name, name, ROWS, 2) for name in TABLES}
    specs = {spec.name: spec for spec in features}
    model = ModelSpec(facts, specs, {tower.spec.name: tower.spec for tower in towers})
    original: Any = None
    sections = {"output": {"root": "bundles", **output}}
    job = recipe("model.py:build", inputs, {"tower": {"role": "query"}}, sections)
    traced = PartitionedModel(model, towers, original)
    entries = {name: spec.entry for name, spec in specs.items()}
    return build_graph(job, Path(), traced, entries, TABLES)


@pytest.fixture(scope="module")
def graph() -> InlineGraph:
    return built(
        (tower("first", "user"), tower("second", "movie", "tag")),
        (USER, MOVIE, TAG),
        {"tag": RAGGED, "user": INT64, "movie": INT64},
    )


def test_tables_of_a_stack_share_a_variable_and_towers_their_weights(graph: InlineGraph) -> None:
    assert graph.tables == {"table_0": "stack", "table_1": "own"}
    variables = {name: getattr(graph.module, name) for name in graph.tables}
    assert [(variable.shape.as_list(), variable.dtype) for variable in variables.values()] == [
        ([8, 2], tf.bfloat16),
        ([5, 2], tf.float32),
    ]
    assert not any(variable.trainable for variable in variables.values())
    assert list(graph.weights) == ["weight_0"]
    assert graph.module.weight_0 is graph.weights["weight_0"]


def test_signatures_take_what_each_tower_needs_in_the_order_of_the_recipe(
    graph: InlineGraph,
) -> None:
    assert graph.inputs == {
        "first": {"user": ("user",)},
        "second": {"tag": ("tag", "tag_1"), "movie": ("movie",)},
        "serving_default": {"user": ("user",)},
    }
    assert graph.signatures["serving_default"] is graph.signatures["first"]


def test_signature_answers_lookups_from_the_variables(graph: InlineGraph) -> None:
    values = np.arange(16, dtype=np.float32).reshape(8, 2)
    graph.module.table_0.assign(tf.cast(values, tf.bfloat16))
    graph.module.table_1.assign(100 * values[:5])
    tags = tf.ragged.constant([[1, 2], []], tf.int64, row_splits_dtype=tf.int64)
    movies = tf.constant([3, 0], tf.int64)
    outputs = graph.signatures["second"](movie=movies, tag=tags)
    # Movies read rows [6, 7] and [0, 1]; tags the sum of [200, 300] and [400, 500].
    expected = [2 * (6 + 600) + 3 * (7 + 800), 2 * 0 + 3 * 1]
    assert outputs["score"].numpy().tolist() == expected


def test_default_signature_is_the_one_that_the_recipe_names() -> None:
    towers = (tower("first", "user"), tower("second", "user"))
    graph = built(towers, (USER,), {"user": INT64}, serving_default="second")
    assert graph.signatures["serving_default"] is graph.signatures["second"]
    with pytest.raises(UsageError) as caught:
        built(towers, (USER,), {"user": INT64}, serving_default="third")
    message = "output.serving_default is 'third'; the recipe's towers: first, second"
    assert str(caught.value) == message


def test_sparse_input_is_three_tensors() -> None:
    clicks = feature("click", "sparse", table="users")
    graph = built((tower("rank", "click"),), (clicks,), {"click": SPARSE})
    assert graph.inputs["rank"] == {"click": ("click", "click_1", "click_2")}


def test_inputs_whose_tensors_would_have_one_name_are_rejected() -> None:
    numbered = feature("tag_1", table="users")
    with pytest.raises(UsageError) as caught:
        built((tower("rank", "tag", "tag_1"),), (TAG, numbered), {"tag": RAGGED, "tag_1": INT64})
    assert "tower 'rank': two inputs need a tensor 'tag_1'" in str(caught.value)
    # No third tensor of a ragged input is in the way.
    second_tag = feature("tag_2", table="users")
    graph = built(
        (tower("rank", "tag", "tag_2"),), (TAG, second_tag), {"tag": RAGGED, "tag_2": INT64}
    )
    assert graph.inputs["rank"] == {"tag": ("tag", "tag_1"), "tag_2": ("tag_2",)}


@pytest.mark.parametrize(
    ("keys", "dtype", "ids"),
    [((30, 10, 20), "int64", [10, 7, 30]), (("c", "a", "b"), "string", ["a", "z", "c"])],
)
def test_vocabulary_of_the_model_finds_the_rows_of_its_keys(
    keys: Any, dtype: KeyDtype, ids: list[Any]
) -> None:
    rule = vocabulary_ids("known", dtype)
    listed = replace(feature("user", table="users", ids=rule), keys=(keys,))
    graph = built((tower("rank", "user"),), (listed,), {"user": {"dtype": dtype}})
    values = np.zeros((8, 2), np.float32)
    values[:3, 0] = [1, 2, 4]
    graph.module.table_0.assign(tf.cast(values, tf.bfloat16))
    outputs = graph.signatures["rank"](user=tf.constant(ids, dtype))
    assert outputs["score"].numpy().tolist() == [2 * 2, 0, 2 * 1]
    assert len(graph.module.vocabularies) == 1


@pytest.mark.parametrize(("keys", "dtype"), [((7,), "int64"), (("a",), "string")])
def test_vocabulary_of_one_key_has_the_dtype_of_that(keys: Any, dtype: KeyDtype) -> None:
    rule = vocabulary_ids("known", dtype)
    listed = replace(feature("user", table="users", ids=rule), keys=(keys,))
    graph = built((tower("rank", "user"),), (listed,), {"user": {"dtype": dtype}})
    (vocabulary,) = graph.module.vocabularies
    assert vocabulary.key_dtype == tf.as_dtype(dtype)


def test_object_graph_lists_each_variable_by_its_key(graph: InlineGraph, tmp_path: Path) -> None:
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    objects = TrackableObjectGraph.FromString(write_graph(graph, tmp_path / "saved_model"))
    root, *variables = objects.nodes
    attributes = ["table_0", "table_1", "weight_0"]
    assert [(child.local_name, child.node_id) for child in root.children] == [
        (attribute, position + 1) for position, attribute in enumerate(attributes)
    ]
    attributes_of_nodes = [attribute for node in variables for attribute in node.attributes]
    assert [(attribute.name, attribute.full_name) for attribute in attributes_of_nodes] == [
        ("VARIABLE_VALUE", attribute) for attribute in attributes
    ]
    keys = [attribute.checkpoint_key for attribute in attributes_of_nodes]
    assert keys == [variable_key(attribute) for attribute in attributes]
    assert keys[0] == "table_0/.ATTRIBUTES/VARIABLE_VALUE"
    assert (tmp_path / "saved_model/saved_model.pb").stat().st_size > 0
    assert not list(tmp_path.rglob("*.data-*"))


def test_graph_that_cannot_be_written_is_an_error_of_the_destination(
    graph: InlineGraph, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DestinationError, match=r"the SavedModel cannot be written to .*/file/sub"):
        write_graph(graph, tmp_path / "file/sub")


def test_tables_take_no_memory_before_they_are_assigned() -> None:
    huge = replace(STACK, key="huge", stored=(2_000_000_000, 256))
    features = (USER,)
    facts = {"users": TableFacts("users", "users", ROWS, 2)}
    towers = (tower("rank", "user"),)
    model = ModelSpec(facts, {"user": USER}, {"rank": towers[0].spec})
    job = recipe("model.py:build", {"user": INT64}, {"tower": {"role": "query"}})
    original: Any = None
    traced = PartitionedModel(model, towers, original)
    entries = {spec.name: spec.entry for spec in features}
    graph = build_graph(job, Path(), traced, entries, {"users": huge})
    variable = graph.module.table_0
    assert isinstance(variable, variable_class())
    assert variable.shape.as_list() == [2_000_000_000, 256]
