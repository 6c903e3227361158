"""Constructs the models of keras-rs' examples whose constructors take more than TOML can state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import keras_rs
import numpy as np

from rowcast.model_code import definitions

FOLDER = Path(__file__).parent
EXAMPLES = "keras-rs/examples"
DIM = 16
LARGE = {"cat_14": 9_743, "cat_15": 2_000}
SMALL = {"cat_16": 300, "cat_17": 60}
BATCH = 500
LIST = 3


def dcn() -> Any:
    """Returns the cross network of dcn.py, which joins features in the order of vocabularies."""
    names = ("movie_id", "user_id", "user_gender", "bucketized_user_age")
    vocabularies = {name: np.loadtxt(FOLDER / f"{name}.txt", np.int64) for name in names}
    published = definitions(f"{EXAMPLES}/dcn.py", vocabularies=vocabularies)
    return published.get_model([192, 192], use_cross_layer=True, projection_dim=20)


def deep_recommender() -> Any:
    """Returns the towers of deep_recommender.py, whose constructor computes vectors."""
    movies = dict(np.load(FOLDER / "movies.npz"))
    published = definitions(
        f"{EXAMPLES}/deep_recommender.py",
        USERS_COUNT=610,
        MOVIES_COUNT=9_742,
        GENDERS_COUNT=2,
        OCCUPATIONS_COUNT=8,
        TITLE_TOKEN_COUNT=10_000,
        GENRES_COUNT=20,
        MOVIES_DATASET=movies,
    )
    return published.RetrievalModel((64, 32))


def ml_perf() -> Any:
    """Returns the DLRM of ml_perf/model.py with the configuration of ml_perf/main.py, for a CPU."""
    published = definitions(f"{EXAMPLES}/ml_perf/model.py")
    features = {}
    for name, size in LARGE.items():
        table = keras_rs.layers.TableConfig(
            name=name,
            vocabulary_size=size,
            embedding_dim=DIM,
            optimizer=keras.optimizers.Adagrad(learning_rate=0.01),
            combiner="sum",
        )
        features[f"{name}_id"] = keras_rs.layers.FeatureConfig(
            name=name, table=table, input_shape=(BATCH, LIST), output_shape=(BATCH, DIM)
        )
    small = [
        {"name": name, "new_name": name, "vocabulary_size": size} for name, size in SMALL.items()
    ]
    return published.DLRMDCNV2(
        large_emb_feature_configs=features,
        small_emb_features=small,
        embedding_dim=DIM,
        bottom_mlp_dims=[64, DIM],
        top_mlp_dims=[64, 1],
        num_dcn_layers=2,
        dcn_projection_dim=16,
        seed=1337,
        dtype="float32",
        name="dlrm_dcn_v2",
    )
