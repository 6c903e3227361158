"""What is rejected while a function is traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from export.errors import NotConvertible
from export.jax_models.tracing import trace
from tests.units.export.jax_models.evaluated import evaluated

jax = pytest.importorskip("jax")
tf = pytest.importorskip("tensorflow")
jnp = jax.numpy


def traced(
    function: Any, shape: list[Any], dtype: Any = tf.float32, rows: int = 10, dim: int = 4
) -> Any:
    parameters = {"table": jax.ShapeDtypeStruct((rows, dim), jnp.float32)}
    return trace(function, parameters, {"x": tf.TensorSpec(shape, dtype)}, "the call")


def test_batch_that_the_code_divides_is_rejected() -> None:
    with pytest.raises(NotConvertible, match=r"test_tracing\.py:\d+\).*let sizes come from the"):
        traced(lambda p, inputs: inputs["x"].reshape(32, -1), [None, 2])


def test_batch_that_the_code_fixes_is_rejected() -> None:
    with pytest.raises(NotConvertible, match=r"reshape \(test_tracing\.py:\d+\).*x\.shape\[0\]"):
        evaluated(lambda x: x.reshape(2, 4), np.ones((4, 2), np.float32))


def test_python_branch_on_values_is_rejected() -> None:
    with pytest.raises(NotConvertible, match=r"use jnp\.where or jax\.lax\.cond"):
        traced(lambda p, inputs: 1 if inputs["x"].sum() > 0 else 2, [None, 2])


def test_input_that_is_missing_is_named() -> None:
    with pytest.raises(NotConvertible, match=r"KeyError.*'y'.*the recipe declares"):
        traced(lambda p, inputs: inputs["y"], [None])


def test_ids_of_64_bits_are_rejected_without_x64() -> None:
    with pytest.raises(NotConvertible, match=r"'x' is int64.*int32 as inputs\.x\.dtype.*x64"):
        traced(lambda p, inputs: inputs["x"], [None], tf.int64)


def test_text_is_rejected() -> None:
    with pytest.raises(NotConvertible, match=r"'x' is text"):
        traced(lambda p, inputs: inputs["x"], [None], tf.string)


def test_table_beyond_32_bits_needs_x64() -> None:
    with pytest.raises(NotConvertible, match=r"OverflowError.*jax_enable_x64"):
        traced(lambda p, inputs: p["table"][inputs["x"]], [None], tf.int32, rows=5 * 10**9)


def test_table_of_two_terabytes_is_traced() -> None:
    def function(parameters: Any, inputs: Any) -> Any:
        return parameters["table"][inputs["x"]]

    traced_function = traced(function, [None], tf.int32, rows=2 * 10**9, dim=256)
    assert traced_function.jaxpr.in_avals[0].size * 4 > 2e12
    assert traced_function.jaxpr.out_avals[0].shape[1:] == (256,)


def test_wide_ids_are_kept_with_x64() -> None:
    with jax.enable_x64(True):
        (actual,) = evaluated(lambda x: x + 1, np.array([2**40], np.int64))
    assert actual.tolist() == [2**40 + 1]


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: np.asarray(x), "TracerArrayConversionError"),  # noqa: PLW0108 as users write it
        (lambda x: float(x[0, 0]), "ConcretizationTypeError"),
        (lambda x: x if x[0, 0] > 0 else -x, "TracerBoolConversionError"),
        (lambda x: [x, -x][x[0, 0].astype(int)], "TracerIntegerConversionError"),
    ],
)
def test_code_that_needs_values_is_rejected_with_a_remedy(function: Any, kind: str) -> None:
    with pytest.raises(NotConvertible) as caught:
        traced(lambda p, inputs: function(inputs["x"]), [None, 2])
    message = str(caught.value)
    assert message.startswith(f"the call raised {kind} (test_tracing.py:")
    assert message.endswith("; a function is traced without values: use jnp.where or jax.lax.cond")


def test_other_error_is_told_without_a_remedy_and_cut() -> None:
    def failing(_parameters: Any, _inputs: Any) -> Any:
        raise ValueError("no such  thing " * 99)

    with pytest.raises(NotConvertible) as caught:
        traced(failing, [None, 2])
    before, _, reason = str(caught.value).partition("): ")
    assert before.startswith("the call raised ValueError (test_tracing.py:")
    assert reason == ("no such thing " * 99)[:300]


@pytest.mark.parametrize(
    ("dtype", "narrow"), [(tf.int64, "int32"), (tf.float64, "float32"), (tf.uint64, "uint32")]
)
def test_input_of_64_bits_is_rejected_with_the_narrow_dtype(dtype: Any, narrow: str) -> None:
    message = f"write {narrow} as inputs.x.dtype, or begin the model file"
    with pytest.raises(NotConvertible, match=message):
        traced(lambda p, inputs: inputs["x"], [None], dtype)
    with jax.enable_x64(True):
        assert traced(lambda p, inputs: inputs["x"], [None], dtype).jaxpr.in_avals


def test_trace_takes_the_batch_and_sizes_of_each_input() -> None:
    traced_function = traced(lambda p, inputs: {"y": inputs["x"] @ p["table"].T}, [None, 4])
    (table, x) = traced_function.jaxpr.in_avals
    assert table.shape == (10, 4)
    assert str(x.shape) == "(b, 4)"
    assert str(traced_function.jaxpr.out_avals[0].shape) == "(b, 10)"
    assert jax.tree.unflatten(traced_function.structure, [7]) == {"y": 7}
