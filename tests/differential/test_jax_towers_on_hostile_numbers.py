"""Towers of functions of JAX, for numbers that no example holds: a bundle gives what JAX gives, or
none is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from export.errors import VerificationFailed
from tests.differential.written_models import WrittenModel, write_model
from tests.units.export.checkpoint.orbax_trees import write_item

pytest.importorskip("jax")

MODEL = """
import jax
import jax.numpy as jnp


def call(parameters, inputs):
    w = parameters["w"]
    x = inputs["x"]
    user = parameters["users"].at[inputs["user"]].get(mode="clip")
    steps = {{
{steps}
    }}
    return {{name: user + step.astype(jnp.float32)[:, None] * w[0] for name, step in steps.items()}}


def build():
    shapes = {{"w": (4, 4), "users": (50, 4)}}
    leaves = {{name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}}
    return leaves, call
"""
SAME = {
    "cast": "jnp.tanh(x.astype(jnp.int32) * 1e-9)",
    "comparisons": "jnp.searchsorted(2.0 ** jnp.arange(1.0, 20.0), x, side='right')",
    "clipped": "jnp.clip(x, -1e6, 1e6).astype(jnp.int32)",
    "time2vec": "jnp.sin(x * (6.2831855 / 86400) + 0.3)",
    "network": "jax.nn.gelu(jnp.log1p(jnp.abs(x))[:, None] * w[1]) @ w[2]",
    "normalized": "jax.nn.softmax(x[:, None] * w[1] - 3.0) @ w[3]",
}
"""Functions of `x`, [n], inside of a tower, for which TensorFlow gives the numbers of JAX."""
BEYOND = {
    "mean": "(x[:, None] * w[1] / jnp.maximum(jnp.abs(x)[:, None], 1e-3)).sum(1)",
}
"""One for which it does up to 2^63: JAX on CPUs multiplies by the reciprocals of larger divisors,
and takes those that are denormal for 0.
"""
OTHER = {"octaves": "jnp.floor(jnp.log2(jnp.maximum(x, 1.0)))"}
"""One for which it does not."""


def project(folder: Path, steps: Mapping[str, str]) -> WrittenModel:
    lines = [f'        "{name}": {code},' for name, code in steps.items()]
    model = write_model(folder, MODEL.format(steps="\n".join(lines)))
    random = np.random.default_rng(0)
    leaves = {"params.w": random.normal(size=(4, 4)), "params.users": random.normal(size=(50, 4))}
    write_item(
        folder / "checkpoint", {name: leaf.astype(np.float32) for name, leaf in leaves.items()}
    )
    outputs = {name: name for name in steps}
    model.write_recipe(
        inputs={"x": {"dtype": "float32"}, "user": {"dtype": "int32"}},
        towers={"call": {"role": "query", "outputs": outputs, "result": next(iter(steps))}},
    )
    return model


def test_tower_that_gives_the_numbers_of_training_is_published(tmp_path: Path) -> None:
    notes = project(tmp_path, SAME).export().notes
    assert not [note for note in notes if "in TensorFlow" in note]


def test_tower_of_other_numbers_than_training_beyond_what_numbers_measure_is_published(
    tmp_path: Path,
) -> None:
    """As every form of a tower is, with a note."""
    (note,) = [note for note in project(tmp_path, BEYOND).export().notes if "in TensorFlow" in note]
    assert re.search(r"'call', in TensorFlow: it gives another number .* for -?\d.*e\+3\d in", note)


def test_tower_of_other_numbers_than_training_is_not_published(tmp_path: Path) -> None:
    words = r"for 8192 in input 'x', JAX, .* \(floor \(model.py:\d+\) .* is 12 in JAX and 13 in Ten"
    with pytest.raises(VerificationFailed, match=words) as error:
        project(tmp_path, OTHER | SAME).export()
    assert str(error.value).startswith("tower 'call', output 'octaves': ")
