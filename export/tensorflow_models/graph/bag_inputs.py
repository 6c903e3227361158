"""Adds padded inputs to a tower that reads the values of ragged and sparse inputs.

Only the batch of a tower's inputs is variable: values are padded to one length, and lengths are a
separate input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bundle.format.identifiers import identifier
from export.graphs.internals import join
from export.graphs.loading import tf
from export.graphs.walks import needed
from export.recipe.schema import InputSection
from export.tensorflow_models.graph.origins import sources_of


def add_bag_placeholders(
    results: Iterable[Any],
    stops: Iterable[Any],
    inputs: Mapping[str, Any],
    lengths: Mapping[str, Any],
    parts: Mapping[str, InputSection],
    fed: dict[str, Any],
) -> None:
    """Adds a placeholder for every ragged or sparse input whose values the results depend on.

    Args:
      results, stops: a tower's outputs, and the placeholders of its lookups.
      inputs, lengths: those of its TracedCall.
      parts: the recipe's inputs.
      fed: receives the placeholders, [batch, length_max], as `<input>@padded`, for weights of
        another input's ids as `<that input>@weights`.
    """
    sources = sources_of(inputs)
    for placeholder in needed(results, stops).placeholders:
        source = sources.get(placeholder.name)
        if source is None or source.part != "values":
            continue
        part = parts[source.name]
        owner = (
            part.weights_for if part.weights_for in lengths and source.name not in lengths else None
        )
        which = f"{source.name}@padded" if owner is None else f"{owner}@weights"
        size = parts[owner or source.name].length_max
        held = lengths[owner or source.name]
        with placeholder.graph.as_default():
            fed[which] = tf.compat.v1.placeholder(
                placeholder.dtype, [None, size], name=identifier(which)
            )
            values = tf.boolean_mask(fed[which], tf.sequence_mask(held, size))
            join(placeholder, values)
