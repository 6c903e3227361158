"""Functions that share parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.errors import NotConvertible, UsageError
from export.front_end.calls import Call
from export.graphs.loading import load_tensorflow, tf
from export.jax_models.functions import Calls, JaxFunctions, build_functions, path_of
from export.recipe.schema import ExportJob
from export.tensorflow_models.model.tracing import trace_towers
from tests.units.export.traced_models import recipe

jax = pytest.importorskip("jax")

load_tensorflow()
LARGE = """
import jax
import jax.numpy as jnp


def rank(parameters, inputs):
    return jnp.take(parameters["users"], inputs["user"], axis=0) @ parameters["kernel"]


def build():
    shapes = {"users": (2_000_000_000, 256), "kernel": (256, 1)}
    shapes = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    return shapes, {"rank": rank}
"""


def test_path_of_a_parameter_lacks_the_value_that_nnx_adds_at_its_end() -> None:
    tree = {
        "kernel": {"value": 0},
        "layers": [{"bias": {"value": 1}}, 2],
        "value": 3,
        "wrapped": {"value": {"scale": 4}},
        "twice": {"value": {"value": 5}},
    }
    leaves, _ = jax.tree.flatten_with_path(tree)
    assert {value: path_of(path) for path, value in leaves} == {
        0: "kernel",
        1: "layers/0/bias",
        2: "layers/1",
        3: "value",
        4: "wrapped/value/scale",
        5: "twice/value",
    }


def test_table_of_two_terabytes_is_cut_out_and_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(LARGE)
    job = ExportJob.model_validate(
        {
            "model": "large",
            "checkpoint": {"path": "checkpoint"},
            "code": {"factory": "model.py:build"},
            "output": {"root": "bundles"},
            "inputs": {"user": {"dtype": "int32"}},
            "towers": {"rank": {"role": "ranking", "call": "rank"}},
            "features": {"user": {"role": "candidate"}},
        }
    )
    traced = trace_towers(job, tmp_path, build=lambda job, base: Calls(build_functions(job, base)))
    (table,) = traced.spec.tables.values()
    assert (table.rows, table.dim) == (2 * 10**9, 256)
    (tower,) = traced.towers
    assert [variable.shape.as_list() for variable in tower.variables] == [[256, 1]]


MODEL = """
import jax
import jax.numpy as jnp


def score(parameters, inputs):
    return inputs["x"] @ parameters["w"] + parameters["b"]


def total(parameters, inputs):
    return {"total": score(parameters, inputs).sum(1), "ids": inputs["id"] + 1}


def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


SHAPES = {"w": shape(2, 3), "b": shape(3)}
KEYS = {**SHAPES, "dropout": jax.eval_shape(lambda: jax.random.key(0))}
TABLE = {"name": "users", "vocabulary_size": 9, "embedding_dim": 2, "combiner": "sum"}
SPECS = {"user": {"table_spec": TABLE}}


def of_user(parameters, inputs):
    return inputs["user"] @ parameters["w"]


def build():
    return RETURNED
"""


def functions_of(
    folder: Path, returned: str, call: str = "score", inputs: dict[str, Any] | None = None
) -> JaxFunctions:
    """Reads a model file whose factory returns an expression."""
    (folder / "model.py").write_text(MODEL.replace("RETURNED", returned))
    towers = {"rank": {"role": "ranking", "call": call}}
    return build_functions(recipe("model.py:build", inputs or {}, towers), folder)


def rejected(folder: Path, returned: str, call: str = "score") -> str:
    with pytest.raises((NotConvertible, UsageError)) as caught:
        functions_of(folder, returned, call)
    return str(caught.value)


SCORE = "{'score': score}"


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ("SHAPES", "returned a dict, and the checkpoint is Orbax's"),
        ("(SHAPES,)", "returned a tuple, and the checkpoint is Orbax's"),
        (f"(SHAPES, {SCORE}, SPECS, 4)", "returned a tuple, and the checkpoint is Orbax's"),
        (f"[SHAPES, {SCORE}]", "returned a list, and the checkpoint is Orbax's"),
        ("(SHAPES, [score])", "returned a list as its functions"),
        ("(SHAPES, {'score': score, 'w': 3})", "returned a dict as its functions"),
        (f"({{'w': 1.0}}, {SCORE})", "returned a float among the parameters, which takes memory"),
        (f"({{}}, {SCORE})", "returned no parameters"),
        (
            "(SHAPES, {'a': score, 'b': total})",
            "towers.rank.call is 'score'; factory model.py:build returned the functions 'a', 'b'",
        ),
        (
            "(SHAPES, {'total': total})",
            "towers.rank.call is 'score'; factory model.py:build returned the functions 'total'",
        ),
        (f"(SHAPES, {SCORE}, {{}})", "returned no feature specification"),
    ],
)
def test_other_results_of_a_factory_are_rejected(
    returned: str, reason: str, tmp_path: Path
) -> None:
    assert reason in rejected(tmp_path, returned)


@pytest.mark.parametrize("returned", ["score", SCORE])
def test_tower_without_a_call_runs_the_only_function(returned: str, tmp_path: Path) -> None:
    model = functions_of(tmp_path, f"(SHAPES, {returned})", call="")
    assert callable(model.functions[""])
    assert model.specs is None
    assert list(model.leaves) == ["b", "w"]


def test_keys_of_random_numbers_have_no_variable(tmp_path: Path) -> None:
    model = functions_of(tmp_path, f"(KEYS, {SCORE})")
    assert list(model.leaves) == ["b", "dropout", "w"]
    assert list(model.variables) == ["b", "w"]
    assert model.variables["w"].shape.as_list() == [2, 3]
    assert model.variables["w"].trainable


def test_calls_are_the_functions_by_their_names_and_nothing_else(tmp_path: Path) -> None:
    model = functions_of(tmp_path, "(KEYS, {'score': score, 'total': total})")
    calls = Calls(model)
    with pytest.raises(AttributeError, match="other"):
        _ = calls.other
    model.variables["w"].assign(np.arange(6, dtype=np.float32).reshape(2, 3))
    model.variables["b"].assign([1.0, 2.0, 3.0])
    inputs = {"x": tf.constant([[1.0, 2.0], [0.0, 0.0]]), "id": tf.constant([4, 5])}
    score = calls.score.with_call(Call("score", ("x", "id")))
    assert score(inputs).numpy().tolist() == [[7, 11, 15], [1, 2, 3]]
    outputs = calls.with_call(Call("total", ("x", "id")))(inputs)
    assert outputs["total"].numpy().tolist() == [33, 6]
    assert outputs["ids"].numpy().tolist() == [5, 6]


@pytest.mark.parametrize(("is_ordered", "expected"), [(False, [[2, 1]]), (True, [[1, 2]])])
def test_dict_among_arguments_is_passed_on_in_the_order_of_its_keys_or_of_the_recipe(
    is_ordered: bool, expected: list[list[int]], tmp_path: Path
) -> None:
    """As in training: Flax numbers layers by the order in which a dict of features is read."""
    order = "lambda parameters, features: jnp.stack([*features.values()], 1)"
    model = functions_of(tmp_path, f"(SHAPES, {order})", call="")
    call = Call("", ("x", "y"), ({"b": "x", "a": "y"},), is_ordered=is_ordered)
    result = Calls(model).with_call(call)({"x": tf.constant([1.0]), "y": tf.constant([2.0])})
    assert result.numpy().tolist() == expected


def test_call_of_the_only_function_is_that_of_the_model(tmp_path: Path) -> None:
    model = functions_of(tmp_path, "(SHAPES, score)", call="")
    model.variables["w"].assign(tf.ones([2, 3]))
    model.variables["b"].assign(tf.zeros([3]))
    result = Calls(model).with_call(Call("", ("x",)))({"x": tf.constant([[1.0, 2.0]])})
    assert result.numpy().tolist() == [[3, 3, 3]]


def test_input_that_is_no_array_is_rejected(tmp_path: Path) -> None:
    ragged = tf.ragged.constant([[1.0], []])
    call = Call("score", ("x",))
    calls = Calls(functions_of(tmp_path, f"(SHAPES, {SCORE})"))
    with pytest.raises(NotConvertible) as caught:
        calls.with_call(call)({"x": ragged})
    assert str(caught.value).startswith("input 'x' is RaggedTensor, and a function of JAX takes")
    assert str(caught.value).endswith(
        "let the factory return its specification among feature_specs"
    )
    specified = Calls(functions_of(tmp_path, "(SHAPES, {'score': of_user}, SPECS)"))
    with pytest.raises(NotConvertible, match=r"among feature_specs \(it has user\)$"):
        specified.with_call(call)({"x": ragged})


def test_activation_that_a_call_is_not_given_is_named(tmp_path: Path) -> None:
    calls = Calls(functions_of(tmp_path, "(SHAPES, {'score': of_user}, SPECS)"))
    with pytest.raises(NotConvertible) as caught:
        calls.with_call(Call("score", ("x",)))({"x": tf.constant([[1.0, 2.0]])})
    assert "feature_specs describe: add an input named user to the tower" in str(caught.value)
    plain = Calls(functions_of(tmp_path, f"(SHAPES, {SCORE})"))
    with pytest.raises(NotConvertible) as caught:
        plain.with_call(Call("score", ("y",)))({"y": tf.constant([[1.0, 2.0]])})
    assert "no activation" not in str(caught.value)
