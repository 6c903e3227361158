"""Warnings about features of one table whose ids lead to different rows."""

from __future__ import annotations

from typing import Any

import pytest

from bundle.format.manifest import EmbeddedFeature, GraphIds, IdentityIds, IdRule
from export.front_end.specs import FeatureSpec, ModelSpec
from export.jobs.likely_mistakes import likely_mistakes
from tests.id_graphs import computed_ids, hash_ids, vocabulary_ids
from tests.units.export.traced_features import embedded

IDENTITY = IdentityIds()
HASHED = hash_ids(3)
MOVED = computed_ids(("AddV2", 10))


def listed(first_row: int, vocabulary: str = "ids") -> GraphIds:
    return vocabulary_ids(vocabulary, first_row=first_row)


def warnings(
    rules: dict[str, IdRule], of_model: tuple[str, ...] = (), tables: dict[str, str] | None = None
) -> tuple[str, ...]:
    """Returns the warnings about features of the table `movies`, or of others by `tables`; the
    rules of some are the model's own.
    """
    specs: dict[str, Any] = {}
    entries: dict[str, Any] = {}
    for name, rule in rules.items():
        table = (tables or {}).get(name, "movies")
        ids: dict[str, Any] = {"ids": rule} if name in of_model else {}
        spec: FeatureSpec = embedded(name, table, **ids)
        specs[name] = spec
        entries[name] = EmbeddedFeature(kind="single", table=table, role="context", ids=rule)
    return likely_mistakes(entries, ModelSpec({}, specs, {}))


@pytest.mark.parametrize(
    ("rules", "of_model"),
    [
        ({"seen": listed(1), "liked": listed(1)}, ()),
        ({"seen": IDENTITY, "liked": IDENTITY}, ()),
        # Fields of one table, each with its offset.
        ({"seen": IDENTITY, "liked": MOVED}, ("liked",)),
        ({"seen": listed(1), "liked": HASHED}, ("seen", "liked")),
    ],
)
def test_features_of_one_table_by_one_rule_or_by_those_of_the_model_are_no_mistake(
    rules: dict[str, IdRule], of_model: tuple[str, ...]
) -> None:
    assert warnings(rules, of_model) == ()


@pytest.mark.parametrize(
    ("rules", "of_model", "described"),
    [
        (
            {"movie": listed(1), "seen": IDENTITY},
            (),
            "'movie' (position of the id in ids + 1, else -1) and 'seen' (the id is the row)",
        ),
        (
            {"movie": HASHED, "seen": IDENTITY},
            ("movie",),
            "'movie' (fingerprint64(the id) mod 3) and 'seen' (the id is the row)",
        ),
        (
            {"movie": listed(0), "seen": listed(0, "others"), "liked": listed(0)},
            (),
            "'movie' (position of the id in ids, else -1) and 'seen' (position of the id in "
            "others, else -1)",
        ),
    ],
)
def test_features_of_one_table_by_different_rules_are_warned_of(
    rules: dict[str, IdRule], of_model: tuple[str, ...], described: str
) -> None:
    assert warnings(rules, of_model) == (
        f"features {described} read table 'movies' by different rules: one is likely wrong, which "
        "verify.expected would show",
    )


def test_features_that_read_a_table_from_different_rows_on_are_warned_of() -> None:
    rules: dict[str, IdRule] = {"seen": listed(1), "liked": listed(1), "wrong": listed(0)}
    assert warnings(rules) == (
        "features 'seen' and 'wrong' read table 'movies' by vocabulary 'ids' from rows 1 and 0 on "
        "(first_row): one is likely wrong, which verify.expected would show",
    )
    assert warnings(rules, tables={"wrong": "users"}) == ()
