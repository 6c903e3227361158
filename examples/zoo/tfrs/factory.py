"""Constructs the models of TFRS' tutorials as their cells do, where no class or recipe can.

The tutorials compute vocabularies and data sets of movies before their classes; here they are read
from files.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs
from tensorflow_recommenders.layers.feature_multiplexing import unified_embedding

from rowcast.model_code import definitions

FOLDER = Path(__file__).parent
TUTORIALS = "recommenders/docs/examples"
BUCKETS = {
    "movie_id": 600,
    "user_id": 400,
    "user_gender": 20,
    "user_zip_code": 400,
    "user_occupation_text": 20,
}


def keys(name: str) -> Any:
    """Returns the lines of a file: [n] strings."""
    return np.array((FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines())


def tower(vocabulary: Any, *layers: Any) -> Any:
    """Returns a table of embeddings of strings, as the tutorials build their towers."""
    lookup = tf.keras.layers.StringLookup(vocabulary=vocabulary, mask_token=None)
    return tf.keras.Sequential(
        [lookup, tf.keras.layers.Embedding(len(vocabulary) + 1, 32), *layers]
    )


def movies(name: str = "titles") -> Any:
    """Returns the data set of all movies."""
    return tf.data.Dataset.from_tensor_slices(keys(name))


def retrieval_task(candidates: Any) -> Any:
    """Returns the task of the retrieval tutorials, whose metrics search all candidates."""
    return tfrs.tasks.Retrieval(metrics=tfrs.metrics.FactorizedTopK(candidates=candidates))


def basic_retrieval() -> Any:
    """Returns the two towers of basic_retrieval.ipynb."""
    user_model = tower(keys("users"))
    movie_model = tower(keys("titles"))
    task = retrieval_task(movies().batch(128).map(movie_model))
    published = definitions(f"{TUTORIALS}/basic_retrieval.ipynb", task=task)
    return published.MovielensModel(user_model, movie_model)


def quickstart() -> Any:
    """Returns the two towers of quickstart.ipynb."""
    user_model = tower(keys("users"))
    movie_model = tower(keys("titles"))
    task = retrieval_task(movies().batch(128).map(movie_model))
    published = definitions(f"{TUTORIALS}/quickstart.ipynb")
    return published.MovieLensModel(user_model, movie_model, task)


def dcn() -> Any:
    """Returns the cross network of dcn.ipynb, which joins features in the order of vocabularies."""
    names = ("movie_id", "user_id", "user_zip_code", "user_occupation_text")
    vocabularies = {name: keys(name) for name in names}
    for name in ("user_gender", "bucketized_user_age"):
        vocabularies[name] = keys(name).astype(np.int64)
    published = definitions(f"{TUTORIALS}/dcn.ipynb", vocabularies=vocabularies)
    return published.DCN(use_cross_layer=True, deep_layer_sizes=[192, 192], projection_dim=20)


def listwise_ranking() -> Any:
    """Returns the ranker of listwise_ranking.ipynb, with its first loss.

    tensorflow-ranking, whose metric the constructor names, does not run on TensorFlow 2.20.
    """
    metrics = SimpleNamespace(NDCGMetric=tf.keras.metrics.MeanSquaredError)
    published = definitions(
        f"{TUTORIALS}/listwise_ranking.ipynb",
        tfr=SimpleNamespace(keras=SimpleNamespace(metrics=metrics)),
        unique_user_ids=keys("users"),
        unique_movie_titles=keys("titles"),
    )
    return published.RankingModel(tf.keras.losses.MeanSquaredError())


def multitask() -> Any:
    """Returns the towers and the ranker of multitask.ipynb."""
    published = definitions(
        f"{TUTORIALS}/multitask.ipynb",
        movies=movies(),
        unique_user_ids=keys("users"),
        unique_movie_titles=keys("titles"),
    )
    return published.MovielensModel(rating_weight=1.0, retrieval_weight=1.0)


def context_features() -> Any:
    """Returns the towers of context_features.ipynb, with timestamps."""
    return with_timestamps("context_features").MovielensModel(use_timestamps=True)


def deep_recommenders() -> Any:
    """Returns the towers of deep_recommenders.ipynb, of two layers each."""
    return with_timestamps("deep_recommenders").MovielensModel([64, 32])


def with_timestamps(tutorial: str) -> Any:
    """Returns the definitions of a tutorial whose users have timestamps and movies have words."""
    timestamps = np.load(FOLDER / "timestamps.npy")
    return definitions(
        f"{TUTORIALS}/{tutorial}.ipynb",
        movies=movies(),
        timestamps=timestamps,
        timestamp_buckets=np.linspace(timestamps.min(), timestamps.max(), num=1000),
        unique_user_ids=keys("users"),
        unique_movie_titles=keys("titles"),
    )


def tpu_embedding_layer() -> Any:
    """Returns the ranker of tpu_embedding_layer.ipynb, on a CPU."""
    embedding = tf.tpu.experimental.embedding
    user_table = embedding.TableConfig(vocabulary_size=2048, dim=64)
    movie_table = embedding.TableConfig(vocabulary_size=16_384, dim=64)
    published = definitions(
        f"{TUTORIALS}/tpu_embedding_layer.ipynb",
        feature_config={
            "movie_id": embedding.FeatureConfig(table=movie_table),
            "user_id": embedding.FeatureConfig(table=user_table),
        },
        optimizer=tf.keras.optimizers.legacy.Adagrad(learning_rate=0.1),
        strategy=tf.distribute.get_strategy(),
    )
    return published.EmbeddingModel()


def uet() -> Any:
    """Returns the definitions of uet.ipynb."""
    return definitions(f"{TUTORIALS}/uet.ipynb", recsys_task=tfrs.tasks.Ranking())


def uet_hashed() -> Any:
    """Returns the ranker of uet.ipynb with a table of hashed ids for each feature."""
    return uet().HashEmbeddingModel([128, 64], 16, BUCKETS)


def uet_unified() -> Any:
    """Returns the ranker of uet.ipynb that hashes all features into the same two tables."""
    config = unified_embedding.UnifiedEmbeddingConfig(
        buckets_per_table=sum(BUCKETS.values()),
        dim_per_table=8,
        num_tables=2,
        name="unified_table",
    )
    for name in (*BUCKETS, "bucketized_user_age"):
        config.add_feature(name, 2)
    model = uet().UnifiedEmbeddingModel([128, 64], config)
    model.compile(optimizer=tf.keras.optimizers.legacy.Adam(0.01))  # makes its tables
    return model


def sequential_retrieval() -> Any:
    """Returns the two towers of sequential_retrieval.ipynb, of which one is a GRU."""
    query_model = tower(keys("movie_ids"), tf.keras.layers.GRU(32))
    candidate_model = tower(keys("movie_ids"))
    task = retrieval_task(movies("movie_ids").batch(128).map(candidate_model))
    published = definitions(f"{TUTORIALS}/sequential_retrieval.ipynb", task=task)
    return published.Model(query_model, candidate_model)
