"""Crosses: ids of the values of several inputs, which are hashed together or joined to one string.

Source: TensorFlow 2.20: the operations of `tf.sparse.cross_hashed`, which the layer HashedCrossing
of tf-keras 2.20 and Keras 3.15 is based on, of `tf.strings.join` and `+` of strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from bundle.format.manifest import (
    BucketIds,
    CrossedIds,
    CrossKey,
    GraphIds,
    HashIds,
    JoinedIds,
    VocabularyIds,
)
from export.front_end.specs import Keys
from export.graphs.walks import needed
from export.id_rules.operations import links_of
from export.tensorflow_models.graph.input_paths import CallGraph, Values, per_example
from export.tensorflow_models.graph.origins import Source
from export.tensorflow_models.id_rules.chains import chained, find_chain, links_before, row_count
from export.tensorflow_models.id_rules.integers import WRAPPED, is_decimal
from export.tensorflow_models.id_rules.resolved_ids import ResolvedIds
from export.tensorflow_models.id_rules.rules import find_ids_after
from export.tensorflow_models.id_rules.texts import CHANGES, find_changed
from export.tensorflow_models.id_rules.vocabularies import text_of

_JOINS = ("StringJoin", "Add", "ReduceJoin")
_PARTS_MAX = 256
"""Maximum number of texts and keys that a string is joined from."""


class Key(NamedTuple):
    """One of the inputs of a cross, with its vocabularies, and its entry in the manifest."""

    found: ResolvedIds
    entry: CrossKey


def find(ids: Any, call: CallGraph, rows: int) -> ResolvedIds | None:
    """Returns the inputs and rule of ids, one per example; None if no rule describes them, or for
    an unchanged input.

    Args:
      ids: a tensor.
      call: the traced call.
      rows: of the table.
    """
    return _crossed(ids, call) or _joined(ids, call, rows)


def _crossed(ids: Any, call: CallGraph) -> ResolvedIds | None:
    made = call.origin(Values(ids))
    if not isinstance(made, Values) or made.type != "SparseToDense":
        return None
    cross = made.tensor.op.inputs[2].op
    if cross.type != "SparseCross":
        return None
    # Sparse inputs have indices, of another shape.
    if cross.get_attr("num_buckets") < 1 or any(
        each.shape[1:].as_list() != [1] for each in cross.inputs
    ):
        return None
    keys = _consistent([_key(each, call) for each in cross.inputs])
    if keys is None or len(keys) < 2:
        return None
    return cross_of(
        keys, buckets=cross.get_attr("num_buckets"), hash_key=cross.get_attr("hash_key")
    )


def _joined(ids: Any, call: CallGraph, rows: int) -> ResolvedIds | None:
    for operation in needed([ids], []).operations:
        if operation.type not in _JOINS or operation.outputs[0].dtype.name != "string":
            continue
        made = operation.outputs[0]
        found = find_ids_after(made, Values(ids), call, rows)
        if found is None:
            continue
        parts = _parts(made, call) if per_example(made) == 1 else None
        keys = (
            None
            if parts is None
            else _consistent([part for part in parts if not isinstance(part, str)])
        )
        if parts is None or not keys or not isinstance(found.rule, HashIds | VocabularyIds):
            return None
        rule = JoinedIds(keys=tuple(key.entry for key in keys), texts=_texts(parts), ids=found.rule)
        return replace(_resolved(rule, keys, found.keys), unknown=found.unknown)
    return None


def cross_of(keys: Sequence[Key], buckets: int, hash_key: int) -> ResolvedIds:
    """Returns the inputs of a cross, and its rule."""
    return _resolved(
        CrossedIds(keys=tuple(key.entry for key in keys), buckets=buckets, hash_key=hash_key), keys
    )


def _resolved(
    rule: CrossedIds | JoinedIds, keys: Sequence[Key], more: tuple[Keys, ...] = ()
) -> ResolvedIds:
    first, *others = (key.found.source for key in keys)
    listed = tuple(each for key in keys for each in key.found.keys)
    return ResolvedIds(first, rule, keys=listed + more, others=tuple(others))


def _consistent(keys: Sequence[Key | None]) -> list[Key] | None:
    """Returns keys if all are known and those of one input agree on its type."""
    known = [key for key in keys if key is not None]
    taken = {(key.found.source.name, key.entry.dtype) for key in known}
    return (
        known
        if len(known) == len(keys) and len({name for name, _ in taken}) == len(taken)
        else None
    )


def _parts(strings: Any, call: CallGraph) -> list[str | Key] | None:
    """Returns the texts and keys that strings are joined from; None if one is not known, or for
    more than `_PARTS_MAX`.
    """
    parts: list[str | Key] = []
    pending = [strings]  # the next one is the last
    while pending:
        if len(parts) + len(pending) > _PARTS_MAX:
            return None
        joined = pending.pop()
        operands = _separated(joined, call)
        if operands:
            pending += reversed(operands)
            continue
        part = _part(joined, call)
        if part is None:
            return None
        parts.append(part)
    return parts


def _separated(strings: Any, call: CallGraph) -> list[Any]:
    """Returns the operands of a join with its separator between them; [] for anything else."""
    if isinstance(strings, str) or call.constant(strings) is not None:
        return []
    made = call.origin(Values(strings))
    if isinstance(made, Source) or made.type not in _JOINS:
        return []
    separator = made.tensor.op.get_attr("separator").decode() if made.type != "Add" else ""
    operands: list[Any] = []
    for operand in _operands(made, call):
        operands += [separator, operand]
    return operands[1:]


def _part(strings: Any, call: CallGraph) -> str | Key | None:
    """Returns the text or the key that strings are; None if neither is known."""
    if isinstance(strings, str):
        return strings
    constant = call.constant(strings)
    if constant is not None:
        return text_of(constant.flat[0]) if constant.size == 1 else None
    made = call.origin(Values(strings))
    if isinstance(made, Values) and made.type == "AsString":
        whole = made.tensor.op.inputs[0]
        return _key(whole, call) if is_decimal(made) and per_example(whole) == 1 else None
    is_text = isinstance(made, Source) or made.type in CHANGES
    return _key(strings, call) if is_text and per_example(strings) == 1 else None


def _operands(made: Values, call: CallGraph) -> Sequence[Any]:
    """Returns the strings that an operation joins, also those of a stack; () if they
    are not known.
    """
    operation = made.tensor.op
    if made.type != "ReduceJoin":
        return tuple(operation.inputs)
    stacked, axis = operation.inputs
    side_by_side = (
        stacked.op.type == "Pack"
        and stacked.op.get_attr("axis") in (1, -1)
        and stacked.shape.rank == 2
    )
    along = call.number(Values(axis)) in (1, -1)
    return tuple(stacked.op.inputs) if side_by_side and along else ()


def _texts(parts: Sequence[str | Key]) -> tuple[str, ...]:
    """Returns the texts before, between and after keys."""
    texts = [""]
    for part in parts:
        if isinstance(part, str):
            texts[-1] += part
        else:
            texts.append("")
    return tuple(texts)


def _key(values: Any, call: CallGraph) -> Key | None:
    """Returns the input and the rule of values."""
    found = find_chain(Values(values), call, None)
    if not isinstance(found, ResolvedIds):
        return _text_key(values, call)
    if found.source.part != "dense" or found.source.place is not None:
        return None
    raw = call.tensor_of(found.source, values.graph)
    entry = key_of(found, CrossKey(dtype="string" if raw.dtype.name == "string" else "int64"))
    return None if entry is None else Key(found, entry)


def _text_key(values: Any, call: CallGraph) -> Key | None:
    """Returns the input, the changes and the rule of values computed from changed texts."""
    text = find_changed(values, call, None, find_chain)
    if text is None:
        return None
    found, steps = text
    entry = key_of(found, CrossKey(dtype="string"))
    return None if entry is None else Key(found, entry.model_copy(update={"steps": steps}))


def crossed_by(before: Sequence[ResolvedIds], after: ResolvedIds) -> ResolvedIds | None:
    """Returns a cross of values that other rules compute; None if no rule describes it.

    Args:
      before: the rule of each of its keys, resolved without a table.
      after: the cross.
    """
    assert isinstance(after.rule, CrossedIds)  # noqa: S101 - checked before
    entries = tuple(key_of(each, key) for each, key in zip(before, after.rule.keys, strict=True))
    if None in entries:
        return None
    own = iter(after.keys)
    listed = list[Keys]()
    for found, key in zip(before, after.rule.keys, strict=True):
        listed += [*found.keys, *([next(own)] if isinstance(key.ids, VocabularyIds) else [])]
    return replace(after, rule=after.rule.model_copy(update={"keys": entries}), keys=tuple(listed))


def key_of(before: ResolvedIds, key: CrossKey) -> CrossKey | None:
    """Returns a key of a cross with the rule that its values are computed by; None if no key
    describes it.

    Args:
      before: that rule, resolved without a table.
      key: what the cross does to its result, with the dtype of the raw input.
    """
    first = links_before(before)
    if first is None or (before.cast is not None and before.cast.of == "float32"):
        return None
    first = (*((WRAPPED,) if before.cast is not None else ()), *first)
    if any(isinstance(rule, GraphIds) for rule in first):
        return None
    if not first:
        return key
    if key.dtype == "float32":
        return None
    rows = row_count(before)
    if key.ids is None and before.cast is None and rows is not None:
        row = None if before.unknown is None else before.unknown.row
        return key.model_copy(update={"ids": before.rule, "rows": rows, "unknown_row": row})
    dtype = "float32" if isinstance(first[0], BucketIds) else key.dtype
    # Padding is known for computed values only, not for raw ones: see `may_be_none`.
    return key.model_copy(
        update={"dtype": dtype, "ids": chained((*first, *links_of(key.ids))), "padding": None}
    )
