"""Constructs the models of RecML's experiments, without their trainers and data."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental.shard_map  # dlrm_model.py reads it
import jax.numpy as jnp
import keras

from rowcast.model_code import definitions

EXAMPLES = "RecML/recml/examples"
DLRM = "RecML/recml/inference/models/jax/DLRM_DCNv2"
BATCH = 128
DIM = 16
CHIPS = 8
CORES = 32
"""SparseCores of the chips."""
# The published sizes, of which the largest are shortened.
VOCABULARY_SIZES = [24_000, 390, 172, 74, 202, 3, 71, 15, 63, 23_000, 30_677, 22_052, 10, 220]
VOCABULARY_SIZES += [119, 155, 4, 97, 14, 21_500, 21_600, 25_000, 22_001, 129, 108, 36]
MULTI_HOT_SIZES = [3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6]
MULTI_HOT_SIZES += [9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1]
"""Ids of each feature."""
LARGE = {str(i): size for i, size in enumerate(VOCABULARY_SIZES) if size > 21_000}
# Flax numbers the small tables in the order of the names as text, in which JAX keeps a dict.
SMALL = sorted({str(i) for i in range(len(VOCABULARY_SIZES))} - set(LARGE))


def sasrec() -> Any:
    """Returns a model of the layer SASRec, without its head."""
    from recml.layers.keras.sasrec import SASRec

    return model_of(SASRec, "sasrec")


def bert4rec() -> Any:
    """Returns a model of the layer BERT4Rec, without its head."""
    from recml.layers.keras.bert4rec import BERT4Rec

    return model_of(BERT4Rec, "bert4rec")


def model_of(layer_class: Any, name: str) -> Any:
    """Returns a layer as a model, which can be saved: RecML publishes the layers alone."""
    layer = layer_class(
        vocab_size=9_743,
        max_positions=20,
        model_dim=32,
        mlp_dim=64,
        num_heads=2,
        num_layers=2,
        add_head=False,
        name=name,
    )
    history = keras.Input((20,), dtype="int32", name="history")
    return keras.Model(history, layer(history))


def hstu_keras() -> Any:
    """Returns the model of train_hstu_keras.py, for the ids of MovieLens."""
    published = definitions(f"{EXAMPLES}/train_hstu_keras.py")
    config = published.HSTUModelConfig(vocab_size=9_743, max_sequence_length=50, num_layers=2)
    return published.HSTUTask(config, None, None).create_model()


def hstu_jax() -> Any:
    """Returns the model of train_hstu_jax.py, for the ids of MovieLens."""
    published = definitions(f"{EXAMPLES}/train_hstu_jax.py")
    config = published.HSTUModelConfig(vocab_size=9_743, max_sequence_length=50, num_layers=2)
    return published.HSTUTask(config, None, None)._create_model()


def criteo_sizes() -> list[tuple[int, int]]:
    """Returns the rows, and the ids of an example, of each feature of ids."""
    return list(zip(VOCABULARY_SIZES, MULTI_HOT_SIZES, strict=True))


def criteo_features() -> Any:
    """Returns the features of the large tables, as dlrm_main.py specifies them, by name."""
    from jax_tpu_embedding.sparsecore.lib.nn import embedding, embedding_spec

    features = {}
    for name, size in LARGE.items():
        table = embedding_spec.TableSpec(
            name=name,
            vocabulary_size=size,
            embedding_dim=DIM,
            initializer=jax.nn.initializers.uniform(size**-0.5),
            optimizer=embedding_spec.AdagradOptimizerSpec(learning_rate=0.0034),
            combiner="sum",
            max_ids_per_partition=2048,
            max_unique_ids_per_partition=512,
        )
        features[name] = embedding_spec.FeatureSpec(
            name=name, table_spec=table, input_shape=(BATCH, 1), output_shape=(BATCH, DIM)
        )
    embedding.auto_stack_tables(
        features,
        global_device_count=CHIPS,
        num_sc_per_device=CORES // CHIPS,
        stack_to_max_ids_per_partition=lambda *_: 4096,
        stack_to_max_unique_ids_per_partition=lambda *_: 2048,
    )
    embedding.prepare_feature_specs_for_training(
        features, global_device_count=CHIPS, num_sc_per_device=CORES // CHIPS
    )
    return features


def dlrm_model(features: Any, embed: Any) -> Any:
    """Returns the module of dlrm_model.py.

    Args:
      features: The features that `criteo_features` returns.
      embed: The module of SparseCoreEmbed, which moved since dlrm_model.py was written.
    """
    published = definitions(f"{DLRM}/dlrm_model.py", embed=embed)
    return published.DLRMDCNV2(
        feature_specs=features,
        mesh=jax.sharding.Mesh(jax.devices()[:1], "x"),
        sharding_axis="x",
        global_batch_size=BATCH,
        vocab_sizes=VOCABULARY_SIZES,
        embedding_size=DIM,
        bottom_mlp_dims=[512, 256, DIM],
    )


def dlrm() -> Any:
    """Returns the shapes of the parameters, the function and the features of dlrm_main.py."""
    from jax_tpu_embedding.sparsecore.lib.flax.linen import embed

    features = criteo_features()
    model = dlrm_model(features, embed)
    numbers = jnp.zeros((BATCH, 13))
    small = {name: jnp.zeros((BATCH, MULTI_HOT_SIZES[int(name)]), int) for name in SMALL}
    shapes = jax.eval_shape(model.init, jax.random.key(0), numbers, small, None)
    return shapes, model.apply, features
