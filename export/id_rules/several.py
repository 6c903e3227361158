"""Recognizes ids that a graph computes from several inputs, and describes them as a rule.

Source: TensorFlow 2.20: the operations of `tf.sparse.cross_hashed`, which the layer HashedCrossing of tf-keras 2.20 and
Keras 3.15 is based on, of `tf.strings.join` and `+` of strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bundle.format.manifest import CrossedIds, CrossKey, HashIds, JoinedIds, VocabularyIds
from export.graph.input_paths import CallGraph, Values, per_example
from export.graph.origins import Source, needed
from export.graph.specs import Keys
from export.id_rules.chains import find_chain, key_of
from export.id_rules.recognition import find_ids_after
from export.id_rules.resolved_ids import ResolvedIds
from export.id_rules.texts import CHANGES, changed_text

_JOINS = ("StringJoin", "Add", "ReduceJoin")


@dataclass(frozen=True)
class _Key:
    """One of several inputs, and the rule for its values."""

    found: ResolvedIds
    entry: CrossKey


def find_several(ids: Any, call: CallGraph, rows: int) -> ResolvedIds | None:
    """Returns the inputs and rule of ids, one per example; None if no rule describes them, or for an unchanged input.

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
    if cross.type != "SparseCross" or not cross.get_attr("hashed_output") or cross.get_attr("N"):
        return None
    if cross.get_attr("num_buckets") < 1 or any(each.shape[1:].as_list() != [1] for each in cross.inputs):
        return None
    keys = _consistent([_key(each, call) for each in cross.inputs])
    if keys is None or len(keys) < 2:
        return None
    how = {"buckets": cross.get_attr("num_buckets"), "hash_key": cross.get_attr("hash_key")}
    return _resolved(CrossedIds(keys=tuple(key.entry for key in keys), **how), keys)


def _joined(ids: Any, call: CallGraph, rows: int) -> ResolvedIds | None:
    for operation in needed([ids], []).operations:
        if operation.type not in _JOINS or operation.outputs[0].dtype.name != "string":
            continue
        made = operation.outputs[0]
        found = find_ids_after(
            made, Values(ids), call, rows
        )  # whatever computes rows of strings applies to joined ones
        if found is None:
            continue
        parts = _parts(made, call) if per_example(made) == 1 else None
        keys = None if parts is None else _consistent([part for part in parts if not isinstance(part, str)])
        if parts is None or not keys or not isinstance(found.rule, HashIds | VocabularyIds):
            return None
        rule = JoinedIds(keys=tuple(key.entry for key in keys), texts=_texts(parts), ids=found.rule)
        return replace(_resolved(rule, keys), keys=(*_listed(keys), *found.keys), unknown=found.unknown)
    return None


def _resolved(rule: CrossedIds | JoinedIds, keys: Sequence[_Key]) -> ResolvedIds:
    first, *others = (key.found.source for key in keys)
    return ResolvedIds(first, rule, keys=_listed(keys), others=tuple(others))


def _listed(keys: Sequence[_Key]) -> tuple[Keys, ...]:
    return tuple(listed for key in keys for listed in key.found.keys)


def _consistent(keys: Sequence[_Key | None]) -> list[_Key] | None:
    """Returns keys if all are known and those of one input agree on its type."""
    known = [key for key in keys if key is not None]
    taken = {(key.found.source.name, key.entry.boundaries is None) for key in known}
    return known if len(known) == len(keys) and len({name for name, _ in taken}) == len(taken) else None


def _parts(strings: Any, call: CallGraph) -> list[str | _Key | None] | None:
    """Returns the texts and keys that strings are joined from; None for a key that is not known."""
    held = call.constant(strings)
    if held is not None:
        return [held.flat[0].decode()] if held.size == 1 else None
    made = call.origin(Values(strings))
    if isinstance(made, Values) and made.type in _JOINS:
        separator = made.tensor.op.get_attr("separator").decode() if made.type != "Add" else ""
        found: list[str | _Key | None] = []
        for number, each in enumerate(_operands(made, call)):
            parts = _parts(each, call)
            if parts is None:
                return None
            found += [separator, *parts] if number else parts
        return found or None
    if isinstance(made, Values) and made.type == "AsString":
        whole = made.tensor.op.inputs[0]
        plain = made.tensor.op.get_attr("width") <= 0 and whole.dtype.is_integer
        return [_key(whole, call)] if plain and per_example(whole) == 1 else None
    known = isinstance(made, Source) or made.type in CHANGES
    return [_key(strings, call)] if known and per_example(strings) == 1 else None


def _operands(made: Values, call: CallGraph) -> Sequence[Any]:
    """Returns the strings that an operation joins, also those of a stack; () if they are not known."""
    operation = made.tensor.op
    if made.type != "ReduceJoin":
        return tuple(operation.inputs)
    stacked, axis = operation.inputs
    side_by_side = stacked.op.type == "Pack" and stacked.op.get_attr("axis") in (1, -1) and stacked.shape.rank == 2
    along = call.number(Values(axis)) in (1, -1)
    return tuple(stacked.op.inputs) if side_by_side and along else ()


def _texts(parts: Sequence[str | _Key | None]) -> tuple[str, ...]:
    """Returns the texts before, between and after keys."""
    texts = [""]
    for part in parts:
        if isinstance(part, str):
            texts[-1] += part
        else:
            texts.append("")
    return tuple(texts)


def _key(values: Any, call: CallGraph) -> _Key | None:
    """Returns the input and the rule of values."""
    found = find_chain(Values(values), call, None)
    if not isinstance(found, ResolvedIds):
        return _text_key(values, call)
    if found.source.part != "dense" or found.source.place is not None:
        return None
    name = next(name for name, each in call.sources.items() if each == found.source)
    dtype = values.graph.get_tensor_by_name(name).dtype.name
    if found.rule is None and dtype not in ("string", "int32", "int64"):
        return None
    entry = key_of(found, CrossKey(dtype="string" if dtype == "string" else "int64"))
    return None if entry is None else _Key(found, entry)


def _text_key(values: Any, call: CallGraph) -> _Key | None:
    """Returns the input, the changes and the rule of values computed from changed texts."""
    for operation in needed([values], []).operations:
        changed = changed_text(operation.outputs[0], call) if operation.type in CHANGES else None
        if changed is None:
            continue
        text = Source(operation.outputs[0].name, "dense")
        found = find_chain(Values(values), replace(call, sources={**call.sources, text.name: text}), None)
        entry = (
            key_of(found, CrossKey(dtype="string")) if isinstance(found, ResolvedIds) and found.source == text else None
        )
        if entry is not None and isinstance(found, ResolvedIds):
            return _Key(replace(found, source=changed[0]), entry.model_copy(update={"steps": changed[1]}))
    return None
