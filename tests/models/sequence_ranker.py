"""A ranker of a movie behind a history of movies: a transformer of Keras 3 in which no position
sees a later one.
"""

# mypy: ignore-errors

from __future__ import annotations

import keras
import numpy as np

MOVIES = 300
WIDTH = 16
EVENTS = 40


class Block(keras.layers.Layer):
    """A layer of attention in which no position sees a later one."""

    def __init__(self):
        super().__init__()
        kit = keras.layers
        self.first_norm = kit.LayerNormalization()
        self.attention = kit.MultiHeadAttention(2, WIDTH // 2)
        self.second_norm = kit.LayerNormalization()
        self.wide = kit.Dense(4 * WIDTH, "gelu")
        self.narrow = kit.Dense(WIDTH)

    def call(self, x, shown):
        normal = self.first_norm(x)
        x = x + self.attention(normal, normal, use_causal_mask=True, attention_mask=shown)
        return x + self.narrow(self.wide(self.second_norm(x)))


class SequenceRanker(keras.Model):
    """The last position is the movie; events that are 0 are padding, if they are hidden."""

    def __init__(self, hides_padding=True):
        super().__init__()
        self.hides_padding = hides_padding
        kit = keras.layers
        self.movies = kit.Embedding(MOVIES, WIDTH)
        self.places = kit.Embedding(EVENTS + 1, WIDTH)
        self.first_block = Block()
        self.second_block = Block()
        self.click = kit.Dense(1)
        self.like = kit.Dense(1, "sigmoid")

    def call(self, inputs):
        """Computes two scores of [b, EVENTS] histories with [b] movies."""
        ops = keras.ops
        history = inputs["history"]
        movie = inputs["movie"][:, None]
        x = ops.concatenate([self.movies(history), self.movies(movie)], axis=1)
        x = x + self.places(np.arange(EVENTS + 1))
        is_event = ops.concatenate([history != 0, ops.ones_like(movie, "bool")], axis=1)
        shown = is_event[:, None, :] if self.hides_padding else None
        x = self.second_block(self.first_block(x, shown), shown)
        last = x[:, -1]
        return {"click": self.click(last)[:, 0], "like": self.like(last)[:, 0]}


def build(hides_padding=True):
    """Returns the model with its weights, untrained."""
    model = SequenceRanker(hides_padding)
    zeros = np.zeros((2, EVENTS), "int64")
    model({"history": zeros, "movie": np.zeros(2, "int64")})
    return model


def build_with_padding():
    """Returns a model for which padding is an event like others."""
    return build(hides_padding=False)


class ListRanker(SequenceRanker):
    """Ranks a list of movies in one sequence: each sees the history and itself alone."""

    def call(self, inputs):
        """Computes two scores of [b, EVENTS] histories with [b, n] movies."""
        ops = keras.ops
        history = inputs["history"]
        movies = inputs["movies"]
        count = movies.shape[1]
        x = ops.concatenate([self.movies(history), self.movies(movies)], axis=1)
        x = x + self.places(np.minimum(np.arange(EVENTS + count), EVENTS))
        positions = np.arange(EVENTS + count)
        sees = positions[:, None] >= positions
        sees &= (positions < EVENTS) | (positions[:, None] == positions)
        is_event = ops.concatenate([history != 0, ops.ones_like(movies, "bool")], axis=1)
        shown = sees & is_event[:, None, :]
        x = self.second_block(self.first_block(x, shown), shown)[:, EVENTS:]
        return {"click": self.click(x)[:, :, 0], "like": self.like(x)[:, :, 0]}


def build_of_lists():
    """Returns a model of lists with its weights, untrained."""
    model = ListRanker()
    zeros = np.zeros((2, EVENTS), "int64")
    model({"history": zeros, "movies": np.zeros((2, 3), "int64")})
    return model
