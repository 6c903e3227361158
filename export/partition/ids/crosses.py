"""Ids of the values of several inputs, which are hashed together or computed by one graph.

Source: TensorFlow 2.20: the operations of `tf.sparse.cross_hashed`, which the layer HashedCrossing
of tf-keras 2.20 and Keras 3.15 is based on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bundle.format.graph_builder import GraphBuilder
from bundle.format.id_graphs import InputDtype
from export.front_end.specs import Keys
from export.partition.graph.input_paths import CallGraph, Values, per_example
from export.partition.graph.origins import Source
from export.partition.ids.capture import find_graph, find_rule
from export.partition.ids.resolved_ids import ResolvedIds


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


def _key(values: Any, call: CallGraph) -> ResolvedIds | None:
    """Returns the input of crossed values, and the rule that computes them; None if no rule of one
    input does.
    """
    resolved = find_rule(Values(values), call, None)
    if not isinstance(resolved, ResolvedIds) or not _is_one_value(resolved.source):
        return None
    if resolved.rule is not None:
        return resolved
    tensor = call.tensor_of(resolved.source, values.graph)
    # Only integers and texts are hashed.
    if tensor.dtype.is_floating:
        return None
    return sent_key(resolved.source, tensor.dtype.name)


def sent_key(source: Source, dtype: str) -> ResolvedIds:
    """Returns an input, of integers or texts, whose values are crossed as they are sent."""
    input_dtype: InputDtype = "int64"
    if dtype == "string":
        input_dtype = "string"
    return ResolvedIds(source, GraphBuilder(input_dtype).graph())


def _is_one_value(source: Source) -> bool:
    """Returns whether a source is all of an input, which has one value per example."""
    return source.part == "dense" and source.position is None


def _find_joined(ids: Any, call: CallGraph) -> ResolvedIds | None:
    """Returns the inputs and rule of ids that one graph computes from several inputs."""
    resolved = find_graph(Values(ids), call)
    if not isinstance(resolved, ResolvedIds) or not resolved.other_sources:
        return None
    if per_example(ids) != 1 or not all(map(_is_one_value, resolved.sources)):
        return None
    return resolved


def cross_of(keys: Sequence[ResolvedIds], buckets: int, hash_key: int) -> ResolvedIds:
    """Returns the inputs of a cross, and its rule, from those of each of its values."""
    builder = GraphBuilder()
    vocabularies: list[Keys] = []
    operands = []
    for key in keys:
        assert key.rule is not None  # noqa: S101 - of a key
        operands.append(builder.beside(key.rule))
        vocabularies += key.keys
    builder.crossed(operands, buckets, hash_key)
    first, *following = (key.source for key in keys)
    return ResolvedIds(
        first,
        builder.graph(),
        keys=tuple(vocabularies),
        other_sources=tuple(following),
    )


def followed_by(before: Sequence[ResolvedIds], after: ResolvedIds) -> ResolvedIds:
    """Returns ids that a rule makes of what the model computes.

    Args:
      before: The input of each value that the rule takes, and what the model computes of it.
      after: The rule.
    """
    if after.rule is None:
        (values,) = before
        return replace(after, rule=values.rule, keys=values.keys)
    builder = GraphBuilder()
    vocabularies: list[Keys] = []
    operands = []
    for values, node in zip(before, after.rule.inputs, strict=True):
        operands.append(builder.beside(values.rule or GraphBuilder(node.dtype).graph()))
        vocabularies += values.keys
    builder.then(after.rule, operands)
    return replace(after, rule=builder.graph(), keys=(*vocabularies, *after.keys))
