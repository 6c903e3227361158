"""Constructs the model of jax-tpu-embedding's sample as its script does."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx
from jax_tpu_embedding.sparsecore.lib.nn import embedding, embedding_spec

from rowcast.model_code import definitions

MODELS = "jax-tpu-embedding/jax_tpu_embedding/sparsecore/examples/models"
FEATURE = "shakespeare_feature"
BATCH = 256
LENGTH = 16
ROWS = 2048
DIM = 8


def model(**names: Any) -> Any:
    """Returns the model of shakespeare/flax_nnx_model.py.

    Args:
      names: what the names of this file stand for, other than what it imports.
    """
    table = embedding_spec.TableSpec(
        name="shakespeare_table",
        vocabulary_size=ROWS,
        embedding_dim=DIM,
        initializer=jax.nn.initializers.normal(),
        optimizer=embedding_spec.AdamOptimizerSpec(learning_rate=0.005),
        combiner="sum",
        max_ids_per_partition=64,
        max_unique_ids_per_partition=64,
    )
    feature = embedding_spec.FeatureSpec(
        name=FEATURE,
        table_spec=table,
        input_shape=(BATCH * LENGTH, 1),
        output_shape=(BATCH * LENGTH, DIM),
    )
    features = {FEATURE: feature}
    embedding.prepare_feature_specs_for_training(
        features, global_device_count=8, num_sc_per_device=4
    )
    published = definitions(f"{MODELS}/shakespeare/flax_nnx_model.py", **names)
    return published.Model(
        feature_specs=features,
        global_batch_size=BATCH,
        vocab_size=ROWS,
        seq_len=LENGTH,
        embedding_size=DIM,
        enable_minibatching=False,
        mesh=jax.sharding.Mesh(jax.devices()[:1], ["device"]),
        feature_name=FEATURE,
        sharding_axis="device",
    )


def shakespeare() -> Any:
    """Returns the parameters, the function and the features of the sample."""
    shapes = nnx.eval_shape(model)
    graph, state = nnx.split(shapes)
    return (
        state,
        lambda parameters, words: nnx.merge(graph, parameters)(words),
        shapes.feature_specs,
    )
