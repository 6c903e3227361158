"""Recognises in a graph what the model does to ids before it looks them up, and tells it as data.

Source: TensorFlow 2.20 and Keras 2.20 / 3.15: the operations of `tf.strings.to_hash_bucket_fast` and `_strong`, of
lookup tables, and of the layers StringLookup, IntegerLookup, Hashing and Discretization.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from bundle.format.manifest import ArithmeticIds, BucketIds, HashIds, Unknown, VocabularyIds
from export.errors import NotConvertible
from export.frameworks.loading import load_tensorflow
from export.graph.input_paths import Followed, Values
from export.graph.origins import Source, needed
from export.graph.specs import Keys
from export.id_rules.arithmetic import COMPUTED, FoundIds, find_computed, find_whole
from export.id_rules.buckets import KNOWN, SEARCHES, SERIES, find_steps
from export.user_lines import at_line, line_of_operation

_WHOLE_FLOATS = {"float64": 1 << 53, "float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8}
"""Up to which every integer is a float of its own."""
_UNNAMED = "vocabulary"
"""What a vocabulary is called until all of them are known."""


def find_ids(ids: Values, call: Followed, rows: int | None) -> FoundIds | Values:
    """Follows ids back to an input, by one rule.

    Args:
      ids: rows of a table.
      call: they are of.
      rows: of the table; None: they are integers that something else is made of.
    Returns:
      What was found, or the values that are computed in a way that is not understood.
    """
    found = call.origin(ids)
    if isinstance(found, Source):
        exact = find_whole(ids, call) if rows is None and ids.tensor.dtype.is_integer else None
        return exact or FoundIds(found)
    simple: dict[str, Callable[[Values, Followed], FoundIds | None]] = {
        "Bucketize": _buckets,
        "Cast": partial(_cut_off, rows=rows),
    }
    simple |= dict.fromkeys(("StringToHashBucketFast", "StringToHashBucketStrong"), _hash)
    simple |= dict.fromkeys(COMPUTED - {"AddV2"}, find_computed)
    nested = {"LookupTableFindV2": _vocabulary, "AddV2": _shifted, "SelectV2": _chosen}
    # No table has a row for what wraps around behind it all, but a rule that follows has.
    result = find_computed(ids, call, exact=True) if rows is None and found.type in COMPUTED else None
    if result is None and found.inputs and found.type in simple:
        result = simple[found.type](found, call)
    elif result is None and found.inputs and found.type in nested:
        result = nested[found.type](found, call, rows)
    if result is None:
        steps = find_steps(found, call, rows)
        result = None if steps is None else FoundIds(*steps)
    return found if result is None else result


def blamed(values: Values, call: Followed, rows: int | None) -> Values:
    """Returns what of a computation no rule tells: behind what rules do tell, if there is one thing behind it."""
    while True:
        operands = values.tensor.op.inputs if values.type in SEARCHES else [each.tensor for each in values.inputs]
        computed = [each for each in operands if call.constant(each) is None]
        read = [each for each in computed if each.op.type == "ReadVariableOp"]
        known = values.type in KNOWN or values.type in _RULES
        before = call.origin(Values((read or computed)[0])) if known and (read or len(computed) == 1) else None
        if before is None or isinstance(before, Source) or before.type == "Placeholder":
            return values
        if isinstance(find_ids(before, call, rows), FoundIds):
            return values
        values = before


_RULES = COMPUTED | {"StringToHashBucketFast", "StringToHashBucketStrong", "AsString"}


def cure_of(values: Values) -> str:
    """Returns what to change about what no rule tells."""
    if values.type == "ReadVariableOp":
        return "make a constant of the variable that its ids are computed with, since ids are told without a checkpoint"
    if "PyFunc" in values.type:
        return "write the function in TensorFlow's own operations, or let callers send what it returns"
    if values.type in SEARCHES | {"Bucketize", "Cast"} | SERIES:
        return (
            "let the number only rise, or only fall, with what is sent, on all of its line (tf.maximum(x, 0.) in front "
            "of a logarithm)"
        )
    several = _cure_of_several(values)
    if several:
        return several
    return (
        "let callers send what is looked up, as an input of its own, or compute it of one input by constants (sums, "
        "products, quotients, remainders, limits), hashes, vocabularies or buckets"
    )


def cure_of_words(ids: Any) -> str:
    """Returns what to change about ids that are the words of texts; "" of others."""
    if not any(each.type in ("StringSplitV2", "UnicodeDecode") for each in needed([ids], []).operations):
        return ""
    return (
        "let TextVectorization have an output_sequence_length, or average the rows of its words by "
        "GlobalAveragePooling1D under mask_zero, where no word has the row 0; change texts by tf.strings.lower or "
        "upper without an encoding, strip, or regex_replace of ASCII characters or one text, and split at whitespace "
        "or into characters; or let callers send the words"
    )


def _cure_of_several(values: Values) -> str:
    """Returns what to change about ids that are made of several values together; "" of others."""
    words = cure_of_words(values.tensor)
    if words:
        return words
    if values.type == "SparseToDense":
        return (
            "cross inputs of one value each, as they are, or rows that hashes, vocabularies, buckets and "
            "remainders make of them"
        )
    if values.type in ("StringJoin", "Add", "AsString", "ReduceJoin"):
        return (
            "join inputs of one value each by tf.strings.join: strings, texts, and tf.strings.as_string of "
            "integers, or of rows that hashes, vocabularies, buckets and remainders make"
        )
    return ""


def _is(values: Values, found: FoundIds, call: Followed) -> bool:
    """Tells whether values are what some ids are made of."""
    same = find_whole(values, call) if values.tensor.dtype.is_integer else None
    if same is None:
        return call.origin(values) == found.source and found.cast is None
    real = [None if each is None or each.of != "float32" else each for each in (same.cast, found.cast)]
    return same.source == found.source and real[0] == real[1]


def _sent(values: Values, call: Followed) -> FoundIds | None:
    """Returns the input that integers or strings are, as its decimal strings, too; None of others."""
    if values.tensor.dtype.is_integer:
        return find_whole(values, call)
    texts = call.origin(values)
    if isinstance(texts, Source):
        return FoundIds(texts)
    decimal = texts.type == "AsString" and texts.tensor.op.get_attr("width") <= 0
    return find_whole(texts.inputs[0], call) if decimal and texts.inputs[0].tensor.dtype.is_integer else None


def _hash(values: Values, call: Followed) -> FoundIds | None:
    found = _sent(values.inputs[0], call)
    if found is None:
        return None
    operation = values.tensor.op
    key = tuple(operation.get_attr("key")) if values.type == "StringToHashBucketStrong" else None
    return replace(found, rule=HashIds(buckets=operation.get_attr("num_buckets"), key=key))


def _buckets(values: Values, call: Followed) -> FoundIds | None:
    number = call.origin(values.inputs[0])
    if not isinstance(number, Source) or values.inputs[0].tensor.dtype.name != "float32":
        return None
    return FoundIds(number, BucketIds(boundaries=tuple(values.tensor.op.get_attr("boundaries"))))


def _vocabulary(values: Values, call: Followed, rows: int | None) -> FoundIds | None:
    handle, ids, default = values.inputs
    found = _sent(ids, call)
    table, beyond = call.captured.get(origin_name(handle.tensor)), call.number(default)
    if found is None or table is None or beyond is None or (rows is None and beyond < -1):
        return None
    raw, keys_dtype = load_tensorflow().raw_ops, ids.tensor.dtype
    try:
        keys, positions = raw.LookupTableExportV2(table_handle=table, Tkeys=keys_dtype, Tvalues=default.tensor.dtype)
    except load_tensorflow().errors.AbortedError as problem:
        raise NotConvertible(
            f"ids are looked up{at_line(line_of_operation(values.tensor.op))} in a vocabulary that is not there: "
            "checkpoints hold none; let the factory give it to the layer, or adapt() the layer as training did"
        ) from problem
    order = np.argsort(positions.numpy())
    places = positions.numpy()[order]
    if not places.size or not np.array_equal(places, np.arange(places[0], places[0] + places.size)):
        return None
    ordered = keys.numpy()[order].tolist()
    if not keys_dtype.is_integer and isinstance(call.origin(ids), Values):  # those of integers
        if any(str(_integer(key)).encode() != key for key in ordered):
            return None
        ordered = list(map(_integer, ordered))
    known: Keys = tuple(key.decode() if isinstance(key, bytes) else key for key in ordered)
    rule = VocabularyIds(vocabulary=_UNNAMED, first_row=int(places[0]))
    if call.from_end and rows is not None and beyond < 0:
        beyond += rows
    return replace(found, rule=rule, unknown=_row(beyond, rows), keys=(known,))


def _integer(text: bytes) -> int | None:
    return int(text) if re.fullmatch(rb"-?[0-9]{1,19}", text) else None


def _shifted(values: Values, call: Followed, rows: int | None) -> FoundIds | None:
    """Integers, or a hash whose rows begin further down."""
    computed = find_computed(values, call, exact=rows is None)
    if computed is not None:
        return computed
    for ids, other in (values.inputs, values.inputs[::-1]):
        size = other.type == "LookupTableSizeV2"
        shift = _size(other.tensor, call) if size else call.number(other)
        found = find_ids(ids, call, rows) if shift is not None and shift >= 0 else None
        if not isinstance(found, FoundIds) or found.unknown is not None:
            continue
        rule = found.rule
        if isinstance(rule, HashIds) and rule.mask is None:
            return replace(found, rule=rule.model_copy(update={"first_row": rule.first_row + int(shift or 0)}))
    return None


def _chosen(values: Values, call: Followed, rows: int | None) -> FoundIds | None:
    """A row for ids outside the table or for one that masks, or rows for keys that a vocabulary does not hold."""
    condition, first, second = values.inputs
    for taken, other, inside in ((first, second, True), (second, first, False)):
        row = call.number(other)
        if row is None:
            continue
        found = find_ids(taken, call, rows)
        if not isinstance(found, FoundIds):
            return None
        if found.rule is None and _bounds(condition, found, call, rows, inside):
            return replace(found, unknown=_row(row, rows))
        mask = _mask(condition, found, call) if row == 0 and not inside else None
        if mask is not None and isinstance(found.rule, VocabularyIds | HashIds) and found.rule.mask is None:
            return replace(found, rule=found.rule.model_copy(update={"mask": mask}))
        return None
    listed, beyond = (first, second) if condition.type == "NotEqual" else (second, first)
    found = find_ids(listed, call, rows)
    asked = [origin_name(each.tensor) for each in condition.inputs if call.number(each) != -1]
    missing = condition.type in ("Equal", "NotEqual") and asked == [origin_name(listed.tensor)]
    if not (missing and isinstance(found, FoundIds) and isinstance(found.rule, VocabularyIds)) or found.unknown:
        return None
    hashed = _beyond(beyond, found, call, rows)
    return replace(found, rule=found.rule.model_copy(update=hashed)) if hashed is not None else None


def _beyond(values: Values, listed: FoundIds, call: Followed, rows: int | None) -> dict[str, Any] | None:
    """Returns which rows keys take that a vocabulary does not hold."""
    found = find_ids(values, call, rows)
    if not isinstance(found, FoundIds) or (found.source, found.cast) != (listed.source, listed.cast):
        return None
    rule = found.rule
    if isinstance(rule, HashIds) and rule.key is None and rule.mask is None:
        return {"oov_buckets": rule.buckets, "oov_first_row": rule.first_row}
    if isinstance(rule, ArithmeticIds) and rule.buckets is not None:
        plain = ArithmeticIds(buckets=rule.buckets, first_row=rule.first_row)
        told = {"oov_buckets": rule.buckets, "oov_first_row": rule.first_row, "oov_hash": "modulo"}
        return told if rule == plain else None
    return None


def _mask(condition: Values, found: FoundIds, call: Followed) -> int | str | None:
    """Returns the id that a condition is true of."""
    if condition.type != "Equal" or not condition.inputs or not _is(condition.inputs[0], found, call):
        return None
    value = call.constant(condition.inputs[1].tensor)
    one = value.flat[0] if value is not None and value.size == 1 else None
    if isinstance(one, bytes):
        return one.decode()
    return int(one) if value is not None and one is not None and value.dtype.kind in "iu" else None


def _cut_off(values: Values, call: Followed, rows: int | None) -> FoundIds | None:
    """Whole numbers that were sent as floats, as Keras 2 takes the ids of an Input without a dtype."""
    found = find_whole(values, call)
    if found is None:
        return _there_and_back(values, call, rows)
    return found if found.cast is not None and found.cast.of == "float32" else None


def _there_and_back(values: Values, call: Followed, rows: int | None) -> FoundIds | None:
    """Integers that are floats on their way, as an Input without a dtype makes them, or a Sequential of Keras 3."""
    number = call.origin(values.inputs[0])
    if isinstance(number, Source) or number.type != "Cast" or not number.inputs[0].tensor.dtype.is_integer:
        return None
    # Beyond its significand a float is another integer, but none of the table's, as what was sent is none.
    if rows is None or rows > _WHOLE_FLOATS.get(number.tensor.dtype.name, 0):
        return None
    found = find_ids(number.inputs[0], call, rows)
    return found if isinstance(found, FoundIds) else None


def _bounds(condition: Values, found: FoundIds, call: Followed, rows: int | None, inside: bool) -> bool:
    """Tells whether a condition is true of ids inside the table (or outside it), at one end at least.

    Of those beyond the other end TensorFlow finds no row.
    """
    both, lower, upper = ("LogicalAnd", "GreaterEqual", "Less") if inside else ("LogicalOr", "Less", "GreaterEqual")
    limits: dict[str, Any] = {}
    for part in condition.inputs if condition.type == both else [condition]:
        if len(part.inputs) != 2 or not _is(part.inputs[0], found, call):
            return False
        limits[part.type] = call.number(part.inputs[1])
    if rows is None:
        return False
    (one,) = limits.values() if list(limits) == ["NotEqual" if inside else "Equal"] else (None,)
    beyond = one is not None and not 0 <= one < rows
    return beyond or limits in ({lower: 0, upper: rows}, {upper: rows}, {lower: 0})


def _size(tensor: Any, call: Followed) -> int | None:
    """Returns how many keys a lookup table of the model holds."""
    table = call.captured.get(origin_name(tensor.op.inputs[0]))
    return None if table is None else int(load_tensorflow().raw_ops.LookupTableSizeV2(table_handle=table))


def _row(row: float, rows: int | None) -> Unknown | None:
    return Unknown(rule="row", row=int(row)) if row >= 0 and (rows is None or row < rows) else None


def origin_name(handle: Any) -> str:
    """Returns the name of the tensor that a resource comes from."""
    while handle.op.type == "Identity":
        handle = handle.op.inputs[0]
    return str(handle.name)
