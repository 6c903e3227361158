"""How rules of one value follow one another, and what is known of their rows."""

from __future__ import annotations

import pytest

from bundle.format.manifest import (
    BucketIds,
    Cast,
    ChainedIds,
    ComputedIds,
    HashIds,
    IdOperation,
    IdRule,
    TextIds,
    Unknown,
    VocabularyIds,
)
from export.tensorflow_models.graph.origins import Source
from export.tensorflow_models.id_rules.chains import (
    WRAPPED,
    followed_by,
    links_before,
    may_be_none,
    row_count,
)
from export.tensorflow_models.id_rules.resolved_ids import ResolvedIds

SOURCE = Source("x", "dense")
HASH = HashIds(buckets=50, first_row=3)
NINE = ComputedIds(operations=(IdOperation(do="remainder", by=9),))
SHIFTED = ComputedIds(operations=(IdOperation(do="remainder", by=9), IdOperation(do="add", by=-1)))
LARGER = ComputedIds(operations=(IdOperation(do="at_least", by=0),))
BUCKETS = BucketIds(boundaries=(1.0, 2.0))
LISTED = VocabularyIds(vocabulary="v", first_row=2)
SPREAD = VocabularyIds(vocabulary="v", first_row=2, oov_buckets=4, oov_first_row=9)
TO_INT32 = Cast(of="int64", to="int32")
ROW_1 = Unknown(rule="row", row=1)
KEYS = ((10, 20, 30),)


def ids(
    rule: IdRule | None = None, unknown: Unknown | None = None, cast: Cast | None = None
) -> ResolvedIds:
    keys = KEYS if isinstance(rule, VocabularyIds) else ()
    return ResolvedIds(SOURCE, rule, unknown, keys, cast)


def chain(*rules: HashIds | ComputedIds | BucketIds | VocabularyIds) -> ChainedIds:
    return ChainedIds(rules=rules)


@pytest.mark.parametrize(
    ("before", "after", "both"),
    [
        (ids(HASH), ids(NINE), ids(chain(HASH, NINE))),
        (ids(chain(HASH, NINE)), ids(BUCKETS), ids(chain(HASH, NINE, BUCKETS))),
        (ids(), ids(BUCKETS), ids(BUCKETS)),
        (ids(), ids(), ids()),
        (ids(NINE), ids(HASH, ROW_1), ids(chain(NINE, HASH), ROW_1)),
        # What is cast between two rules wraps around.
        (ids(HASH), ids(NINE, cast=TO_INT32), ids(chain(HASH, WRAPPED, NINE))),
        (ids(cast=TO_INT32), ids(NINE), ids(NINE, cast=TO_INT32)),
        (ids(NINE, cast=TO_INT32), ids(BUCKETS), ids(chain(NINE, BUCKETS), cast=TO_INT32)),
        # A feature cannot cast what buckets take.
        (ids(cast=TO_INT32), ids(BUCKETS), None),
        (ids(cast=TO_INT32), ids(chain(BUCKETS, NINE)), None),
        (ids(cast=TO_INT32), ids(), ids(cast=TO_INT32)),
        # No rule follows ids that may be refused, and none joins a text's words.
        (ids(HASH, ROW_1), ids(NINE), None),
        (ids(TextIds(ids=HASH)), ids(NINE), None),
        (ids(NINE), ids(TextIds(ids=HASH)), None),
    ],
)
def test_rules_follow_one_another_where_a_chain_describes_them(
    before: ResolvedIds, after: ResolvedIds, both: ResolvedIds | None
) -> None:
    assert followed_by(before, after) == both


@pytest.mark.parametrize(
    ("found", "rules"),
    [
        (ids(), ()),
        (ids(HASH), (HASH,)),
        (ids(LISTED), (LISTED,)),
        (ids(LISTED, ROW_1), (LISTED.model_copy(update={"oov_buckets": 1, "oov_first_row": 1}),)),
        (
            ids(chain(HASH, LISTED), ROW_1),
            (HASH, LISTED.model_copy(update={"oov_buckets": 1, "oov_first_row": 1})),
        ),
        (ids(SPREAD, ROW_1), None),
        (ids(LISTED, Unknown(rule="refuse")), None),
        (ids(HASH, ROW_1), None),
        (ids(None, ROW_1), None),
    ],
)
def test_links_before_another_rule_give_the_row_of_unknown_ids(
    found: ResolvedIds, rules: tuple[IdRule, ...] | None
) -> None:
    assert links_before(found) == rules


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (ids(), True),
        (ids(NINE), False),
        (ids(SHIFTED), True),
        (ids(HASH), False),
        (ids(BUCKETS), False),
        (ids(LISTED), True),
        (ids(SPREAD), False),
        (ids(chain(HASH, SHIFTED)), True),
        (ids(chain(SHIFTED, HASH)), False),
    ],
)
def test_ids_whose_rule_gives_minus_one_may_be_none(found: ResolvedIds, expected: bool) -> None:
    assert may_be_none(found) == expected


@pytest.mark.parametrize(
    ("found", "rows"),
    [
        (ids(HASH), 53),
        (ids(NINE), 9),
        (ids(SHIFTED), None),
        (ids(LARGER), None),
        (ids(), None),
        (ids(BUCKETS), None),
        (ids(LISTED), 5),
        (ids(LISTED, ROW_1), 5),
        (ids(LISTED, Unknown(rule="row", row=7)), 8),
        (ids(LISTED, Unknown(rule="refuse")), 5),
        (ids(SPREAD), 13),
        (ResolvedIds(SOURCE, TextIds(ids=HASH)), 53),
        (ids(chain(NINE, HASH)), 53),
        (ids(chain(HASH, NINE)), 9),
    ],
)
def test_row_count_is_one_more_than_the_last_row_of_a_rule(
    found: ResolvedIds, rows: int | None
) -> None:
    assert row_count(found) == rows
