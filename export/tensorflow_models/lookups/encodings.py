"""Intercepts Keras' one_hot, multi_hot and count encodings of ids, in every layer that has an
output_mode.

Ids that a rule describes become an indicator, which a service computes: a tower would need strings,
hashes, lookup tables or a count of ids, none of which LiteRT has.
Source: tf-keras 2.20, layers/preprocessing/preprocessing_utils.py, and Keras 3.15,
src/utils/numerical_utils.py: encode_categorical_inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from export.front_end.outside_ids import REJECTING, UNDEFINED, OutsideIds
from export.graphs.hooks import Hooks
from export.graphs.loading import tf
from export.partition.graph.input_paths import Values, per_example
from export.partition.ids import crosses
from export.partition.ids.capture import find_rule
from export.partition.ids.resolved_ids import ResolvedIds
from export.partition.ids.texts import uniform_rows
from export.partition.lookups.records import ActivationOf, TracedLookup, of_indicator
from export.tensorflow_models.frameworks.hook_points import KERAS_3_ENCODING, TF_KERAS_ENCODING
from export.tensorflow_models.lookups.feature_columns import WIDTH_MAX
from export.tensorflow_models.lookups.padded_ids import current_call, words_of


def intercept_encodings(hooks: Hooks, activation_of: ActivationOf) -> None:
    """Replaces encodings of ids that a rule describes by `activation_of`; Keras does all others."""

    def encode(outside: OutsideIds, original: Callable[..., Any], **arguments: Any) -> Any:
        lookup = _lookup(outside, **arguments)
        if lookup is None:
            return original(**arguments)
        output_mode = arguments["output_mode"]
        # Without Keras' assertions about ids, which a tower does not have.
        with tf.control_dependencies(None):
            counts = activation_of(lookup)
            # An indicator counts; multi_hot only says which ids there are.
            if output_mode == "multi_hot" and lookup.kind == "bag":
                counts = tf.minimum(counts, 1.0)
            counts = tf.cast(counts, arguments["dtype"])
            if output_mode == "tf_idf":
                return counts * arguments["idf_weights"]
            return counts

    # Layers of tf-keras reject ids beyond their number of tokens; Keras 3 leaves such ids out.
    hooks.replace(TF_KERAS_ENCODING, partial(encode, REJECTING))
    hooks.replace(KERAS_3_ENCODING, partial(encode, UNDEFINED))


def _lookup(
    outside: OutsideIds, inputs: Any, output_mode: str, depth: int, **options: Any
) -> TracedLookup | None:
    """Returns the lookup of an encoding; None if no rule describes its ids, or if a tower can
    compute it.
    """
    # Sparse results and weighted counts are left to the model. Keras passes False or None if
    # neither is requested.
    sparse = options.get("sparse")
    count_weights = options.get("count_weights")
    if sparse not in (None, False) or count_weights is not None or depth > WIDTH_MAX:
        return None
    if isinstance(inputs, tf.RaggedTensor):
        return _lookup_of_words(inputs, depth)
    if isinstance(inputs, tf.Tensor) and not tf.executing_eagerly():
        return _lookup_of_integers(inputs, output_mode, depth, outside)
    return None


def _lookup_of_words(ids: Any, depth: int) -> TracedLookup | None:
    """Returns the lookup of ragged ids that are words of texts; None for all other ragged ids."""
    if words_of(ids) is None:
        return None
    name = ids.values.op.name
    return of_indicator(name, depth, ids, kind="bag", encoding="ragged", combiner="sum")


def _lookup_of_integers(
    inputs: Any, output_mode: str, depth: int, outside: OutsideIds
) -> TracedLookup | None:
    """Returns the lookup of dense ids; None if no rule describes them, or a tower computes it."""
    if inputs.op.type == "Cast" and inputs.op.inputs[0].dtype.is_integer:
        inputs = inputs.op.inputs[0]  # few rows, which Keras 3 casts for another layer
    if not inputs.dtype.is_integer or inputs.shape.rank not in (1, 2):
        return None
    size = per_example(inputs)
    is_counted = output_mode in ("multi_hot", "count") and inputs.shape.rank == 2
    if is_counted and size is not None:
        # Words that were padded before they were looked up.
        lookup = _lookup_of_words(uniform_rows(inputs), depth)
        if lookup is not None:
            return lookup
    is_one_hot = output_mode == "one_hot" and size == 1
    if size is None or not (is_counted or is_one_hot) or not _is_described(inputs, size, depth):
        return None

    name = inputs.op.name
    if size == 1:
        return of_indicator(name, depth, inputs, outside=outside)
    return of_indicator(name, depth, inputs, outside=outside, kind="bag", combiner="sum")


def _is_described(ids: Any, size: int, depth: int) -> bool:
    """Returns whether a rule describes these ids: all values of one input, or one value of each of
    several.
    """
    call = current_call(ids)
    if call is None:
        return False
    with tf.init_scope():  # tables are read for their keys
        resolved = find_rule(Values(ids), call, depth)
        if not isinstance(resolved, ResolvedIds):
            return size == 1 and crosses.find(ids, call) is not None
    tensor = ids.graph.get_tensor_by_name(resolved.source.name)
    # LiteRT can encode a single integer.
    needs_service = tensor.dtype.name == "string" or resolved.rule is not None or size > 1
    is_one_value = resolved.source.position is not None
    return needs_service and (is_one_value or per_example(tensor) == size)
