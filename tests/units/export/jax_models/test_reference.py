"""The original model as JAX runs it, over rows that are read when it needs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bundle.features.columns import Column
from export.checkpoint.reader import open_checkpoint
from export.front_end.calls import Call
from export.front_end.interface import ReferenceInputs
from export.front_end.specs import ModelSpec, TableFacts, TowerSpec
from export.jax_models.functions import build_functions
from export.jax_models.parameters import StoredParameters
from export.jax_models.reference import JaxReference
from tests.units.export.checkpoint.orbax_trees import write_item
from tests.units.export.traced_models import recipe

pytest.importorskip("jax")
MODEL = """
import jax
import jax.numpy as jnp

def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


SHAPES = {
    "users": shape(1_000_000_000, 2),
    "w": shape(2),
    "unread": shape(3),
    "lost": shape(4),
    "dropout": jax.eval_shape(lambda: jax.random.key(0)),
}


def score(parameters, inputs):
    rows = parameters["users"].at[inputs["user"]].get(mode="clip")
    return {
        "score": rows @ parameters["w"] + inputs["age"],
        "rows": rows,
        # Only training needs a score of each row.
        "logits": rows @ parameters["users"].T,
        "hot": jax.nn.one_hot(inputs["user"], 1_000_000_000) @ parameters["users"],
    }


def looped(parameters, inputs):
    liked = inputs["liked"]

    def add(total, ids):
        total = 2 * total + parameters["users"].at[ids].get(mode="clip")
        return total, total[:, 0]

    zeros = jnp.zeros((liked.shape[0], 2))
    last, every = jax.lax.scan(add, zeros, liked.T, reverse=True)
    _, counted = jax.lax.while_loop(
        lambda state: state[0] < 2,
        lambda state: (state[0] + 1, add(state[1], liked[:, state[0]])[0]),
        (0, zeros),
    )
    chosen = jax.lax.cond(
        liked.sum() > 0, lambda: add(zeros, liked[:, 1])[0], lambda: add(zeros, liked[:, 0])[0]
    )
    return {"last": last, "every": every.T, "counted": counted, "chosen": chosen}


def build():
    functions = (score, looped)
    return SHAPES, {function.__name__: function for function in functions}
"""
INPUTS = {
    "user": {"dtype": "int32"},
    "liked": {"dtype": "int32", "shape": [2]},
    "age": {"dtype": "float32"},
}
ROWS = 1_000_000_000


def tower(call: str, *inputs: str, **paths: tuple[str | int, ...]) -> TowerSpec:
    return TowerSpec(
        name=call,
        role="query",
        call=Call(call, inputs),
        paths=paths,
        inputs=(),
        outputs=(),
        result=next(iter(paths)),
    )


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> JaxReference:
    folder = tmp_path_factory.mktemp("reference")
    (folder / "model.py").write_text(MODEL)
    weights = {"params.w": np.array([1, 10], np.float32), "params.unread": np.zeros(3, np.float32)}
    write_item(folder / "checkpoint", weights)
    towers = {"tower": {"role": "query", "call": "score"}}
    job = recipe("model.py:build", INPUTS, towers)
    stored = StoredParameters(
        build_functions(job, folder), open_checkpoint(folder / "checkpoint"), ""
    )
    whole = ModelSpec({"users_table": TableFacts("users_table", "users", ROWS, 2)}, {}, {})
    return JaxReference(job, folder, stored, whole)


def given() -> tuple[ReferenceInputs, list[list[int]]]:
    """Returns three examples, and the rows that are read for them."""
    read: list[list[int]] = []

    def read_rows(table: str, rows: Any) -> Any:
        assert table == "users_table"
        read.append(rows.tolist())
        # Stored wider than the table.
        return np.stack([rows % 7, -rows % 5, rows * 0 + 9], 1).astype(np.float64)

    columns = {
        "user": Column(np.array([3, 999_999_999, 3])),
        "liked": Column(np.array([1, 2, 3, 4, 5, 6])),
        "age": Column(np.array([0.5, 0.25, 0.0], np.float32)),
    }
    return ReferenceInputs(3, columns, {}, read_rows), read


def run(reference: JaxReference, *towers: TowerSpec) -> tuple[dict[str, Any], list[list[int]]]:
    inputs, read = given()
    model = ModelSpec({}, {}, {spec.name: spec for spec in towers})
    results = reference.run(model, inputs).results
    return {
        name: {output: value.tolist() for output, value in outputs.items()}
        for name, outputs in results.items()
    }, read


def test_rows_are_read_as_the_model_asks_for_them(reference: JaxReference) -> None:
    results, read = run(reference, tower("score", "user", "age", out=("score",), vector=("rows",)))
    last = 999_999_999
    rows = [[3, 2], [last % 7, -last % 5], [3, 2]]
    assert results == {
        "score": {
            "out": [a + 10 * b + age for (a, b), age in zip(rows, (0.5, 0.25, 0), strict=True)],
            "vector": rows,
        }
    }
    assert read == [[3, last]]


def test_lookups_inside_of_loops_and_branches_are_read_in_each_step(
    reference: JaxReference,
) -> None:
    paths = {name: (name,) for name in ("last", "every", "counted", "chosen")}
    results, _ = run(reference, tower("looped", "liked", **paths))
    ids = np.array([[1, 2], [3, 4], [5, 6]])
    first, second = np.stack([ids % 7, -ids % 5], 2).swapaxes(0, 1)
    last = 2 * second + first
    assert results["looped"] == {
        "last": last.tolist(),
        "every": np.stack([last[:, 0], second[:, 0]], 1).tolist(),
        "counted": (2 * first + second).tolist(),
        "chosen": second.tolist(),
    }


def test_error_of_the_exporter_is_not_blamed_on_the_examples(reference: JaxReference) -> None:
    """A table that such a tower reads stays inside of it: one that has left is a bug."""
    with pytest.raises(AssertionError, match="stays inside the towers"):
        run(reference, tower("score", "user", "age", out=("logits",)))
