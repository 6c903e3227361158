"""Models whose calls have the forms of published recommenders: one array, several arguments,
nested dicts, lists and tuples of results, and a retrieval inside.
"""

from __future__ import annotations

from typing import Any

import keras
import keras_rs  # type: ignore[import-untyped]
import tensorflow as tf

USERS = 300
MOVIES = 400
DIM = 8


class Retrieval(keras.Model):  # type: ignore[misc]
    """Takes an array of users; the vector of a query is only what its retrieval compares."""

    def __init__(self) -> None:
        super().__init__()
        self.user_embedding = keras.layers.Embedding(USERS, DIM)
        self.candidate_embedding = keras.layers.Embedding(MOVIES, DIM)
        self.dense = keras.layers.Dense(DIM, name="projection")
        self.retrieval = keras_rs.layers.BruteForceRetrieval(k=10, return_scores=False)

    def build(self, input_shape: Any) -> None:
        self.user_embedding.build(input_shape)
        self.candidate_embedding.build(input_shape)
        self.dense.build((None, DIM))
        self.retrieval.candidate_embeddings = self.candidate_embedding.embeddings
        self.retrieval.build(input_shape)
        super().build(input_shape)

    def call(self, inputs: Any, training: bool) -> Any:
        vectors = self.dense(self.user_embedding(inputs))
        return vectors if training else self.retrieval(vectors)


class NestedRanker(keras.Model):  # type: ignore[misc]
    """Takes the inputs of Model Garden's DLRM: numbers, and a dict of ids inside a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = [keras.layers.Embedding(size, DIM) for size in (USERS, MOVIES)]
        self.top = keras.layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        ids = inputs["sparse_features"]
        vectors = [table(ids[str(number)]) for number, table in enumerate(self.tables)]
        return self.top(keras.ops.concatenate([inputs["dense_features"], *vectors], axis=-1))


class ManyArguments(keras.Model):  # type: ignore[misc]
    """Takes several arguments, one of them a list and one a bool, and returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.user = keras.layers.Embedding(USERS, DIM)
        self.movie = keras.layers.Embedding(MOVIES, DIM)
        self.heads = [keras.layers.Dense(1) for _ in range(2)]

    def call(self, users: Any, movies: Any, known: Any, scale: float, training: bool) -> Any:
        movie, other = movies
        vectors = self.user(users) + self.movie(movie) - self.movie(other)
        vectors = keras.ops.where(known[:, None], vectors, -vectors) * scale
        return vectors, tuple(head(vectors) for head in self.heads)[1], self.heads[0](vectors)


class PositiveAndNegative(keras.Model):  # type: ignore[misc]
    """Returns the score of an item beside that of another, which only its loss compares."""

    def __init__(self) -> None:
        super().__init__()
        self.user = keras.layers.Embedding(USERS, DIM)
        self.movie = keras.layers.Embedding(MOVIES, DIM)

    def call(self, inputs: Any) -> Any:
        user = self.user(inputs["user"])
        pairs = [inputs["positive"][:, None], inputs["negative"]]
        scores = [keras.ops.sum(user[:, None] * self.movie(ids), axis=-1) for ids in pairs]
        return {"logits": (keras.ops.sigmoid(keras.ops.concatenate(scores, axis=-1)),)}


def joined_inputs(api: Any = keras) -> Any:
    """Returns a model that joins rows in the order of its dict of inputs, as RecLearn's rankers."""

    class JoinedInputs(api.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.user = api.layers.Embedding(USERS, DIM)
            self.movie = api.layers.Embedding(MOVIES, DIM)
            self.top = api.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            rows = [getattr(self, name)(ids) for name, ids in inputs.items()]
            return self.top(tf.concat(rows, axis=-1))

    return JoinedInputs()


def joined_inputs_of_keras_2() -> Any:
    return joined_inputs(tf.keras)


def joined_tables(sizes: dict[str, int]) -> keras.Model:
    """Returns a model that joins rows in the order of the dict that its factory gets."""

    class JoinedTables(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tables = {name: keras.layers.Embedding(rows, DIM) for name, rows in sizes.items()}
            self.top = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            rows = [table(inputs[name]) for name, table in self.tables.items()]
            return self.top(tf.concat(rows, axis=-1))

    return JoinedTables()


def mean_of_words() -> keras.Model:
    """Returns a model that averages the words of a title, which Keras cannot if it has none."""
    title = keras.Input((), dtype="string", name="title")
    rows = keras.layers.TextVectorization(vocabulary=["toy", "story", "heat"])(title)
    words = keras.layers.Embedding(5, DIM, mask_zero=True)(rows)
    return keras.Model({"title": title}, keras.layers.GlobalAveragePooling1D()(words))


def positive_and_negative() -> keras.Model:
    return PositiveAndNegative()


def retrieval() -> keras.Model:
    model = Retrieval()
    model.build((None,))
    return model


def nested_ranker() -> keras.Model:
    return NestedRanker()


def many_arguments() -> keras.Model:
    return ManyArguments()


def list_of_results() -> keras.Model:
    """Returns a functional model with a list of inputs and of results, as DeepCTR's MMOE is."""
    user = keras.Input((), dtype="int32", name="user")
    movie = keras.Input((), dtype="int32", name="movie")
    vectors = keras.layers.Concatenate()(
        [keras.layers.Embedding(USERS, DIM)(user), keras.layers.Embedding(MOVIES, DIM)(movie)]
    )
    click = keras.layers.Dense(1, activation="sigmoid", name="click")(vectors)
    like = keras.layers.Dense(1, activation="sigmoid", name="like")(vectors)
    return keras.Model([user, movie], [click, like])
