"""Placeholder variables: tables without memory, while a model is built, traced and called.

Every float matrix that the user's code creates may be a table, so each becomes a placeholder
variable. It holds nothing until the code reads it as a whole, as in a factory that calls its model.
`tf.gather`, `tf.nn.embedding_lookup` and the Embedding of Keras 2 all call a variable's
`sparse_read`, which a placeholder redirects to the hook for gathers.
Source: TensorFlow 2.20, python/ops/resource_variable_ops.py, array_ops.py (`gather`),
embedding_ops.py.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.front_end.outside_ids import UNDEFINED, OutsideIds
from export.graphs.functions import bytes_of
from export.graphs.hooks import Hooks
from export.graphs.internals import current_line, variable_class
from export.graphs.loading import tf
from export.report_text import size_text
from export.user_lines import at_line, line_of_exception

FIRST_VALUE_BYTES = 64 << 20
"""A matrix up to this size gets its initial value when it is read."""

_EARLY_NUMBER = 2.0**-120
"""The tiny number that fills the rows that are read while a model is built."""
_NO_SCOPE_NAME = re.compile(r"[^A-Za-z0-9_.\\/>-]")
"""A character that no name of a scope has."""
_EARLY_LINES: list[str] = []
"""User's lines that read rows while a model is built; the rows of a line are
`_EARLY_NUMBER * (1 + index * 2**-23)`.
"""
_READS_WITHOUT_VALUE: dict[str, str] = {}
"""What the user's lines read that read tables which are not in memory."""

Gather = Callable[[Any, Any], Any]
"""(placeholder variable, ids of any shape) -> [*shape of ids, dim], or None to let TensorFlow
gather.
"""


class _Nowhere(str):
    """No device; unequal even to another one, as in a graph."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, _device: object) -> bool:
        return False


@cache
def placeholder_class() -> Any:
    """Returns the class PlaceholderVariable, which needs TensorFlow to be loaded."""

    class PlaceholderVariable(variable_class()):  # type: ignore[misc]
        """A table's variable whose gathers `gather` replaces, if it is set."""

        gather: Gather | None = None
        early = False
        """Whether the model is being built: then graphs that read variables may run, as that of
        `predict` does.
        """
        restored: bool | None = None
        """Whether TensorFlow saves and restores it; None: up to `restored_bytes_max`."""
        restored_bytes_max = FIRST_VALUE_BYTES
        first: Any = None
        """The initial value that the user's code gave, or a function that returns it."""
        outside = UNDEFINED
        """What the lookup that is being called does with ids that are no rows; see
        `with_outside_ids`.
        """
        mod = False
        """Whether a lookup spreads ids over its partitions, if it has some, by TF1's `mod`
        strategy.
        """

        def sparse_read(self, indices: Any, name: str | None = None) -> Any:
            gather = PlaceholderVariable.gather
            rows = None
            if gather is not None:
                rows = gather(self, indices)
            if rows is None:
                return super().sparse_read(indices, name)
            return rows

        def _read_variable_op(self, no_copy: bool = False) -> Any:
            may_run = PlaceholderVariable.early and not infers_shapes()
            if may_run or tf.executing_eagerly():
                give_value(self)
            _note_missing_value(self)
            return super()._read_variable_op(no_copy)

        @property
        def device(self) -> str:
            # None of its own: on the ids' device `embedding_lookup_sparse` would read the whole
            # table.
            return str(self.handle.device) if PlaceholderVariable.gather is None else _Nowhere()

        def _serialize_to_tensors(self) -> Any:
            restored = self.restored
            if restored is None:
                restored = bytes_of(self) <= PlaceholderVariable.restored_bytes_max
            return super()._serialize_to_tensors() if restored else {}

        def _restore_from_tensors(self, restored_tensors: Any) -> Any:
            # No tensors: the table is larger than the limit for restoring.
            return super()._restore_from_tensors(restored_tensors) if restored_tensors else None

    return PlaceholderVariable


def infers_shapes() -> bool:
    """Returns whether Keras only infers shapes, in a graph that never runs."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        if "scratch_graph" in getattr(graph, "name", ""):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def early_rows(shape: Any, dtype: Any) -> Any:
    """Returns the rows of a table that is read while the model is built: tiny numbers, which
    `line_of_early` recognizes if the model keeps them.

    Args:
      shape: The shape of the rows: a list of numbers and scalars, or a tensor.
      dtype: The type of the rows.
    """
    if infers_shapes():
        return tf.zeros(shape, dtype)
    line = current_line()
    if line not in _EARLY_LINES:
        _EARLY_LINES.append(line)
    # Each line has the next float32 number.
    number = _EARLY_NUMBER * (1 + _EARLY_LINES.index(line) * 2.0**-23)
    return tf.fill(shape, tf.cast(number, dtype))


def line_of_early(values: NDArray[Any]) -> str:
    """Returns the user's line that read the rows of `early_rows` that are in a float32 constant; ""
    if there are none.
    """
    if values.dtype != np.float32:
        return ""
    numbers = values[(values >= _EARLY_NUMBER) & (values < 2 * _EARLY_NUMBER)]
    if not numbers.size:
        return ""
    excess = float(numbers.flat[0]) / _EARLY_NUMBER - 1
    index = int(excess * 2.0**23)
    if index >= len(_EARLY_LINES):
        return ""
    return _EARLY_LINES[index]


def line_of_variable(variable: Any) -> str:
    """Returns the user's line that created a variable; "" if it is not known."""
    return str(getattr(variable, "_rowcast_line", ""))


def remember_line(variable: Any) -> None:
    """Stores the user's line that is running as the one that created a variable."""
    variable._rowcast_line = current_line()


def give_value(variable: Any) -> None:
    """Assigns a placeholder variable its initial value, unless it has a value or is large."""
    if (
        not isinstance(variable, placeholder_class())
        or bytes_of(variable) > placeholder_class().restored_bytes_max
    ):
        return
    with tf.init_scope():
        if not _has_value(variable):
            value = variable.first
            if value is None:
                value = tf.zeros(variable.shape)
            elif callable(value):
                value = value()
            variable.assign(tf.cast(value, variable.dtype))


def _has_value(variable: Any) -> bool:
    return bool(tf.raw_ops.VarIsInitializedOp(resource=variable.handle))


def _note_missing_value(variable: Any) -> None:
    """Remembers the user's line that reads a variable without a value: what it reads is no table,
    and most operations fail on it.
    """
    # In a graph, the value may be read later, or never.
    if not tf.executing_eagerly() or _has_value(variable):
        return
    name = variable.name.partition(":")[0]
    size = size_text(bytes_of(variable))
    line = current_line()
    _READS_WITHOUT_VALUE[line] = (
        f"the model's code reads table {name!r} {variable.shape.as_list()} ({size}) as a whole"
        f"{at_line(line)}, and code.inline_bytes_max keeps it out of memory: let the call of a "
        "tower read it by lookups only, and compute results of all rows, such as logits for "
        "training, in a function of their own; or raise the limit"
    )


def read_without_value(problem: BaseException) -> str:
    """Returns the reason, and the remedy, for an error of a line of the user's that reads a table
    that is not in memory; "" if it reads none.
    """
    return _READS_WITHOUT_VALUE.get(line_of_exception(problem), "")


@contextlib.contextmanager
def tables_unallocated() -> Iterator[list[Any]]:
    """Makes every float matrix a placeholder variable inside the `with` block; yields the list of
    these variables.
    """
    placeholders: list[Any] = []

    def create(make: Callable[..., Any], **options: Any) -> Any:
        try:
            shape, dtype = shape_and_dtype(options)
        # The user's initializer raised: TensorFlow then creates the variable and reports the error.
        except Exception:  # noqa: BLE001
            return make(**options)
        if shape.rank == 2 and shape.is_fully_defined() and dtype.is_floating:
            variable = _placeholder(shape, dtype, options)
            placeholders.append(variable)
        else:
            variable = make(**options)
        with contextlib.suppress(AttributeError):
            remember_line(variable)
        return variable

    with tf.variable_creator_scope(create):
        yield placeholders


@contextlib.contextmanager
def restoring_up_to(size: int) -> Iterator[None]:
    """Makes TensorFlow restore matrices up to this size inside the `with` block."""
    with Hooks() as hooks:
        hooks.set_attribute(placeholder_class(), "restored_bytes_max", max(size, FIRST_VALUE_BYTES))
        yield


def redirect_gathers(hooks: Hooks, gather: Gather) -> None:
    """Replaces gathers from placeholder variables by `gather`."""
    hooks.set_attribute(placeholder_class(), "gather", staticmethod(hooks.watched(gather)))


def shape_and_dtype(options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Returns shape and dtype from a variable creator's arguments; Keras 3 passes an initializer
    instead of a shape.
    """
    shape = options.get("shape")
    dtype = options.get("dtype")
    value: Any = options.get("initial_value")
    if (shape is None or dtype is None) and not hasattr(value, "shape"):
        # In a graph, an initializer allocates nothing.
        with tf.Graph().as_default():
            if callable(value):
                value = value()
            value = tf.convert_to_tensor(value, dtype)
    if shape is None:
        shape = value.shape
    if dtype is None:
        dtype = value.dtype
    return tf.TensorShape(shape), tf.as_dtype(dtype)


def _placeholder(shape: Any, dtype: Any, options: Mapping[str, Any]) -> Any:
    names = ("trainable", "name", "constraint", "aggregation", "synchronization")
    arguments = {name: options[name] for name in names if name in options}
    variable = placeholder_class()(shape=shape, dtype=dtype, **arguments)
    # A larger one never has a value, and its initial one may be as large.
    if bytes_of(variable) <= placeholder_class().restored_bytes_max:
        variable.first = options.get("initial_value")
    return variable


def without_memory(name: str, shape: Any, dtype: Any, trainable: bool) -> Any:
    """Returns a variable without memory, a placeholder where it may be a table.

    Args:
      name: Any text, which `name_of` returns.
      shape: The shape, a `tf.TensorShape`.
      dtype: The type of its values, a `tf.DType`.
      trainable: Whether training changes it.
    """
    kind = variable_class()
    if shape.rank == 2 and dtype.is_floating:
        kind = placeholder_class()
    # TensorFlow saves a variable under its name, which must be one of a scope.
    scope = _NO_SCOPE_NAME.sub("_", name).lstrip("_\\/>-")
    with tf.init_scope(), tf.name_scope(""):
        variable = kind(shape=shape, dtype=dtype, name=scope or "variable", trainable=trainable)
    variable.given_name = name
    return variable


def name_of(variable: Any) -> str:
    """Returns the name that the model gives a variable."""
    return getattr(variable, "given_name", "") or str(variable.name).partition(":")[0]


def placeholder_of(table: Any) -> Any:
    """Returns the placeholder variable passed as a lookup's table, alone or in a list; None for
    others.
    """
    if isinstance(table, list | tuple) and len(table) == 1:
        table = table[0]
    # A variable of Keras 3 holds TensorFlow's.
    if not isinstance(table, tf.Variable):
        table = getattr(table, "value", table)
    if not isinstance(table, placeholder_class()):
        return None
    return table


@contextlib.contextmanager
def with_outside_ids(variable: Any, outside: OutsideIds) -> Iterator[None]:
    """Records, inside the `with` block, that lookups of a placeholder variable treat ids outside of
    the table as `outside` says.

    TensorFlow's functions have no argument for it, since TensorFlow rejects such ids.
    """
    outside_before = variable.outside
    variable.outside = outside
    try:
        yield
    finally:
        variable.outside = outside_before


def table_of_layer(layer: Any) -> Any:
    """Returns the variable that holds the rows of a layer of Keras 3 or keras-rs; None before it is
    built.
    """
    return getattr(getattr(layer, "_embeddings", None), "value", None)
