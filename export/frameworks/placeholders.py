"""Variables without memory that stand for tables while a model is built, traced and asked again.

Every matrix of floats that the user's code makes may be a table, so each becomes a StandIn. It holds nothing until the
code reads it as a whole, as a factory does that calls its model. `tf.gather`, `tf.nn.embedding_lookup` and the
Embedding of Keras 2 all end in a variable's `sparse_read`, which a StandIn hands to whoever listens.
Source: TensorFlow 2.20, python/ops/resource_variable_ops.py, array_ops.py (`gather`), embedding_ops.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.frameworks.loading import load_tensorflow
from export.user_lines import current_line

FIRST_VALUE_BYTES = 64 << 20
"""A matrix up to this size is given its first value when it is read."""

_EARLY = 2.0**-120
_EARLY_LINES: list[str] = []
"""Lines of the user's code that read rows while a model is made; they hold `_EARLY * (1 + place * 2**-23)`."""

Gather = Callable[[Any, Any], Any]
"""(StandIn, ids of any shape) -> [*shape of ids, dim], or None: let TensorFlow gather."""


class _Nowhere(str):
    """No device, and not the same as another tensor's that has none, as in a graph."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return False


@cache
def stand_in_class() -> Any:
    """Returns the class StandIn; it cannot be told before TensorFlow is there."""
    tf = load_tensorflow()
    from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

    class StandIn(UninitializedVariable):  # type: ignore[misc]
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
            answer = StandIn.gather
            found = answer(self, indices) if answer is not None else None
            return super().sparse_read(indices, name) if found is None else found

        def _read_variable_op(self, no_copy: bool = False) -> Any:
            if tf.executing_eagerly():
                give_value(self)
            return super()._read_variable_op(no_copy)

        @property
        def device(self) -> str:
            # None of its own: on the ids' device `embedding_lookup_sparse` would read the whole table.
            return _Nowhere() if StandIn.gather is not None else str(self.handle.device)

        def _serialize_to_tensors(self) -> Any:
            small = bytes_of(self) <= StandIn.restored_bytes_max
            return super()._serialize_to_tensors() if (small if self.restored is None else self.restored) else {}

        def _restore_from_tensors(self, restored_tensors: Any) -> Any:
            # Without tensors nothing was read: the table is larger than what is ever restored.
            return super()._restore_from_tensors(restored_tensors) if restored_tensors else None

    return StandIn


def early_rows(shape: list[int], dtype: Any) -> Any:
    """Returns what is read of a table while the model is made: numbers next to zero, to be found where they stay."""
    tf, line = load_tensorflow(), current_line()
    if line not in _EARLY_LINES:
        _EARLY_LINES.append(line)
    return tf.fill(shape, tf.cast(_EARLY * (1 + _EARLY_LINES.index(line) * 2.0**-23), dtype))


def line_of_early(values: NDArray[Any]) -> str | None:
    """Returns the line that read what `early_rows` gave, if a constant of float32 holds some."""
    if values.dtype != np.float32:
        return None
    found = values[(values >= _EARLY) & (values < 2 * _EARLY)]
    place = int((float(found[0]) / _EARLY - 1) * 2.0**23) if found.size else -1
    return _EARLY_LINES[place] if 0 <= place < len(_EARLY_LINES) else None


def line_of_variable(variable: Any) -> str:
    """Returns the user's line that made a variable; "" where it is not known."""
    return str(getattr(variable, "_rowcast_line", ""))


def remember_line(variable: Any) -> None:
    """Keeps the user's line that is running, which makes a variable."""
    variable._rowcast_line = current_line()


def give_value(variable: Any) -> None:
    """Gives a StandIn that has no value the one that the user's code begins with, unless it is large."""
    tf = load_tensorflow()
    if not isinstance(variable, stand_in_class()) or bytes_of(variable) > stand_in_class().restored_bytes_max:
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
    """Makes every matrix of floats a StandIn within the `with`; yields them as they are made."""
    tf = load_tensorflow()
    made: list[Any] = []

    def create(make: Callable[..., Any], **how: Any) -> Any:
        shape = _shape(how)
        variable = make(**how) if shape is None else _stand_in(shape, how)
        with contextlib.suppress(AttributeError):
            remember_line(variable)
        if shape is not None:
            made.append(variable)
        return variable

    with tf.variable_creator_scope(create):
        yield made


@contextlib.contextmanager
def restoring_up_to(size: int) -> Iterator[None]:
    """Lets TensorFlow restore matrices up to this size within the `with`, whatever else they are."""
    stand_in = stand_in_class()
    before, stand_in.restored_bytes_max = stand_in.restored_bytes_max, max(size, FIRST_VALUE_BYTES)
    try:
        yield
    finally:
        stand_in.restored_bytes_max = before


@contextlib.contextmanager
def gathering(gather: Gather) -> Iterator[None]:
    """Lets `gather` answer whatever is gathered from a StandIn, within the `with`."""
    stand_in = stand_in_class()
    before, stand_in.gather = stand_in.gather, staticmethod(gather)
    try:
        yield
    finally:
        stand_in.gather = before


def _stand_in(shape: Any, how: dict[str, Any]) -> Any:
    tf = load_tensorflow()
    dtype: Any = how.get("dtype")
    value: Any = how.get("initial_value")
    if dtype is None:
        dtype = value.dtype if hasattr(value, "dtype") else tf.float32
    kept = {
        key: how[key] for key in ("trainable", "name", "constraint", "aggregation", "synchronization") if key in how
    }
    variable = stand_in_class()(shape=shape, dtype=tf.as_dtype(dtype), **kept)
    if bytes_of(variable) <= stand_in_class().restored_bytes_max:
        variable.first = value
    return variable


def _shape(how: dict[str, Any]) -> Any:
    """Returns the shape of a matrix of floats that is asked for; None of anything else."""
    tf = load_tensorflow()
    shape, value = how.get("shape"), how.get("initial_value")
    dtype = how.get("dtype")
    if shape is None and callable(value):
        shape, dtype = _told(value, dtype)
    elif shape is None and value is not None:
        value = tf.convert_to_tensor(value, dtype) if not hasattr(value, "shape") else value
        shape, dtype = value.shape, dtype or getattr(value, "dtype", None)
    shape = tf.TensorShape(shape)
    matrix = shape.rank == 2 and shape.is_fully_defined()
    return shape if matrix and tf.as_dtype(dtype or tf.float32).is_floating else None


def _told(value: Callable[[], Any], dtype: Any) -> tuple[Any, Any]:
    """Returns shape and dtype of what an initializer makes, without letting it: Keras 3 tells no shape."""
    tf = load_tensorflow()
    try:
        with tf.init_scope():
            made = tf.function(value, autograph=False).get_concrete_function().structured_outputs
        return made.shape, dtype or made.dtype
    except Exception:  # noqa: BLE001 - the user's own code: TensorFlow then makes the variable, and tells what is wrong
        return None, dtype
