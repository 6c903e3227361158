from __future__ import annotations

import operator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from export.front_end.outside_ids import UNDEFINED
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hooks import Hooks
from export.tensorflow_models.frameworks.placeholders import (
    FIRST_VALUE_BYTES,
    early_rows,
    give_value,
    line_of_early,
    line_of_variable,
    placeholder_class,
    placeholder_of,
    redirect_gathers,
    restoring_up_to,
    shape_and_dtype,
    table_of_layer,
    tables_unallocated,
)

COLUMNS = 1024
LARGE = (FIRST_VALUE_BYTES // (4 * COLUMNS) + 1, COLUMNS)
"""One row more than a matrix that gets its initial value whatever the limit."""
LARGE_BYTES = 4 * LARGE[0] * LARGE[1]


def twos(*shape: int) -> tf.Variable:
    return tf.Variable(lambda: tf.fill(shape, 2.0), shape=shape, dtype=tf.float32)


@pytest.mark.parametrize("limit", [0, LARGE_BYTES])
def test_matrix_that_is_read_has_its_initial_value(limit: int) -> None:
    with restoring_up_to(limit), tables_unallocated():
        assert float(twos(2, 3)[1, 2]) == 2


@pytest.mark.parametrize(("limit", "has_value"), [(LARGE_BYTES, True), (LARGE_BYTES - 1, False)])
def test_large_matrix_has_its_initial_value_only_up_to_the_limit(
    limit: int, has_value: bool
) -> None:
    with restoring_up_to(limit), tables_unallocated():
        large = twos(*LARGE)
        large.read_value()
    assert bool(large.is_initialized()) == has_value
    assert not has_value or float(large[0, 0]) == 2


def test_rows_that_were_read_early_name_the_line_that_read_them() -> None:
    reads = [
        early_rows([2, 3], tf.float32).numpy(),
        early_rows([2, 3], tf.float32).numpy(),
        early_rows([4], tf.float32).numpy(),
    ]
    files, lines = zip(*(line_of_early(rows).split(":") for rows in reads), strict=True)
    assert {file.rpartition("/")[2] for file in files} == {"test_placeholders.py"}
    assert np.diff(list(map(int, lines))).tolist() == [1, 1]
    other_numbers = np.array([0, 1, -1, 2.5 * 2.0**-120], np.float32)
    mixed = np.concatenate([other_numbers, reads[2][:1]])
    assert line_of_early(mixed) == line_of_early(reads[2])


def test_numbers_that_are_no_early_rows_name_no_line() -> None:
    early = early_rows([1], tf.float32).numpy()
    for numbers in (early * 2, early / 2, -early, early.astype(np.float64), early[:0]):
        assert line_of_early(numbers) == ""


def variable_of(**options: Any) -> Any:
    """Creates a variable as a model does while no table is allocated."""
    with tables_unallocated():
        return tf.Variable(**options)


def test_only_float_matrices_are_placeholders() -> None:
    open_shape = tf.TensorShape([None, 3])
    with tables_unallocated() as tables:
        expected_tables = [
            tf.Variable(tf.zeros([2, 3])),
            tf.Variable(lambda: tf.zeros([2, 3], tf.bfloat16)),
            tf.Variable(np.zeros((2, 3))),
        ]
        other_variables = [
            tf.Variable(tf.zeros([2])),
            tf.Variable(tf.zeros([2, 3, 4])),
            tf.Variable([[1, 2]]),
            tf.Variable(tf.zeros([2, 3]), shape=open_shape),
        ]
    assert [id(variable) for variable in tables] == [id(variable) for variable in expected_tables]
    assert [variable.dtype for variable in expected_tables] == [tf.float32, tf.bfloat16, tf.float64]
    assert not any(isinstance(variable, placeholder_class()) for variable in other_variables)
    assert {
        line_of_variable(variable).partition(":")[0]
        for variable in (*expected_tables, *other_variables)
    } == {"test_placeholders.py"}


def test_placeholder_keeps_what_the_model_states_of_it() -> None:
    variable = variable_of(
        initial_value=tf.ones([2, 3]),
        name="table",
        trainable=False,
        constraint=tf.abs,
        aggregation=tf.VariableAggregation.SUM,
        synchronization=tf.VariableSynchronization.ON_READ,
    )
    assert variable.name == "table:0"
    assert (variable.outside, variable.mod) == (UNDEFINED, False)
    assert not variable.trainable
    assert variable.constraint is tf.abs
    assert variable.aggregation == tf.VariableAggregation.SUM
    assert variable.synchronization == tf.VariableSynchronization.ON_READ


@pytest.mark.parametrize(
    ("stated", "shape", "dtype"),
    [
        ({"initial_value": [[1.0, 2]]}, [1, 2], tf.float32),
        ({"initial_value": [[1, 2]], "dtype": tf.float16}, [1, 2], tf.float16),
        ({"initial_value": np.zeros((2, 3))}, [2, 3], tf.float64),
        ({"initial_value": lambda: [[1.0]]}, [1, 1], tf.float32),
        ({"initial_value": np.zeros((2, 3)), "shape": [2, None]}, [2, None], tf.float64),
        ({"initial_value": None, "shape": [2], "dtype": "int32"}, [2], tf.int32),
    ],
)
def test_shape_and_type_of_a_variable_are_stated_or_those_of_its_value(
    stated: dict[str, Any], shape: list[int], dtype: Any
) -> None:
    assert shape_and_dtype(stated) == (tf.TensorShape(shape), dtype)


def test_error_of_an_initial_value_is_that_of_tensorflow() -> None:
    def wrong() -> Any:
        raise ZeroDivisionError("of the model")

    with pytest.raises(ZeroDivisionError, match="of the model"):
        variable_of(initial_value=wrong)


def test_value_that_a_model_assigned_stays_when_it_is_read() -> None:
    variable = variable_of(initial_value=tf.ones([2, 3]))
    variable.assign(tf.fill([2, 3], 5.0))
    assert variable.numpy().tolist() == [[5] * 3] * 2


def test_matrix_without_an_initial_value_is_read_as_zeros() -> None:
    variable = placeholder_class()(shape=[2, 3], dtype=tf.float16, name="table")
    assert variable.numpy().tolist() == [[0] * 3] * 2


def test_other_variables_are_given_no_value() -> None:
    plain = tf.Variable([[1.0]])
    give_value(plain)
    assert plain.numpy().tolist() == [[1]]


@pytest.mark.parametrize(
    ("stated", "limit", "saved"),
    [
        (None, 24, True),
        (None, 23, False),
        (True, 0, True),
        (False, 24, False),
    ],
)
def test_table_is_saved_and_restored_up_to_the_limit_or_as_stated(
    stated: bool | None, limit: int, saved: bool, tmp_path: Path
) -> None:
    variable = variable_of(initial_value=tf.ones([2, 3]))
    variable.restored = stated
    variable.assign(tf.fill([2, 3], 5.0))
    with Hooks() as hooks:
        hooks.set_attribute(placeholder_class(), "restored_bytes_max", limit)
        checkpoint = tf.train.Checkpoint(table=variable)
        prefix = checkpoint.write(str(tmp_path / "model"))
        variable.assign(tf.zeros([2, 3]))
        checkpoint.read(prefix)
    stored_names = [name for name, _ in tf.train.list_variables(prefix) if name.startswith("table")]
    assert bool(stored_names) == saved
    assert float(variable.numpy()[0, 0]) == (5 if saved else 0)


def test_limit_for_restoring_is_at_least_that_for_first_values() -> None:
    before = placeholder_class().restored_bytes_max
    with restoring_up_to(FIRST_VALUE_BYTES - 1):
        assert placeholder_class().restored_bytes_max == FIRST_VALUE_BYTES
    with restoring_up_to(FIRST_VALUE_BYTES + 1):
        assert placeholder_class().restored_bytes_max == FIRST_VALUE_BYTES + 1
    assert placeholder_class().restored_bytes_max == before


def test_gather_is_redirected_unless_nothing_takes_it() -> None:
    table = variable_of(initial_value=tf.ones([2, 3]))
    gathered: list[Any] = []

    def gather(variable: Any, ids: Any) -> Any:
        gathered.append(variable)
        return tf.constant([7.0]) if int(ids[0]) else None

    with Hooks() as hooks:
        redirect_gathers(hooks, gather)
        assert tf.gather(table, [1]).numpy().tolist() == [7]
        device = table.device
        assert not operator.eq(device, table.device)
        table.read_value()
        assert tf.gather(table, [0]).numpy().tolist() == [[1] * 3]
    assert [id(gathered_variable) for gathered_variable in gathered] == [id(table)] * 2
    assert tf.gather(table, [1]).numpy().tolist() == [[1] * 3]
    assert table.device == str(table.handle.device)


def test_table_of_a_lookup_is_a_placeholder_alone_or_in_a_list() -> None:
    variable = variable_of(initial_value=tf.ones([2, 3]))
    plain = tf.Variable(tf.ones([2, 3]))
    wrapped = SimpleNamespace(value=variable)
    for table in (variable, [variable], (variable,), wrapped, [wrapped]):
        assert placeholder_of(table) is variable
    for value in ([variable, variable], [], plain, [plain], tf.ones([2, 3]), None):
        assert placeholder_of(value) is None


def test_table_of_a_layer_that_is_not_built_is_none() -> None:
    assert table_of_layer(SimpleNamespace()) is None
    assert table_of_layer(SimpleNamespace(_embeddings=SimpleNamespace(value=7))) == 7
