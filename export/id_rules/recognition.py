"""Recognises in a graph what the model does to ids before it looks them up, and describes it as data.

Source: TensorFlow 2.20 and Keras 2.20 / 3.15.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bundle.format.manifest import HashIds, VocabularyIds
from export.graph.input_paths import Followed, Values
from export.graph.origins import Source, needed
from export.id_rules.buckets import KNOWN, SEARCHES, SERIES, find_steps
from export.id_rules.found import FoundIds
from export.id_rules.hashes import HASHES, find_hash
from export.id_rules.integers import COMPUTED, find_computed, find_whole, is_made_of
from export.id_rules.vocabularies import (
    find_vocabulary,
    resource_name,
    row_of_unknown,
    rows_beyond,
    size_of_table,
)

_WHOLE_FLOATS = {"float64": 1 << 53, "float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8}
"""Up to which every integer is a float of its own."""


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
    result = _by_operation(ids, found, call, rows) if found.inputs else None
    if result is None:
        steps = find_steps(found, call, rows)
        result = None if steps is None else FoundIds(*steps)
    return found if result is None else result


def find_behind(tensor: Any, ids: Values, call: Followed, rows: int | None) -> FoundIds | None:
    """Returns what makes ids of another tensor of the graph, as if that were an input; None where no rule does."""
    link = Source(tensor.name, "dense")
    found = find_ids(ids, replace(call, sources={**call.sources, tensor.name: link}), rows)
    return found if isinstance(found, FoundIds) and found.source.name == link.name else None


def _by_operation(ids: Values, found: Values, call: Followed, rows: int | None) -> FoundIds | None:
    """Returns what the last operation on the way to ids does, together with those before it."""
    if found.type in HASHES:
        return find_hash(found, call)
    if found.type == "LookupTableFindV2":
        return find_vocabulary(found, call, rows)
    if found.type == "SelectV2":
        return _chosen(found, call, rows)
    if found.type == "Cast":
        return _cut_off(found, call, rows)
    # No table has a row for what wraps around behind it all, but a rule that follows has.
    computed = find_computed(ids if rows is None else found, call) if found.type in COMPUTED else None
    return _shifted(found, call, rows) if computed is None and found.type == "AddV2" else computed


def blamed(values: Values, call: Followed, rows: int | None) -> Values:
    """Returns what of a computation no rule describes: what is behind all that rules do, if it is one thing."""
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


_RULES = COMPUTED | {*HASHES, "AsString"}


def cure_of(values: Values) -> str:
    """Returns what to change about what no rule describes."""
    if values.type == "ReadVariableOp":
        return "make a constant of the variable that its ids are computed with, as rules know no checkpoint"
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


def _shifted(values: Values, call: Followed, rows: int | None) -> FoundIds | None:
    """A hash whose rows begin further down."""
    for ids, other in (values.inputs, values.inputs[::-1]):
        size = other.type == "LookupTableSizeV2"
        shift = size_of_table(other.tensor, call) if size else call.number(other)
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
            return replace(found, unknown=row_of_unknown(row, rows))
        mask = _mask(condition, found, call) if row == 0 and not inside else None
        if mask is not None and isinstance(found.rule, VocabularyIds | HashIds) and found.rule.mask is None:
            return replace(found, rule=found.rule.model_copy(update={"mask": mask}))
        return None
    listed, beyond = (first, second) if condition.type == "NotEqual" else (second, first)
    found = find_ids(listed, call, rows)
    compared = [resource_name(each.tensor) for each in condition.inputs if call.number(each) != -1]
    missing = condition.type in ("Equal", "NotEqual") and compared == [resource_name(listed.tensor)]
    if not (missing and isinstance(found, FoundIds) and isinstance(found.rule, VocabularyIds)) or found.unknown:
        return None
    others = find_ids(beyond, call, rows)
    hashed = rows_beyond(others, found) if isinstance(others, FoundIds) else None
    return replace(found, rule=found.rule.model_copy(update=hashed)) if hashed is not None else None


def _mask(condition: Values, found: FoundIds, call: Followed) -> int | str | None:
    """Returns the id that a condition is true of."""
    if condition.type != "Equal" or not condition.inputs or not is_made_of(condition.inputs[0], found, call):
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
    """Returns whether a condition is true of ids inside the table (or outside it), at one end at least.

    Of those beyond the other end TensorFlow finds no row.
    """
    both, lower, upper = ("LogicalAnd", "GreaterEqual", "Less") if inside else ("LogicalOr", "Less", "GreaterEqual")
    limits: dict[str, Any] = {}
    for part in condition.inputs if condition.type == both else [condition]:
        if len(part.inputs) != 2 or not is_made_of(part.inputs[0], found, call):
            return False
        limits[part.type] = call.number(part.inputs[1])
    if rows is None:
        return False
    (one,) = limits.values() if list(limits) == ["NotEqual" if inside else "Equal"] else (None,)
    beyond = one is not None and not 0 <= one < rows
    return beyond or limits in ({lower: 0, upper: rows}, {upper: rows}, {lower: 0})
