"""The training loop, and the trained model's answers while it is still in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from examples.columns import Ragged
from examples.movielens.data import Ints
from examples.movielens.examples import FIRST_USER_ROW, Batch, Encoded, Requests, Sampler
from examples.movielens.losses import joint_loss
from examples.movielens.model import MovieModel, Sizes
from examples.movielens.settings import Settings

Progress = Callable[[int, float], None]
PAIRS = 8_192
"""Pairs that are ranked at a time."""


@dataclass(frozen=True)
class Trained:
    """A trained model with all that a checkpoint of it holds."""

    model: MovieModel
    optimizer: Any
    """Of the tables."""
    dense_optimizer: Any
    step: Any


def sizes_of(encoded: Encoded, settings: Settings) -> Sizes:
    """Returns the rows and dimensions of each table, and the widths of the layers."""
    sizes = Sizes(len(encoded.user_ids) + FIRST_USER_ROW, len(encoded.movie_ids), len(encoded.genres))
    if settings.narrower == 1:
        return sizes
    widths = ("user_dim", "movie_dim", "genre_dim", "hour_dim", "hidden", "projection")
    return replace(sizes, **{name: getattr(sizes, name) // settings.narrower for name in widths})


def fit(
    encoded: Encoded,
    rows: Ints,
    settings: Settings,
    progress: Progress,
    strategy: Any = None,
) -> Trained:
    """Trains both towers and the ranking head together.

    Args:
      encoded: the data set.
      rows: positions in Ratings that may be trained on; of each viewer a prefix.
      settings: how.
      progress: told each epoch's number, from 1, and mean loss.
      strategy: a tf.distribute strategy; each replica is given batches of its own. None: the default one.
    """
    strategy = strategy or tf.distribute.get_strategy()
    tf.keras.utils.set_random_seed(settings.seed)
    sampler = Sampler(encoded, rows, settings, settings.seed)
    with strategy.scope():
        optimizers = tf.keras.optimizers.legacy
        optimizer = optimizers.Adagrad(settings.table_rate, initial_accumulator_value=settings.accumulator)
        model = MovieModel(sizes_of(encoded, settings), optimizer, settings.dropout)
        if not isinstance(strategy, tf.distribute.TPUStrategy):  # there the layer is built by its first call
            model.build_layers()
        trained = Trained(model, optimizer, optimizers.Adam(settings.dense_rate), tf.Variable(0, dtype=tf.int64))

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def train_step(features: Any, batch: Any) -> Any:
        losses = strategy.run(_step, (trained, features, batch, settings, strategy.num_replicas_in_sync))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    for epoch in range(1, settings.epochs + 1):
        batches = sampler.epoch()
        losses = []
        for _ in range(sampler.steps // strategy.num_replicas_in_sync):
            features, batch = _next(batches, encoded, sampler, strategy)
            losses.append(train_step(features, batch))
        progress(epoch, float(np.mean([float(loss) for loss in losses])) if losses else float("nan"))
    return trained


def _step(trained: Trained, features: Any, batch: Any, settings: Settings, replicas: int) -> Any:
    model = trained.model
    with tf.GradientTape() as tape:
        loss = joint_loss(model, features, batch, settings) / replicas
    variables = model.trainable_variables
    gradients = tape.gradient(loss, variables)
    # On a TPU the layer applies the tables' gradients itself, and they are not among the variables.
    tables = {id(table) for table in model.embedding.embedding_tables.values()}
    pairs = list(zip(gradients, variables, strict=True))
    of_tables = [(gradient, variable) for gradient, variable in pairs if id(variable) in tables]
    if of_tables:
        trained.optimizer.apply_gradients(of_tables)
    trained.dense_optimizer.apply_gradients([pair for pair in pairs if id(pair[1]) not in tables])
    trained.step.assign_add(1)
    return loss


def _next(batches: Any, encoded: Encoded, sampler: Sampler, strategy: Any) -> tuple[Any, Any]:
    """Returns features and the rest of one batch per replica."""
    if strategy.num_replicas_in_sync == 1:
        return _tensors(next(batches), encoded, sampler)
    values = [_tensors(next(batches), encoded, sampler) for _ in range(strategy.num_replicas_in_sync)]
    distribute = strategy.experimental_distribute_values_from_function
    return (
        distribute(lambda replica: values[replica.replica_id_in_sync_group][0]),
        distribute(lambda replica: values[replica.replica_id_in_sync_group][1]),
    )


def _tensors(batch: Batch, encoded: Encoded, sampler: Sampler) -> tuple[dict[str, Any], dict[str, Any]]:
    features = context_features(batch.users, batch.histories, batch.hours) | movie_features(encoded, batch.movies)
    rest = {
        "allowed": tf.constant(batch.allowed),
        "weights": tf.constant(batch.weights),
        "log_expected": tf.constant(np.log(sampler.expected[batch.movies])),
    }
    return features, rest


def context_features(users: Ints, histories: Ragged, hours: Ints) -> dict[str, Any]:
    """Returns the query side of the model's features, in rows."""
    return {"user_id": tf.constant(users), "history": _ragged(histories), "hour": tf.constant(hours)}


def movie_features(encoded: Encoded, movies: Ints) -> dict[str, Any]:
    """Returns the candidate side of the model's features, in rows."""
    return {
        "movie_id": tf.constant(movies),
        "genres": _ragged(encoded.movie_genres[movies]),
        "year": tf.constant(encoded.years[movies]),
    }


def _ragged(packed: Ragged) -> Any:
    return tf.RaggedTensor.from_row_splits(tf.constant(packed.values), tf.constant(packed.offsets), validate=False)


def answer(model: MovieModel, encoded: Encoded, asked: Requests, depth: int) -> tuple[Ints, NDArray[np.float32]]:
    """Answers requests exactly, as a service would: what was seen is excluded.

    Returns:
      [n, depth] movie rows, best first by retrieval, and [n, depth] what the ranking head scores them.
    """
    movies = np.arange(len(encoded.movie_ids))
    context, movie = model.activations(
        context_features(asked.users, asked.histories, asked.hours) | movie_features(encoded, movies)
    )
    query, candidate = model.query(context), model.candidate(movie)
    products = query.numpy() @ candidate.numpy().T
    viewers = np.repeat(np.arange(len(asked.users)), np.diff(asked.seen.offsets))
    products[viewers, asked.seen.values] = -np.inf
    found = np.argsort(-products, axis=1, kind="stable")[:, :depth]
    askers, pairs = np.repeat(np.arange(len(asked.users)), depth), found.ravel()
    scores = []
    for first in range(0, len(pairs), PAIRS):
        who, what = askers[first : first + PAIRS], pairs[first : first + PAIRS]
        sides = (tf.gather(context, who), tf.gather(movie, what), tf.gather(query, who), tf.gather(candidate, what))
        scores.append(model.score(*sides).numpy())
    return found.astype(np.int64), np.concatenate(scores).reshape(found.shape)
