"""Intercepts what fills ragged ids up to be dense, as TextVectorization does, and lookups of what comes of it.

Words that a rule describes (`id_rules/texts.py`) become a sequence where they are filled up to a length, and a bag
where their rows are averaged under Keras' mask: then it does not matter how long the longest text of a batch is.
Source: tf-keras 2.20, layers/pooling/global_average_pooling1d.py and layers/core/embedding.py; Keras 3.15, likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bundle.format.manifest import HashIds, TextIds
from export.frameworks.hooks import Hooks
from export.frameworks.loading import tf
from export.frameworks.placeholders import placeholder_class
from export.frameworks.points import AVERAGES
from export.graph.input_paths import Followed
from export.graph.origins import Source, hands_on, needed
from export.id_rules.chains import row_count
from export.id_rules.found import FoundIds
from export.id_rules.texts import find_text
from export.lookups.records import Answer, of_indicator, of_table

_ANY = 1 << 62
_EXACT_MAX = 1 << 24
"""Rows up to here are exact in float32."""
_SEQUENCE: dict[str, Any] = {"kind": "sequence", "encoding": "ragged"}


@dataclass(frozen=True, eq=False)
class Filled:
    """Ragged ids that were filled up.

    Attributes:
      ids: a RaggedTensor.
      length: which they were cut or filled up to; None: the longest one's.
      apart: whether no word has the row 0, which fills up.
    """

    ids: Any
    length: int | None
    apart: bool


class FilledIds:
    """Remembers words that were filled up, and rows that were read by them."""

    def __init__(self, answer: Answer) -> None:
        """Takes what answers a lookup."""
        self._answer = answer
        self._ids: dict[str, Filled] = {}
        self._rows: dict[str, tuple[Any, Filled]] = {}

    def fill(self, ids: Any, length: int | None, default: Any, made: Any) -> Any:
        """Returns `made`, which is ragged ids filled up; of words with a length, numbers that a service makes."""
        integers = isinstance(made, tf.Tensor) and ids.dtype.is_integer and ids.ragged_rank == 1
        words = words_of(ids) if integers and default in (None, 0) else None
        if words is None:
            return made
        count = row_count(words)
        if length is not None and count is not None and count <= _EXACT_MAX:
            numbers = self._answer(of_indicator(ids.values.op.name, count, ids, 1, **_SEQUENCE, length=length))
            made = tf.cast(tf.squeeze(numbers, 2), ids.dtype)
        self._ids[made.name] = Filled(ids, length, _apart(words))
        return made

    def gather(self, variable: Any, ids: Any) -> Any:
        """Returns the rows of words that were filled up; None of all other ids."""
        filled = self._of(ids)
        if filled is None or variable.dtype != tf.float32:
            return None
        if filled.length is None:  # whose rows it depends on its company: those under a mask do not
            found = super(placeholder_class(), variable).sparse_read(ids)  # type: ignore[misc]
        else:
            lookup = of_table(variable, filled.ids, **_SEQUENCE, length=filled.length, filler_row=0)
            found = self._answer(lookup)
        self._rows[found.name] = variable, filled
        return found

    def averaged(self, rows: Any, mask: Any) -> Any:
        """Returns the mean of rows of words under a mask; None where the mask is another than `ids != 0`."""
        if tf.executing_eagerly() or not isinstance(rows, tf.Tensor) or not isinstance(mask, tf.Tensor):
            return None
        variable, filled = self._rows.get(_handed_on(rows, self._rows).name, (None, None))
        if filled is None or not filled.apart or mask.op.type != "NotEqual":
            return None
        ids, other = mask.op.inputs
        if self._of(ids) is not filled or tf.get_static_value(other) != 0:
            return None
        how = {"kind": "bag", "encoding": "ragged", "combiner": "mean", "ids_max": filled.length}
        return self._answer(of_table(variable, filled.ids, **how))

    def _of(self, ids: Any) -> Filled | None:
        return self._ids.get(_handed_on(ids, self._ids).name) if hasattr(ids, "op") else None


def words_of(ids: Any) -> FoundIds | None:
    """Returns how ragged ids are the words of texts; None if they are others, or no call of the model is traced."""
    call = call_so_far(ids.values)
    if call is None:
        return None
    with tf.init_scope():  # tables are read for their keys
        return find_text(ids.values, call, _ANY, ids.row_splits)


def call_so_far(ids: Any) -> Followed | None:
    """Returns the call that is being traced, as far as ids depend on it; None elsewhere."""
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or not getattr(graph, "name", "").startswith("wrapped_function"):
        return None
    captured = {inner.name: outer for outer, inner in graph.captures}
    inputs = [each for each in needed([ids], []).placeholders if each.name not in captured]
    return Followed({each.name: Source(each.name, "dense") for each in inputs}, captured)


def _apart(words: FoundIds) -> bool:
    """Returns whether no word has the row 0."""
    assert isinstance(words.rule, TextIds)  # noqa: S101 - of find_text
    rule = words.rule.ids
    if isinstance(rule, HashIds):
        return rule.first_row > 0 and rule.mask is None
    others = rule.oov_first_row > 0 or not rule.oov_buckets
    return rule.first_row > 0 and others and (words.unknown is None or words.unknown.row != 0)


def _handed_on(tensor: Any, known: Mapping[str, Any]) -> Any:
    """Returns the tensor behind operations that change neither values nor shape, as soon as it is known."""
    while tensor.name not in known and hands_on(tensor.op):
        before = tensor.op.inputs[0]
        if str(before.shape) != str(tensor.shape):
            break
        tensor = before
    return tensor


def intercept_averages(hooks: Hooks, filled: FilledIds) -> None:
    """Answers GlobalAveragePooling1D of rows of words, under their mask."""

    def mean(call: Callable[..., Any], layer: Any, inputs: Any, mask: Any = None) -> Any:
        found = filled.averaged(inputs, mask) if layer.data_format == "channels_last" else None
        if found is None:
            return call(layer, inputs, mask=mask)
        found = tf.cast(found, inputs.dtype)
        return tf.expand_dims(found, 1) if layer.keepdims else found

    for point in AVERAGES:
        hooks.replace(point, mean)


def average_none_as_zeros(hooks: Hooks) -> None:
    """Lets the mean of rows that are all masked be zeros, as a bundle has it, where Keras divides zero by zero."""

    def mean(call: Callable[..., Any], layer: Any, inputs: Any, mask: Any = None) -> Any:
        found = call(layer, inputs, mask=mask)
        if mask is None or not tf.is_tensor(found):
            return found
        kept = tf.reduce_any(tf.cast(mask, tf.bool), 1)
        kept = tf.reshape(kept, [-1, *[1] * (found.shape.rank - 1)])
        return tf.where(kept, found, tf.zeros_like(found))

    for point in AVERAGES:
        hooks.replace(point, mean)
