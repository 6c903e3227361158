"""Turns a lookup of several ids of an example into one that is a feature: of all of them together, or of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from export.frameworks.internals import join
from export.frameworks.loading import tf
from export.graph.input_paths import per_example
from export.graph.origins import identifier
from export.lookups.records import Lookup


def flattened_from(ids: Any) -> int:
    """Returns how many values an example has in what ids that lie one after another were made of, as a guess."""
    seen: set[str] = set()
    queue = [ids]
    while queue:
        tensor = queue.pop()
        before = [each for each in tensor.op.inputs if each.name not in seen]
        sizes = [per_example(each) or 1 for each in before] if tensor.op.type == "Reshape" else []
        if max(sizes, default=1) > 1:
            return max(sizes)
        seen.update(each.name for each in before)
        queue += before
    return 1


def by_example(lookup: Lookup, size: int) -> Lookup:
    """Returns the lookup of ids that the model flattened, `tf.reshape(ids, [-1])`, as one of each example's `size`."""
    with lookup.activation.graph.as_default():
        activation = _placeholder(lookup, [None, size, lookup.table.dim])
        join(lookup.activation, tf.reshape(activation, [-1, lookup.table.dim]))
    return replace(lookup, kind="sequence", length=size, activation=activation)


def columns_of(lookup: Lookup, size: int) -> list[Lookup]:
    """Returns a lookup of each of the `size` ids that an example has; together they answer the one that was recorded.

    Its ids in the graph are known to no operation: these lookups leave the towers.
    """
    with lookup.activation.graph.as_default():
        activations = [_placeholder(lookup, [None, lookup.table.dim]) for _ in range(size)]
        shape = lookup.activation.shape.as_list()
        join(lookup.activation, tf.reshape(tf.concat(activations, 1), [-1, *shape[1:]]))
    return [replace(lookup, kind="single", length=None, activation=each) for each in activations]


def _placeholder(lookup: Lookup, shape: list[int | None]) -> Any:
    return tf.compat.v1.placeholder(tf.float32, shape, name=identifier(lookup.path))
