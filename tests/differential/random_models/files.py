"""The files of a model, as templates."""

TENSORFLOW = """\
from pathlib import Path

import tensorflow as tf

FOLDER = Path(__file__).parent

layers = tf.keras.layers
E = tf.tpu.experimental.embedding
fc = tf.feature_column


class Model(tf.keras.Model):
    def __init__(self):
        super().__init__()
        {constructor}

    def call(self, inputs):
        {call}


def build():
    return Model()
"""
KERAS = """\
import keras
from keras import layers, ops


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        {constructor}

    def call(self, inputs):
        {call}


def build():
    return Model()
"""
FLAX = """\
import flax.linen as nn
import jax
import jax.numpy as jnp


class Model(nn.Module):
    def setup(self):
        {constructor}

    def __call__(self, inputs):
        {call}


def build():
    model = Model()
    example = {example}
    return jax.eval_shape(model.init, jax.random.key(0), example), {{"score": model.apply}}
"""
JAX = """\
import jax
import jax.numpy as jnp


def score(parameters, inputs):
        {call}


def build():
    shape = jax.ShapeDtypeStruct
    return {{{parameters}}}, {{"score": score}}
"""
FILES = {"tensorflow": TENSORFLOW, "keras": KERAS, "flax": FLAX, "jax": JAX}
"""By the name of the dialect."""
RECIPE = """\
model = "random"
checkpoint = {{ {checkpoint} }}
code = {{ factory = "model.py:build"{options} }}
output = {{ root = "bundles" }}
verify.count = 8
towers.score = {{ {tower} }}
{entries}
"""
