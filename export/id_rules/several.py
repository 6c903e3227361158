"""Recognises in a graph ids that are made of several inputs together, and describes them as data.

Source: TensorFlow 2.20: the operations of `tf.sparse.cross_hashed`, which the layer HashedCrossing of tf-keras 2.20 and
Keras 3.15 ends in, of `tf.strings.join` and `+` of strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bundle.format.manifest import CrossedIds, CrossKey, HashIds, JoinedIds, VocabularyIds
from export.graph.input_paths import Followed, Values, per_example
from export.graph.origins import Source, needed
from export.graph.specs import Keys
from export.id_rules.chains import find_chain, key_of
from export.id_rules.found import FoundIds
from export.id_rules.recognition import find_behind
from export.id_rules.texts import CHANGES, changed_text

_JOINS = ("StringJoin", "Add", "ReduceJoin")


@dataclass(frozen=True)
class _Key:
    """One of several inputs, and what is done to its values."""

    found: FoundIds
    entry: CrossKey


def find_several(ids: Any, call: Followed, rows: int) -> FoundIds | None:
    """Returns what ids, one of each example, are made of; None if that is not known, or is one input as it is.

    Args:
      ids: a tensor.
      call: they are of.
      rows: of the table.
    """
    return _crossed(ids, call) or _joined(ids, call, rows)


def _crossed(ids: Any, call: Followed) -> FoundIds | None:
    made = call.origin(Values(ids))
    if not isinstance(made, Values) or made.type != "SparseToDense":
        return None
    cross = made.tensor.op.inputs[2].op
    if cross.type != "SparseCross" or not cross.get_attr("hashed_output") or cross.get_attr("N"):
        return None
    if cross.get_attr("num_buckets") < 1 or any(each.shape[1:].as_list() != [1] for each in cross.inputs):
        return None
    keys = _agreeing([_key(each, call) for each in cross.inputs])
    if keys is None or len(keys) < 2:
        return None
    how = {"buckets": cross.get_attr("num_buckets"), "hash_key": cross.get_attr("hash_key")}
    return _found(CrossedIds(keys=tuple(key.entry for key in keys), **how), keys)


def _joined(ids: Any, call: Followed, rows: int) -> FoundIds | None:
    for operation in needed([ids], []).operations:
        if operation.type not in _JOINS or operation.outputs[0].dtype.name != "string":
            continue
        made = operation.outputs[0]
        found = find_behind(made, Values(ids), call, rows)  # whatever makes a row of one string makes one of these
        if found is None:
            continue
        parts = _parts(made, call) if per_example(made) == 1 else None
        keys = None if parts is None else _agreeing([part for part in parts if not isinstance(part, str)])
        if parts is None or not keys or not isinstance(found.rule, HashIds | VocabularyIds):
            return None
        rule = JoinedIds(keys=tuple(key.entry for key in keys), texts=_texts(parts), ids=found.rule)
        return replace(_found(rule, keys), keys=(*_listed(keys), *found.keys), unknown=found.unknown)
    return None


def _found(rule: CrossedIds | JoinedIds, keys: Sequence[_Key]) -> FoundIds:
    first, *others = (key.found.source for key in keys)
    return FoundIds(first, rule, keys=_listed(keys), others=tuple(others))


def _listed(keys: Sequence[_Key]) -> tuple[Keys, ...]:
    return tuple(listed for key in keys for listed in key.found.keys)


def _agreeing(keys: Sequence[_Key | None]) -> list[_Key] | None:
    """Returns keys if all are known, and those of one input take the same of it."""
    known = [key for key in keys if key is not None]
    taken = {(key.found.source.name, key.entry.boundaries is None) for key in known}
    return known if len(known) == len(keys) and len({name for name, _ in taken}) == len(taken) else None


def _parts(strings: Any, call: Followed) -> list[str | _Key | None] | None:
    """Returns what strings are put together of, texts and keys; None among them where one is not known."""
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


def _operands(made: Values, call: Followed) -> Sequence[Any]:
    """Returns the strings that an operation puts together; of those of a stack, each. () if they are not known."""
    operation = made.tensor.op
    if made.type != "ReduceJoin":
        return tuple(operation.inputs)
    stacked, axis = operation.inputs
    side_by_side = stacked.op.type == "Pack" and stacked.op.get_attr("axis") in (1, -1) and stacked.shape.rank == 2
    along = call.number(Values(axis)) in (1, -1)
    return tuple(stacked.op.inputs) if side_by_side and along else ()


def _texts(parts: Sequence[str | _Key | None]) -> tuple[str, ...]:
    """Returns the texts before, between and behind keys."""
    texts = [""]
    for part in parts:
        if isinstance(part, str):
            texts[-1] += part
        else:
            texts.append("")
    return tuple(texts)


def _key(values: Any, call: Followed) -> _Key | None:
    """Returns which input's values some are, and what is done to them."""
    found = find_chain(Values(values), call, None)
    if not isinstance(found, FoundIds):
        return _text_key(values, call)
    if found.source.part != "dense" or found.source.place is not None:
        return None
    name = next(name for name, each in call.sources.items() if each == found.source)
    sent = values.graph.get_tensor_by_name(name).dtype.name
    if found.rule is None and sent not in ("string", "int32", "int64"):
        return None
    entry = key_of(found, CrossKey(dtype="string" if sent == "string" else "int64"))
    return None if entry is None else _Key(found, entry)


def _text_key(values: Any, call: Followed) -> _Key | None:
    """Returns which input's texts some values are of once they are changed, and what is done to them then."""
    for operation in needed([values], []).operations:
        changed = changed_text(operation.outputs[0], call) if operation.type in CHANGES else None
        if changed is None:
            continue
        text = Source(operation.outputs[0].name, "dense")
        found = find_chain(Values(values), replace(call, sources={**call.sources, text.name: text}), None)
        entry = (
            key_of(found, CrossKey(dtype="string")) if isinstance(found, FoundIds) and found.source == text else None
        )
        if entry is not None and isinstance(found, FoundIds):
            return _Key(replace(found, source=changed[0]), entry.model_copy(update={"steps": changed[1]}))
    return None
