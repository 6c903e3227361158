"""Recognises in a graph what the model does to ids before it looks them up, and tells it as data.

Source: TensorFlow 2.20 and Keras 2.20 / 3.15: the operations of `tf.strings.to_hash_bucket_fast` and `_strong`, of
lookup tables, of integers' arithmetic, and of the layers StringLookup, IntegerLookup, Hashing and Discretization.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bundle.manifest import ArithmeticIds, BucketIds, HashIds, IdRule, Unknown, VocabularyIds
from export.frameworks import load_tensorflow
from export.model.origins import Source, Sources, origin
from export.towers.descriptions import Keys

_UNNAMED = "vocabulary"
"""What a vocabulary is called until all of them are known."""

Tables = Mapping[str, Any]
"""Handles of lookup tables, by the name of the tensor that holds one in the graph."""


@dataclass(frozen=True)
class FoundIds:
    """Where ids come from, and what is done to them on the way; as in FeatureSpec."""

    source: Source
    rule: IdRule | None = None
    unknown: Unknown | None = None
    keys: tuple[Keys, ...] = ()


def find_ids(tensor: Any, sources: Sources, tables: Tables, rows: int) -> FoundIds | Any:
    """Follows ids back to an input.

    Args:
      tensor: rows of a table.
      sources: the call's inputs.
      tables: the model's lookup tables.
      rows: of the table.
    Returns:
      What was found, or the operation that is not understood.
    """
    found = origin(tensor, sources)
    if isinstance(found, Source):
        return FoundIds(found)
    simple = {"Bucketize": _buckets, "Cast": _cut_off}
    simple |= dict.fromkeys(("StringToHashBucketFast", "StringToHashBucketStrong"), _hash)
    simple |= dict.fromkeys(("Sub", "FloorDiv", "FloorMod", "TruncateMod"), _computed)
    nested = {"LookupTableFindV2": _vocabulary, "AddV2": _shifted, "SelectV2": _chosen}
    result = None
    if found.type in simple:
        result = simple[found.type](found, sources)
    elif found.type in nested:
        result = nested[found.type](found, sources, tables, rows)
    return found if result is None else result


def _hash(operation: Any, sources: Sources) -> FoundIds | None:
    texts = origin(operation.inputs[0], sources)
    if not isinstance(texts, Source):
        plain = texts.type == "AsString" and texts.inputs[0].dtype.is_integer and texts.get_attr("width") <= 0
        plain = plain and not _narrows(texts.inputs[0], sources)
        texts = origin(texts.inputs[0], sources) if plain else None
    if not isinstance(texts, Source):
        return None
    key = tuple(operation.get_attr("key")) if operation.type == "StringToHashBucketStrong" else None
    return FoundIds(texts, HashIds(buckets=operation.get_attr("num_buckets"), key=key))


def _narrows(tensor: Any, sources: Sources) -> bool:
    """Tells whether large ids of an input wrap around on their way, and so are others."""
    while tensor.name not in sources and tensor.op.inputs:
        before = max(tensor.op.inputs, key=lambda each: each.op.type != "Const")
        if tensor.op.type == "Cast" and before.dtype.size > tensor.dtype.size:
            return True
        tensor = before
    return False


def _buckets(operation: Any, sources: Sources) -> FoundIds | None:
    values = origin(operation.inputs[0], sources)
    if not isinstance(values, Source) or operation.inputs[0].dtype.name != "float32":
        return None
    return FoundIds(values, BucketIds(boundaries=tuple(operation.get_attr("boundaries"))))


def _vocabulary(operation: Any, sources: Sources, tables: Tables, rows: int) -> FoundIds | None:
    handle, ids, default = operation.inputs
    source, beyond = origin(ids, sources), _constant(default)
    table = tables.get(origin_name(handle))
    if not isinstance(source, Source) or table is None or beyond is None or _narrows(ids, sources):
        return None
    raw = load_tensorflow().raw_ops
    keys, values = raw.LookupTableExportV2(table_handle=table, Tkeys=ids.dtype, Tvalues=default.dtype)
    order = np.argsort(values.numpy())
    positions = values.numpy()[order]
    if not positions.size or not np.array_equal(positions, np.arange(positions[0], positions[0] + positions.size)):
        return None
    ordered = keys.numpy()[order].tolist()
    found: Keys = tuple(map(int, ordered)) if ids.dtype.is_integer else tuple(key.decode() for key in ordered)
    rule = VocabularyIds(vocabulary=_UNNAMED, first_row=int(positions[0]))
    return FoundIds(source, rule, _row(beyond, rows), (found,))


def _computed(operation: Any, sources: Sources) -> FoundIds | None:
    """Integers plus a constant, then divided by one, then the remainder of one, then plus one, or some of these."""
    found = _arithmetic(operation, sources) if operation.inputs[0].dtype.is_integer else None
    if found is None:
        return None
    source, rule = found
    return FoundIds(source, None if rule == ArithmeticIds() else rule)


def _arithmetic(operation: Source | Any, sources: Sources) -> tuple[Source, ArithmeticIds] | None:
    """Returns the input that integers come from, and what is computed of them; None: what no rule tells."""
    if isinstance(operation, Source):
        return operation, ArithmeticIds()
    if operation.type not in ("AddV2", "Sub", "FloorDiv", "FloorMod", "TruncateMod"):
        return None
    first, second = operation.inputs
    if operation.type == "AddV2" and _constant(second) is None:
        first, second = second, first
    constant = _constant(second)
    before = _arithmetic(origin(first, sources), sources) if constant is not None else None
    if before is None:
        return None
    (source, rule), number = before, int(constant)
    divided = rule.divisor > 1 or rule.buckets is not None
    if operation.type in ("AddV2", "Sub"):
        summand = number if operation.type == "AddV2" else -number
        changed = {"first_row": rule.first_row + summand} if divided else {"shift": rule.shift + summand}
        refused = changed.get("first_row", 0) < 0
    else:
        modulo = {"buckets": number, "truncated": operation.type == "TruncateMod"}
        changed = {"divisor": number} if operation.type == "FloorDiv" else modulo
        again = rule.buckets is not None or rule.first_row > 0 or (divided and "divisor" in changed)
        refused = again or number <= 0 or _narrows(first, sources)
    return None if refused else (source, rule.model_copy(update=changed))


def _shifted(operation: Any, sources: Sources, tables: Tables, rows: int) -> FoundIds | None:
    """Integers, or a hash or a vocabulary whose rows begin further down."""
    computed = _computed(operation, sources)
    if computed is not None:
        return computed
    for tensor, other in (operation.inputs, tuple(operation.inputs)[::-1]):
        shift = _size(other, tables) if other.op.type == "LookupTableSizeV2" else _constant(other)
        found = find_ids(tensor, sources, tables, rows) if shift is not None and shift >= 0 else None
        if not isinstance(found, FoundIds) or found.unknown is not None:
            continue
        rule = found.rule
        if isinstance(rule, HashIds | VocabularyIds) and rule.mask is None:
            return replace(found, rule=rule.model_copy(update={"first_row": rule.first_row + int(shift or 0)}))
    return None


def _chosen(operation: Any, sources: Sources, tables: Tables, rows: int) -> FoundIds | None:
    """A row for ids outside the table or for one that masks, or rows for keys that a vocabulary does not hold."""
    condition, first, second = operation.inputs
    for taken, other, inside in ((first, second, True), (second, first, False)):
        row = _constant(other)
        if row is None:
            continue
        found = find_ids(taken, sources, tables, rows)
        if not isinstance(found, FoundIds):
            return None
        if found.rule is None and _bounds(condition, found, sources, rows, inside):
            return replace(found, unknown=_row(row, rows))
        mask = _mask(condition, found, sources) if row == 0 and not inside else None
        if mask is not None and isinstance(found.rule, VocabularyIds | HashIds) and found.rule.mask is None:
            return replace(found, rule=found.rule.model_copy(update={"mask": mask}))
        return None
    listed, beyond = (first, second) if condition.op.type == "NotEqual" else (second, first)
    found = find_ids(listed, sources, tables, rows)
    asked = [origin_name(each) for each in condition.op.inputs if _constant(each) != -1]
    missing = condition.op.type in ("Equal", "NotEqual") and asked == [origin_name(listed)]
    if not (missing and isinstance(found, FoundIds) and isinstance(found.rule, VocabularyIds)) or found.unknown:
        return None
    hashed = _beyond(beyond, found.source, sources, tables, rows)
    return replace(found, rule=found.rule.model_copy(update=hashed)) if hashed is not None else None


def _beyond(tensor: Any, source: Source, sources: Sources, tables: Tables, rows: int) -> dict[str, Any] | None:
    """Returns which rows keys take that a vocabulary does not hold."""
    found = find_ids(tensor, sources, tables, rows)
    if not isinstance(found, FoundIds) or found.source != source:
        return None
    rule = found.rule
    if isinstance(rule, HashIds) and rule.key is None and rule.mask is None:
        return {"oov_buckets": rule.buckets, "oov_first_row": rule.first_row}
    if isinstance(rule, ArithmeticIds) and rule.buckets is not None:
        plain = ArithmeticIds(buckets=rule.buckets, first_row=rule.first_row)
        told = {"oov_buckets": rule.buckets, "oov_first_row": rule.first_row, "oov_hash": "modulo"}
        return told if rule == plain else None
    return None


def _mask(condition: Any, found: FoundIds, sources: Sources) -> int | str | None:
    """Returns the id that a condition is true of."""
    from tensorflow.python.framework import tensor_util

    test = condition.op
    if test.type != "Equal" or origin(test.inputs[0], sources) != found.source:
        return None
    value = tensor_util.constant_value(test.inputs[1])
    one = value.flat[0] if value is not None and value.size == 1 else None
    if isinstance(one, bytes):
        return one.decode()
    return int(one) if one is not None and value.dtype.kind in "iu" else None


def _cut_off(operation: Any, sources: Sources) -> FoundIds | None:
    """Whole numbers that were sent as floats, as Keras 2 takes the ids of an Input without a dtype."""
    source = origin(operation.inputs[0], sources)
    whole = operation.outputs[0].dtype.is_integer and operation.inputs[0].dtype.is_floating
    return FoundIds(source) if whole and isinstance(source, Source) else None


def _bounds(condition: Any, found: FoundIds, sources: Sources, rows: int, inside: bool) -> bool:
    """Tells whether a condition is true exactly of ids inside the table (or outside it)."""
    test = condition.op
    both, lower, upper = ("LogicalAnd", "GreaterEqual", "Less") if inside else ("LogicalOr", "Less", "GreaterEqual")
    parts = [part.op for part in test.inputs] if test.type == both else [test]
    limits = {}
    for part in parts:
        if len(part.inputs) != 2 or origin(part.inputs[0], sources) != found.source:
            return False
        limits[part.type] = _constant(part.inputs[1])
    return limits in ({lower: 0, upper: rows}, {upper: rows})


def _size(tensor: Any, tables: Tables) -> int | None:
    """Returns how many keys a lookup table of the model holds."""
    table = tables.get(origin_name(tensor.op.inputs[0]))
    return None if table is None else int(load_tensorflow().raw_ops.LookupTableSizeV2(table_handle=table))


def _row(row: float, rows: int) -> Unknown | None:
    return Unknown(rule="row", row=int(row)) if 0 <= row < rows else None


def _constant(tensor: Any) -> Any:
    """Returns the one number that a tensor holds everywhere, if it is known."""
    from tensorflow.python.framework import tensor_util

    if tensor.op.type in ("Fill", "BroadcastTo", "Identity", "Cast"):
        return _constant(tensor.op.inputs[1 if tensor.op.type == "Fill" else 0])
    if tensor.op.type in ("ZerosLike", "OnesLike"):
        return int(tensor.op.type == "OnesLike")
    value = tensor_util.constant_value(tensor)
    return value.flat[0] if value is not None and value.size == 1 and value.dtype.kind in "iuf" else None


def origin_name(handle: Any) -> str:
    """Returns the name of the tensor that a resource comes from."""
    while handle.op.type == "Identity":
        handle = handle.op.inputs[0]
    return str(handle.name)
