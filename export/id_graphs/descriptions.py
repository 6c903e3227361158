"""Describes rules from ids to rows in a few words."""

from __future__ import annotations

from collections.abc import Sequence

from bundle.features.ids.expressions import expression
from bundle.format.manifest import IDENTITY, EmbeddedFeature, GraphIds, KeyedIds, TextIds


def describe_ids(feature: EmbeddedFeature, inputs: Sequence[str]) -> str:
    """Returns the rule by which the sent values of a feature become rows, in a few words.

    Args:
      feature: The feature's entry in the manifest.
      inputs: The names of the inputs that the feature reads.
    """
    match feature.ids:
        case KeyedIds():
            words = f"key of table {feature.table}"
        case TextIds() as text:
            words = describe_text(text)
        case GraphIds() as graph if graph == IDENTITY:
            words = "the id is the row"
        case GraphIds() as graph if feature.joint is not None:
            words = expression(graph, *inputs)
        case GraphIds() as graph:
            words = expression(graph, "the id")
    if feature.from_end:
        words += ", below 0 from the end"
    return words


def describe_text(rule: TextIds) -> str:
    """Returns how the words of a text become rows, in a few words."""
    runs = ""
    if rule.ngrams:
        runs = f"runs of {' and '.join(map(str, rule.ngrams))} of "
    first = ""
    if rule.length is not None:
        first = f"the first {rule.length} of "
    unit = "character" if rule.split == "characters" else "word"
    text = "the text"
    if rule.text is not None:
        text = expression(rule.text, "the text")
    if rule.separator:
        text += f" at {rule.separator!r}"
    if rule.padding is not None:
        text += f", filled up to {rule.length} by {rule.padding!r}"
    return f"{expression(rule.ids, unit)} for {first}{runs}the {unit}s of {text}"
