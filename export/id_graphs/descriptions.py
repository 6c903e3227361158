"""Describes rules from ids to rows in a few words."""

from __future__ import annotations

from collections.abc import Sequence

from bundle.features.ids.expressions import expression
from bundle.format.manifest import IDENTITY, EmbeddedFeature, KeyedIds


def describe_ids(feature: EmbeddedFeature, inputs: Sequence[str]) -> str:
    """Returns the rule by which the sent values of a feature become rows, in a few words.

    Args:
      feature: The feature's entry in the manifest.
      inputs: The names of the inputs that the feature reads.
    """
    if isinstance(feature.ids, KeyedIds):
        words = f"key of table {feature.table}"
    elif feature.ids == IDENTITY:
        words = "the id is the row"
    elif feature.split:
        words = expression(feature.ids, "the text")
    elif feature.joint is None:
        words = expression(feature.ids, "the id")
    else:
        words = expression(feature.ids, *inputs)
    if feature.from_end:
        words += ", below 0 from the end"
    return words
