"""A user model of two towers in a plain tf.Module: nothing here imports rowcast."""

# mypy: ignore-errors

import tensorflow as tf

# AutoGraph would read and compile each method in every run: it takes longer than the rest of a
# trace.
unconverted = tf.autograph.experimental.do_not_convert

WIDE = 256
"""Gives the kernel 1024 weights: LiteRT quantizes no fewer, and they are most of a compiled tower,
so that a test can damage the middle of its file.
"""


class Towers(tf.Module):
    """A table for each tower."""

    def __init__(self):
        super().__init__()
        self.users = tf.Variable(tf.zeros([10, WIDE]))
        self.movies = tf.Variable(tf.zeros([40, WIDE]))
        self.kernel = tf.Variable(tf.zeros([WIDE, 4]))

    @unconverted
    def query(self, inputs):
        return tf.tanh(tf.gather(self.users, inputs["user_id"]) @ self.kernel)

    @unconverted
    def candidate(self, inputs):
        return tf.gather(self.movies, inputs["movie_id"])[:, :4] * inputs["year"][:, None]


def build():
    return Towers()
