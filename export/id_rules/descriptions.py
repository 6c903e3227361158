"""What rules from ids to rows do, in a few words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bundle.features.rules.expressions import expression
from bundle.format.manifest import (
    BucketIds,
    ComputedIds,
    CrossedIds,
    EmbeddedFeature,
    GraphIds,
    HashIds,
    IdRule,
    JoinedIds,
    KeyedIds,
    MultiInputIds,
    TextIds,
    TextStep,
    VocabularyIds,
)
from export.id_rules.operations import links_of


def _describe_hash(rule: HashIds) -> str:
    """Returns how ids become rows, in a few words."""
    how = "hash" if rule.key is None else "hash with a key"
    kept = "" if rule.mask is None else f", but {rule.mask!r} is row 0"
    return f"{how} mod {rule.buckets}{_from_row(rule.first_row)}{kept}"


def _describe_vocabulary(rule: VocabularyIds) -> str:
    """Returns how ids become rows, in a few words."""
    beyond = f", else hash mod {rule.oov_buckets}" if rule.oov_buckets else ""
    return f"place in vocabulary {rule.vocabulary}{_from_row(rule.first_row)}{beyond}"


def _describe_computed(rule: ComputedIds) -> str:
    """Returns how rows are computed, in a few words."""
    words = {
        "multiply": "*",
        "divide": "div",
        "remainder": "mod",
        "truncated_remainder": "mod (as in C)",
        "at_least": "at least",
        "at_most": "at most",
        "absolute": "without its sign",
        "int32": "wrapped to int32",
    }
    steps = []
    for each in rule.operations:
        word = words.get(each.do) or ("-" if (each.by or 0) < 0 else "+")
        if each.by is not None:
            word = f"{word} {abs(each.by) if each.do == 'add' else each.by}"
        steps.append(word)
    return f"the id {', '.join(steps)}"


def _describe_bucket(rule: BucketIds) -> str:
    """Returns how numbers become rows, in a few words."""
    turned = ", the largest number first" if rule.falling else ""
    return f"bucket of {len(rule.boundaries) + 1}{_from_row(max(rule.first_row, 0))}{turned}"


def describe(rule: IdRule) -> str:
    """Returns how ids become rows by a rule or chain, in a few words."""
    return (
        ", then ".join(_DESCRIBED_BY[type(each)](each) for each in links_of(rule))
        or "the id is the row"
    )


def describe_ids(feature: EmbeddedFeature, inputs: Sequence[str]) -> str:
    """Returns how what callers send of a feature becomes rows, in a few words.

    Args:
      feature: The manifest's entry.
      inputs: What it reads.
    """
    match feature.ids:
        case KeyedIds():
            return f"key of table {feature.table}"
        case MultiInputIds() as cross:
            return describe_cross(cross, inputs)
        case TextIds() as text:
            return describe_text(text)
    return describe(feature.ids) + (", below 0 from the end" if feature.from_end else "")


def describe_text(rule: TextIds) -> str:
    """Returns how a text becomes rows, in a few words."""
    split = {"whitespace": "the words of ", "characters": "the characters of ", None: ""}[
        rule.split
    ]
    runs = f"runs of {' and '.join(map(str, rule.ngrams))} of " if rule.ngrams else ""
    first = f"the first {rule.length} of " if rule.length is not None else ""
    text = ", ".join(["the text", *map(_changed, rule.steps)])
    return f"{describe(rule.ids)} of {first}{runs}{split}{text}"


def _changed(step: TextStep) -> str:
    if not step.what:
        return {"lower": "in lower case", "upper": "in upper case"}.get(step.do, "stripped")
    return f"{step.what!r} replaced by {step.by!r}" if step.by else f"without {step.what!r}"


def describe_cross(rule: CrossedIds | JoinedIds, inputs: Sequence[str]) -> str:
    """Returns how the values of inputs become rows, in a few words."""
    if isinstance(rule, CrossedIds):
        return f"cross of {' and '.join(inputs)} mod {rule.buckets}"
    around = zip(rule.texts, (*inputs, ""), strict=True)
    pieces = [piece for text, name in around for piece in (text and repr(text), name)]
    return f"{describe(rule.ids)} of the string {' + '.join(filter(None, pieces))}"


def _from_row(first_row: int) -> str:
    """Returns the first row of a rule, as the end of its description."""
    return f", from row {first_row}" if first_row else ""


_DESCRIBED_BY: Mapping[type, Callable[[Any], str]] = MappingProxyType(
    {
        HashIds: _describe_hash,
        VocabularyIds: _describe_vocabulary,
        ComputedIds: _describe_computed,
        BucketIds: _describe_bucket,
        GraphIds: lambda rule: expression(rule, "the id"),
    }
)
