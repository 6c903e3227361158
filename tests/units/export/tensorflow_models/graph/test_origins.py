from __future__ import annotations

from export.graphs.loading import tf
from export.tensorflow_models.graph.origins import Source, sources_of
from tests.units.export.tensorflow_models.graph.traced_calls import ids, trace


def test_sources_of_ragged_and_sparse_inputs_names_each_part() -> None:
    traced = trace(
        lambda features: {"sum": tf.reduce_sum(features["bag"].values)},
        item=ids(),
        bag=tf.RaggedTensorSpec([None, None], tf.int64),
        tags=tf.SparseTensorSpec([None, None], tf.int64),
    )
    sources = sources_of(traced.inputs)
    assert sources[traced.inputs["item"].name] == Source("item", "dense")
    assert sources[traced.inputs["bag"].values.name] == Source("bag", "values")
    assert sources[traced.inputs["bag"].row_splits.name] == Source("bag", "splits")
    assert sources[traced.inputs["tags"].dense_shape.name] == Source("tags", "extent")


def test_sources_of_weights_with_the_splits_of_their_ids_belong_to_the_ids() -> None:
    traced = trace(
        lambda features: {"bag": features["bag"].values},
        bag=tf.RaggedTensorSpec([None, None], tf.int64),
    )
    bag = traced.inputs["bag"]
    with traced.function.graph.as_default():
        weights = bag.with_values(tf.cast(bag.values, tf.float32))
    sources = sources_of({"bag": bag, "weights": weights})
    assert sources[bag.row_splits.name] == Source("bag", "splits")
    assert sources[weights.values.name] == Source("weights", "values")
