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
from export.partition.graph.origins import sources_of
from export.recipe.schema import InputSection


def add_bag_placeholders(
    results: Iterable[Any],
    stops: Iterable[Any],
    inputs: Mapping[str, Any],
    lengths: Mapping[str, Any],
    sections: Mapping[str, InputSection],
    fed: dict[str, Any],
) -> None:
    """Adds a placeholder for every ragged or sparse input whose values the results depend on.

    Args:
      results, stops: A tower's outputs, and the placeholders of its lookups.
      inputs, lengths: The tensors of the inputs and the lengths of its TracedCall.
      sections: The recipe's inputs.
      fed: Receives the placeholders, [batch, length_max], as `<input>@padded`, for weights of
        another input's ids as `<that input>@weights`.
    """
    sources = sources_of(inputs)
    for placeholder in needed(results, stops).placeholders:
        source = sources.get(placeholder.name)
        if source is None or source.part != "values":
            continue
        name = source.name
        feature = f"{name}@padded"
        owner = sections[name].weights_for
        # Weights without lengths of their own share those of their ids.
        if owner is not None and owner in lengths and name not in lengths:
            name = owner
            feature = f"{owner}@weights"
        size = sections[name].length_max
        with placeholder.graph.as_default():
            fed[feature] = tf.compat.v1.placeholder(
                placeholder.dtype, [None, size], name=identifier(feature)
            )
            # The model's own operations take the values alone, in the order of the examples.
            is_value = tf.sequence_mask(lengths[name], size)
            join(placeholder, tf.boolean_mask(fed[feature], is_value))
