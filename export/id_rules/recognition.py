"""Recognizes what the model's graph does to ids before a lookup, and describes it as a rule.

Source: TensorFlow 2.20 and Keras 2.20 / 3.15.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bundle.format.manifest import HashIds, VocabularyIds
from export.graph.input_paths import CallGraph, Values
from export.graph.origins import Source, needed
from export.id_rules.buckets import KNOWN, SEARCHES, SERIES, find_steps
from export.id_rules.hashes import HASHES, find_hash
from export.id_rules.integers import COMPUTED, find_computed, find_integer, has_same_source
from export.id_rules.resolved_ids import ResolvedIds
from export.id_rules.vocabularies import (
    find_vocabulary,
    resource_name,
    row_of_unknown,
    rows_beyond,
    size_of_table,
)

_WHOLE_FLOATS = {"float64": 1 << 53, "float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8}
"""Integers up to these limits are exact in each float type."""


def find_ids(ids: Values, call: CallGraph, rows: int | None) -> ResolvedIds | Values:
    """Follows ids back to an input through one rule.

    Args:
      ids: rows of a table.
      call: the traced call.
      rows: of the table; None: they are integers that another rule takes.
    Returns:
      The resolved ids, or the values whose computation no rule describes.
    """
    found = call.origin(ids)
    if isinstance(found, Source):
        exact = find_integer(ids, call) if rows is None and ids.tensor.dtype.is_integer else None
        return exact or ResolvedIds(found)
    result = _by_operation(ids, found, call, rows) if found.inputs else None
    if result is None:
        steps = find_steps(found, call, rows)
        result = None if steps is None else ResolvedIds(*steps)
    return found if result is None else result


def find_ids_after(tensor: Any, ids: Values, call: CallGraph, rows: int | None) -> ResolvedIds | None:
    """Returns the rule that computes ids from an inner tensor, treated as an input; None if there is none."""
    link = Source(tensor.name, "dense")
    found = find_ids(ids, replace(call, sources={**call.sources, tensor.name: link}), rows)
    return found if isinstance(found, ResolvedIds) and found.source.name == link.name else None


def _by_operation(ids: Values, found: Values, call: CallGraph, rows: int | None) -> ResolvedIds | None:
    """Returns the rule of the last operation before the ids, together with those before it."""
    if found.type in HASHES:
        return find_hash(found, call)
    if found.type == "LookupTableFindV2":
        return find_vocabulary(found, call, rows)
    if found.type == "SelectV2":
        return _selected(found, call, rows)
    if found.type == "Cast":
        return _cast_from_float(found, call, rows)
    # A final wrap-around leads to no row of a table, but matters to a following rule.
    computed = find_computed(ids if rows is None else found, call) if found.type in COMPUTED else None
    return _shifted(found, call, rows) if computed is None and found.type == "AddV2" else computed


def unexplained_operation(values: Values, call: CallGraph, rows: int | None) -> Values:
    """Returns the operation of a computation that no rule describes, nearest to the input if that is unique."""
    while True:
        operands = values.tensor.op.inputs if values.type in SEARCHES else [each.tensor for each in values.inputs]
        computed = [each for each in operands if call.constant(each) is None]
        read = [each for each in computed if each.op.type == "ReadVariableOp"]
        known = values.type in KNOWN or values.type in _RULES
        before = call.origin(Values((read or computed)[0])) if known and (read or len(computed) == 1) else None
        if before is None or isinstance(before, Source) or before.type == "Placeholder":
            return values
        if isinstance(find_ids(before, call, rows), ResolvedIds):
            return values
        values = before


_RULES = COMPUTED | {*HASHES, "AsString"}


def cure_of(values: Values) -> str:
    """Returns what to change about an operation that no rule describes."""
    if values.type == "ReadVariableOp":
        return "make a constant of the variable that its ids are computed with, since rules read no checkpoint"
    if "PyFunc" in values.type:
        return "write the function in TensorFlow's own operations, or let callers send what it returns"
    if values.type in SEARCHES | {"Bucketize", "Cast"} | SERIES:
        return (
            "let the number only rise, or only fall, with the input, over its whole range (tf.maximum(x, 0.) before "
            "a logarithm)"
        )
    several = _cure_of_several(values)
    if several:
        return several
    return (
        "let callers send what is looked up as a separate input, or compute it from one input by constants (sums, "
        "products, quotients, remainders, limits), hashes, vocabularies or buckets"
    )


def cure_of_words(ids: Any) -> str:
    """Returns what to change about ids that are words of texts; "" for others."""
    if not any(each.type in ("StringSplitV2", "UnicodeDecode") for each in needed([ids], []).operations):
        return ""
    return (
        "let TextVectorization have an output_sequence_length, or average the rows of its words by "
        "GlobalAveragePooling1D under mask_zero, where no word has row 0; change texts by tf.strings.lower or "
        "upper without an encoding, strip, or regex_replace of ASCII characters or one text, and split at whitespace "
        "or into characters; or let callers send the words"
    )


def _cure_of_several(values: Values) -> str:
    """Returns what to change about ids that combine several values; "" for others."""
    words = cure_of_words(values.tensor)
    if words:
        return words
    if values.type == "SparseToDense":
        return (
            "cross inputs of one value each, either unchanged or as rows of hashes, vocabularies, buckets and "
            "remainders"
        )
    if values.type in ("StringJoin", "Add", "AsString", "ReduceJoin"):
        return (
            "join inputs of one value each by tf.strings.join: strings, texts, and tf.strings.as_string of "
            "integers, or of rows of hashes, vocabularies, buckets and remainders"
        )
    return ""


def _shifted(values: Values, call: CallGraph, rows: int | None) -> ResolvedIds | None:
    """Returns a hash whose first row is shifted."""
    for ids, other in (values.inputs, values.inputs[::-1]):
        size = other.type == "LookupTableSizeV2"
        shift = size_of_table(other.tensor, call) if size else call.number(other)
        found = find_ids(ids, call, rows) if shift is not None and shift >= 0 else None
        if not isinstance(found, ResolvedIds) or found.unknown is not None:
            continue
        rule = found.rule
        if isinstance(rule, HashIds) and rule.mask is None:
            return replace(found, rule=rule.model_copy(update={"first_row": rule.first_row + int(shift or 0)}))
    return None


def _selected(values: Values, call: CallGraph, rows: int | None) -> ResolvedIds | None:
    """Returns a rule with a row for unknown ids, a mask, or rows for keys outside a vocabulary."""
    condition, first, second = values.inputs
    for taken, other, inside in ((first, second, True), (second, first, False)):
        row = call.number(other)
        if row is None:
            continue
        found = find_ids(taken, call, rows)
        if not isinstance(found, ResolvedIds):
            return None
        if found.rule is None and _is_bounds_check(condition, found, call, rows, inside):
            return replace(found, unknown=row_of_unknown(row, rows))
        mask = _mask(condition, found, call) if row == 0 and not inside else None
        if mask is not None and isinstance(found.rule, VocabularyIds | HashIds) and found.rule.mask is None:
            return replace(found, rule=found.rule.model_copy(update={"mask": mask}))
        return None
    listed, beyond = (first, second) if condition.type == "NotEqual" else (second, first)
    found = find_ids(listed, call, rows)
    compared = [resource_name(each.tensor) for each in condition.inputs if call.number(each) != -1]
    missing = condition.type in ("Equal", "NotEqual") and compared == [resource_name(listed.tensor)]
    if not (missing and isinstance(found, ResolvedIds) and isinstance(found.rule, VocabularyIds)) or found.unknown:
        return None
    others = find_ids(beyond, call, rows)
    hashed = rows_beyond(others, found) if isinstance(others, ResolvedIds) else None
    return replace(found, rule=found.rule.model_copy(update=hashed)) if hashed is not None else None


def _mask(condition: Values, found: ResolvedIds, call: CallGraph) -> int | str | None:
    """Returns the id that a condition compares with."""
    if condition.type != "Equal" or not condition.inputs or not has_same_source(condition.inputs[0], found, call):
        return None
    value = call.constant(condition.inputs[1].tensor)
    one = value.flat[0] if value is not None and value.size == 1 else None
    if isinstance(one, bytes):
        return one.decode()
    return int(one) if value is not None and one is not None and value.dtype.kind in "iu" else None


def _cast_from_float(values: Values, call: CallGraph, rows: int | None) -> ResolvedIds | None:
    """Returns ids that were sent as floats, as by an Input of Keras 2 without a dtype."""
    found = find_integer(values, call)
    if found is None:
        return _cast_to_float_and_back(values, call, rows)
    return found if found.cast is not None and found.cast.of == "float32" else None


def _cast_to_float_and_back(values: Values, call: CallGraph, rows: int | None) -> ResolvedIds | None:
    """Returns integers that are cast to floats and back, as by an Input without a dtype or a Keras 3 Sequential."""
    number = call.origin(values.inputs[0])
    if isinstance(number, Source) or number.type != "Cast" or not number.inputs[0].tensor.dtype.is_integer:
        return None
    # A float beyond its significand is another integer, but like the id that was sent it is no row of the table.
    if rows is None or rows > _WHOLE_FLOATS.get(number.tensor.dtype.name, 0):
        return None
    found = find_ids(number.inputs[0], call, rows)
    return found if isinstance(found, ResolvedIds) else None


def _is_bounds_check(condition: Values, found: ResolvedIds, call: CallGraph, rows: int | None, inside: bool) -> bool:
    """Returns whether a condition tests that ids are inside the table (or outside it), at one end at least.

    TensorFlow finds no row for ids beyond the other end.
    """
    both, lower, upper = ("LogicalAnd", "GreaterEqual", "Less") if inside else ("LogicalOr", "Less", "GreaterEqual")
    limits: dict[str, Any] = {}
    for part in condition.inputs if condition.type == both else [condition]:
        if len(part.inputs) != 2 or not has_same_source(part.inputs[0], found, call):
            return False
        limits[part.type] = call.number(part.inputs[1])
    if rows is None:
        return False
    (one,) = limits.values() if list(limits) == ["NotEqual" if inside else "Equal"] else (None,)
    beyond = one is not None and not 0 <= one < rows
    return beyond or limits in ({lower: 0, upper: rows}, {upper: rows}, {lower: 0})
