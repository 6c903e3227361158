"""Calls of embedding layers: what each feature's ids, weights and configuration say."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from export.errors import NotConvertible
from export.front_end.specs import TableFacts
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hooks import Hooks
from export.tensorflow_models.frameworks.placeholders import line_of_variable
from export.tensorflow_models.lookups.embedding_layers import (
    describe_lookups,
    intercept_layers,
    original_lookup,
    table_facts,
)
from export.tensorflow_models.lookups.records import TracedLookup
from tests.units.export.tensorflow_models.lookups.interceptions import table_of

E = tf.tpu.experimental.embedding
TABLE = E.TableConfig(9, 4, name="items", combiner="sum")
VARIABLE = object()
"""The table's variable, which a description only passes on."""


def dense(*shape: int | None) -> Any:
    return tf.TensorSpec(shape, tf.int64)


def ragged(rank: int = 2, dtype: Any = tf.int64) -> Any:
    return tf.RaggedTensorSpec([None] * rank, dtype, ragged_rank=1)


def sparse(rank: int | None = 2, dtype: Any = tf.int64) -> Any:
    return tf.SparseTensorSpec(None if rank is None else [None] * rank, dtype)


def describe(ids: Any, weights: Any = None, **options: Any) -> TracedLookup:
    """Describes the lookup of one feature, "item", in a traced call."""
    config = E.FeatureConfig(TABLE, **options)
    recorded: list[TracedLookup] = []

    def call(ids_of: Any, weights_of: Any = None) -> None:
        weights_by_feature = None if weights_of is None else {"item": weights_of}
        recorded.extend(
            describe_lookups(
                {"item": ids_of}, weights_by_feature, {TABLE: VARIABLE}, {"item": config}
            )
        )

    tf.compat.v1.wrap_function(call, [ids] if weights is None else [ids, weights])
    (lookup,) = recorded
    assert lookup.path == "item"
    assert lookup.table == TableFacts("items", "items", 9, 4)
    assert lookup.variable is VARIABLE
    assert lookup.config is config
    return lookup


@pytest.mark.parametrize(
    ("ids", "options", "described"),
    [
        (dense(None), {}, ("dense", "single", None, None)),
        (dense(None, 1), {}, ("dense", "single", 1, None)),
        (dense(None, 2), {}, ("dense", "sequence", 2, None)),
        (sparse(), {}, ("sparse", "bag", None, "sum")),
        (sparse(None), {}, ("sparse", "bag", None, "sum")),
        (sparse(), {"max_sequence_length": 3}, ("sparse", "sequence", 3, None)),
        (sparse(), {"max_sequence_length": 1}, ("sparse", "sequence", 1, None)),
        (
            sparse(),
            {"max_sequence_length": 3, "output_shape": [5]},
            ("sparse", "bag", None, "sum"),
        ),
        (ragged(), {}, ("ragged", "bag", None, "sum")),
        (ragged(), {"max_sequence_length": 3}, ("ragged", "sequence", 3, None)),
        (ragged(), {"max_sequence_length": 1}, ("ragged", "sequence", 1, None)),
    ],
)
def test_ids_become_one_id_a_bag_or_a_sequence(
    ids: Any, options: dict[str, Any], described: tuple[Any, ...]
) -> None:
    lookup = describe(ids, **options)
    assert (lookup.encoding, lookup.kind, lookup.length, lookup.combiner) == described
    assert lookup.weights is None


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (sparse, {}),
        (ragged, {}),
        (ragged, {"validate_weights_and_indices": False}),
    ],
)
def test_weights_of_a_bag_are_those_of_its_ids(kind: Any, options: dict[str, Any]) -> None:
    lookup = describe(kind(), kind(dtype=tf.float32), **options)
    assert lookup.kind == "bag"
    assert lookup.weights is not None
    assert lookup.weights.dtype == tf.float32


@pytest.mark.parametrize(
    ("ids", "weights", "options", "message"),
    [
        (
            ragged(),
            None,
            {"output_shape": [5]},
            "feature 'item' is ragged and has output_shape=(5,), which fixes the "
            "batch; leave output_shape out, or set max_sequence_length",
        ),
        (
            sparse(3),
            None,
            {},
            "feature 'item' was given a sparse tensor of rank 3; rank 2 was expected",
        ),
        (
            ragged(3),
            None,
            {},
            "feature 'item' was given a ragged tensor of rank 3; rank 2 was expected",
        ),
        (
            dense(None, 2),
            None,
            {"max_sequence_length": 2},
            "feature 'item' is a sequence feature, and was given a dense tensor; write "
            'kind = "ragged" or "sparse" for its input in the recipe, whichever the model expects',
        ),
        (
            dense(None, 2),
            tf.TensorSpec([None, 2], tf.float32),
            {},
            "feature 'item' is a weighted feature, and was given a dense tensor; write "
            'kind = "ragged" or "sparse" for its input in the recipe, whichever the model expects',
        ),
        *(
            (
                tf.TensorSpec(shape, tf.int64),
                None,
                {},
                f"feature 'item' was given a dense tensor of shape {printed}; [batch] or [batch, "
                "length] was expected",
            )
            for shape, printed in [
                ([], "()"),
                ([None, None], "(None, None)"),
                ([None, 2, 3], "(None, 2, 3)"),
                (None, "<unknown>"),
            ]
        ),
        (
            ragged(),
            sparse(dtype=tf.float32),
            {},
            "feature 'item': weights are a SparseTensor, ids a RaggedTensor",
        ),
        (
            sparse(),
            sparse(dtype=tf.float32),
            {"max_sequence_length": 3},
            "feature 'item' is a sequence feature, which takes no weights",
        ),
        (
            sparse(),
            sparse(dtype=tf.float32),
            {"validate_weights_and_indices": False},
            "feature 'item' is weighted with validate_weights_and_indices=False, which no bundle "
            "supports",
        ),
    ],
)
def test_ids_and_weights_that_no_bundle_supports_are_rejected(
    ids: Any, weights: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(NotConvertible, match=f"^{re.escape(message)}$"):
        describe(ids, weights, **options)


def test_features_are_described_in_the_order_of_the_configuration() -> None:
    config = {name: E.FeatureConfig(TABLE) for name in ("b", "a")}
    ids = {"a": tf.ragged.constant([[1]]), "b": tf.ragged.constant([[2, 3]])}
    weights = {"a": None, "b": tf.ragged.constant([[0.5, 1.0]])}
    first, second = describe_lookups(ids, weights, {TABLE: VARIABLE}, config)
    assert (first.path, second.path) == ("a", "b")
    assert first.ids[0] is ids["a"]
    assert first.weights is None
    assert second.weights is weights["b"]


def test_features_that_are_not_those_of_the_configuration_are_rejected() -> None:
    config = {name: E.FeatureConfig(TABLE) for name in ("a", "b")}
    ids = [tf.ragged.constant([[1]]), tf.ragged.constant([[2]])]
    with pytest.raises(TypeError, match="don't have the same sequence type"):
        describe_lookups(ids, None, {TABLE: VARIABLE}, config)


def serving_layer() -> Any:
    layer = E.TPUEmbeddingForServing({"item": E.FeatureConfig(TABLE)}, None)
    layer.build()
    return layer


@pytest.mark.parametrize("tracked", [True, False])
def test_layer_reads_the_tables_that_the_exporter_makes(tracked: bool) -> None:
    table = table_of()
    facts: list[TableFacts] = []
    lookups: list[TracedLookup] = []

    def make_table(stated: TableFacts) -> Any:
        facts.append(stated)
        return table

    def activation(lookup: TracedLookup) -> Any:
        lookups.append(lookup)
        return tf.constant([[7.0]])

    with Hooks() as hooks:
        intercept_layers(hooks, make_table, activation, tracked=tracked)
        layer = serving_layer()
        activations = layer({"item": tf.ragged.constant([[1, 2]])})
    assert activations["item"].numpy().tolist() == [[7]]
    assert facts == [TableFacts("items", "items", 9, 4)]
    assert [lookup.variable for lookup in lookups] == [table]
    assert line_of_variable(table).startswith("test_layer_calls.py:")
    parts = tf.train.TrackableView(layer).descendants()
    assert any(part is table for part in parts) == tracked


def test_layer_that_only_tpus_have_reads_its_tables_on_a_cpu() -> None:
    kind = importlib.import_module("tensorflow.python.tpu.tpu_embedding_v1").TPUEmbeddingV0
    created: list[Any] = []

    def make_table(_: TableFacts) -> Any:
        created.append(table_of())
        return created[-1]

    with Hooks() as hooks:
        intercept_layers(hooks, make_table, lambda _: tf.constant([[7.0]]), tracked=True)
        layer = kind({"item": E.FeatureConfig(TABLE)}, None)
        activations = layer({"item": tf.ragged.constant([[1, 2]])})
        layer.build()
        tables = layer.embedding_tables
    assert activations["item"].numpy().tolist() == [[7]]
    assert len(created) == 1
    assert [id(variable) for variable in tables.values()] == [id(created[0])]


def test_original_lookup_works_while_it_is_replaced() -> None:
    original = original_lookup()
    config = E.FeatureConfig(TABLE)
    table = tf.constant([[1.0, 2, 3, 4], [10, 20, 30, 40]])
    with Hooks() as hooks:
        intercept_layers(hooks, lambda _: None, lambda _: None, tracked=False)
        activations = original(tf.ragged.constant([[0, 1, 1]]), None, {TABLE: table}, config)
    assert activations.numpy().tolist() == [[21, 42, 63, 84]]


def test_table_without_a_name_is_rejected() -> None:
    message = "a table of 9 x 4 has no name; give its TableConfig a name"
    with pytest.raises(NotConvertible, match=f"^{message}$"):
        table_facts(E.TableConfig(9, 4))


def test_name_of_a_table_in_a_bundle_has_no_other_letters() -> None:
    facts = table_facts(E.TableConfig(9, 4, name="my items/é"))
    assert facts == TableFacts("my_items__", "my items/é", 9, 4)
