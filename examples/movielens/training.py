"""The training loop, and the trained model's answers while it is still in TensorFlow."""

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
"""Whose candidates are ranked in one step of the ranker's training."""


@dataclass(frozen=True)
class Trained:
    """A trained model with all that a checkpoint of it holds."""

    model: MovieModel
    optimizer: Any
    """Of the tables."""
    dense_optimizer: Any
    """Of the towers' layers."""
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

    The ranker learns from each viewer's newest interactions, on candidates that towers retrieve
    which have not seen
    these: so it is when serving. The towers then go on with all interactions.

    Args:
      encoded: the data set.
      rows: positions in Ratings that may be trained on; of each viewer a prefix.
      settings: how.
      progress: called with each epoch's number, from 1, and mean loss.
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
        progress(
            epoch, float(np.mean([float(loss) for loss in losses])) if losses else float("nan")
        )


def _fit_ranker(
    trained: Trained, encoded: Encoded, earlier: Ints, newest: Ints, settings: Settings
) -> None:
    """Trains the ranker to find `newest` among what the towers retrieve (hard negatives) and some
    random movies.
    """
    model = trained.model
    random = np.random.default_rng(settings.seed)
    asked = requests(encoded, newest, settings.history)
    query, candidate = (each.numpy() for each in _vectors(model, encoded, asked))
    offered = _retrieved(query, candidate, asked, settings.rank_depth)
    offered = np.concatenate(
        [offered, random.integers(0, len(candidate), (len(offered), settings.rank_random))], 1
    )
    watched = np.stack([np.isin(row, asked.wanted[at]) for at, row in enumerate(offered)]).astype(
        np.float32
    )
    closeness = _pairs(model, asked.histories, offered, count(encoded, earlier))
    learnt = np.flatnonzero(watched.any(1))
    layers = [*model.crosses, model.rank_hidden, model.rank_out]
    variables = [variable for layer in layers for variable in layer.trainable_variables]

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def train_step(query: Any, candidate: Any, pair: Any, watched: Any) -> None:
        queries = tf.repeat(query, tf.shape(watched)[1], 0)
        with tf.GradientTape() as tape:
            scores = model.score(
                queries, tf.reshape(candidate, tf.shape(queries)), tf.reshape(pair, [-1, WATCHED])
            )
            loss = ranking_loss(tf.reshape(scores, tf.shape(watched)), watched)
        trained.rank_optimizer.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )

    for _ in range(settings.rank_epochs):
        for part in np.array_split(random.permutation(learnt), max(1, len(learnt) // VIEWERS)):
            train_step(query[part], candidate[offered[part]], closeness[part], watched[part])


def _tensors(
    batch: Batch, encoded: Encoded, sampler: Sampler
) -> tuple[dict[str, Any], dict[str, Any]]:
    features = context_features(batch.users, batch.histories, batch.hours) | movie_features(
        encoded, batch.movies
    )
    rest = {
        "allowed": tf.constant(batch.allowed),
        "weights": tf.constant(batch.weights),
        "log_expected": tf.constant(np.log(sampler.expected[batch.movies])),
    }
    return features, rest


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
    """Returns [n, depth, WATCHED] how close the movies of n histories are to their candidates."""
    return np.stack(
        [
            model.pair(
                {
                    "history": _ragged(histories[at : at + 1]),
                    "companions": _ragged(companions.movies[rows]),
                    "closeness": companions.closeness[rows],
                }
            ).numpy()
            for at, rows in enumerate(candidates)
        ]
    )


def _ragged(packed: Ragged) -> Any:
    return tf.RaggedTensor.from_row_splits(
        tf.constant(packed.values), tf.constant(packed.offsets), validate=False
    )


def answer(
    model: MovieModel, encoded: Encoded, asked: Requests, companions: Companions, depth: int
) -> tuple[Ints, NDArray[np.float32]]:
    """Answers requests exactly, as a service would: what was seen is excluded.

    Returns:
      [n, depth] movie rows, best first by retrieval, and [n, depth] what the ranker scores them.
    """
    query, candidate = _vectors(model, encoded, asked)
    found = _retrieved(query.numpy(), candidate.numpy(), asked, depth)
    close = _pairs(model, asked.histories, found, companions)
    queries = tf.repeat(query, depth, 0)
    scores = model.score(queries, tf.gather(candidate, found.ravel()), close.reshape(-1, WATCHED))
    return found, scores.numpy().reshape(found.shape)


def _vectors(model: MovieModel, encoded: Encoded, asked: Requests) -> tuple[Any, Any]:
    """Returns the vector of each request and of each movie."""
    movies = np.arange(len(encoded.movie_ids))
    context, movie = model.activations(
        context_features(asked.users, asked.histories, asked.hours)
        | movie_features(encoded, movies)
    )
    return model.query(context), model.candidate(movie)


def _retrieved(query: NDArray[Any], candidate: NDArray[Any], asked: Requests, depth: int) -> Ints:
    """Returns [n, depth] the nearest movies that were not seen, best first."""
    products = query @ candidate.T
    products[
        np.repeat(np.arange(len(asked.users)), np.diff(asked.seen.offsets)), asked.seen.values
    ] = -np.inf
    return np.argsort(-products, axis=1, kind="stable")[:, :depth].astype(np.int64)
