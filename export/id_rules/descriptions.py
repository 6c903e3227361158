"""How ids become rows, in a few words."""

from __future__ import annotations

from bundle.format.manifest import (
    ArithmeticIds,
    BucketIds,
    ChainedIds,
    ComputedIds,
    CrossedIds,
    EmbeddedFeature,
    HashIds,
    IdentityIds,
    IdOperation,
    JoinedIds,
    KeyedIds,
    TextIds,
    TextStep,
    VocabularyIds,
)


def rows_told(page: EmbeddedFeature, inputs: tuple[str, ...]) -> str:
    """Returns how the ids of a feature become rows.

    Args:
      page: what the manifest says of it.
      inputs: that it reads.
    """
    match page.ids:
        case HashIds() as rule:
            hashed = "hash" if rule.key is None else "hash with a key"
            kept = "" if rule.mask is None else f", but {rule.mask!r} is row 0"
            return f"{hashed} mod {rule.buckets}{_from(rule.first_row)}{kept}"
        case VocabularyIds() as rule:
            beyond = f", else hash mod {rule.oov_buckets}" if rule.oov_buckets else ""
            return f"place in vocabulary {rule.vocabulary}{_from(rule.first_row)}{beyond}"
        case BucketIds() as rule:
            turned = ", the largest number first" if rule.falling else ""
            return f"bucket of {len(rule.boundaries) + 1}{_from(max(rule.first_row, 0))}{turned}"
        case CrossedIds() | JoinedIds() | TextIds() | ChainedIds() as rule:
            return _of_several(page, rule, inputs)
        case KeyedIds():
            return f"key of table {page.table}"
        case rule:
            return _of_integers(rule) + (", below 0 from the end" if page.from_end else "")


def _of_several(
    page: EmbeddedFeature, rule: CrossedIds | JoinedIds | TextIds | ChainedIds, inputs: tuple[str, ...]
) -> str:
    if isinstance(rule, ChainedIds):
        return ", then ".join(rows_told(page.model_copy(update={"ids": each}), inputs) for each in rule.rules)
    if isinstance(rule, TextIds):
        return f"{rows_told(page.model_copy(update={'ids': rule.ids}), inputs)} of {_words(rule)}"
    if isinstance(rule, CrossedIds):
        return f"cross of {' and '.join(inputs)} mod {rule.buckets}"
    pieces = [
        piece for text, name in zip(rule.texts, (*inputs, ""), strict=True) for piece in (text and repr(text), name)
    ]
    made = rows_told(page.model_copy(update={"ids": rule.ids}), inputs)
    return f"{made} of the string {' + '.join(filter(None, pieces))}"


def _words(rule: TextIds) -> str:
    """Returns what a text becomes before it has rows."""
    split = {"whitespace": "the words of ", "characters": "the characters of ", None: ""}[rule.split]
    runs = f"runs of {' and '.join(map(str, rule.ngrams))} of " if rule.ngrams else ""
    first = f"the first {rule.length} of " if rule.length is not None else ""
    return f"{first}{runs}{split}the text{''.join(f', {_changed(step)}' for step in rule.steps)}"


def _changed(step: TextStep) -> str:
    if not step.what:
        return {"lower": "in lower case", "upper": "in upper case"}.get(step.do, "stripped")
    return f"{step.what!r} replaced by {step.by!r}" if step.by else f"without {step.what!r}"


def _of_integers(rule: IdentityIds | ArithmeticIds | ComputedIds) -> str:
    if isinstance(rule, IdentityIds):
        return "the id is the row"
    if isinstance(rule, ComputedIds):
        return f"the id {', '.join(map(_operation, rule.operations))}"
    told = "the id" if not rule.shift else f"the id {'+' if rule.shift > 0 else '-'} {abs(rule.shift)}"
    told += f" div {rule.divisor}" if rule.divisor > 1 else ""
    return told + (f" mod {rule.buckets}" if rule.buckets is not None else "") + _from(rule.first_row)


def _operation(operation: IdOperation) -> str:
    match operation.do:
        case "add":
            return f"{'-' if (operation.by or 0) < 0 else '+'} {abs(operation.by or 0)}"
        case "multiply" | "divide" | "remainder" | "truncated_remainder" as do:
            told = {"multiply": "*", "divide": "div", "remainder": "mod", "truncated_remainder": "mod (as in C)"}
            return f"{told[do]} {operation.by}"
        case "at_least" | "at_most" as do:
            return f"{do.replace('_', ' ')} {operation.by}"
        case "absolute":
            return "without its sign"
        case _:
            return "wrapped to int32"


def _from(first_row: int) -> str:
    return f", from row {first_row}" if first_row else ""
