"""Recognises in a graph ids that are made of several inputs together, and tells them as data.

Source: TensorFlow 2.20: the operations of `tf.sparse.cross_hashed`, which the layer HashedCrossing of tf-keras 2.20 and
Keras 3.15 ends in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bundle.manifest import ArithmeticIds, BucketIds, CrossedIds, CrossKey, HashIds, VocabularyIds
from export.cuts.graph_rules import find_ids
from export.cuts.places import Followed, Values
from export.cuts.whole_ids import FoundIds
from export.model.origins import Source, needed
from export.towers.descriptions import Keys

_ANY = 1 << 62
"""As many rows as there may be: what is found of a value of a cross is no row of a table."""


@dataclass(frozen=True)
class FoundCross:
    """Ids made of one value of each of several inputs.

    Attributes:
      rule: what makes rows of them.
      inputs: where the values come from, in the order of the rule's keys.
      keys: of each vocabulary that the rule reads, as `vocabularies_of` gives them.
    """

    rule: CrossedIds
    inputs: tuple[Source, ...]
    keys: tuple[Keys, ...]


def find_cross(ids: Any, call: Followed) -> FoundCross | None:
    """Returns what ids, one of each example, are made of; None if that is not known, or is one input.

    Args:
      ids: a tensor.
      call: they are of.
    """
    made = call.origin(Values(ids))
    if not isinstance(made, Values) or made.type != "SparseToDense":
        return None
    cross = made.tensor.op.inputs[2].op
    if cross.type != "SparseCross" or not cross.get_attr("hashed_output") or cross.get_attr("N"):
        return None
    if cross.get_attr("num_buckets") < 1 or any(each.shape[1:].as_list() != [1] for each in cross.inputs):
        return None
    found = [_key(each, call) for each in cross.inputs]
    known = [each for each in found if each is not None]
    names = {each.source.name for each, _ in known}
    if len(known) < len(found) or len(names) < len(found):
        return None
    rule = CrossedIds(
        keys=tuple(key for _, key in known),
        buckets=cross.get_attr("num_buckets"),
        hash_key=cross.get_attr("hash_key"),
    )
    listed = tuple(keys for each, _ in known for keys in each.keys)
    return FoundCross(rule, tuple(each.source for each, _ in known), listed)


def _key(values: Any, call: Followed) -> tuple[FoundIds, CrossKey] | None:
    """Returns which input's values some are, and what is done to them."""
    found = find_ids(Values(values), call, _ANY)
    if not isinstance(found, FoundIds) or found.source.part != "dense" or found.source.place is not None:
        return None
    if found.cast is not None or not _unknown_is_minus_one(values, call):
        return None
    name = next(name for name, each in call.sources.items() if each == found.source)
    sent = values.graph.get_tensor_by_name(name).dtype.name
    told = {"dtype": "string" if sent == "string" else "int64"}
    rule, unknown = found.rule, found.unknown
    if rule is None:
        same = unknown is None and sent in ("string", "int32", "int64")
        return (found, CrossKey.model_validate(told)) if same else None
    if isinstance(rule, BucketIds):
        plain = rule.first_row == 0 and not rule.falling
        return (found, CrossKey(dtype="int64", boundaries=rule.boundaries)) if plain else None
    rows = _rows(rule, found)
    if rows is None:
        return None
    row = None if unknown is None else unknown.row
    return found, CrossKey.model_validate({**told, "ids": rule, "rows": rows, "unknown_row": row})


def _unknown_is_minus_one(values: Any, call: Followed) -> bool:
    """Tells whether lookup tables on the way give -1, or a row, for what they do not hold."""
    looked_up = [each for each in needed([values], []).operations if each.type == "LookupTableFindV2"]
    beyond = [call.number(Values(each.inputs[2])) for each in looked_up]
    return all(each is not None and each >= -1 for each in beyond)


def _rows(rule: object, found: FoundIds) -> int | None:
    """Returns how many rows a rule of one input has; None if that is not told by the rule."""
    if isinstance(rule, HashIds):
        return rule.first_row + rule.buckets
    if isinstance(rule, ArithmeticIds) and rule.buckets is not None and not rule.truncated:
        return rule.first_row + rule.buckets
    if isinstance(rule, VocabularyIds):
        return max(rule.first_row + len(found.keys[0]), rule.oov_first_row + rule.oov_buckets)
    return None
