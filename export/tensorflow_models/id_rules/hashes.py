"""Hashes of strings, and of integers as their decimal strings.

Source: TensorFlow 2.20: the operations of `tf.strings.to_hash_bucket_fast` and `_strong`, on which
the layer Hashing of tf-keras 2.20 and Keras 3.15 is based.
"""

from __future__ import annotations

from dataclasses import replace

from bundle.format.manifest import HashIds
from export.tensorflow_models.graph.input_paths import CallGraph, Values
from export.tensorflow_models.id_rules.integers import OPERATIONS_MAX, find_raw
from export.tensorflow_models.id_rules.resolved_ids import ResolvedIds

OPERATIONS = frozenset({"StringToHashBucketFast", "StringToHashBucketStrong"})


def find(values: Values, call: CallGraph, _rows: int | None) -> ResolvedIds | None:
    """Returns the input whose values are hashed, and the rule; None if they are computed.

    The first row of a hash may be shifted by constants.
    """
    shifts: list[int] = []
    while values.type == "AddV2":
        shifted = _shifted(values, call)
        if shifted is None or len(shifts) == OPERATIONS_MAX:
            return None
        values, shift = shifted
        shifts.append(shift)
    found = find_raw(values.inputs[0], call) if values.type in OPERATIONS else None
    if found is None:
        return None
    operation = values.tensor.op
    key = tuple(operation.get_attr("key")) if values.type == "StringToHashBucketStrong" else None
    buckets = operation.get_attr("num_buckets")
    return replace(found, rule=HashIds(buckets=buckets, key=key, first_row=sum(shifts)))


def _shifted(values: Values, call: CallGraph) -> tuple[Values, int] | None:
    """Returns what a constant is added to, and the constant; None if it is an input, or if no
    constant of at least 0 is added.
    """
    if len(values.inputs) != 2:
        return None
    for other, constant in (values.inputs, values.inputs[::-1]):
        shift = call.number(constant)
        before = call.origin(other)
        if shift is not None and shift >= 0 and isinstance(before, Values):
            return before, int(shift)
    return None
