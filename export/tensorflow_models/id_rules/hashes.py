"""Hashes of strings, and of integers as their decimal strings.

Source: TensorFlow 2.20: the operations of `tf.strings.to_hash_bucket_fast` and `_strong`, on which
the layer Hashing of tf-keras 2.20 and Keras 3.15 is based.
"""

from __future__ import annotations

from dataclasses import replace

from bundle.format.manifest import HashIds
from export.tensorflow_models.graph.input_paths import CallGraph, Values
from export.tensorflow_models.graph.origins import Source
from export.tensorflow_models.id_rules.integers import find_raw
from export.tensorflow_models.id_rules.resolved_ids import ResolvedIds

OPERATIONS = frozenset({"StringToHashBucketFast", "StringToHashBucketStrong"})


def find(values: Values, call: CallGraph, rows: int | None) -> ResolvedIds | None:
    """Returns the input whose values are hashed, and the rule; None if they are computed."""
    if values.type == "AddV2":
        return _shifted(values, call, rows)
    found = find_raw(values.inputs[0], call) if values.type in OPERATIONS else None
    if found is None:
        return None
    operation = values.tensor.op
    key = tuple(operation.get_attr("key")) if values.type == "StringToHashBucketStrong" else None
    return replace(found, rule=HashIds(buckets=operation.get_attr("num_buckets"), key=key))


def _shifted(values: Values, call: CallGraph, rows: int | None) -> ResolvedIds | None:
    """Returns a hash whose first row is shifted."""
    for ids, other in (values.inputs, values.inputs[::-1]):
        shift = call.number(other)
        hashed = call.origin(ids)
        found = None if shift is None or isinstance(hashed, Source) else find(hashed, call, rows)
        if found is not None and isinstance(found.rule, HashIds) and shift >= 0:
            return replace(
                found,
                rule=found.rule.model_copy(update={"first_row": found.rule.first_row + int(shift)}),
            )
    return None
