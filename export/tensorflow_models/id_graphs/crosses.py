"""Ids of the values of several inputs, which are hashed together or computed by one graph.

Source: TensorFlow 2.20: the operations of `tf.sparse.cross_hashed`, which the layer HashedCrossing
of tf-keras 2.20 and Keras 3.15 is based on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Literal, NamedTuple

from bundle.format.graph_builder import GraphBuilder
from bundle.format.ids import sent_dtype
from bundle.format.manifest import CrossedIds, CrossKey, GraphIds, JoinedIds
from export.front_end.specs import Keys
from export.partition.graph.input_paths import CallGraph, Values, per_example
from export.tensorflow_models.id_graphs.capture import find_graph, find_rule
from export.tensorflow_models.id_graphs.resolved_ids import ResolvedIds


class Key(NamedTuple):
    """One of the inputs of a cross.

    Attributes:
      resolved: The input, the rule that computes its crossed values, and the rule's vocabularies.
      entry: Its entry in the manifest.
    """

    resolved: ResolvedIds
    entry: CrossKey


def find(ids: Any, call: CallGraph) -> ResolvedIds | None:
    """Returns the inputs and rule of ids, one per example; None if the ids are of one input, or no
    rule computes them.

    Args:
      ids: A tensor.
      call: The traced call.
    """
    return _find_cross(ids, call) or _find_joined(ids, call)


def _find_cross(ids: Any, call: CallGraph) -> ResolvedIds | None:
    """Returns the inputs and rule of ids that `tf.sparse.cross_hashed` computes."""
    dense = call.origin(Values(ids))
    if not isinstance(dense, Values) or dense.type != "SparseToDense":
        return None
    cross = dense.tensor.op.inputs[2].op
    if cross.type != "SparseCross" or cross.get_attr("num_buckets") < 1:
        return None
    # Sparse inputs have indices, of another shape.
    if any(operand.shape[1:].as_list() != [1] for operand in cross.inputs):
        return None
    keys = []
    for operand in cross.inputs:
        key = _key(operand, call)
        if key is None:
            return None
        keys.append(key)
    if len(keys) < 2:
        return None
    return cross_of(
        keys, buckets=cross.get_attr("num_buckets"), hash_key=cross.get_attr("hash_key")
    )


def _key(values: Any, call: CallGraph) -> Key | None:
    """Returns the input of crossed values, and the rule that computes them; None if no rule of one
    input does.
    """
    resolved = find_rule(Values(values), call, None)
    if not isinstance(resolved, ResolvedIds):
        return None
    if resolved.source.part != "dense" or resolved.source.position is not None:
        return None
    dtype = _input_dtype(call.tensor_of(resolved.source, values.graph))
    # Only integers and texts are hashed.
    if resolved.rule is None and dtype == "float32":
        return None
    return Key(resolved, CrossKey(dtype=dtype, ids=resolved.rule))


def _input_dtype(tensor: Any) -> Literal["int64", "string", "float32"]:
    """Returns the type of what callers send to an input."""
    if tensor.dtype.is_floating:
        return "float32"
    if tensor.dtype.name == "string":
        return "string"
    return "int64"


def _find_joined(ids: Any, call: CallGraph) -> ResolvedIds | None:
    """Returns the inputs and rule of ids that one graph computes from several inputs."""
    resolved = find_graph(Values(ids), call)
    if not isinstance(resolved, ResolvedIds) or not resolved.other_sources:
        return None
    if per_example(ids) != 1:
        return None
    keys = []
    for source in resolved.sources:
        # Each input has one value per example.
        if source.part != "dense" or source.position is not None:
            return None
        keys.append(CrossKey(dtype=_input_dtype(call.tensor_of(source, ids.graph))))
    return replace(resolved, rule=JoinedIds(keys=tuple(keys), ids=resolved.rule))


def cross_of(keys: Sequence[Key], buckets: int, hash_key: int) -> ResolvedIds:
    """Returns the inputs of a cross, and its rule."""
    sources = [key.resolved.source for key in keys]
    entries = tuple(key.entry for key in keys)
    rule = CrossedIds(keys=entries, buckets=buckets, hash_key=hash_key)
    vocabularies: list[Keys] = []
    for key in keys:
        vocabularies += key.resolved.keys
    first, *following = sources
    return ResolvedIds(
        first,
        rule,
        keys=tuple(vocabularies),
        other_sources=tuple(following),
    )


def crossed_by(before: Sequence[ResolvedIds], after: ResolvedIds) -> ResolvedIds:
    """Returns a cross of values that the model computes.

    Args:
      before: The inputs and rules that compute the values of each key.
      after: The cross.
    """
    assert isinstance(after.rule, CrossedIds)  # noqa: S101 - checked before
    vocabularies_of_cross = iter(after.keys)
    entries = []
    vocabularies: list[Keys] = []
    for resolved, key in zip(before, after.rule.keys, strict=True):
        # In the order in which the graph of a key reads them: the model's before the column's.
        vocabularies += resolved.keys
        if key.ids is not None:
            vocabularies += islice(vocabularies_of_cross, len(key.ids.tables))
        changes: dict[str, Any] = {"ids": _chain(resolved.rule, key.ids)}
        if isinstance(resolved.rule, GraphIds):
            # Callers send what the model takes; a padding would be compared with that.
            changes |= {"dtype": sent_dtype(resolved.rule.dtype), "padding": None}
        entries.append(key.model_copy(update=changes))
    rule = after.rule.model_copy(update={"keys": tuple(entries)})
    return replace(after, rule=rule, keys=tuple(vocabularies))


def followed_by(before: ResolvedIds, after: ResolvedIds) -> ResolvedIds:
    """Returns ids that the model computes from an input, followed by the lookup's own rule."""
    assert after.rule is None or isinstance(after.rule, GraphIds)  # noqa: S101 - of one input
    graph = _chain(before.rule, after.rule)
    keys = (*before.keys, *after.keys)
    return ResolvedIds(before.source, graph, after.unknown, keys)


def _chain(before: Any, after: GraphIds | None) -> GraphIds | None:
    """Returns one graph that computes `after` behind `before`; None if neither is given."""
    if before is None or after is None:
        return before or after
    builder = GraphBuilder(before.dtype, before)
    builder.then(after)
    return builder.graph()
