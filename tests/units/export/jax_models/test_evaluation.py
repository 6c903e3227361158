"""What the evaluator rejects, and what it leaves to JAX."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from export.errors import NotConvertible
from export.graphs.loading import tf
from export.jax_models.equations import Equation
from export.jax_models.evaluation import OPERATIONS, Evaluator
from export.jax_models.primitives import Parameters
from export.jax_models.values import Value
from tests.units.export.jax_models.evaluated import DTYPES, check_same, evaluated, graph_of

jax = pytest.importorskip("jax")
jnp = jax.numpy
lax = jax.lax

from tests.units.export.jax_models.operations import (  # noqa: E402 they need JAX
    test_control_flow,
    test_elementwise,
    test_gathers,
    test_products,
    test_reductions,
    test_shapes,
)

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def in_shards(x: Any) -> Any:
    mesh = jax.sharding.AbstractMesh((2,), ("devices",))
    whole = jax.sharding.PartitionSpec()
    mapped = functools.partial(jax.shard_map, mesh=mesh, in_specs=whole, out_specs=whole)
    return mapped(lambda part: part + 1)(x)


def with_kernel(x: Any) -> Any:
    from jax.experimental import pallas

    def kernel(source: Any, target: Any) -> None:
        target[...] = source[...] + 1

    shape = jax.ShapeDtypeStruct((4,), jnp.float32)
    return x + pallas.pallas_call(kernel, out_shape=shape, interpret=True)(jnp.ones(4))


def called_back(x: Any) -> Any:
    return jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct((4,), jnp.float32), x[0])


def called_back_in_order(x: Any) -> Any:
    from jax.experimental import io_callback

    shape = jax.ShapeDtypeStruct((4,), jnp.float32)
    return io_callback(lambda y: y, shape, x[0])


def summed_over_devices(x: Any) -> Any:
    return jax.vmap(lambda row: lax.psum(row, "devices"), axis_name="devices")(x)


def called_in_a_library(x: Any) -> Any:
    shape = jax.ShapeDtypeStruct((4,), jnp.float32)
    return jax.ffi.ffi_call("own_kernel", shape)(x[0])


REJECTED = {
    "fft": (lambda x: jnp.fft.fft(x).real, "before the model"),
    "shard_map": (in_shards, "without jax.shard_map"),
    "psum": (summed_over_devices, "without jax.shard_map"),
    "pallas_call": (with_kernel, "plain computation"),
    "ffi_call": (called_in_a_library, "plain computation"),
    "pure_callback": (called_back, "remove it for inference"),
    "io_callback": (called_back_in_order, "remove it for inference"),
    "random_bits": (
        lambda x: x * jax.random.bernoulli(jax.random.key(0), 0.5, (4,)),
        "deterministic=True",
    ),
    "cummax": (lambda x: lax.cummax(x, axis=1), "other functions of JAX"),
}


@pytest.mark.parametrize("primitive", REJECTED)
def test_operation_without_counterpart_names_the_line_and_a_remedy(primitive: str) -> None:
    function, remedy = REJECTED[primitive]
    with pytest.raises(NotConvertible) as caught:
        evaluated(function, VALUES)
    message = str(caught.value)
    assert message.startswith(f"JAX operation {primitive} (test_evaluation.py:")
    assert remedy in message


def test_size_that_is_no_sum_of_batches_is_rejected_with_its_line() -> None:
    with pytest.raises(NotConvertible, match=r"\(test_evaluation\.py:\d+\): TensorFlow rejects it"):
        evaluated(lambda x: x[::2] * 2, VALUES)


def test_random_numbers_without_effect_are_left_out() -> None:
    def function(x: Any) -> Any:
        jax.random.normal(jax.random.key(0), (4,))
        return x + 1

    check_same(function, VALUES)


def test_masks_are_computed_once() -> None:
    def masked(x: Any) -> Any:
        causal = jnp.tril(jnp.ones((4, 4)))
        return x @ causal

    check_same(masked, VALUES)


def attention(x: Any) -> Any:
    states = x[..., None] * jnp.arange(1.0, 4.0)
    mask = (x > 2)[:, None, None, :]
    heads = states[:, :, None, :]
    return jax.nn.dot_product_attention(heads, heads, heads, mask=mask)


def test_attention_with_a_mask() -> None:
    check_same(attention, VALUES)


@jax.jit  # type: ignore[untyped-decorator]
def remainder(ids: Any, count: int) -> Any:
    return jnp.where(ids < 0, 0, ids % count)


@jax.jit  # type: ignore[untyped-decorator]
def floor_divide(ids: Any, size: int) -> Any:
    return jnp.maximum(ids, 0) // size + 1


def test_users_function_with_the_name_of_one_of_jax_is_evaluated_as_it_is() -> None:
    ids = np.array([[-4, -1], [0, 5], [7, 8]], np.int32)
    (actual,) = evaluated(lambda x: remainder(x, 7), ids)
    np.testing.assert_array_equal(actual, [[0, 0], [0, 5], [0, 1]])
    (actual,) = evaluated(lambda x: floor_divide(x, 4), ids)
    np.testing.assert_array_equal(actual, [[1, 1], [1, 2], [2, 3]])


def test_remainder_and_quotient_of_integers_are_one_operation_each() -> None:
    """Rules of ids are found by them."""
    ids = np.array([[-4, -1], [0, 5], [7, 8]], np.int32)
    function = graph_of(lambda x: [x % 7, jax.vmap(lambda row: row // 4)(x)], ids)
    types = [
        operation.type for operation in function.get_concrete_function().graph.get_operations()
    ]
    assert {"FloorMod", "FloorDiv"} <= set(types)
    assert not {"Select", "SelectV2", "TruncateMod", "TruncateDiv"} & set(types)


WITHOUT_FLOATS = {
    "and",
    "dim_as_value",
    "not",
    "or",
    "reduce_and",
    "reduce_or",
    "shift_left",
    "shift_right_arithmetic",
    "xor",
}
"""Primitives of integers and booleans alone."""


def compared_with_jax(dtype: str) -> list[tuple[list[Callable[..., Any]], list[Any]]]:
    """Returns the functions that the tests of operations compare with JAX, and arrays for them."""
    whole = np.arange(1, 25, dtype=np.int32).reshape(2, 3, 4)
    floats = whole.astype(dtype)
    rows = floats[:, 0]
    ids = whole[:, 0]
    kernel = np.ones((3, 4, 5)).astype(dtype)
    convolved = functools.partial(test_products.convolved, kernel=kernel)
    product = functools.partial(jnp.einsum, next(iter(test_products.OF_BATCHES)))
    return [
        ([*test_elementwise.OF_ANY_NUMBER.values()], [floats]),
        ([*test_elementwise.OF_POSITIVE.values()], [floats]),
        ([*test_elementwise.OF_FRACTIONS.values()], [floats]),
        ([*test_elementwise.OF_TWO.values()], [floats, floats]),
        ([*test_elementwise.OF_INTEGERS.values()], [whole, whole]),
        ([*test_shapes.FUNCTIONS.values()], [floats]),
        ([*test_reductions.FUNCTIONS.values()], [floats]),
        ([*test_gathers.BY_IDS.values()], [ids]),
        ([*test_gathers.OF_VALUES.values()], [rows, ids]),
        ([*test_gathers.OF_CONSTANTS.values()], [rows]),
        ([*test_control_flow.FUNCTIONS.values()], [rows]),
        ([convolved], [floats]),
        ([product], [floats, floats]),
    ]


def check_renamed_parameters(
    handler: Callable[..., Any], equation: Equation, arguments: Sequence[Any]
) -> None:
    """Checks that a release of JAX that renames a parameter is rejected, or makes no difference."""
    for name in equation.params:
        renamed = dict(equation.params)
        renamed[f"{name}_2"] = renamed.pop(name)
        params = Parameters(equation.primitive, renamed, equation.line)
        try:
            handler(dataclasses.replace(equation, params=params), *arguments)
        except NotConvertible as problem:
            message = (
                rf"^JAX operation {equation.primitive} .*: it has no parameter '\w+' in JAX \d"
            )
            assert re.search(message, str(problem))  # noqa: PT017 not every handler reads it


def test_parameter_that_only_a_newer_release_has_is_rejected_by_name() -> None:
    closed = jax.make_jaxpr(lambda x: x.sum(axis=1))(VALUES)
    (eqn,) = closed.eqns
    newer = eqn.replace(params={**eqn.params, "out_of": "pairs", "scale": None})
    evaluator = Evaluator({})
    expected = (
        r"^JAX operation reduce_sum \(test_evaluation\.py:\d+\): its parameter 'out_of', pairs, "
    )
    with pytest.raises(NotConvertible, match=rf"{expected}is not known in JAX .*supports jax"):
        evaluator.results(
            closed.replace(jaxpr=closed.jaxpr.replace(eqns=[newer])),
            [Value(VALUES.shape, tf.constant(VALUES))],
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_primitive_is_compared_with_jax(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of operations says so. Primitives that JAX folds do not count."""
    compared = set()

    def noted(name: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        def handle(equation: Any, *arguments: Any) -> Any:
            dtypes = {
                argument.tensor.dtype.name for argument in arguments if argument.constant is None
            }
            dtypes |= {result_type.name for result_type in equation.dtypes}
            if name in WITHOUT_FLOATS or dtype in dtypes:
                compared.add(name)
            check_renamed_parameters(handler, equation, arguments)
            return handler(equation, *arguments)

        return handle

    for name, handler in OPERATIONS.items():
        monkeypatch.setitem(OPERATIONS, name, noted(name, handler))
    for functions, arrays in compared_with_jax(dtype):
        for function in functions:
            graph_of(function, *arrays).get_concrete_function()
    assert OPERATIONS.keys() - compared == set()


def test_residual_layers_of_any_depth_are_evaluated() -> None:
    def layers(x: Any) -> Any:
        for _ in range(500):
            x = x + jax.nn.relu(x) * jnp.sum(x, axis=1, keepdims=True)
        return x

    graph_of(layers, VALUES).get_concrete_function()
