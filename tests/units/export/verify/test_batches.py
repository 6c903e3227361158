"""Calls that compute one example at a time are rejected by that name."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.errors import NotConvertible
from export.graphs.loading import load_tensorflow
from tests.units.export.movies_job import export

MODEL = """
import tensorflow as tf


class Model(tf.Module):
    def __init__(self):
        self.kernel = tf.Variable(tf.ones([3, 2]))

    @tf.function
    def __call__(self, inputs):
        ages = inputs["age"]
        return (ages - tf.squeeze(ages, axis=0)) @ self.kernel


def build():
    return Model()
"""


def test_call_of_one_example_at_a_time_is_rejected(tmp_path: Path) -> None:
    tf = load_tensorflow()
    (tmp_path / "model.py").write_text(MODEL)
    kernel = tf.Module()
    kernel.kernel = tf.Variable(tf.ones([3, 2]))
    tf.train.Checkpoint(model=kernel).write(str(tmp_path / "checkpoint" / "model"))
    (tmp_path / "recipe.toml").write_text("""
        model = "alone"
        checkpoint = { path = "checkpoint/model", object_path = "model" }
        code.factory = "model.py:build"
        output.root = "bundles"
        inputs.age = { dtype = "float32", shape = [3] }
        towers.query.role = "query"
        """)
    message = (
        r"one example at a time, .* write a function .* For 256 examples, the call raised "
        r"InvalidArgumentError: .*squeeze.* \(model\.py:12\)"
    )
    with pytest.raises(NotConvertible, match=message):
        export(tmp_path / "recipe.toml")
