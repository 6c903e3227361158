"""Random computations of integers, in every library."""

from __future__ import annotations

from tests.differential.random_models.drafts import EXTREMES
from tests.differential.random_models.rules import Rule, Wanted

KEYS = (3, 5, 7, 11, 100, 1000, 4, 65_536, 99, 12, 77, 2_000_000_000)
UNKNOWN_KEYS = (0, -1, -7, 6, 101, 65_537)


def rows_themselves(wanted: Wanted) -> Rule:
    dtype = wanted.integer_dtype()
    rows = range(wanted.rows)
    if wanted.below_zero == "dropped":
        return Rule(dtype, (*rows, -1, -5, EXTREMES[dtype][0]))
    if wanted.below_zero == "last" and wanted.draft.chance(0.3):
        if wanted.draft.states_examples:
            wanted.draft.known = "the check of ids knows no rows that are counted from the end"
        return Rule(dtype, range(-wanted.rows, wanted.rows))
    return Rule(dtype, rows)


def shifted(wanted: Wanted) -> Rule:
    first = wanted.draft.choice(1, -3, 1000, 1 << 30)
    pool = range(first, first + wanted.rows)
    return Rule(wanted.integer_dtype(), pool, f"({{ids}} - {first})", is_partial=True)


def remainder(wanted: Wanted) -> Rule:
    draft = wanted.draft
    dtype = wanted.integer_dtype()
    rows = wanted.rows
    library = wanted.draft.dialect.module
    template = draft.choice(
        f"({{ids}} % {rows})",
        f"(({{ids}} * 7 + 3) % {rows})",
        f"({{ids}} // 10 % {rows})",
        f"({library}.abs({{ids}}) % {rows})",
        f"({rows - 1} - {{ids}} % {rows})",
        f"({{ids}} % {rows - 2} + 2)",
        f"({{ids}} * -5 // 3 % {rows})",
    )
    return Rule(dtype, wanted.integers(dtype), template)


def limited(wanted: Wanted) -> Rule:
    draft = wanted.draft
    dtype = wanted.integer_dtype()
    library = wanted.draft.dialect.module
    last = wanted.rows - draft.integer(1, 3)
    first = draft.integer(0, 2)
    template = draft.choice(
        f"{draft.dialect.clip}({{ids}}, {first}, {last})",
        f"{library}.minimum({library}.maximum({{ids}}, {first}), {last})",
        f"{library}.maximum({library}.minimum({{ids}}, {last}), {first})",
        f"({draft.dialect.clip}({{ids}}, -2, {last - 2}) + 2)",
        f"{draft.dialect.clip}({{ids}} // 3, {first}, {last})",
    )
    return Rule(dtype, (*wanted.integers(dtype), first - 1, first + 1, last + 1), template)


def chosen(wanted: Wanted) -> Rule:
    draft = wanted.draft
    dtype = wanted.integer_dtype()
    library = draft.dialect.module
    where = f"{library}.where"
    rows = wanted.rows
    row = draft.integer(0, rows - 1)
    template = draft.choice(
        f"{where}(({{ids}} >= 0) & ({{ids}} < {rows}), {{ids}}, {row})",
        f"{where}({{ids}} >= 0, {{ids}} % {rows}, {row})",
        f"{where}({{ids}} < {rows}, {library}.maximum({{ids}}, 0), {row})",
    )
    return Rule(dtype, wanted.integers(dtype), template)


def nested(wanted: Wanted) -> Rule:
    """Operations on each other's results, of which the last one makes rows."""
    draft = wanted.draft
    dtype = wanted.integer_dtype()
    library = draft.dialect.module
    constant = draft.integer(2, 100)
    code = "{ids}"
    for _ in range(draft.integer(1, 3)):
        code = draft.choice(
            f"({code} * {code})",
            f"({code} + {constant})",
            f"({code} // {constant})",
            f"{library}.minimum({code}, {constant} - {code})",
            f"{library}.where({code} < {constant}, {code}, -{code})",
            f"{library}.where(({code} > 3) & ({code} <= {constant}), {code} * 2, 7 - {code})",
            f"{library}.maximum({code} % {constant}, {{ids}})",
        )
    return Rule(dtype, wanted.integers(dtype), f"({code} % {wanted.rows})")


def stated(wanted: Wanted) -> Rule:
    """A vocabulary that the recipe states: clients send keys, and the model takes rows."""
    draft = wanted.draft
    dtype = wanted.integer_dtype()
    first_row = draft.integer(0, 2)
    keys = draft.sample(KEYS, min(len(KEYS), wanted.rows - first_row) - 1)
    row = draft.integer(0, wanted.rows - 1)
    rows = dict.fromkeys(UNKNOWN_KEYS, row)
    rows |= {key: first_row + position for position, key in enumerate(keys)}
    draft.vocabularies[wanted.name] = keys
    feature = (
        f'ids = {{ kind = "vocabulary", vocabulary = "{wanted.name}", first_row = {first_row} }}, '
        f'unknown = {{ rule = "row", row = {row} }}'
    )
    return Rule(dtype, [*rows], feature=feature, rows=rows)
