"""Gathers and scatters against JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from export.errors import NotConvertible
from export.front_end.outside_ids import OutsideIds
from export.graphs.loading import tf
from export.jax_models.evaluation import Evaluator
from export.jax_models.tracing import BATCH, trace
from export.jax_models.values import Parameter, Value
from export.tensorflow_models.frameworks.hooks import Hooks
from export.tensorflow_models.frameworks.named_graphs import without_memory
from export.tensorflow_models.frameworks.placeholders import redirect_gathers
from export.tensorflow_models.lookups.gathered_rows import read_rows
from tests.units.export.jax_models.evaluated import (
    DTYPES,
    EXAMPLES,
    check_all,
    check_same,
    evaluated,
)

jax = pytest.importorskip("jax")
jnp = jax.numpy

TABLE = np.random.default_rng(0).normal(0, 1, (6, 3)).astype(np.float32)

BY_IDS: dict[str, Callable[[Any], Any]] = {
    "jnp.take": lambda ids: jnp.take(jnp.asarray(TABLE), ids, axis=0),
    "jnp.take, clipped": lambda ids: jnp.take(jnp.asarray(TABLE), ids, axis=0, mode="clip"),
    "jnp.take, wrapped": lambda ids: jnp.take(jnp.asarray(TABLE), ids, axis=0, mode="wrap"),
    "jnp.take of columns": lambda ids: jnp.take(jnp.asarray(TABLE.T), ids, axis=1),
    "indexing": lambda ids: jnp.asarray(TABLE)[ids],
    "indexing integers": lambda ids: jnp.arange(6)[ids],
    "indexing columns": lambda ids: jnp.asarray(TABLE)[:, ids % 3],
    "indexing rows and columns": lambda ids: jnp.asarray(TABLE)[ids, ids % 3],
    "filled with zeros": lambda ids: jnp.asarray(TABLE).at[ids].get(mode="fill", fill_value=0),
    "segment_sum": lambda ids: jax.ops.segment_sum(ids * 1.0, ids[:, 0], num_segments=5),
    "segment_sum of bfloat16": lambda ids: jax.ops.segment_sum(
        ids.astype(jnp.bfloat16), ids[:, 0], num_segments=5
    ),
    "jnp.take of bfloat16": lambda ids: jnp.take(jnp.asarray(TABLE, jnp.bfloat16), ids, axis=0),
    "add rows": lambda ids: jnp.zeros((6, 2)).at[ids[:, 0]].add(1.0),
    "vmap of indexing": jax.vmap(lambda i: jnp.asarray(TABLE)[i]),
    "vmap of a slice": jax.vmap(
        lambda i: jax.lax.dynamic_slice(jnp.asarray(TABLE), (i[0], i[1]), (1, 3))
    ),
    "vmap of a slice of one column": jax.vmap(
        lambda i: jax.lax.dynamic_slice(jnp.asarray(TABLE), (i[0], i[1]), (6, 1))
    ),
    "vmap of a slice of one number": jax.vmap(
        lambda i: jax.lax.dynamic_slice(jnp.asarray(TABLE[:, :1]), (i[0], i[1]), (1, 1))
    ),
    "one_hot": lambda ids: jax.nn.one_hot(ids, 6),
}
OF_VALUES: dict[str, Callable[[Any, Any], Any]] = {
    "take_along_axis": lambda x, ids: jnp.take_along_axis(x, ids, axis=1),
    "take_along_axis of vectors": lambda x, ids: jnp.take_along_axis(
        x[..., None], ids[..., None], axis=1
    ),
    "vmap of jnp.take": jax.vmap(jnp.take),
    "one id for each example": lambda x, ids: x[jnp.arange(x.shape[0]), ids[:, 0]],
    "constant columns at the end and outside": lambda x, ids: jnp.take(
        x, jnp.array([3, 4, -4, -5]), axis=1
    ),
    "constant columns outside, clipped": lambda x, ids: jnp.take(
        x, jnp.array([3, 4, -4, -5]), axis=1, mode="clip"
    ),
    "one id for all": lambda x, ids: x[:, ids[0, 0]],
}
OF_CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "a column": lambda x: x[:, 2],
    "the last column": lambda x: x[:, -1],
    "columns": lambda x: x[:, jnp.array([3, 0, 0])],
    "a window": lambda x: x[:, -3:-1],
    "steps": lambda x: x[:, 3::-2],
    "pairs": lambda x: (x[:, :, None] * x[:, None, :])[:, *jnp.tril_indices(4, -1)],
    "replace a column": lambda x: x.at[:, 1].set(7.0),
    "replace the last column": lambda x: x.at[:, -1].set(x[:, 0]),
    "replace rows": lambda x: jnp.zeros((4, 2)).at[jnp.array([3, 1])].set(x[:1, :2]),
    "searchsorted": lambda x: jnp.searchsorted(jnp.array([-1.0, 0.0, 1.0]), x[:, 0]),
    "roll": lambda x: jnp.roll(x, 1, axis=1),
}


def ids_of(seed: int, batch: int) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(-9, 9, (batch, 4)).astype(np.int32)


def numbers(seed: int, batch: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 1, (batch, 4)).astype(np.float32)


@EXAMPLES
@given(seed=st.integers(0, 2**16), batch=st.integers(1, 4))
def test_by_ids_inside_and_outside(seed: int, batch: int) -> None:
    check_all(BY_IDS, ids_of(seed, batch))


@pytest.mark.parametrize("dtype", DTYPES)
@EXAMPLES
@given(seed=st.integers(0, 2**16), batch=st.integers(1, 4))
def test_of_values_by_ids(dtype: str, seed: int, batch: int) -> None:
    check_all(OF_VALUES, numbers(seed, batch).astype(dtype), ids_of(seed, batch))


@pytest.mark.parametrize("dtype", DTYPES)
@EXAMPLES
@given(seed=st.integers(0, 2**16), batch=st.integers(1, 4))
def test_of_constant_places(dtype: str, seed: int, batch: int) -> None:
    check_all(OF_CONSTANTS, numbers(seed, batch).astype(dtype))


def test_replacing_rows_by_ids_that_may_be_equal_is_rejected() -> None:
    with pytest.raises(Exception, match=r"JAX operation scatter.*unique_indices=True"):
        evaluated(lambda ids: jnp.zeros((6, 2)).at[ids[:, 0]].set(1.0), ids_of(1, 3))


def test_replacing_rows_by_constant_ids_that_are_equal_is_rejected() -> None:
    with pytest.raises(Exception, match=r"JAX operation scatter.*unique_indices=True"):
        evaluated(lambda x: jnp.zeros((6, 2)).at[jnp.array([3, 3])].set(x[:1, :2]), numbers(1, 3))


def test_replacing_rows_by_constant_ids_that_clipping_makes_equal_is_rejected() -> None:
    ids = jnp.array([5, 9])
    with pytest.raises(Exception, match=r"JAX operation scatter.*unique_indices=True"):
        evaluated(lambda x: jnp.zeros((6, 4)).at[ids].set(x[:1], mode="clip"), numbers(1, 3))


def test_replacing_rows_by_different_ids() -> None:
    ids = np.array([[4], [0], [9]], np.int32)  # the last is outside
    check_same(
        lambda ids: jnp.ones((6, 2)).at[ids[:, 0]].set(5.0, unique_indices=True, mode="drop"), ids
    )


def test_changing_parts_of_rows_is_rejected() -> None:
    with pytest.raises(Exception, match=r"scatter-add.*whole rows of the first axis"):
        evaluated(lambda ids: jnp.zeros((6, 4)).at[:, ids[:, 0] % 4].add(1.0), ids_of(1, 3))


CUBE = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
EDGES = np.array([[0, 5, -1, 6], [-6, -7, 3, 2], [1, 1, 4, 9]], np.int32)
"""Ids at both ends of six rows, and outside of them."""
SHAPES_OF_GATHERS: dict[str, Callable[[Any, Any], Any]] = {
    "take of bool": lambda x, ids: jnp.take(jnp.asarray([True, False] * 3), ids),
    "take of uint8": lambda x, ids: jnp.take(jnp.arange(6, dtype=jnp.uint8), ids),
    "take of int8": lambda x, ids: jnp.take(jnp.arange(6, dtype=jnp.int8), ids),
    "take of floats": lambda x, ids: jnp.take(jnp.asarray(TABLE[:, 0]), ids),
    "take by narrow ids": lambda x, ids: jnp.asarray(TABLE)[ids.astype(jnp.int8)],
    "take of the middle axis": lambda x, ids: jnp.take(jnp.asarray(CUBE), ids, axis=1),
    "take of the last axis": lambda x, ids: jnp.take(jnp.asarray(CUBE), ids, axis=2),
    "index the middle axis": lambda x, ids: jnp.asarray(CUBE)[:, ids],
    "index two axes": lambda x, ids: jnp.asarray(CUBE)[ids % 2, ids % 3],
    "index the outer axes": lambda x, ids: jnp.asarray(CUBE)[ids % 2, :, ids % 4],
    "index the last axes": lambda x, ids: jnp.asarray(CUBE)[:, ids % 3, ids % 4],
    "index three axes": lambda x, ids: jnp.asarray(CUBE)[ids % 2, ids % 3, ids % 4],
    "index rows of one": lambda x, ids: jnp.asarray(TABLE)[ids, None],
    "take along the last axis": lambda x, ids: jnp.take_along_axis(
        x[:, None, :] * jnp.ones((1, 2, 1)), ids[:, None, :] % 4, axis=2
    ),
    "filled with a number": lambda x, ids: (
        jnp.asarray(TABLE).at[ids].get(mode="fill", fill_value=3.0)
    ),
    "clipped": lambda x, ids: jnp.asarray(TABLE).at[ids].get(mode="clip"),
    "clipped column": lambda x, ids: x.at[:, 9].get(mode="clip"),
    "the first example": lambda x, ids: x[0],
    "the last example": lambda x, ids: x[-1],
    "all examples but one": lambda x, ids: x[1:],
    "the first number": lambda x, ids: x[0, 0],
    "examples by ids": lambda x, ids: x[ids % 3],
    "examples in another order": lambda x, ids: jnp.take(x, ids[0] % 3, axis=0),
    "constant columns at the end and outside": lambda x, ids: jnp.take(
        x, jnp.array([3, 4, -4, -5]), axis=1
    ),
    "constant columns outside, clipped": lambda x, ids: jnp.take(
        x, jnp.array([3, 4, -4, -5]), axis=1, mode="clip"
    ),
    "one id for all": lambda x, ids: x[:, ids[0, 1] % 4],
    "one id for all, beyond the end": lambda x, ids: x.at[:, ids[2, 3]].get(mode="clip"),
    "filled column": lambda x, ids: x.at[:, 9].get(mode="fill", fill_value=3.0),
    "filled column ahead": lambda x, ids: x.at[:, -9].get(mode="fill"),
    "one id for all, filled": lambda x, ids: x.at[:, ids[2, 3]].get(mode="fill", fill_value=3.0),
    "one id for all, not filled": lambda x, ids: x.at[:, ids[1, 3]].get(mode="fill"),
    "the first example, filled": lambda x, ids: x.at[0].get(mode="fill"),
    "two ids for all, one filled": lambda x, ids: (
        jnp.asarray(TABLE).at[ids[0, 1], ids[0, 3]].get(mode="fill", fill_value=3.0) + x[0]
    ),
    "one id for all, promised": lambda x, ids: x.at[:, ids[2, 3]].get(mode="promise_in_bounds"),
    "two ids for all": lambda x, ids: jnp.asarray(CUBE)[ids[0, 1] % 2, :, ids[0, 2] % 4] + x[0, :3],
    "windows of columns": lambda x, ids: jnp.stack([x, -x, x + 1], 1)[:, 1:, jnp.array([0, 2])],
    "windows of two axes": lambda x, ids: jnp.asarray(CUBE)[1:, jnp.array([0, 2]), 1:3],
}
SCATTERS: dict[str, Callable[[Any, Any], Any]] = {
    "add to rows, some outside": lambda x, ids: jnp.ones((6, 4)).at[ids[:, 1]].add(x),
    "add to numbers": lambda x, ids: jnp.ones((6, 4)).at[ids[:, 1], ids[:, 2]].add(x[:, 0]),
    "add rows of two axes": lambda x, ids: jnp.ones((6, 6, 4)).at[ids[:, 1], ids[:, 2]].add(x),
    "add to a vector": lambda x, ids: jnp.ones(6).at[ids].add(x),
    "replace the first row": lambda x, ids: x.at[0].set(5.0),
    "replace the last row": lambda x, ids: x.at[-1].set(x[0]),
    "replace a column": lambda x, ids: x.at[:, 3].set(x[:, 0]),
    "replace rows in another order": lambda x, ids: (
        jnp.ones((6, 4)).at[jnp.array([5, 0, 2])].set(jnp.outer(jnp.arange(3.0), x[0]))
    ),
    "replace numbers": lambda x, ids: (
        jnp.ones((6, 4)).at[jnp.array([5, 5, 2]), jnp.array([0, 1, 3])].set(x[0, :3])
    ),
    "replace no column outside": lambda x, ids: x.at[:, 9].set(5.0),
    "replace no column ahead": lambda x, ids: x.at[:, -9].set(5.0),
    "replace a column outside, clipped": lambda x, ids: x.at[:, 9].set(5.0, mode="clip"),
    "replace no column by an id outside": lambda x, ids: x.at[:, ids[2, 3]].set(x[:, 0]),
    "replace a column by an id": lambda x, ids: x.at[:, ids[1, 3]].set(x[:, 0]),
    "replace a column by an id outside, clipped": lambda x, ids: x.at[:, ids[2, 3]].set(
        x[:, 0], mode="clip"
    ),
    "replace no example outside": lambda x, ids: x.at[ids[2, 3]].set(5.0),
    "replace a number": lambda x, ids: jnp.ones((6, 4)).at[1, 2].set(x[0, 0]),
    "replace a number from the end": lambda x, ids: jnp.ones((6, 4)).at[-1, -2].set(x[0, 0]),
    "replace no number outside": lambda x, ids: jnp.ones((6, 4)).at[1, 4].set(x[0, 0]),
    "replace a number by ids": lambda x, ids: (
        jnp.ones((6, 4)).at[ids[0, 1], ids[1, 3]].set(x[0, 0])
    ),
    "replace a row of two axes": lambda x, ids: jnp.ones((6, 6, 4)).at[1, 2].set(x[0]),
    "replace rows outside, clipped": lambda x, ids: (
        jnp.ones((6, 4)).at[jnp.array([2, 9])].set(jnp.outer(jnp.arange(2.0), x[0]), mode="clip")
    ),
    "add to a number": lambda x, ids: jnp.ones((6, 4)).at[1, 2].add(x[0, 0]),
    "add to a row": lambda x, ids: jnp.ones((6, 4)).at[1].add(x[0]),
    "add to no row outside": lambda x, ids: jnp.ones((6, 4)).at[6].add(x[0]),
    "add to rows outside, clipped": lambda x, ids: (
        jnp.ones((6, 4)).at[ids[:, 3]].add(x, mode="clip")
    ),
}


@pytest.mark.parametrize("functions", [SHAPES_OF_GATHERS, SCATTERS], ids=["gathers", "scatters"])
def test_axes_and_ends_of_arrays(functions: dict[str, Callable[..., Any]]) -> None:
    check_all(functions, np.arange(1, 13, dtype=np.float32).reshape(3, 4), EDGES)


PARTS_OF_ROWS: dict[str, Callable[[Any, Any], Any]] = {
    "the first columns": lambda x, ids: jax.vmap(
        lambda row: jax.lax.dynamic_slice(jnp.asarray(TABLE), (row, 0), (1, 2))
    )(ids[:, 0]),
    "two rows": lambda x, ids: jax.vmap(
        lambda row: jax.lax.dynamic_slice(jnp.asarray(TABLE), (row, 0), (2, 3))
    )(ids[:, 0]),
    "two numbers": lambda x, ids: jax.vmap(
        lambda row: jax.lax.dynamic_slice(jnp.asarray(TABLE[:, 0]), (row,), (2,))
    )(ids[:, 0]),
    "columns of each": lambda x, ids: jax.vmap(
        lambda row, start: jax.lax.dynamic_slice(row, (start,), (2,))
    )(x, ids[:, 0]),
}


PART_OF_ROWS = (
    r"gather.*it reads parts of rows by ids, slices of shape \(.*2.*\) of an array of shape "
    r"\(.*\); use jnp\.take"
)


@pytest.mark.parametrize("case", PARTS_OF_ROWS)
def test_reading_parts_of_rows_by_ids_is_rejected(case: str) -> None:
    with pytest.raises(Exception, match=PART_OF_ROWS):
        evaluated(PARTS_OF_ROWS[case], np.ones((3, 4), np.float32), EDGES)


def read_unwrapped(table: Any, ids: Any) -> Any:
    """Reads rows by ids that JAX does not count from the end."""
    return table.at[ids].get(mode="promise_in_bounds", wrap_negative_indices=False)


def by_hand(table: Any, ids: Any) -> Any:
    """Reads rows by ids that count from the end where they are below 0."""
    return read_unwrapped(table, jnp.where(ids < 0, ids + len(table), ids))


def by_formula(dimension_numbers: Any, slice_sizes: tuple[int, int]) -> Callable[..., Any]:
    """Returns a gather of rows in a form that no function of `jax.numpy` writes."""
    return lambda table, ids: jax.lax.gather(
        table, ids[:, :1], dimension_numbers, slice_sizes, mode="clip"
    )


OF_ROWS: dict[str, Callable[[Any, Any], Any]] = {
    "indexing": lambda table, ids: table[ids],
    "jnp.take": lambda table, ids: jnp.take(table, ids % 6, axis=0),
    "vmap of an index": lambda table, ids: jax.vmap(lambda row: table[row])(ids[:, 0]),
    "vmap of indexes": jax.vmap(jax.vmap(lambda table, row: table[row], (None, 0)), (None, 0)),
    "vmap of a slice": lambda table, ids: jax.vmap(
        lambda row: jax.lax.dynamic_slice(table, (row, 0), (1, 3))
    )(ids[:, 1]),
    "vmap of slices": lambda table, ids: jax.vmap(
        jax.vmap(lambda row: jax.lax.dynamic_slice_in_dim(table, row, 1)[0])
    )(ids),
    "by hand": by_hand,
    "by hand, of a vector": lambda table, ids: by_hand(table, ids[:, 0]),
}
OF_OTHER_ROWS: dict[str, Callable[[Any, Any], Any]] = {
    "part of rows": lambda table, ids: jnp.take(table, ids, axis=0, mode="wrap")[:, :2],
    "as they are": lambda table, ids: read_unwrapped(table, abs(ids)),
    "another shape": lambda table, ids: read_unwrapped(
        table, jnp.where(ids < 0, ids + 6, ids).reshape(-1)
    ),
    "another row instead": lambda table, ids: read_unwrapped(table, jnp.where(ids < 0, 5, ids)),
    "another condition": lambda table, ids: read_unwrapped(
        table, jnp.where(ids == -1, ids + 6, abs(ids))
    ),
    "another distance": lambda table, ids: read_unwrapped(table, jnp.where(ids < 0, ids + 7, ids)),
    "another limit": lambda table, ids: read_unwrapped(table, jnp.where(ids < -1, ids + 6, ids)),
    "other ids compared": lambda table, ids: read_unwrapped(
        table, jnp.where(ids[::-1] < 0, ids + 6, ids)
    ),
    "other ids moved": lambda table, ids: read_unwrapped(
        table, jnp.where(ids < 0, ids[::-1] + 6, ids)
    ),
}
OF_COLUMNS: dict[str, Callable[[Any, Any], Any]] = {
    "columns": lambda table, ids: jnp.take(table, ids, axis=1, mode="wrap"),
    "rows and columns": lambda table, ids: table[ids, abs(ids) % 3],
    "another order": by_formula(
        jax.lax.GatherDimensionNumbers((0,), (0,), (0,)),
        (1, 3),
    ),
    "columns by hand": by_formula(jax.lax.GatherDimensionNumbers((1,), (1,), (1,)), (6, 1)),
}


OF_MODES: dict[str, Callable[[Any, Any], Any]] = {
    "indexing": lambda table, ids: table[ids],
    "take": lambda table, ids: jnp.take(table, ids, axis=0),
    "clip": lambda table, ids: jnp.take(table, ids, axis=0, mode="clip"),
    "wrap": lambda table, ids: jnp.take(table, ids, axis=0, mode="wrap"),
    "zeros": lambda table, ids: jnp.take(table, ids, axis=0, mode="fill", fill_value=0),
    "get": lambda table, ids: table.at[ids].get(mode="clip"),
    "promise": lambda table, ids: table.at[ids].get(mode="promise_in_bounds"),
    "drop": lambda table, ids: table.at[ids].get(mode="drop"),
    "unwrapped": lambda table, ids: table.at[ids].get(mode="fill", wrap_negative_indices=False),
}


def traced_of_parameter(
    function: Callable[..., Any], ids: NDArray[Any], dtype: Any = "float32"
) -> tuple[Any, list[OutsideIds]]:
    """Returns a function of a parameter and ids as a graph, and what each lookup of its rows does
    with ids outside of the table.
    """
    parameters = {"table": jax.ShapeDtypeStruct(TABLE.shape, dtype)}
    spec = tf.TensorSpec([None, *ids.shape[1:]], ids.dtype)
    traced = trace(lambda p, x: function(p["table"], x["ids"]), parameters, {"ids": spec}, "it")
    variable = without_memory("table", tf.TensorShape(TABLE.shape), tf.as_dtype(dtype), True)
    variable.assign(TABLE.astype(dtype))
    lookups: list[OutsideIds] = []

    def read(table: Any, tensor: Any) -> Any:
        lookups.append(table.outside)
        return read_rows(table, tensor, table.outside)

    def evaluate(ids: Any) -> Any:
        id_value = Value(traced.jaxpr.in_avals[1].shape, ids)
        evaluator = Evaluator({BATCH: tf.shape(ids)[0]})
        return evaluator.results(traced.jaxpr, [Parameter(variable), id_value])[0]

    graph = tf.function(evaluate, autograph=False, input_signature=[spec])
    with Hooks() as hooks:
        redirect_gathers(hooks, read)
        concrete = graph.get_concrete_function()
    return concrete, lookups


INSIDE = np.array([[0, 5], [4, 1], [3, 2]], np.int32)
OUTSIDE = np.array([[0, 5], [6, 99], [-1, -6], [-7, -99], [1 << 30, -(1 << 30)]], np.int32)


@pytest.mark.parametrize("function", OF_MODES | OF_ROWS | OF_OTHER_ROWS)
def test_ids_outside_of_a_parameter_read_what_jax_reads_in_each_mode(function: str) -> None:
    read = (OF_MODES | OF_ROWS | OF_OTHER_ROWS)[function]
    graph, lookups = traced_of_parameter(read, OUTSIDE)
    assert len(lookups) == 1
    expected = read(jnp.asarray(TABLE), OUTSIDE)
    np.testing.assert_array_equal(graph(tf.constant(OUTSIDE)), expected)


@pytest.mark.parametrize("function", OF_ROWS)
def test_ids_of_a_parameter_that_count_from_the_end_are_known_to(function: str) -> None:
    _, lookups = traced_of_parameter(OF_ROWS[function], INSIDE)
    assert [outside.from_end for outside in lookups] == [True]


@pytest.mark.parametrize("function", OF_OTHER_ROWS)
def test_ids_of_a_parameter_that_are_computed_otherwise_are_read_as_they_are(
    function: str,
) -> None:
    _, lookups = traced_of_parameter(OF_OTHER_ROWS[function], INSIDE)
    assert lookups == [OutsideIds(from_end=False, outcome="nearest")]


@pytest.mark.parametrize("function", OF_COLUMNS)
def test_parameter_of_which_no_whole_rows_are_read_is_no_table(function: str) -> None:
    columns = INSIDE % 3
    graph, lookups = traced_of_parameter(OF_COLUMNS[function], columns)
    assert not lookups
    expected = OF_COLUMNS[function](jnp.asarray(TABLE), columns)
    np.testing.assert_array_equal(graph(tf.constant(columns)), expected)


@pytest.mark.parametrize("function", OF_MODES)
def test_integers_of_a_parameter_are_no_table_and_read_what_jax_reads(function: str) -> None:
    read = OF_MODES[function]
    graph, lookups = traced_of_parameter(read, OUTSIDE, "int32")
    assert not lookups
    expected = read(jnp.asarray(TABLE.astype(np.int32)), OUTSIDE)
    np.testing.assert_array_equal(graph(tf.constant(OUTSIDE)), expected)


def test_filling_that_no_table_has_is_rejected_by_its_mode() -> None:
    with pytest.raises(NotConvertible) as rejection:
        traced_of_parameter(
            lambda table, ids: jnp.take(table, ids, axis=0, mode="fill", fill_value=7), INSIDE
        )
    assert 'mode="fill" with fill_value=7' in str(rejection.value)
    assert 'use fill_value=0, or mode="clip"' in str(rejection.value)
