"""Trains the examples of keras-rs as their scripts do, for a few steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.columns import Columns, take
from examples.zoo import recorded
from examples.zoo.recorded import Recorded
from examples.zoo.train import Run
from examples.zoo.viewings import MOVIES, USERS, write_corpus, write_lines

WEIGHTS = "model.weights.h5"
BATCH = 500
STEPS = 4
TRAINED = BATCH * STEPS
RECORDED = 100
"""The number of requests whose responses are compared."""
LISTED = 5
"""The number of movies in a list that a listwise ranker is trained on."""
LIST = 3
"""The number of ids of a feature of ml_perf."""


def basic_ranking(run: Run) -> Recorded:
    """Trains the ranker of users and movies."""
    import keras

    model = run.published("keras-rs/examples/basic_ranking.py").RankingModel(USERS + 1, MOVIES + 1)
    model.compile(
        loss=keras.losses.MeanSquaredError(),
        metrics=[keras.metrics.RootMeanSquaredError()],
        optimizer=keras.optimizers.Adagrad(learning_rate=0.1),
    )
    _fit(run, model, "user_id", "movie_id")
    return _rankings(run, _predictions(model))


def dcn(run: Run) -> Recorded:
    """Trains the deep cross network; the script looks up the rows of ids before the model."""
    import keras

    names = ("movie_id", "user_id", "user_gender", "bucketized_user_age")
    viewings = run.viewings.draw(TRAINED)
    vocabularies = {name: np.unique(viewings[name]) for name in names}
    for name, vocabulary in vocabularies.items():
        write_lines(run.folder / f"{name}.txt", vocabulary)
    lookups = {
        name: keras.layers.IntegerLookup(vocabulary=vocabulary)
        for name, vocabulary in vocabularies.items()
    }
    model = run.built("dcn")

    def rows(columns: Columns) -> dict[str, Any]:
        return {name: np.asarray(lookups[name](columns[name])) for name in names}

    model.compile(optimizer=keras.optimizers.AdamW(0.01), loss=keras.losses.MeanSquaredError())
    model.fit(rows(viewings), viewings["user_rating"], batch_size=BATCH, verbose=0)
    model.save_weights(run.folder / WEIGHTS)
    return _rankings(
        run,
        lambda columns: model.predict(rows(columns), verbose=0),
        context=("user_id", "user_gender", "bucketized_user_age"),
    )


def listwise_ranking(run: Run) -> Recorded:
    """Trains the ranker on lists of movies; a request has one movie for each score."""
    import keras
    import keras_rs

    published = run.published("keras-rs/examples/listwise_ranking.py")
    model = published.RankingModel(num_users=USERS + 1, num_candidates=MOVIES + 1)
    model.compile(
        loss=keras_rs.losses.PairwiseHingeLoss(),
        metrics=[keras_rs.metrics.NDCG(k=LISTED, name="ndcg")],
        optimizer=keras.optimizers.Adagrad(learning_rate=0.1),
    )
    viewings = run.viewings.draw(TRAINED)
    lists = {
        "user_id": viewings["user_id"][::LISTED],
        "movie_id": viewings["movie_id"].reshape(-1, LISTED),
    }
    ratings = viewings["user_rating"].reshape(-1, LISTED)
    model.fit(lists, ratings, batch_size=BATCH // LISTED, verbose=0)
    model.save_weights(run.folder / WEIGHTS)

    users = run.viewings.draw(RECORDED, seed=2)
    movies = run.viewings.draw(RECORDED * recorded.CANDIDATES, seed=3)
    return recorded.rankings(
        _columns_of(users, "user_id"),
        {"movie_id": movies["movie_id"][:, None]},
        _predictions(model),
    )


def multi_task(run: Run) -> Recorded:
    """Trains two towers and a ranker, which one call computes."""
    import keras

    published = run.published("keras-rs/examples/multi_task.py")
    model = published.MultiTaskModel(num_users=USERS + 1, num_candidates=MOVIES + 1)
    model.compile(optimizer=keras.optimizers.Adagrad(0.1))
    _fit(run, model, "user_id", "movie_id")

    viewings = _columns_of(run.viewings.draw(RECORDED // 4, seed=4), "user_id", "movie_id")
    outputs = model(viewings)
    rankings = _rankings(run, lambda columns: model(columns)["rating"], count=RECORDED // 2)
    users = _columns_of(viewings, "user_id")
    movies = _columns_of(viewings, "movie_id")
    return (
        rankings
        + recorded.embeddings("query", users, outputs["user_embeddings"])
        + recorded.embeddings("candidate", movies, outputs["candidate_embeddings"])
    )


def basic_retrieval(run: Run) -> Recorded:
    """Trains two tables, and records what their products retrieve."""
    return _retrieval(run, "basic_retrieval", 1)


def data_parallel_retrieval(run: Run) -> Recorded:
    """Trains basic_retrieval on all devices of JAX."""
    import keras

    keras.distribution.set_distribution(keras.distribution.DataParallel())
    return _retrieval(run, "data_parallel_retrieval", 1)


def scann(run: Run) -> Recorded:
    """Trains the two tables that the script then searches with ScaNN."""
    return _retrieval(run, "scann", 1000)


def _retrieval(run: Run, script: str, spare_rows: int) -> Recorded:
    import keras

    published = run.published(f"keras-rs/examples/{script}.py")
    model = published.RetrievalModel(USERS + spare_rows, MOVIES + spare_rows)
    model.compile(optimizer=keras.optimizers.Adagrad(learning_rate=0.1))
    viewings = run.viewings.draw(TRAINED)
    labels = {"movie_id": viewings["movie_id"], "rating": (viewings["user_rating"] - 1) / 4}
    model.fit(viewings["user_id"], labels, batch_size=BATCH, verbose=0)
    model.save_weights(run.folder / WEIGHTS)
    return _retrievals(
        run,
        _columns_of(run.viewings.draw(RECORDED, seed=2), "user_id"),
        lambda contexts: model(contexts["user_id"])["user_embeddings"],
        model.candidate_embedding,
    )


def sequential_retrieval(run: Run) -> Recorded:
    """Trains a GRU over the last ten movies."""
    import keras

    published = run.published("keras-rs/examples/sequential_retrieval.py")
    model = published.SequentialRetrievalModel(movies_count=MOVIES, embedding_dimension=32)
    model.compile(optimizer=keras.optimizers.AdamW(learning_rate=0.005))
    viewings = run.viewings.draw(TRAINED)
    model.fit(viewings["history"][:, :10], viewings["movie_id"], batch_size=BATCH, verbose=0)
    model.save_weights(run.folder / WEIGHTS)
    return _retrievals(
        run,
        {"history": run.viewings.draw(RECORDED, seed=2)["history"][:, :10]},
        lambda contexts: model(contexts["history"])["query_embeddings"],
        model.candidate_model,
    )


def sas_rec(run: Run) -> Recorded:
    """Trains a transformer over the last movies; its retrieval layer takes the last position."""
    import keras
    import tensorflow as tf

    length = 200
    published = run.published("keras-rs/examples/sas_rec.py")
    model = published.SasRec(
        vocabulary_size=MOVIES + 1,
        num_layers=2,
        num_heads=1,
        hidden_dim=50,
        dropout=0.2,
        max_sequence_length=length,
    )

    def inputs(history: NDArray[Any]) -> dict[str, NDArray[Any]]:
        ids = np.pad(history, ((0, 0), (0, length - history.shape[1])))
        return {"item_ids": ids, "padding_mask": ids != 0}

    batch = 64
    viewings = run.viewings.draw(2 * batch)
    features = inputs(viewings["history"])
    weights = features["padding_mask"].astype("float32")
    labels = {"positive_sequence": np.roll(features["item_ids"], -1, axis=1)}
    labels["negative_sequence"] = np.roll(features["item_ids"], 1, axis=0)
    model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.001, beta_2=0.98))
    model(features)  # builds the retrieval layer, as the script does
    data = tf.data.Dataset.from_tensor_slices((features, labels, weights)).batch(batch)
    model.fit(data, verbose=0)
    model.save_weights(run.folder / WEIGHTS)

    def queries(contexts: dict[str, Any]) -> Any:
        mask = contexts["padding_mask"] != 0
        sequences = model({**contexts, "padding_mask": mask})["item_sequence_embedding"]
        return model._get_last_non_padding_token(sequences, mask)

    contexts = inputs(run.viewings.draw(RECORDED, seed=2)["history"])
    contexts["padding_mask"] = contexts["padding_mask"].astype(np.int32)  # as clients send it
    return _retrievals(run, contexts, queries, model.item_embedding)


def deep_recommender(run: Run) -> Recorded:
    """Trains two towers of several features; the script prepares them with a FeatureSpace."""
    import keras

    words = keras.layers.TextVectorization(
        max_tokens=10_000, output_sequence_length=16, dtype="int32"
    )
    titles = np.array(["", *run.viewings.titles])  # there is no movie 0
    words.adapt(titles)
    catalog: dict[str, Any] = {
        "movie_id": np.arange(MOVIES + 1, dtype=np.int32),
        "movie_title_vector": np.asarray(words(titles), np.int32),
        "movie_genres": _genre_ids(run.viewings.genres),
    }
    np.savez(run.folder / "movies.npz", **catalog)
    model = run.built("deep_recommender")

    def users(viewings: dict[str, NDArray[Any]]) -> dict[str, Any]:
        age = (viewings["bucketized_user_age"] // 10).astype(np.int32)
        gender = viewings["user_gender"]
        return {
            "user_id": viewings["user_id"],
            "raw_user_age": age,
            "user_gender": gender,
            "user_occupation_label": (viewings["user_id"] % 8).astype(np.int32),
            "user_gender_X_raw_user_age": (2 * age + gender).astype(np.int32),
        }

    viewings = run.viewings.draw(TRAINED)
    features = {**users(viewings), **take(catalog, viewings["movie_id"])}
    model.compile(optimizer=keras.optimizers.Adagrad(0.05))
    model.fit(features, (viewings["user_rating"] - 1) / 4, batch_size=BATCH, verbose=0)
    model.save_weights(run.folder / WEIGHTS)

    movies = {name: column[1:] for name, column in catalog.items()}
    write_corpus(run.folder / "movies.csv", movies)
    contexts = users(run.viewings.draw(RECORDED, seed=2))
    vectors = model.candidate_model(movies)
    movie_ids = run.viewings.draw(RECORDED, seed=3)["movie_id"]
    return recorded.retrievals(contexts, model.query_model(contexts), movies, vectors, movie_ids)


def _genre_ids(genres: Sequence[Sequence[str]]) -> NDArray[np.int32]:
    """Returns [movies + 1, 10] ids of genres, from 1, filled up with 0; movie 0 has none."""
    names = sorted({name for movie in genres for name in movie})
    ids = np.zeros((len(genres) + 1, 10), np.int32)
    for row, movie in enumerate(genres, start=1):
        ids[row, : len(movie)] = [names.index(name) + 1 for name in movie]
    return ids


def ml_perf(run: Run) -> Recorded:
    """Trains the DLRM of the MLPerf benchmark on random impressions."""
    import keras

    model = run.built("ml_perf")
    random = np.random.default_rng(1)
    sizes = {
        "large_emb_inputs.cat_14_id": MOVIES + 1,
        "large_emb_inputs.cat_15_id": 2_000,
        "small_emb_inputs.cat_16_id": 300,
        "small_emb_inputs.cat_17_id": 60,
    }

    def draw(count: int) -> dict[str, NDArray[Any]]:
        dense = random.uniform(0, 0.9, (count, 13)).astype(np.float32)
        ids = {name: random.integers(size, size=(count, LIST)) for name, size in sizes.items()}
        return {"dense_input": dense, **ids}

    impressions = draw(TRAINED)
    model.compile(
        loss=keras.losses.BinaryCrossentropy(),
        optimizer=keras.optimizers.Adagrad(learning_rate=0.01),
    )
    clicks = random.integers(2, size=TRAINED)
    model.fit(recorded.nested(impressions), clicks, batch_size=BATCH, verbose=0)
    model.save_weights(run.folder / WEIGHTS)

    users = draw(RECORDED)
    candidate = "large_emb_inputs.cat_14_id"
    movies = {candidate: draw(RECORDED * recorded.CANDIDATES)[candidate]}
    del users[candidate]
    return recorded.rankings(
        users, movies, lambda columns: model.predict(recorded.nested(columns), verbose=0)
    )


def _fit(run: Run, model: Any, *features: str) -> None:
    """Trains a compiled model on ratings between 0 and 1, and saves its weights."""
    viewings = run.viewings.draw(TRAINED)
    labels = (viewings["user_rating"] - 1) / 4
    model.fit(_columns_of(viewings, *features), labels, batch_size=BATCH, verbose=0)
    model.save_weights(run.folder / WEIGHTS)


def _rankings(
    run: Run,
    call: Callable[[Columns], Any],
    context: tuple[str, ...] = ("user_id",),
    count: int = RECORDED,
) -> Recorded:
    """Records what a model returns for users and movies."""
    users = run.viewings.draw(count, seed=2)
    movies = run.viewings.draw(count * recorded.CANDIDATES, seed=3)
    return recorded.rankings(_columns_of(users, *context), _columns_of(movies, "movie_id"), call)


def _retrievals(
    run: Run,
    contexts: dict[str, Any],
    query: Callable[[dict[str, Any]], Any],
    candidate: Callable[[Any], Any],
) -> Recorded:
    """Records what a model retrieves from all movies, and writes the corpus."""
    catalog = {"movie_id": np.arange(1, MOVIES + 1, dtype=np.int32)}
    write_corpus(run.folder / "movies.csv", catalog)
    vectors = candidate(catalog["movie_id"])
    movies = run.viewings.draw(RECORDED, seed=3)["movie_id"]
    return recorded.retrievals(contexts, query(contexts), catalog, vectors, movies)


def _columns_of(columns: Columns, *names: str) -> dict[str, Any]:
    return {name: columns[name] for name in names}


def _predictions(model: Any) -> Callable[[Columns], Any]:
    return lambda columns: model.predict(dict(columns), verbose=0)
