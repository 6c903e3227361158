"""Ids of the values of several inputs, which are hashed together or computed by one graph.

Source: TensorFlow 2.20: the operations of `tf.sparse.cross_hashed`, which the layer HashedCrossing
of tf-keras 2.20 and Keras 3.15 is based on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from bundle.format.graph_builder import GraphBuilder
from bundle.format.ids import sent_dtype
from bundle.format.manifest import CrossedIds, CrossKey, GraphIds, JoinedIds
from export.tensorflow_models.graph.input_paths import CallGraph, Values, per_example
from export.tensorflow_models.id_graphs.capture import find_graph, find_rule
from export.tensorflow_models.id_graphs.resolved_ids import ResolvedIds


class Key(NamedTuple):
    """One of the inputs of a cross, with its vocabularies, and its entry in the manifest."""

    found: ResolvedIds
    entry: CrossKey


def find(ids: Any, call: CallGraph) -> ResolvedIds | None:
    """Returns the inputs and rule of ids, one per example; None if they are of one input, or
    nothing computes them.

    Args:
      ids: a tensor.
      call: the traced call.
    """
    return _crossed(ids, call) or _joined(ids, call)


def _crossed(ids: Any, call: CallGraph) -> ResolvedIds | None:
    dense = call.origin(Values(ids))
    if not isinstance(dense, Values) or dense.type != "SparseToDense":
        return None
    cross = dense.tensor.op.inputs[2].op
    if cross.type != "SparseCross":
        return None
    # Sparse inputs have indices, of another shape.
    if cross.get_attr("num_buckets") < 1 or any(
        operand.shape[1:].as_list() != [1] for operand in cross.inputs
    ):
        return None
    keys = [_key(operand, call) for operand in cross.inputs]
    known = [key for key in keys if key is not None]
    if len(known) < len(keys) or len(keys) < 2:
        return None
    return cross_of(
        known, buckets=cross.get_attr("num_buckets"), hash_key=cross.get_attr("hash_key")
    )


def _key(values: Any, call: CallGraph) -> Key | None:
    """Returns the input of crossed values, and what computes them."""
    found = find_rule(Values(values), call, None)
    if not isinstance(found, ResolvedIds):
        return None
    if found.source.part != "dense" or found.source.place is not None:
        return None
    dtype = _sent_dtype(call.tensor_of(found.source, values.graph))
    if found.rule is None and dtype == "float32":
        return None
    return Key(found, CrossKey(dtype=dtype, ids=found.rule))


def _sent_dtype(tensor: Any) -> Literal["int64", "string", "float32"]:
    """Returns the type of what callers send to an input."""
    if tensor.dtype.is_floating:
        return "float32"
    return "string" if tensor.dtype.name == "string" else "int64"


def _joined(ids: Any, call: CallGraph) -> ResolvedIds | None:
    found = find_graph(Values(ids), call)
    if not isinstance(found, ResolvedIds) or not found.others or per_example(ids) != 1:
        return None
    if any(source.part != "dense" or source.place is not None for source in found.sources):
        return None
    tensors = [call.tensor_of(source, ids.graph) for source in found.sources]
    keys = tuple(CrossKey(dtype=_sent_dtype(tensor)) for tensor in tensors)
    return replace(found, rule=JoinedIds(keys=keys, ids=found.rule))


def cross_of(keys: Sequence[Key], buckets: int, hash_key: int) -> ResolvedIds:
    """Returns the inputs of a cross, and its rule."""
    first, *others = (key.found.source for key in keys)
    entries = tuple(key.entry for key in keys)
    rule = CrossedIds(keys=entries, buckets=buckets, hash_key=hash_key)
    listed = tuple(one for key in keys for one in key.found.keys)
    return ResolvedIds(first, rule, keys=listed, others=tuple(others))


def crossed_by(before: Sequence[ResolvedIds], after: ResolvedIds) -> ResolvedIds:
    """Returns a cross of values that the model computes.

    Args:
      before: what computes the values of each key.
      after: the cross.
    """
    assert isinstance(after.rule, CrossedIds)  # noqa: S101 - checked before
    own = iter(after.keys)
    entries = []
    listed = []
    for found, key in zip(before, after.rule.keys, strict=True):
        tables = () if key.ids is None else key.ids.tables
        listed += [*found.keys, *[next(own) for _ in tables]]
        graph = _chained(found.rule, key.ids)
        changes: dict[str, Any] = {"ids": graph}
        if isinstance(found.rule, GraphIds):
            changes |= {"dtype": sent_dtype(found.rule.dtype), "padding": None}
        entries.append(key.model_copy(update=changes))
    rule = after.rule.model_copy(update={"keys": tuple(entries)})
    return replace(after, rule=rule, keys=tuple(listed))


def followed_by(before: ResolvedIds, after: ResolvedIds) -> ResolvedIds:
    """Returns what computes ids of an input before a rule of the lookup's own, and that rule."""
    assert after.rule is None or isinstance(after.rule, GraphIds)  # noqa: S101 - of one input
    graph = _chained(before.rule, after.rule)
    keys = (*before.keys, *after.keys)
    return ResolvedIds(before.source, graph, after.unknown, keys)


def _chained(before: Any, after: GraphIds | None) -> GraphIds | None:
    """Returns a graph behind another one; None for neither."""
    if before is None or after is None:
        return before or after
    builder = GraphBuilder(before.dtype, before)
    builder.then(after)
    return builder.graph()
