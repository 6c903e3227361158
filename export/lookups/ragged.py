"""Intercepts lookups that keep their ids ragged, and what makes them dense again: a sum, a mean, a cut to a length.

A bundle has no ragged activation. `tf.nn.embedding_lookup`, `tf.gather` and Embedding layers of ragged ids are answered
as gathers of flat ids; `tf.reduce_sum`, `tf.reduce_mean` and `to_tensor` of these rows become a bag or a sequence. A
tower that reads the rows otherwise has to gather them itself.
Source: TensorFlow 2.20, python/ops/ragged/: ragged_embedding_ops.py, ragged_gather_ops.py, ragged_math_ops.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from export.frameworks.hooks import hooked
from export.frameworks.loading import load_tensorflow
from export.frameworks.placeholders import stand_in_class
from export.graph.specs import Combiner
from export.lookups.gathers import describe_gather, facts_of
from export.lookups.records import Answer, Lookup

Fill = Callable[[Any, int | None, Any, Any], Any]
"""(RaggedTensor, its longest row, what fills others up, the tensor that is) -> a tensor."""


@contextlib.contextmanager
def ragged_lookups_intercepted(answer: Answer, gather: Answer, fill: Fill) -> Iterator[None]:
    """Answers ragged lookups in StandIns where they are made dense, within the `with`.

    Args:
      answer, gather: answer these, and their rows.
      fill: returns what ids are that were made dense.
    """
    load_tensorflow()
    from tensorflow.python.ops.ragged import ragged_embedding_ops, ragged_gather_ops, ragged_math_ops

    asked = _Asked(answer, gather, fill)
    with (
        hooked(ragged_embedding_ops.embedding_lookup, asked.look_up),
        hooked(ragged_gather_ops.gather, asked.gather),
        hooked(ragged_math_ops.reduce_sum, asked.reduced("sum")),
        hooked(ragged_math_ops.reduce_mean, asked.reduced("mean")),
        asked.densified(),
    ):
        yield


@contextlib.contextmanager
def ragged_lookups_by_row() -> Iterator[None]:
    """Lets TensorFlow do ragged lookups without reading whole tables, within the `with`.

    The mean of an empty bag is zeros, as a bundle has it, where TensorFlow divides zero by zero.
    """
    load_tensorflow()
    from tensorflow.python.ops.ragged import ragged_embedding_ops, ragged_gather_ops, ragged_math_ops

    held: list[Any] = []

    def look_up(original: Callable[..., Any], **how: Any) -> Any:
        found = original(**how)
        held.append(found.flat_values)
        return found

    def mean(original: Callable[..., Any], **how: Any) -> Any:
        tf = load_tensorflow()
        found, rows = original(**how), how["input_tensor"]
        if not any(each is rows.flat_values for each in held) or isinstance(found, tf.RaggedTensor):
            return found
        return tf.where(tf.math.is_nan(found), tf.zeros_like(found), found)

    def gather(original: Callable[..., Any], **how: Any) -> Any:
        if isinstance(how["params"], stand_in_class()) and not how["axis"] and not how["batch_dims"]:
            return load_tensorflow().nn.embedding_lookup(how["params"], how["indices"])
        return original(**how)

    with (
        hooked(ragged_embedding_ops.embedding_lookup, look_up),
        hooked(ragged_gather_ops.gather, gather),
        hooked(ragged_math_ops.reduce_mean, mean),
    ):
        yield


def dense_rows(rows: Any, length: int | None, default: Any = None) -> Any:
    """Does what `to_tensor` does of ragged rows of one rank, by operations that LiteRT has.

    Args:
      rows: a RaggedTensor of a graph.
      length: of the result; None: the longest row's.
      default: what fills rows up, of any shape that fits a value; None: zeros.
    """
    tf = load_tensorflow()
    lengths = rows.row_lengths()
    width = tf.reduce_max(tf.concat([[0], lengths], 0)) if length is None else tf.constant(length, tf.int64)
    filler = tf.zeros(rows.shape[2:], rows.dtype) if default is None else tf.cast(default, rows.dtype)
    values = tf.concat([tf.broadcast_to(filler, [1, *rows.shape[2:]]), rows.values], 0)
    places = tf.range(width)
    taken = tf.expand_dims(rows.row_starts() + 1, 1) + places
    within = places < tf.expand_dims(lengths, 1)
    found = tf.gather(values, tf.where(within, taken, tf.zeros_like(taken)))
    return tf.ensure_shape(found, [rows.shape[0], length, *rows.shape[2:]])


class _Asked:
    """Ragged lookups that wait to be made dense."""

    def __init__(self, answer: Answer, gather: Answer, fill: Fill) -> None:
        self._answer, self._gather, self._fill = answer, gather, fill
        self._waiting: dict[str, tuple[Any, Any]] = {}

    def look_up(self, original: Callable[..., Any], **how: Any) -> Any:
        """Answers `tf.nn.embedding_lookup`."""
        rows = self._rows(how["params"], how["ids"]) if how["max_norm"] is None else None
        return original(**how) if rows is None else rows

    def gather(self, original: Callable[..., Any], **how: Any) -> Any:
        """Answers `tf.gather`."""
        rows = self._rows(how["params"], how["indices"]) if not how["axis"] and not how["batch_dims"] else None
        return original(**how) if rows is None else rows

    def reduced(self, combiner: Combiner) -> Callable[..., Any]:
        """Answers `tf.reduce_sum` or `tf.reduce_mean` of each example's rows."""

        def reduce(original: Callable[..., Any], **how: Any) -> Any:
            lookup = None
            if how["axis"] in (1, -2, [1], (1,)):
                lookup = self._lookup(how["input_tensor"], kind="bag", combiner=combiner)
            if lookup is None:
                return original(**how)
            found = self._answer(lookup)
            return load_tensorflow().expand_dims(found, 1) if how["keepdims"] else found

        return reduce

    @contextlib.contextmanager
    def densified(self) -> Iterator[None]:
        """Answers `to_tensor` with a length."""
        tf = load_tensorflow()
        ragged = tf.RaggedTensor
        to_tensor = ragged.to_tensor

        def dense(rows: Any, default_value: Any = None, name: str | None = None, shape: Any = None) -> Any:
            sizes = list(shape) if shape is not None and not hasattr(shape, "as_list") else shape
            sizes = sizes.as_list() if hasattr(sizes, "as_list") else sizes
            fixed = bool(sizes) and len(sizes) > 1 and isinstance(sizes[1], int) and default_value in (None, 0)
            lookup = self._lookup(rows, kind="sequence", length=sizes[1]) if fixed and sizes else None
            if lookup is not None:
                return self._answer(lookup)
            plain = not tf.executing_eagerly() and rows.ragged_rank == 1 and None not in rows.shape[2:]
            if plain and (not sizes or sizes[0] is None) and list(sizes or [])[2:] in ([], list(rows.shape[2:])):
                longest = sizes[1] if sizes else None
                return self._fill(rows, longest, default_value, dense_rows(rows, longest, default_value))
            return to_tensor(rows, default_value, name, shape)

        ragged.to_tensor = dense
        try:
            yield
        finally:
            ragged.to_tensor = to_tensor

    def _rows(self, params: Any, ids: Any) -> Any:
        tf = load_tensorflow()
        table = params[0] if isinstance(params, list | tuple) and len(params) == 1 else params
        graph = tf.compat.v1.get_default_graph()
        away = tf.executing_eagerly() or "scratch_graph" in getattr(graph, "name", "")
        ragged = isinstance(ids, tf.RaggedTensor) and ids.ragged_rank == 1 and ids.values.shape.rank == 1
        if away or not ragged or not isinstance(table, stand_in_class()) or table.dtype != tf.float32:
            return None
        lookup = describe_gather(table, ids.values)
        rows = self._gather(lookup) if lookup is not None else None
        if rows is None:
            return None
        self._waiting[rows.name] = table, ids
        return ids.with_values(rows)

    def _lookup(self, rows: Any, **how: Any) -> Lookup | None:
        tf = load_tensorflow()
        symbolic = isinstance(rows, tf.RaggedTensor) and not hasattr(rows.flat_values, "numpy")
        table, ids = self._waiting.get(rows.flat_values.name, (None, None)) if symbolic else (None, None)
        if table is None:
            return None
        told = {"combiner": None, "length": None, **how}
        return Lookup(
            path=table.name.partition(":")[0],
            table=facts_of(table),
            variable=table,
            ids=(ids,),
            weights=None,
            encoding="ragged",
            **told,
        )
