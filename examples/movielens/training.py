"""The training loop, and the trained model's recommendations while it is still in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from examples.columns import Ragged
from examples.movielens.companions import Companions, count
from examples.movielens.data import HELD_OUT, Ints
from examples.movielens.examples import (
    FIRST_USER_ROW,
    Batch,
    Encoded,
    Requests,
    Sampler,
    requests,
    split_newest,
)
from examples.movielens.losses import ranking_loss, retrieval_loss
from examples.movielens.model import WATCHED, MovieModel, Sizes
from examples.movielens.settings import Settings

Progress = Callable[[int, float], None]
VIEWERS = 64
"""Number of viewers whose candidates are ranked in one step of the ranker's training."""


@dataclass(frozen=True)
class Trained:
    """A trained model with all objects of its checkpoint.

    Attributes:
      model: The model.
      optimizer: The optimizer of the tables.
      dense_optimizer: The optimizer of the towers' layers.
      rank_optimizer: The optimizer of the ranker's layers.
      step: The number of steps of the towers' training.
    """

    model: MovieModel
    optimizer: Any
    dense_optimizer: Any
    rank_optimizer: Any
    step: Any


def sizes_of(encoded: Encoded, settings: Settings) -> Sizes:
    """Returns the rows and dimensions of each table, and the widths of the layers."""
    sizes = Sizes(
        len(encoded.user_ids) + FIRST_USER_ROW, len(encoded.movie_ids), len(encoded.genres)
    )
    if settings.narrower == 1:
        return sizes
    widths = ("user_dim", "movie_dim", "genre_dim", "hour_dim", "hidden")
    return replace(sizes, **{name: getattr(sizes, name) // settings.narrower for name in widths})


def fit(encoded: Encoded, rows: Ints, settings: Settings, progress: Progress) -> Trained:
    """Trains towers, ranker, and towers again.

    The ranker learns from each viewer's newest interactions. Its candidates come from towers that
    have not seen these interactions, as they will not when serving. Then the towers are trained
    further, on all interactions.

    Args:
      encoded: The data set.
      rows: The positions in Ratings that may be trained on: a prefix of each viewer's ratings.
      settings: The settings of the training.
      progress: A function that is called with the number of each epoch, from 1, and its mean loss.
    """
    tf.keras.utils.set_random_seed(settings.seed)
    optimizers = tf.keras.optimizers.legacy
    optimizer = optimizers.Adagrad(
        settings.table_rate, initial_accumulator_value=settings.accumulator
    )
    model = MovieModel(sizes_of(encoded, settings), optimizer, settings.dropout)
    model.build_layers()
    trained = Trained(
        model,
        optimizer,
        optimizers.Adam(settings.dense_rate),
        optimizers.Adam(settings.rank_rate),
        tf.Variable(0, dtype=tf.int64),
    )
    earlier, newest = split_newest(encoded, rows, HELD_OUT)
    epochs = settings.epochs - settings.later_epochs
    _fit_towers(trained, encoded, earlier, settings, range(1, epochs + 1), progress)
    _fit_ranker(trained, encoded, earlier, newest, settings)
    _fit_towers(trained, encoded, rows, settings, range(epochs + 1, settings.epochs + 1), progress)
    return trained


def _fit_towers(
    trained: Trained,
    encoded: Encoded,
    rows: Ints,
    settings: Settings,
    epochs: range,
    progress: Progress,
) -> None:
    sampler = Sampler(encoded, rows, settings, settings.seed + epochs.start)
    model = trained.model
    tables = list(model.embedding.embedding_tables.values())
    layers = [model.query_hidden, model.query_out, model.candidate_hidden, model.candidate_out]
    dense = [variable for layer in layers for variable in layer.trainable_variables]

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def train_step(features: Any, batch: Any) -> Any:
        with tf.GradientTape() as tape:
            context, movie = model.activations(features, training=True)
            products = tf.matmul(model.query(context), model.candidate(movie), transpose_b=True)
            loss = retrieval_loss(products, batch)
        gradients = tape.gradient(loss, tables + dense)
        trained.optimizer.apply_gradients(zip(gradients[: len(tables)], tables, strict=True))
        trained.dense_optimizer.apply_gradients(zip(gradients[len(tables) :], dense, strict=True))
        trained.step.assign_add(1)
        return loss

    for epoch in epochs:
        losses = [train_step(*_tensors(batch, encoded, sampler)) for batch in sampler.epoch()]
        # Few ratings may not fill a batch.
        mean_loss = float("nan")
        if losses:
            mean_loss = float(np.mean([float(loss) for loss in losses]))
        progress(epoch, mean_loss)


def _fit_ranker(
    trained: Trained, encoded: Encoded, earlier: Ints, newest: Ints, settings: Settings
) -> None:
    """Trains the ranker to find the newest interactions among the movies that the towers retrieve
    (hard negatives) and some random movies.
    """
    model = trained.model
    random = np.random.default_rng(settings.seed)
    ranker_requests = requests(encoded, newest, settings.history)
    query, candidate = (vectors.numpy() for vectors in _vectors(model, encoded, ranker_requests))
    offered_movies = _retrieved(query, candidate, ranker_requests, settings.rank_depth)
    random_movies = random.integers(0, len(candidate), (len(offered_movies), settings.rank_random))
    offered_movies = np.concatenate([offered_movies, random_movies], 1)
    is_watched = [
        np.isin(movies, ranker_requests.watched_next[number])
        for number, movies in enumerate(offered_movies)
    ]
    watched = np.stack(is_watched).astype(np.float32)
    closeness = _pairs(model, ranker_requests.histories, offered_movies, count(encoded, earlier))
    # A viewer none of whose newest movies was offered_movies has no positive to learn from.
    with_positive = np.flatnonzero(watched.any(1))
    layers = [*model.crosses, model.rank_hidden, model.rank_out]
    variables = [variable for layer in layers for variable in layer.trainable_variables]

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def train_step(query: Any, candidate: Any, pair: Any, watched: Any) -> None:
        queries = tf.repeat(query, tf.shape(watched)[1], 0)
        candidates = tf.reshape(candidate, tf.shape(queries))
        with tf.GradientTape() as tape:
            scores = model.score(queries, candidates, tf.reshape(pair, [-1, WATCHED]))
            loss = ranking_loss(tf.reshape(scores, tf.shape(watched)), watched)
        gradients = tape.gradient(loss, variables)
        trained.rank_optimizer.apply_gradients(zip(gradients, variables, strict=True))

    for _ in range(settings.rank_epochs):
        order = random.permutation(with_positive)
        for batch in np.array_split(order, max(1, len(order) // VIEWERS)):
            train_step(
                query[batch], candidate[offered_movies[batch]], closeness[batch], watched[batch]
            )


def _tensors(
    batch: Batch, encoded: Encoded, sampler: Sampler
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the features of a batch, and the tensors of the retrieval loss."""
    contexts = context_features(batch.users, batch.histories, batch.hours)
    movies = movie_features(encoded, batch.movies)
    loss_inputs = {
        "allowed": tf.constant(batch.allowed),
        "weights": tf.constant(batch.weights),
        "log_expected": tf.constant(np.log(sampler.expected[batch.movies])),
    }
    return contexts | movies, loss_inputs


def context_features(users: Ints, histories: Ragged, hours: Ints) -> dict[str, Any]:
    """Returns the query side of the model's features, in rows."""
    return {
        "user_id": tf.constant(users),
        "history": _ragged(histories),
        "hour": tf.constant(hours),
    }


def movie_features(encoded: Encoded, movies: Ints) -> dict[str, Any]:
    """Returns the candidate side of the model's features, in rows."""
    return {
        "movie_id": tf.constant(movies),
        "genres": _ragged(encoded.movie_genres[movies]),
        "year": tf.constant(encoded.years[movies]),
    }


def _pairs(
    model: MovieModel, histories: Ragged, candidates: Ints, companions: Companions
) -> NDArray[np.float32]:
    """Returns the closeness of the movies of n histories to their candidates, [n, depth,
    WATCHED].
    """
    closeness = []
    for number, rows in enumerate(candidates):
        features = {
            "history": _ragged(histories[number : number + 1]),
            "companions": _ragged(companions.movies[rows]),
            "closeness": companions.closeness[rows],
        }
        closeness.append(model.pair(features).numpy())
    return np.stack(closeness)


def _ragged(packed: Ragged) -> Any:
    return tf.RaggedTensor.from_row_splits(
        tf.constant(packed.values), tf.constant(packed.offsets), validate=False
    )


def recommend(
    model: MovieModel, encoded: Encoded, requests: Requests, companions: Companions, depth: int
) -> tuple[Ints, NDArray[np.float32]]:
    """Retrieves and scores movies exactly, as a service would: movies that were seen are excluded.

    Returns:
      The rows of the movies, [n, depth], best first by retrieval; and the ranker's scores of them,
      [n, depth].
    """
    query, candidate = _vectors(model, encoded, requests)
    retrieved = _retrieved(query.numpy(), candidate.numpy(), requests, depth)
    close = _pairs(model, requests.histories, retrieved, companions)
    queries = tf.repeat(query, depth, 0)
    scores = model.score(
        queries, tf.gather(candidate, retrieved.ravel()), close.reshape(-1, WATCHED)
    )
    return retrieved, scores.numpy().reshape(retrieved.shape)


def _vectors(model: MovieModel, encoded: Encoded, requests: Requests) -> tuple[Any, Any]:
    """Returns the vector of each request and of each movie."""
    movies = np.arange(len(encoded.movie_ids))
    context, movie = model.activations(
        context_features(requests.users, requests.histories, requests.hours)
        | movie_features(encoded, movies)
    )
    return model.query(context), model.candidate(movie)


def _retrieved(
    query: NDArray[Any], candidate: NDArray[Any], requests: Requests, depth: int
) -> Ints:
    """Returns the nearest movies that were not seen, [n, depth], best first."""
    products = query @ candidate.T
    seen_counts = np.diff(requests.seen.offsets)
    viewers = np.repeat(np.arange(len(requests.users)), seen_counts)
    products[viewers, requests.seen.values] = -np.inf
    return np.argsort(-products, axis=1, kind="stable")[:, :depth].astype(np.int64)
