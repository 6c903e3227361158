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
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hook_points import KERAS_3_ENCODING, TF_KERAS_ENCODING
from export.tensorflow_models.frameworks.hooks import Hooks
from export.tensorflow_models.graph.input_paths import Values, per_example
from export.tensorflow_models.id_graphs import crosses
from export.tensorflow_models.id_graphs.capture import find_rule
from export.tensorflow_models.id_graphs.resolved_ids import ResolvedIds
from export.tensorflow_models.lookups.feature_columns import WIDTH_MAX
from export.tensorflow_models.lookups.padded_ids import current_call, words_of
from export.tensorflow_models.lookups.records import Answer, Lookup, of_indicator


def intercept_encodings(hooks: Hooks, answer: Answer) -> None:
    """Replaces encodings of ids that a rule describes by `answer`; Keras computes all others."""

    def encode(outside: OutsideIds, original: Callable[..., Any], **how: Any) -> Any:
        lookup = _lookup(outside, **how)
        if lookup is None:
            return original(**how)
        with tf.control_dependencies(None):  # without Keras' assertions about ids
            found = answer(lookup)
            if how["output_mode"] == "multi_hot" and lookup.kind == "bag":
                found = tf.minimum(found, 1.0)
            found = tf.cast(found, how["dtype"])
            return found if how["output_mode"] != "tf_idf" else found * how["idf_weights"]

    # Its layers reject ids beyond their number of tokens; those of Keras 3 leave them out.
    hooks.replace(TF_KERAS_ENCODING, partial(encode, REJECTING))
    hooks.replace(KERAS_3_ENCODING, partial(encode, UNDEFINED))


def _lookup(
    outside: OutsideIds, inputs: Any, output_mode: str, depth: int, **how: Any
) -> Lookup | None:
    """Returns the lookup of an encoding; None if no rule describes its ids, or if a tower can
    compute it.
    """
    beside = [how.get("sparse"), how.get("count_weights")]
    if any(each is not None and each is not False for each in beside) or depth > WIDTH_MAX:
        return None
    if isinstance(inputs, tf.RaggedTensor):
        words = None if words_of(inputs) is None else inputs.values.op.name
        how = {"kind": "bag", "encoding": "ragged", "combiner": "sum"}
        return None if words is None else of_indicator(words, depth, inputs, **how)
    if not isinstance(inputs, tf.Tensor) or tf.executing_eagerly():
        return None
    if inputs.op.type == "Cast" and inputs.op.inputs[0].dtype.is_integer:
        inputs = inputs.op.inputs[0]  # few rows, which Keras 3 casts for another layer
    dense = inputs.dtype.is_integer and inputs.shape.rank in (1, 2)
    size = per_example(inputs) if dense else None
    counted = output_mode in ("multi_hot", "count") and dense and inputs.shape.rank == 2
    if (
        size is None
        or not (counted or (output_mode == "one_hot" and size == 1))
        or not _is_described(inputs, size, depth)
    ):
        return None
    how = {} if size == 1 else {"kind": "bag", "combiner": "sum"}
    return of_indicator(inputs.op.name, depth, inputs, outside=outside, **how)


def _is_described(ids: Any, size: int, depth: int) -> bool:
    """Returns whether a rule describes these ids: all values of one input, or one value of each of
    several.
    """
    call = current_call(ids)
    if call is None:
        return False
    with tf.init_scope():  # tables are read for their keys
        found = find_rule(Values(ids), call, depth)
        if not isinstance(found, ResolvedIds):
            return size == 1 and crosses.find(ids, call) is not None
    own = ids.graph.get_tensor_by_name(found.source.name)
    # LiteRT can encode a single integer.
    odd = own.dtype.name == "string" or found.rule is not None or size > 1
    return odd and (found.source.place is not None or per_example(own) == size)
