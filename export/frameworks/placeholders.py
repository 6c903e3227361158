"""Variables without memory that stand for tables while a model is built, traced and called.

Every matrix of floats that the user's code makes may be a table, so each becomes a placeholder variable. It holds
nothing until the code reads it as a whole, as a factory does that calls its model. `tf.gather`,
`tf.nn.embedding_lookup` and the Embedding of Keras 2 all end in a variable's `sparse_read`, which a placeholder hands
to whoever answers gathers.
Source: TensorFlow 2.20, python/ops/resource_variable_ops.py, array_ops.py (`gather`), embedding_ops.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.frameworks.hooks import Hooks
from export.frameworks.internals import current_line, variable_class
from export.frameworks.loading import tf

FIRST_VALUE_BYTES = 64 << 20
"""A matrix up to this size is given its first value when it is read."""

_EARLY = 2.0**-120
_EARLY_LINES: list[str] = []
"""Lines of the user's code that read rows while a model is made; they are given `_EARLY * (1 + place * 2**-23)`."""

Gather = Callable[[Any, Any], Any]
"""(placeholder variable, ids of any shape) -> [*shape of ids, dim], or None: let TensorFlow gather."""


class _Nowhere(str):
    """No device, and not the same as another tensor's that has none, as in a graph."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return False


@cache
def placeholder_class() -> Any:
    """Returns the class PlaceholderVariable; there is none before TensorFlow is loaded."""

    class PlaceholderVariable(variable_class()):  # type: ignore[misc]
        """A table's variable whose gathers are answered by `gather`, where one is set."""

        gather: Gather | None = None
        restored: bool | None = None
        """Whether TensorFlow saves and restores it; None: up to `restored_bytes_max`."""
        restored_bytes_max = FIRST_VALUE_BYTES
        first: Any = None
        from_end = False
        """Whether negative ids are rows counted from the end, as to the Embedding of Keras 3."""
        mod = False
        """Whether a lookup spreads ids over its partitions, if it has some, by TF1's `mod` strategy."""

        def sparse_read(self, indices: Any, name: str | None = None) -> Any:
            answer = PlaceholderVariable.gather
            found = answer(self, indices) if answer is not None else None
            return super().sparse_read(indices, name) if found is None else found

        def _read_variable_op(self, no_copy: bool = False) -> Any:
            if tf.executing_eagerly():
                give_value(self)
            return super()._read_variable_op(no_copy)

        @property
        def device(self) -> str:
            # None of its own: on the ids' device `embedding_lookup_sparse` would read the whole table.
            return _Nowhere() if PlaceholderVariable.gather is not None else str(self.handle.device)

        def _serialize_to_tensors(self) -> Any:
            small = bytes_of(self) <= PlaceholderVariable.restored_bytes_max
            return super()._serialize_to_tensors() if (small if self.restored is None else self.restored) else {}

        def _restore_from_tensors(self, restored_tensors: Any) -> Any:
            # Without tensors nothing was read: the table is larger than what is ever restored.
            return super()._restore_from_tensors(restored_tensors) if restored_tensors else None

    return PlaceholderVariable


def early_rows(shape: list[int], dtype: Any) -> Any:
    """Returns what is read of a table while the model is made: numbers next to zero, to be found where they stay."""
    line = current_line()
    if line not in _EARLY_LINES:
        _EARLY_LINES.append(line)
    return tf.fill(shape, tf.cast(_EARLY * (1 + _EARLY_LINES.index(line) * 2.0**-23), dtype))


def line_of_early(values: NDArray[Any]) -> str:
    """Returns the line that read what `early_rows` gave, if a constant of float32 holds some; else ""."""
    found = values[(values >= _EARLY) & (values < 2 * _EARLY)] if values.dtype == np.float32 else np.empty(0)
    place = int((float(found.flat[0]) / _EARLY - 1) * 2.0**23) if found.size else len(_EARLY_LINES)
    return _EARLY_LINES[place] if place < len(_EARLY_LINES) else ""


def line_of_variable(variable: Any) -> str:
    """Returns the user's line that made a variable; "" where it is not known."""
    return str(getattr(variable, "_rowcast_line", ""))


def remember_line(variable: Any) -> None:
    """Keeps the user's line that is running, which makes a variable."""
    variable._rowcast_line = current_line()


def give_value(variable: Any) -> None:
    """Gives a placeholder variable without a value the one that the user's code begins with, unless it is large."""
    if not isinstance(variable, placeholder_class()) or bytes_of(variable) > placeholder_class().restored_bytes_max:
        return
    with tf.init_scope():
        if not bool(tf.raw_ops.VarIsInitializedOp(resource=variable.handle)):
            first = variable.first
            value = tf.zeros(variable.shape) if first is None else first() if callable(first) else first
            variable.assign(tf.cast(value, variable.dtype))


def bytes_of(variable: Any) -> int:
    """Returns the size of a variable's value."""
    return int(variable.shape.num_elements() * variable.dtype.size)


@contextlib.contextmanager
def tables_unallocated() -> Iterator[list[Any]]:
    """Makes every matrix of floats a placeholder variable within the `with`; yields them as they are made."""
    made: list[Any] = []

    def create(make: Callable[..., Any], **how: Any) -> Any:
        try:
            shape, dtype = shape_and_dtype(how)
        except Exception:  # noqa: BLE001 - the user's own code: TensorFlow then makes the variable, and says what is wrong
            return make(**how)
        table = shape.rank == 2 and shape.is_fully_defined() and dtype.is_floating
        variable = _placeholder(shape, dtype, how) if table else make(**how)
        with contextlib.suppress(AttributeError):
            remember_line(variable)
        if table:
            made.append(variable)
        return variable

    with tf.variable_creator_scope(create):
        yield made


@contextlib.contextmanager
def restoring_up_to(size: int) -> Iterator[None]:
    """Lets TensorFlow restore matrices up to this size within the `with`, whatever else they are."""
    with Hooks() as hooks:
        hooks.set_attribute(placeholder_class(), "restored_bytes_max", max(size, FIRST_VALUE_BYTES))
        yield


def answer_gathers(hooks: Hooks, gather: Gather) -> None:
    """Lets `gather` answer whatever is gathered from a placeholder variable."""
    hooks.set_attribute(placeholder_class(), "gather", staticmethod(hooks.watched(gather)))


def shape_and_dtype(how: Mapping[str, Any]) -> tuple[Any, Any]:
    """Returns shape and dtype of a variable as its creator is given it; Keras 3 gives no shape, but an initializer."""
    shape, dtype = how.get("shape"), how.get("dtype")
    value: Any = how.get("initial_value")
    if (shape is None or dtype is None) and not hasattr(value, "shape"):
        with tf.Graph().as_default():
            value = tf.convert_to_tensor(value() if callable(value) else value, dtype)
    shape = value.shape if shape is None else shape
    return tf.TensorShape(shape), tf.as_dtype(value.dtype if dtype is None else dtype)


def _placeholder(shape: Any, dtype: Any, how: dict[str, Any]) -> Any:
    kept = ("trainable", "name", "constraint", "aggregation", "synchronization")
    variable = placeholder_class()(shape=shape, dtype=dtype, **{key: how[key] for key in kept if key in how})
    if bytes_of(variable) <= placeholder_class().restored_bytes_max:
        variable.first = how.get("initial_value")
    return variable


def placeholder_of(table: Any) -> Any:
    """Returns the placeholder variable that a lookup is given as its table, alone or in a list; None of others."""
    table = table[0] if isinstance(table, list | tuple) and len(table) == 1 else table
    table = table if isinstance(table, tf.Variable) else getattr(table, "value", table)
    return table if isinstance(table, placeholder_class()) else None


def table_of_layer(layer: Any) -> Any:
    """Returns the variable that holds the rows of a layer of Keras 3 or keras-rs; None before it is built."""
    return getattr(getattr(layer, "_embeddings", None), "value", None)
