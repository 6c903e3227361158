"""A recommender in two stages: a query and a candidate tower over shared embedding tables, and a
DCN v2 ranker.

This file is all that an exporter needs of the training code, and it knows of no exporter.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# TFRS needs Keras 2. TensorFlow reads the variable when it is imported.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import tensorflow as tf
import tensorflow_recommenders as tfrs

HISTORY_SCALE = 4.0
"""The mean of 10 to 20 rows that have little in common is about 4 times shorter than a row."""
FEATURES = ("user_id", "history", "hour", "movie_id", "genres")
"""The features that the embedding layer looks up. `year` goes to the candidate tower as it is."""
WATCHED = 10
"""Number of movies of the history that the ranker compares with a candidate."""
COMPANIONS = 50
"""Maximum number of a candidate's companions: movies after which viewers most often watched it."""
SIZES_FILE = "sizes.json"
DIRECTORY = Path(__file__).resolve().parents[2] / "build" / "demo"


@dataclass(frozen=True)
class Sizes:
    """Rows and dimensions of the tables, and widths of the layers.

    Row 0 of users is for viewers who were not there in training. Both towers end in vectors of
    `movie_dim` and add to the movies' own rows, so that their first guess is: more of what was
    watched.
    """

    users: int
    movies: int
    genres: int
    hours: int = 24
    user_dim: int = 32
    movie_dim: int = 64
    genre_dim: int = 16
    hour_dim: int = 4
    hidden: int = 128
    rank_hidden: int = 32

    def write(self, directory: Path) -> None:
        """Writes the sizes beside the checkpoint, where build_model() finds them."""
        (directory / SIZES_FILE).write_text(json.dumps(asdict(self), indent=2) + "\n")


def read_sizes(directory: Path) -> Sizes:
    """Reads the sizes that `Sizes.write` wrote.

    Raises:
      FileNotFoundError: No model was trained there yet; the message says which command to run.
    """
    path = directory / SIZES_FILE
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is not there: run `python -m examples.movielens.train`, or name its folder in "
            "MOVIELENS_DIR"
        )
    return Sizes(**json.loads(path.read_text()))


def feature_config(sizes: Sizes) -> dict[str, Any]:
    """Returns five features over four tables: watched movies and the candidate share a table."""
    embedding = tf.tpu.experimental.embedding

    def table(name: str, rows: int, dim: int, combiner: str, deviation: float) -> Any:
        initializer = tf.initializers.TruncatedNormal(stddev=deviation, seed=rows)
        return embedding.TableConfig(
            rows, dim, initializer=initializer, combiner=combiner, name=name
        )

    users = table("users", sizes.users, sizes.user_dim, "mean", 0.05)
    movies = table("movies", sizes.movies, sizes.movie_dim, "mean", 0.1)
    genres = table("genres", sizes.genres, sizes.genre_dim, "sum", 0.1)
    hours = table("hours", sizes.hours, sizes.hour_dim, "mean", 0.05)
    tables = dict(zip(FEATURES, (users, movies, hours, movies, genres), strict=True))
    return {name: embedding.FeatureConfig(table=table, name=name) for name, table in tables.items()}


class MovieModel(tf.keras.Model):  # type: ignore[misc]
    """Scores contexts against movies: by the dot product of two towers, and by a ranker that sees
    each pair.
    """

    def __init__(self, sizes: Sizes, optimizer: Any = None, dropout: float = 0.0) -> None:
        """Creates the layers.

        Args:
          sizes: The sizes of tables and layers.
          optimizer: The optimizer of the tables; None: the model is not trained.
          dropout: The share of the activations that training leaves out.
        """
        super().__init__()
        self.sizes = sizes
        dense = tf.keras.layers.Dense
        init = tf.keras.initializers
        self.embedding = tfrs.layers.embedding.TPUEmbedding(feature_config(sizes), optimizer)
        self.dropout = tf.keras.layers.Dropout(dropout)
        self.query_hidden = dense(
            sizes.hidden, activation="relu", kernel_initializer=init.GlorotUniform(seed=1)
        )
        self.query_out = dense(sizes.movie_dim, kernel_initializer=init.GlorotUniform(seed=2))
        self.candidate_hidden = dense(
            sizes.hidden, activation="relu", kernel_initializer=init.GlorotUniform(seed=3)
        )
        self.candidate_out = dense(sizes.movie_dim, kernel_initializer=init.GlorotUniform(seed=4))
        self.movie_numbers = self.add_weight(
            "movie_numbers", [sizes.movies, 1], initializer=_one_to_n, trainable=False
        )
        self.crosses = [
            tfrs.layers.dcn.Cross(
                kernel_initializer=init.TruncatedNormal(stddev=0.05, seed=5 + depth)
            )
            for depth in range(2)
        ]
        self.rank_hidden = dense(
            sizes.rank_hidden, activation="relu", kernel_initializer=init.GlorotUniform(seed=7)
        )
        self.rank_out = dense(1, kernel_initializer="zeros")

    def call(self, features: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        """Computes both vectors and the score of b pairs.

        Args:
          features: The inputs by name. Rows of tables, int64: user_id [b], hour [b], movie_id [b],
            history and genres, ragged [b, None]. year [b] float32, 0 where it is unknown.
            companions, ragged [b, None], rows of at most COMPANIONS movies, and their closeness,
            [b, COMPANIONS] float32, 0 behind the last companion.
          training: Whether dropout applies.

        Returns:
          query and candidate, [b, movie_dim] float32, whose dot product is the retrieval score; and
          score, [b] float32.
        """
        context, movie = self.activations(features, training)
        query = self.query(context)
        candidate = self.candidate(movie)
        return {
            "query": query,
            "candidate": candidate,
            "score": self.score(query, candidate, self.pair(features)),
        }

    def activations(self, features: Mapping[str, Any], training: bool = False) -> tuple[Any, Any]:
        """Looks up all features at once; returns the activations of the contexts, [n, .], and of
        the movies, [b, .].
        """
        embedded = self.embedding({name: features[name] for name in FEATURES})
        year = features["year"]
        scaled_year = tf.where(year > 0.0, (year - 1990.0) / 20.0, tf.zeros_like(year))
        age = tf.expand_dims(scaled_year, -1)
        context = tf.concat([embedded["user_id"], embedded["history"], embedded["hour"]], -1)
        movie = tf.concat([embedded["movie_id"], embedded["genres"], age], -1)
        return self.dropout(context, training=training), self.dropout(movie, training=training)

    def query(self, context: Any) -> Any:
        """Computes the query tower: activations [n, .] -> vectors [n, movie_dim]."""
        # The mean row of the watched movies lies behind the user's row in the activations.
        first = self.sizes.user_dim
        watched = context[:, first : first + self.sizes.movie_dim]
        hidden = tf.concat([context, self.query_hidden(context)], -1)
        return HISTORY_SCALE * watched + self.query_out(hidden)

    def candidate(self, movie: Any) -> Any:
        """Computes the candidate tower: activations [b, .] -> vectors [b, movie_dim]."""
        movie_id = movie[:, : self.sizes.movie_dim]
        return movie_id + self.candidate_out(tf.concat([movie, self.candidate_hidden(movie)], -1))

    def pair(self, features: Mapping[str, Any]) -> Any:
        """Compares each watched movie with the candidate's companions; returns their closeness, [b,
        WATCHED], 0 where the movie is no companion.
        """

        def numbers_of(name: str, size: int) -> Any:
            rows = tf.gather(self.movie_numbers, features[name])
            return rows.to_tensor(shape=[None, size, 1])

        # Movies are equal where their numbers are. Padding has the number 0, which no movie has.
        watched = numbers_of("history", WATCHED)
        companions = numbers_of("companions", COMPANIONS)
        same = tf.equal(watched, tf.transpose(companions, [0, 2, 1]))
        return tf.reduce_sum(tf.where(same, tf.expand_dims(features["closeness"], 1), 0.0), -1)

    def score(self, query: Any, candidate: Any, pair: Any) -> Any:
        """Computes the ranker's scores of n pairs, [n]: the retrieval score, corrected by crosses
        of it with the closeness that `pair` returns.
        """
        product = tf.reduce_sum(query * candidate, -1, keepdims=True)
        closest = tf.reduce_max(pair, -1, keepdims=True)
        mean = tf.reduce_mean(pair, -1, keepdims=True)
        inputs = tf.concat([product, pair, closest, mean], -1)
        crossed = inputs
        for cross in self.crosses:
            crossed = cross(inputs, crossed)
        return tf.squeeze(product + self.rank_out(self.rank_hidden(crossed)), -1)

    def build_layers(self) -> None:
        """Creates every variable without a lookup, so that the tables may have any size, or be
        missing.
        """
        self.embedding.build(None)
        sizes = self.sizes
        context = tf.zeros([1, sizes.user_dim + sizes.movie_dim + sizes.hour_dim])
        movie = tf.zeros([1, sizes.movie_dim + sizes.genre_dim + 1])
        self.score(self.query(context), self.candidate(movie), tf.zeros([1, WATCHED]))
        self.built = True


def _one_to_n(shape: Any, dtype: Any = None, **_: Any) -> Any:
    # From 1 on, so that 0 stands for no movie.
    return tf.reshape(tf.range(1.0, shape[0] + 1.0, dtype=dtype), shape)


def build_model() -> MovieModel:
    """Returns the untrained model in the sizes that the training wrote to MOVIELENS_DIR, else to
    build/demo.
    """
    model = MovieModel(read_sizes(Path(os.environ.get("MOVIELENS_DIR", DIRECTORY))))
    model.build_layers()
    return model
