"""Numbers that towers would compute from lookup tables or strings: the service computes them.

A model may use the rows that its lookup layers find not only for lookups but also as numbers, as in
the mask of an attention layer: `attention_mask=rows > 0`, or `mask_zero=True`. The tower would then
need hash tables and strings, which LiteRT lacks. Numbers that a known rule describes become a
feature of their own: an indicator of one number per id.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from bundle.format.identifiers import identifier
from export.front_end.specs import FeatureSpec
from export.graphs.internals import join
from export.graphs.loading import tf
from export.id_graphs.limits import limits_of
from export.partition.features.traced_lookups import resolve_lookups
from export.partition.graph.input_paths import CallGraph, Values, per_example
from export.partition.graph.origins import sources_of
from export.partition.graph.pruning import TracedCall
from export.partition.ids.capture import find_rule
from export.partition.ids.resolved_ids import ResolvedIds
from export.partition.lookups.records import TracedLookup, of_indicator

_OPERATIONS = frozenset({"LookupTableFindV2", "StringToHashBucketFast", "StringToHashBucketStrong"})
"""The operations that LiteRT lacks and a bundle computes."""

EXACT_MAX = 1 << 24
"""Integers up to this one are exact in float32, the dtype of an indicator."""


def replace_looked_up_numbers(
    call: TracedCall, results: Sequence[Any]
) -> list[tuple[TracedLookup, FeatureSpec]]:
    """Replaces numbers in a call's graph by the placeholders of indicators.

    Args:
      call: The traced call, whose lookups have their placeholders.
      results: The outputs of its towers.

    Returns:
      Each indicator, with the placeholder of its result, and its feature.
    """
    graph = call.function.graph
    stops = {activation.name for activation in call.activations.values()}
    captured = {inner.name: outer for outer, inner in graph.captures}
    followed = CallGraph(sources_of(call.inputs), captured)

    replaced: list[tuple[TracedLookup, FeatureSpec]] = []
    for tensor in _looked_up_integers(results, stops, graph):
        lookup = _indicator(tensor, call, followed)
        # Numbers that no rule describes are left to the tower.
        if lookup is None:
            continue
        resolved = resolve_lookups(call, [lookup])
        if len(resolved) == 1 and resolved[0].feature is not None:
            join(tensor, numbers_of(lookup, tensor))
            replaced.append((resolved[0], resolved[0].feature))
    return replaced


def _looked_up_integers(
    results: Sequence[Any], stops: Collection[str], graph: Any
) -> Iterator[Any]:
    """Yields the integer tensors that towers compute by tables or hashes, those near the results
    first.

    A tensor that the caller replaces before it takes the next one hides those behind it.
    """
    looked_up: set[str] = set()
    # Lookups that stay inside were inserted last, so the order of creation says nothing.
    tensors = [
        tensor
        for operation in graph.get_operations()
        if operation.type in _OPERATIONS
        for tensor in operation.outputs
    ]
    while tensors:
        tensor = tensors.pop()
        if tensor.name not in looked_up:
            looked_up.add(tensor.name)
            for reader in tensor.consumers():
                tensors.extend(reader.outputs)

    queue = list(results)
    seen = set(stops)
    while queue:
        tensor = queue.pop(0)
        if tensor.name in seen or tensor.name not in looked_up:
            continue
        seen.add(tensor.name)
        if tensor.dtype.is_integer:
            yield tensor
            # The caller has replaced it: what computes it is not part of the tower anymore.
            if not tensor.consumers():
                continue
        queue.extend(tensor.op.inputs)


def _indicator(tensor: Any, call: TracedCall, followed: CallGraph) -> TracedLookup | None:
    """Returns the indicator that gives the numbers of a tensor; None if no rule describes them."""
    resolved = find_rule(Values(tensor), followed, None)
    if not isinstance(resolved, ResolvedIds) or resolved.source.part != "dense":
        return None

    # One number for each value of one input, whatever the axes.
    size = math.prod(call.sections[resolved.source.name].shape)
    if resolved.source.position is not None or _per_example(tensor, size) != size:
        return None

    if resolved.rule is None:
        return None
    limits = limits_of(resolved.rule, [len(keys) for keys in resolved.keys])
    count = limits.high + 1
    # A service knows no number for an id without a row.
    if limits.low < 0 or not 1 < count <= EXACT_MAX:
        return None

    return indicator_of_numbers(resolved.source.name, tensor, count, size)


def indicator_of_numbers(name: str, tensor: Any, count: int, size: int) -> TracedLookup:
    """Returns the indicator of integers that are rows, with a placeholder of its result.

    Args:
      name: The input that the integers are computed from.
      tensor: The integers.
      count: The number of rows.
      size: How many integers each example has.
    """
    shape: list[int | None] = [None, 1]
    layout: dict[str, Any] = {"kind": "single"}
    if size != 1:
        shape = [None, size, 1]
        layout = {"kind": "sequence", "length": size}
    with tensor.graph.as_default():
        placeholder = identifier(f"{name}_numbers")
        activation = tf.compat.v1.placeholder(tf.float32, shape, name=placeholder)
    return of_indicator(tensor.op.name, count, tensor, 1, activation=activation, **layout)


def _per_example(tensor: Any, expected: int) -> int | None:
    """Returns how many numbers each example has: `expected` if the shape is unknown, None if it is
    open.
    """
    if tensor.shape.rank is None:
        return expected
    return per_example(tensor)


def numbers_of(lookup: TracedLookup, tensor: Any) -> Any:
    """Returns the numbers of an indicator, as the tensor that they replace has them."""
    sizes: list[int] = []
    if tensor.shape.rank is not None:
        sizes = tensor.shape.as_list()[1:]
    elif lookup.length is not None:
        sizes = [lookup.length]
    with tensor.graph.as_default():
        return tf.cast(tf.reshape(lookup.activation, [-1, *sizes]), tensor.dtype)
