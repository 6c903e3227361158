"""Towers of functions of JAX, for numbers that no example holds: a bundle gives what JAX gives, or
none is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from export.errors import VerificationFailed
from tests.units.export.checkpoint.orbax_trees import write_item
from tests.units.export.movies_job import export

pytest.importorskip("jax")

pytestmark = pytest.mark.slow

MODEL = """
import jax
import jax.numpy as jnp


def call(parameters, inputs):
    w = parameters["w"]
    x = inputs["x"]
    user = parameters["users"].at[inputs["user"]].get(mode="clip")
    number = {code}
    return user + number.astype(jnp.float32)[:, None] * w[0]


def build():
    shapes = {{"w": (4, 4), "users": (50, 4)}}
    leaves = {{name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}}
    return leaves, {{"call": call}}
"""


@dataclass(frozen=True)
class Step:
    """A function of the input `x`, [n], inside a tower.

    Attributes:
      code: The function.
      problem: What the message says where TensorFlow gives another number; "": it gives the same.
    """

    code: str
    problem: str = ""


STEPS = {
    "octaves": Step(
        "jnp.floor(jnp.log2(jnp.maximum(x, 1.0)))",
        r"for 8192 in input 'x', JAX, .* \(floor \(model.py:10\) .* is 12 in JAX and 13 in Tensor",
    ),
    "cast": Step("jnp.tanh(x.astype(jnp.int32) * 1e-9)"),
    "comparisons": Step("jnp.searchsorted(2.0 ** jnp.arange(1.0, 20.0), x, side='right')"),
    "clipped": Step("jnp.clip(x, -1e6, 1e6).astype(jnp.int32)"),
    "time2vec": Step("jnp.sin(x * (6.2831855 / 86400) + 0.3)"),
    "network": Step("jax.nn.gelu(jnp.log1p(jnp.abs(x))[:, None] * w[1]) @ w[2]"),
    "normalized": Step("jax.nn.softmax(x[:, None] * w[1] - 3.0) @ w[3]"),
}


@pytest.mark.parametrize("name", STEPS)
def test_tower_of_other_numbers_than_training_is_not_published(name: str, tmp_path: Path) -> None:
    step = STEPS[name]
    (tmp_path / "model.py").write_text(MODEL.format(code=step.code))
    random = np.random.default_rng(0)
    write_item(
        tmp_path / "checkpoint",
        {
            "params.w": random.normal(size=(4, 4)).astype(np.float32),
            "params.users": random.normal(size=(50, 4)).astype(np.float32),
        },
    )
    recipe = """
model = "m"
checkpoint = { path = "checkpoint" }
code = { factory = "model.py:build", table_threshold = 0 }
output.root = "bundles"
inputs.x = { dtype = "float32" }
inputs.user = { dtype = "int32" }
towers.call = { role = "query", call = "call" }
"""
    (tmp_path / "recipe.toml").write_text(recipe)
    if not step.problem:
        published = export(tmp_path / "recipe.toml")
        assert not [note for note in published.notes if "in TensorFlow" in note]
        return
    with pytest.raises(VerificationFailed, match=step.problem) as error:
        export(tmp_path / "recipe.toml")
    assert str(error.value).startswith("tower 'call', output 'result': ")
