"""What rules from ids to rows do, in a few words."""

from __future__ import annotations

from collections.abc import Sequence

from bundle.features.ids.expressions import expression
from bundle.format.manifest import (
    CrossedIds,
    EmbeddedFeature,
    GraphIds,
    JoinedIds,
    KeyedIds,
    MultiInputIds,
    TextIds,
)


def describe_ids(feature: EmbeddedFeature, inputs: Sequence[str]) -> str:
    """Returns how what callers send of a feature becomes rows, in a few words.

    Args:
      feature: The manifest's entry.
      inputs: What it reads.
    """
    match feature.ids:
        case KeyedIds():
            words = f"key of table {feature.table}"
        case MultiInputIds() as cross:
            words = describe_cross(cross, inputs)
        case TextIds() as text:
            words = describe_text(text)
        case GraphIds() as graph:
            words = expression(graph, "the id")
        case _:
            words = "the id is the row"
    return words + (", below 0 from the end" if feature.from_end else "")


def describe_text(rule: TextIds) -> str:
    """Returns how the words of a text become rows, in a few words."""
    runs = f"runs of {' and '.join(map(str, rule.ngrams))} of " if rule.ngrams else ""
    first = f"the first {rule.length} of " if rule.length is not None else ""
    unit = "word" if rule.split == "whitespace" else "character"
    text = "the text" if rule.text is None else expression(rule.text, "the text")
    return f"{expression(rule.ids, unit)} for {first}{runs}the {unit}s of {text}"


def describe_cross(rule: MultiInputIds, inputs: Sequence[str]) -> str:
    """Returns how the values of inputs become rows, in a few words."""
    if isinstance(rule, CrossedIds):
        values = [
            name if key.ids is None else expression(key.ids, name)
            for name, key in zip(inputs, rule.keys, strict=True)
        ]
        return f"cross of {' and '.join(values)} mod {rule.buckets}"
    assert isinstance(rule, JoinedIds)  # noqa: S101 - the other rule of several inputs
    return expression(rule.ids, *inputs)
