"""Positions in a vocabulary of the model's lookup tables; other keys may have rows by hash or
remainder.

Source: TensorFlow 2.20: lookup tables, as in the layers StringLookup and IntegerLookup of tf-keras
2.20 and Keras 3.15.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bundle.format.manifest import ComputedIds, HashIds, Unknown, VocabularyIds
from bundle.tables.id_values import DECIMAL
from export.errors import NotConvertible
from export.graphs.functions import asserts_without
from export.graphs.loading import tf
from export.tensorflow_models.graph.input_paths import CallGraph, Values
from export.tensorflow_models.id_rules.integers import find_raw
from export.tensorflow_models.id_rules.resolved_ids import ResolvedIds
from export.user_lines import at_line, line_of_operation

OPERATIONS = frozenset({"LookupTableFindV2"})
UNNAMED = "vocabulary"
"""The name of a vocabulary until all of them are known."""


def find(values: Values, call: CallGraph, rows: int | None) -> ResolvedIds | None:
    """Returns the input whose values are looked up, and the rule; None if no rule describes it."""
    if values.type not in OPERATIONS:
        return None
    handle, ids, default = values.inputs
    found = find_raw(ids, call)
    table = call.resource(handle.tensor)
    beyond = call.number(default)
    if found is None or table is None or beyond is None or (rows is None and beyond < -1):
        return None
    listed = exported(values, table)
    if listed is None:
        return None
    keys, first_row = listed
    are_decimal = not ids.tensor.dtype.is_integer and isinstance(call.origin(ids), Values)
    known: tuple[Any, ...] = tuple(_as_sent(key, are_decimal) for key in keys)
    if None in known:
        return None
    rule = VocabularyIds(vocabulary=UNNAMED, first_row=first_row)
    # Layers with num_oov_indices=0 check that every key is known.
    refuses = beyond == -1 and asserts_without(values.tensor, -1)
    if call.from_end and rows is not None and beyond < 0:
        beyond += rows
    unknown = Unknown(rule="refuse") if refuses else row_of_unknown(beyond, rows)
    return replace(found, rule=rule, unknown=unknown, keys=(known,))


def exported(values: Values, table: Any) -> tuple[list[int] | list[bytes], int] | None:
    """Returns the keys of a lookup table in the order of their values, and the first value.

    Args:
      values: what `LookupTableFindV2` finds.
      table: the handle of the table.

    Returns:
      None if the values are no consecutive integers of at least 0.

    Raises:
      NotConvertible: the table has no keys yet; names the user's line.
    """
    _, ids, default = values.inputs
    if not default.tensor.dtype.is_integer:
        return None
    try:
        keys, positions = tf.raw_ops.LookupTableExportV2(
            table_handle=table, Tkeys=ids.tensor.dtype, Tvalues=default.tensor.dtype
        )
    except tf.errors.AbortedError as problem:
        raise NotConvertible(
            f"ids are looked up{at_line(line_of_operation(values.tensor.op))} in a vocabulary that "
            "is not there: "
            "checkpoints hold none; let the factory pass it to the layer, or adapt() the layer as "
            "training did"
        ) from problem
    order = np.argsort(positions.numpy())
    places = positions.numpy()[order]
    if not places.size or places[0] < 0:
        return None
    if not np.array_equal(places, np.arange(places[0], places[0] + places.size)):
        return None
    return keys.numpy()[order].tolist(), int(places[0])


def rows_beyond(found: ResolvedIds, listed: ResolvedIds) -> dict[str, Any] | None:
    """Returns the rows of keys outside a vocabulary, as fields of its rule; None if no rule
    describes them.

    Args:
      found: the rule for the same values if they are not in it.
      listed: the vocabulary.
    """
    if (found.source, found.cast) != (listed.source, listed.cast):
        return None
    rule = found.rule
    if isinstance(rule, HashIds) and rule.key is None and rule.mask is None:
        return {"oov_buckets": rule.buckets, "oov_first_row": rule.first_row}
    if isinstance(rule, ComputedIds) and rule.operations[0].do == "remainder":
        first_row = sum(each.by or 0 for each in rule.operations[1:])
        if first_row >= 0 and [each.do for each in rule.operations[1:]] in ([], ["add"]):
            return {
                "oov_buckets": rule.operations[0].by,
                "oov_first_row": first_row,
                "oov_hash": "modulo",
            }
    return None


def text_of(data: bytes) -> str | None:
    """Returns a text in UTF-8; None for other bytes, which no request can hold."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _as_sent(key: int | bytes, is_decimal: bool) -> int | str | None:
    """Returns the id that a key belongs to; None for what no request can hold."""
    if isinstance(key, int):
        return key
    text = text_of(key)
    if text is None or not is_decimal:
        return text
    number = int(text) if DECIMAL.fullmatch(text) else 1 << 63
    is_printed_so = str(number) == text and -(1 << 63) <= number < 1 << 63
    return number if is_printed_so else None


def row_of_unknown(row: float, rows: int | None) -> Unknown | None:
    """Returns the row of unknown ids; None if it is not a row of the table."""
    return Unknown(rule="row", row=int(row)) if row >= 0 and (rows is None or row < rows) else None
