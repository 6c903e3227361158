"""Trains the models of TFRS' tutorials as their notebooks do, for a few steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.columns import Columns
from examples.zoo import recorded
from examples.zoo.recorded import Recorded
from examples.zoo.train import Run
from examples.zoo.viewings import MOVIES, USERS, write_corpus, write_lines

TUTORIALS = "recommenders/docs/examples"
BATCH = 500
TRAINED = 2 * BATCH
RECORDED = 100
"""The number of requests whose responses are compared."""
LISTED = 5
"""The number of movies in a list that a listwise ranker is trained on."""
CONTEXT_TEXTS = ("user_id", "user_gender", "user_zip_code", "user_occupation_text")
INTEGERS = ("user_gender", "bucketized_user_age")


def basic_ranking(run: Run) -> Recorded:
    """Trains the ranker, and saves it as a SavedModel, as the notebook does."""
    import tensorflow as tf

    published = run.published(f"{TUTORIALS}/basic_ranking.ipynb", **_vocabularies(run))
    model = published.MovielensModel()
    _fit(model, _draw(run, TRAINED), "user_id", "movie_title", "user_rating")
    tf.saved_model.save(model, str(run.folder / "export"))
    return _rankings(run, lambda columns: model(_tensors(columns)))


def dcn(run: Run) -> Recorded:
    """Trains the deep cross network."""
    context = ("user_id", "user_zip_code", "user_occupation_text", *INTEGERS)
    viewings = _draw(run, TRAINED)
    vocabularies = {name: np.unique(viewings[name]) for name in ("movie_id", *context)}
    for name, vocabulary in vocabularies.items():
        write_lines(run.folder / f"{name}.txt", vocabulary)
    model = run.built("dcn")
    _fit(model, viewings, "movie_id", *context, "user_rating")
    _save(run, model)
    return _rankings(run, lambda columns: model(_tensors(columns)), context, "movie_id")


def listwise_ranking(run: Run) -> Recorded:
    """Trains the ranker on lists of movies; a request has one movie for each score."""
    _vocabularies(run)
    model = run.built("listwise_ranking")
    viewings = _draw(run, TRAINED)
    lists = {
        "user_id": viewings["user_id"][::LISTED],
        "movie_title": viewings["movie_title"].reshape(-1, LISTED),
        "user_rating": viewings["user_rating"].reshape(-1, LISTED),
    }
    _fit(model, lists, *lists)
    _save(run, model)

    users = _draw(run, RECORDED, seed=2)
    movies = _draw(run, RECORDED * recorded.CANDIDATES, seed=3)
    return recorded.rankings(
        _columns_of(users, "user_id"),
        {"movie_title": movies["movie_title"][:, None]},
        lambda columns: model(_tensors(columns)),
    )


def multitask(run: Run) -> Recorded:
    """Trains two towers and a ranker, which one call returns as a tuple."""
    _vocabularies(run)
    model = run.built("multitask")
    _fit(model, _draw(run, TRAINED), "user_id", "movie_title", "user_rating")
    _save(run, model)

    rankings = _rankings(run, lambda columns: model(_tensors(columns))[2], count=RECORDED // 2)
    viewings = _draw(run, RECORDED // 4)
    user, movie, _ = model(_tensors(_columns_of(viewings, "user_id", "movie_title")))
    return (
        rankings
        + recorded.embeddings("query", _columns_of(viewings, "user_id"), user)
        + recorded.embeddings("candidate", _columns_of(viewings, "movie_title"), movie)
    )


def basic_retrieval(run: Run) -> Recorded:
    """Trains two towers."""
    _vocabularies(run)
    model = run.built(run.name)
    _fit(model, _draw(run, TRAINED), "user_id", "movie_title")
    _save(run, model)
    query = model.user_model
    return _retrievals(
        run, ("user_id",), lambda contexts: query(contexts["user_id"]), model.movie_model
    )


quickstart = basic_retrieval


def uet_hashed(run: Run) -> Recorded:
    """Trains a ranker of hashed texts."""
    return _with_texts(run, CONTEXT_TEXTS)


def uet_unified(run: Run) -> Recorded:
    """Trains a ranker of texts that are hashed into the same tables."""
    return _with_texts(run, (*CONTEXT_TEXTS, "bucketized_user_age"))


def _with_texts(run: Run, context: tuple[str, ...]) -> Recorded:
    import tensorflow as tf

    def draw(count: int, seed: int = 1) -> Any:
        viewings = _draw(run, count, seed)
        return {name: viewings[name].astype(str) for name in ("movie_id", *context)}

    model = run.built(run.name)
    viewings = draw(TRAINED)
    viewings["user_rating"] = np.random.default_rng(1).integers(2, size=TRAINED)
    model.compile(optimizer=tf.keras.optimizers.legacy.Adam(0.01))
    model.fit(tf.data.Dataset.from_tensor_slices(viewings).batch(BATCH), verbose=0)
    _save(run, model)
    return recorded.rankings(
        _columns_of(draw(RECORDED, seed=2), *context),
        _columns_of(draw(RECORDED * recorded.CANDIDATES, seed=3), "movie_id"),
        lambda columns: model(_tensors(columns)),
    )


def context_features(run: Run) -> Recorded:
    """Trains two towers, of which one takes the time."""
    return _with_timestamps(run, "context_features")


def deep_recommenders(run: Run) -> Recorded:
    """Trains two towers of several layers."""
    return _with_timestamps(run, "deep_recommenders")


def _with_timestamps(run: Run, tutorial: str) -> Recorded:
    _vocabularies(run)
    viewings = _draw(run, TRAINED)
    np.save(run.folder / "timestamps.npy", viewings["timestamp"])
    model = run.built(tutorial)
    _fit(model, viewings, "user_id", "movie_title", "timestamp")
    _save(run, model)
    context = ("user_id", "timestamp")
    return _retrievals(run, context, model.query_model, model.candidate_model)


def tpu_embedding_layer(run: Run) -> Recorded:
    """Trains the ranker of a TPUEmbedding layer, on a CPU."""
    import tensorflow as tf

    model = run.built("tpu_embedding_layer")
    viewings = run.viewings.draw(TRAINED)
    features = _columns_of(viewings, "user_id", "movie_id", "user_rating")
    data = tf.data.Dataset.from_tensor_slices(features).batch(16, drop_remainder=True)
    optimizer = tf.keras.optimizers.legacy.Adagrad(learning_rate=0.1)  # of the factory, too
    model.compile(optimizer=optimizer)
    model.fit(data, steps_per_epoch=10, epochs=1, verbose=0)
    checkpoint = tf.train.Checkpoint(optimizer=optimizer, model=model)
    checkpoint.save(str(run.folder / "checkpoint" / "ckpt"))

    users = run.viewings.draw(RECORDED, seed=2)
    movies = run.viewings.draw(RECORDED * recorded.CANDIDATES, seed=3)
    return recorded.rankings(
        _columns_of(users, "user_id"),
        _columns_of(movies, "movie_id"),
        lambda columns: model(_tensors(columns)),
    )


def sequential_retrieval(run: Run) -> Recorded:
    """Trains a GRU over the ids of the last ten movies, which are strings."""
    movie_ids = np.arange(1, MOVIES + 1).astype(str)
    write_lines(run.folder / "movie_ids.txt", movie_ids)
    model = run.built("sequential_retrieval")
    viewings = run.viewings.draw(TRAINED)
    features = {
        "context_movie_id": viewings["history"][:, :10].astype(str),
        "label_movie_id": viewings["movie_id"].astype(str),
    }
    _fit(model, features, *features)
    _save(run, model)
    contexts = {"history": run.viewings.draw(RECORDED, seed=2)["history"][:, :10].astype(str)}
    return _recorded(
        run,
        contexts,
        lambda columns: model._query_model(columns["history"]),
        {"movie_id": movie_ids},
        model._candidate_model,
    )


def _vocabularies(run: Run) -> dict[str, Any]:
    """Writes the vocabularies of users and titles; returns them by their names in the tutorials."""
    users = np.arange(1, USERS + 1).astype(str)
    titles = np.unique(run.viewings.titles)
    write_lines(run.folder / "users.txt", users)
    write_lines(run.folder / "titles.txt", titles)
    return {"unique_user_ids": users, "unique_movie_titles": titles}


def _draw(run: Run, count: int, seed: int = 1) -> dict[str, NDArray[Any]]:
    """Returns viewings with ids as strings."""
    viewings: dict[str, NDArray[Any]] = dict(run.viewings.draw(count, seed))
    for name in ("user_id", "movie_id"):
        viewings[name] = viewings[name].astype(str)
    for name in INTEGERS:
        viewings[name] = viewings[name].astype(np.int64)
    return viewings


def _fit(model: Any, viewings: dict[str, NDArray[Any]], *names: str) -> None:
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices(_columns_of(viewings, *names)).batch(BATCH)
    model.compile(optimizer=tf.keras.optimizers.Adagrad(learning_rate=0.1))
    model.fit(data, epochs=1, verbose=0)


def _save(run: Run, model: Any) -> None:
    import tensorflow as tf

    tf.train.Checkpoint(model=model).save(str(run.folder / "checkpoint" / "ckpt"))


def _rankings(
    run: Run,
    call: Callable[[Columns], Any],
    context: tuple[str, ...] = ("user_id",),
    candidate: str = "movie_title",
    count: int = RECORDED,
) -> Recorded:
    users = _draw(run, count, seed=2)
    movies = _draw(run, count * recorded.CANDIDATES, seed=3)
    return recorded.rankings(_columns_of(users, *context), _columns_of(movies, candidate), call)


def _retrievals(
    run: Run,
    context: tuple[str, ...],
    query: Callable[[Any], Any],
    candidate: Callable[[Any], Any],
) -> Recorded:
    contexts = _columns_of(_draw(run, RECORDED, seed=2), *context)
    catalog = {"movie_title": np.array(run.viewings.titles)}
    return _recorded(run, contexts, query, catalog, candidate)


def _recorded(
    run: Run,
    contexts: Columns,
    query: Callable[[Any], Any],
    catalog: dict[str, NDArray[Any]],
    candidate: Callable[[Any], Any],
) -> Recorded:
    """Records what a model retrieves from all movies, and writes the corpus."""
    import tensorflow as tf

    write_corpus(run.folder / "movies.csv", catalog)
    (column,) = catalog.values()
    queries = query(_tensors(contexts))
    vectors = candidate(tf.constant(column))
    movies = run.viewings.draw(RECORDED, seed=3)["movie_id"]
    return recorded.retrievals(contexts, queries, catalog, vectors, movies)


def _columns_of(columns: Columns, *names: str) -> dict[str, Any]:
    return {name: columns[name] for name in names}


def _tensors(columns: Columns) -> dict[str, Any]:
    import tensorflow as tf

    return {name: tf.constant(column) for name, column in columns.items()}
