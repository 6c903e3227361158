"""Intercepts the padding of ragged ids, as TextVectorization does it, and lookups of the padded
ids.

Words that a rule describes (`id_graphs/texts.py`) become a sequence where they are padded to a
length, and a bag where their rows are averaged under Keras' mask: the longest text of a batch then
does not matter.
Source: tf-keras 2.20, layers/pooling/global_average_pooling1d.py and layers/core/embedding.py;
Keras 3.15, likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from export.graphs.hooks import Hooks
from export.graphs.loading import tf
from export.graphs.placeholders import placeholder_class
from export.graphs.walks import keeps_values, needed
from export.id_graphs.limits import Limits, limits_of
from export.partition.graph.input_paths import TRACED_CALL, CallGraph
from export.partition.graph.origins import Source
from export.partition.ids import texts
from export.partition.ids.resolved_ids import ResolvedIds
from export.partition.lookups.records import ActivationOf, of_indicator, of_table
from export.tensorflow_models.frameworks.hook_points import AVERAGES

_EXACT_MAX = 1 << 24
"""Rows up to this one are exact in float32, the dtype of an indicator."""
_SEQUENCE: dict[str, Any] = {"kind": "sequence", "encoding": "ragged"}


@dataclass(frozen=True, eq=False)
class Padded:
    """Ragged ids that were padded.

    Attributes:
      ids: The ids, a RaggedTensor.
      length: The length that they were truncated or padded to; None: that of the longest example.
      zero_is_padding: Whether no word has row 0, which is the padding.
    """

    ids: Any
    length: int | None
    zero_is_padding: bool


class PaddedIds:
    """Remembers padded words, and the rows that were read by them."""

    def __init__(self, activation_of: ActivationOf) -> None:
        """Takes the function that returns a lookup's placeholder."""
        self._activation_of = activation_of
        self._ids: dict[str, Padded] = {}
        self._rows: dict[str, tuple[Any, Padded]] = {}

    def pad(self, ids: Any, length: int | None, default: Any, padded_ids: Any) -> Any:
        """Returns `padded_ids`, or for words with a length numbers that a service computes."""
        words = None
        if ids.dtype.is_integer and default in (None, 0):
            words = words_of(ids)
        if words is None:
            return padded_ids
        limits = _limits(words)
        count = limits.high + 1
        # A service pads numbers only to a known length, and has none below 0.
        if length is not None and limits.low >= 0 and count <= _EXACT_MAX:
            name = ids.values.op.name
            indicator = of_indicator(name, count, ids, 1, **_SEQUENCE, length=length)
            numbers = self._activation_of(indicator)
            padded_ids = tf.cast(tf.squeeze(numbers, 2), ids.dtype)
        self._ids[padded_ids.name] = Padded(ids, length, not limits.may_be(0))
        return padded_ids

    def gather(self, variable: Any, ids: Any) -> Any:
        """Returns the rows of padded words; None for all other ids."""
        if variable.dtype != tf.float32:
            return None
        padded = self._find_padded(ids)
        if padded is None:
            return self._gather_padded_words(variable, ids)
        if padded.length is None:
            # The rows depend on the longest text of the batch, unless `averaged` masks them.
            rows = super(placeholder_class(), variable).sparse_read(ids)  # type: ignore[misc]
        else:
            lookup = of_table(variable, padded.ids, **_SEQUENCE, length=padded.length, filler_row=0)
            rows = self._activation_of(lookup)
        self._rows[rows.name] = variable, padded
        return rows

    def _gather_padded_words(self, variable: Any, ids: Any) -> Any:
        """Returns the rows of words that were padded before they became ids; None for others."""
        if not hasattr(ids, "op") or ids.shape.rank != 2 or ids.shape.as_list()[1] is None:
            return None
        words = texts.uniform_rows(ids)
        if words_of(words) is None:
            return None
        lookup = of_table(variable, words, **_SEQUENCE, length=ids.shape.as_list()[1])
        return self._activation_of(lookup)

    def averaged(self, rows: Any, mask: Any) -> Any:
        """Returns the mean of masked rows of words; None if the mask is not `ids != 0`."""
        are_tensors = isinstance(rows, tf.Tensor) and isinstance(mask, tf.Tensor)
        if tf.executing_eagerly() or not are_tensors:
            return None
        source = _unchanged_source(rows, self._rows)
        variable, padded = self._rows.get(source.name, (None, None))
        if padded is None or not padded.zero_is_padding or mask.op.type != "NotEqual":
            return None
        ids, masked_id = mask.op.inputs
        if self._find_padded(ids) is not padded or tf.get_static_value(masked_id) != 0:
            return None
        bag = of_table(
            variable,
            padded.ids,
            kind="bag",
            encoding="ragged",
            combiner="mean",
            ids_max=padded.length,
        )
        return self._activation_of(bag)

    def _find_padded(self, ids: Any) -> Padded | None:
        """Returns the record of padded ids; None for all other ids."""
        if not hasattr(ids, "op"):
            return None
        return self._ids.get(_unchanged_source(ids, self._ids).name)


def words_of(ids: Any) -> ResolvedIds | None:
    """Returns the source and rule of ragged ids that are words of texts; None for others, or
    outside a traced call.
    """
    call = current_call(ids.values)
    if call is None:
        return None
    with tf.init_scope():  # tables are read for their keys
        return texts.find(ids.values, call, ids.row_splits)


def current_call(ids: Any) -> CallGraph | None:
    """Returns the call that is being traced, as far as ids depend on it; None outside one."""
    graph = tf.compat.v1.get_default_graph()
    name = getattr(graph, "name", "")
    # Graphs of TF1 code keep the name that TensorFlow gives them.
    if tf.executing_eagerly() or not name.startswith((TRACED_CALL, "wrapped_function")):
        return None
    captured = {inner.name: outer for outer, inner in graph.captures}
    sources = {}
    for placeholder in needed([ids], []).placeholders:
        # The recipe's inputs are not known here: the names of their placeholders stand for them.
        if placeholder.name not in captured:
            sources[placeholder.name] = Source(placeholder.name, "dense")
    return CallGraph(sources, captured)


def _limits(words: ResolvedIds) -> Limits:
    """Returns the limits of the rows of words."""
    assert words.rule is not None  # noqa: S101 - of words_of
    return limits_of(words.rule, [len(keys) for keys in words.keys])


def _unchanged_source(tensor: Any, recorded: Mapping[str, Any]) -> Any:
    """Returns the recorded tensor that operations passed on without a change of values or shape;
    the first tensor of the chain if none is recorded.
    """
    while tensor.name not in recorded and keeps_values(tensor.op):
        before = tensor.op.inputs[0]
        if str(before.shape) != str(tensor.shape):
            break
        tensor = before
    return tensor


def intercept_averages(hooks: Hooks, padded: PaddedIds) -> None:
    """Replaces GlobalAveragePooling1D over masked rows of words."""

    def mean(call: Callable[..., Any], layer: Any, inputs: Any, mask: Any = None) -> Any:
        averages = None
        if layer.data_format == "channels_last":
            averages = padded.averaged(inputs, mask)
        if averages is None:
            return call(layer, inputs, mask=mask)
        averages = tf.cast(averages, inputs.dtype)
        if layer.keepdims:
            return tf.expand_dims(averages, 1)
        return averages

    for point in AVERAGES:
        hooks.replace(point, mean)


def average_empty_as_zeros(hooks: Hooks) -> None:
    """Makes the mean of fully masked rows zeros, as in a bundle; Keras divides zero by zero."""

    def mean(call: Callable[..., Any], layer: Any, inputs: Any, mask: Any = None) -> Any:
        averages = call(layer, inputs, mask=mask)
        if mask is None or not tf.is_tensor(averages):
            return averages
        has_words = tf.reduce_any(tf.cast(mask, tf.bool), 1)
        # The rank of the averages depends on the layer's `keepdims`.
        ones = [1] * (averages.shape.rank - 1)
        has_words = tf.reshape(has_words, [-1, *ones])
        return tf.where(has_words, averages, tf.zeros_like(averages))

    for point in AVERAGES:
        hooks.replace(point, mean)
