"""Lets a tower take the values of ragged and sparse inputs: in rows of one length, from which its graph takes them.

A tower's inputs have the batch open and nothing else. How many values an example has it takes beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from export.frameworks.internals import join
from export.frameworks.loading import tf
from export.graph.origins import identifier, needed, sources_of
from export.recipe.schema import InputPart


def feed_bags(
    results: Iterable[Any],
    stops: Iterable[Any],
    inputs: Mapping[str, Any],
    lengths: Mapping[str, Any],
    parts: Mapping[str, InputPart],
    fed: dict[str, Any],
) -> None:
    """Puts a placeholder of rows before every ragged or sparse input whose values some results are computed of.

    Args:
      results, stops: of a tower: what it returns, and what is looked up for it.
      inputs, lengths: of its call, as of TracedCall.
      parts: what the recipe says of the inputs.
      fed: takes the placeholders, [batch, length_max], as `<input>@padded`, those of the weights of another input's ids
        as `<that input>@weights`.
    """
    sources = sources_of(inputs)
    for placeholder in needed(results, stops).placeholders:
        source = sources.get(placeholder.name)
        if source is None or source.part != "values":
            continue
        part = parts[source.name]
        owner = part.weights_for if part.weights_for in lengths and source.name not in lengths else None
        which = f"{source.name}@padded" if owner is None else f"{owner}@weights"
        size, held = parts[owner or source.name].length_max, lengths[owner or source.name]
        with placeholder.graph.as_default():
            fed[which] = tf.compat.v1.placeholder(placeholder.dtype, [None, size], name=identifier(which))
            values = tf.boolean_mask(fed[which], tf.sequence_mask(held, size))
            join(placeholder, values)
