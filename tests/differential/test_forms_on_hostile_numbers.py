"""Towers as users write them, for numbers that no example holds: the service gives what the model
gives, and a tower whose compiled form gives other numbers is served by its SavedModel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format.manifest import Tower
from bundle.storage.catalog import read_manifest
from export.graphs.loading import load_tensorflow
from tests.differential.random_models.serving import response_to
from tests.differential.written_models import OF_TENSORFLOW, WrittenModel, write_model

pytestmark = pytest.mark.slow

MODEL = """
import tensorflow as tf


class Model(tf.Module):
    def __init__(self):
        self.weights = tf.Variable(tf.zeros([8, 8]), name="weights")
        self.wide = tf.Variable(tf.zeros([64, 64]), name="wide")

    @tf.function
    def __call__(self, inputs):
        w = self.weights
        v = self.wide
        user = tf.nn.relu(tf.nn.relu(inputs["user"] @ v) @ v)
        age = tf.sin(inputs["age"][:, None] * w[0]) @ w @ v[:8]
        return {{
{formulas}
            "score": tf.reduce_sum(user * age, 1),
        }}


def build():
    return Model()
"""


@dataclass(frozen=True)
class Formula:
    """A tower of one input.

    Attributes:
      code: The vector that it computes of `x`, [n] or [n, *shape], with the weights `w`, [8, 8].
      requests: Numbers that callers send.
      cause: What the note says of its compiled form; "": it is served.
      dtype: The type of the input.
      shape: The shape of the input.
      more: Further keys of the tower in the recipe.
    """

    code: str
    requests: tuple[Any, ...]
    cause: str = ""
    dtype: str = "float32"
    shape: tuple[int, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)


QUANTIZED = {"precisions": ["f32", "int8"], "max_abs_error": {"int8": 0.5}}
COUNTS = (0.0, 1.0, 7.0, 100.0, 5769.0, 8191.0, 97648.0, 100000.0, 998001.0)
FORMULAS = {
    "time2vec": Formula(
        "tf.sin(x[:, None] * w[0] + w[1])",
        (0.0, 3600.0, 1e8, 1.7e9, 1732800000.0, -1.7e9),
        "Sin",
    ),
    "cosine": Formula("tf.cos(x)[:, None]", (0.0, 1e6, 1.7e9, 3e12), "Cos"),
    "one_hot": Formula(
        "tf.one_hot(x, 6) @ w[:6]",
        (0, 5, 6, -1, 2**31, 2**32, 2**32 + 3, -(2**32), 2**53 + 1, 2**63 - 1),
        "OneHot",
        "int64",
    ),
    "narrow": Formula(
        "tf.cast(tf.cast(x, tf.int32), tf.float32)[:, None]",
        (0, 7, 2**31, 2**32 + 5, -(2**40)),
        dtype="int64",
    ),
    "roots": Formula("tf.floor(tf.sqrt(x))[:, None]", COUNTS, "Floor"),
    "octaves": Formula("tf.floor(tf.math.log(x + 1.0) / 0.6931472)[:, None]", COUNTS, "Floor"),
    "criteo": Formula(
        "tf.floor(tf.square(tf.math.log(tf.maximum(x, 1.0))))[:, None]", COUNTS, "Floor"
    ),
    "logarithm": Formula("tf.math.log1p(tf.nn.relu(x)) @ w", ((3.0,) * 8, (1e9,) * 8), shape=(8,)),
    "normalized": Formula(
        "(x - tf.reduce_mean(x, 1, keepdims=True))"
        " * tf.math.rsqrt(tf.math.reduce_variance(x, 1, keepdims=True) + 1e-3) @ w",
        (tuple(range(8)), (1e9, *range(7)), (1e15,) * 8),
        shape=(8,),
    ),
    "network": Formula(
        "tf.nn.relu(tf.nn.relu(x @ w - 1.0) @ w) @ w",
        (tuple(range(8)), (1e9, *range(7)), (-1e30,) * 8),
        shape=(8,),
    ),
    "probability": Formula("tf.sigmoid(x[:, None] * w[0])", (0.0, 90.0, -1e9, 1e15)),
    "attention": Formula("tf.nn.softmax(x @ w) @ w", ((1e5, *range(7)), (1e12,) * 8), shape=(8,)),
    "scale": Formula("tf.nn.softplus(x[:, None] * w[2])", (0.0, 130.0, -25000.0, 3e12)),
    "odds": Formula("tf.sigmoid((x * x * x)[:, None] * w[0])", (0.5, -1.0, 2e9, -4e12)),
    "quantized": Formula(
        "tf.nn.relu(x @ v - 1.0) @ v",
        ((0.1,) * 64, (1e9,) * 64),
        shape=(64,),
        more=QUANTIZED,
    ),
    "quantized_wave": Formula(
        "tf.sin(x[:, :1] * w[0]) @ w @ v[:8]",
        ((0.1,) * 64, (1.7e9,) * 64),
        "Sin",
        shape=(64,),
        more=QUANTIZED,
    ),
}
"""Each is a tower with an input of its own."""


@dataclass(frozen=True)
class Project:
    """The exported model of all formulas.

    Attributes:
      model: Its file and its recipe.
      network: The model itself, with its weights.
      notes: The notes of the export.
    """

    model: WrittenModel
    network: Any
    notes: tuple[str, ...]

    def tower(self, name: str) -> Tower:
        return read_manifest(self.model.folder / "bundles" / "random" / "1").towers[name]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    tf = load_tensorflow()
    lines = [
        re.sub(r"\bx\b", f"inputs[{name!r}]", f'            "{name}": {formula.code},')
        for name, formula in FORMULAS.items()
    ]
    folder = tmp_path_factory.mktemp("hostile")
    model = write_model(folder, MODEL.format(formulas="\n".join(lines)))
    network = model.names["build"]()
    weights = np.random.default_rng(4).normal(0, 0.7, (8, 8)).astype(np.float32)
    network.wide.assign(np.random.default_rng(5).normal(0, 0.15, (64, 64)).astype(np.float32))
    weights[0] = [6.2831855 / 86400, 6.2831855 / 604800, 0.3, 1.1, 0.01, 1e-3, 2.0, 0.5]
    network.weights.assign(weights)
    tf.train.Checkpoint(model=network).write(str(folder / "checkpoint" / "model"))
    inputs = {
        name: {"dtype": formula.dtype, "shape": list(formula.shape)}
        for name, formula in FORMULAS.items()
    }
    towers = {
        name: {"role": "query", "outputs": {"vector": name}, **formula.more}
        for name, formula in FORMULAS.items()
    }
    ranking = {"role": "ranking", "outputs": {"score": "score"}}
    model.write_recipe(
        checkpoint=OF_TENSORFLOW,
        inputs={**inputs, "user": {"dtype": "float32", "shape": [64]}, "age": {"dtype": "float32"}},
        features={"age": {"role": "candidate"}},
        towers={**towers, "ranking": ranking},
    )
    return Project(model, network, tuple(model.export().notes))


@pytest.mark.parametrize("name", FORMULAS)
def test_tower_gives_what_the_model_gives_for_hostile_numbers(name: str, project: Project) -> None:
    formula = FORMULAS[name]
    causes = [note for note in project.notes if note.startswith(f"tower {name!r} is not compiled")]
    kinds = {form.kind for form in project.tower(name).forms}
    assert ("litert" in kinds) == (not formula.cause), causes
    assert bool(causes) == bool(formula.cause)
    for cause in causes:
        assert f"{formula.cause} (model.py:" in cause

    inputs = zeros_of(len(formula.requests))
    inputs[name] = np.array(formula.requests, formula.dtype)
    expected = project.network(inputs)[name].numpy()
    served = project.model.served({name: formula.requests}, name)
    # A sum of huge numbers may be near zero: its last bits depend on the order, and so on the CPU.
    rounding = 1e-6 * float(np.abs(expected).max())
    np.testing.assert_allclose(served, expected, 2e-5, max(2e-5, rounding))


def test_parts_of_a_ranking_are_served_by_saved_models_where_one_of_them_differs(
    project: Project,
) -> None:
    tower = project.tower("ranking")
    assert [part.name for part in tower.parts] == ["context", "candidate"]
    forms = [*tower.forms, *(form for part in tower.parts for form in part.forms)]
    assert {form.kind for form in forms} == {"saved_model"}
    assert any(note.startswith("tower 'ranking' is not compiled") for note in project.notes)

    inputs = zeros_of(3)
    user = np.linspace(0, 1, 64, dtype=np.float32)
    inputs["user"] = np.tile(user, (3, 1))
    inputs["age"] = np.array([0, 1.7e9, -3e12], np.float32)
    candidates = {
        "context": {"user": user.tolist()},
        "candidate_features": {"age": inputs["age"].tolist()},
    }
    body = {"tower": "ranking", "requests": [candidates]}
    (result,) = response_to(project.model.folder / "bundles", "rank", body)["results"]
    expected = project.network(inputs)["score"].numpy()
    np.testing.assert_allclose(result["scores"], expected, 1e-4, 1e-4)


def zeros_of(n: int) -> dict[str, NDArray[Any]]:
    """Returns n examples of zeros of all inputs of the model."""
    inputs: dict[str, NDArray[Any]] = {
        name: np.zeros((n, *formula.shape), formula.dtype) for name, formula in FORMULAS.items()
    }
    return inputs | {"user": np.zeros((n, 64), np.float32), "age": np.zeros(n, np.float32)}
