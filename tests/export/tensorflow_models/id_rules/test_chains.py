"""How rules of one value follow one another, and what is known of their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from export.graphs.loading import tf
from export.tensorflow_models.graph.input_paths import Values
from export.tensorflow_models.graph.origins import Source
from export.tensorflow_models.id_rules.chains import (
    find_chain,
    followed_by,
    links_before,
    may_be_none,
    row_count,
)
from export.tensorflow_models.id_rules.integers import WRAPPED
from export.tensorflow_models.id_rules.resolved_ids import ResolvedIds
from tests.export.tensorflow_models.graph.traced_calls import ids as input_ids
from tests.export.tensorflow_models.graph.traced_calls import trace

SOURCE = Source("x", "dense")
HASH = HashIds(buckets=50, first_row=3)
FIFTY = HashIds(buckets=50)
ONE_LATER = HashIds(buckets=50, first_row=1)
NINE = ComputedIds(operations=(IdOperation(do="remainder", by=9),))
SHIFTED = ComputedIds(operations=(IdOperation(do="remainder", by=9), IdOperation(do="add", by=-1)))
LARGER = ComputedIds(operations=(IdOperation(do="at_least", by=0),))


def up_to(last: int) -> ComputedIds:
    return ComputedIds(operations=(*LARGER.operations, IdOperation(do="at_most", by=last)))


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
        (ids(up_to(1 << 62)), None),
        (ids(up_to((1 << 62) - 1)), 1 << 62),
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


def hashed(integers: Any) -> Any:
    return tf.strings.to_hash_bucket_fast(tf.strings.as_string(integers), 50)


def found(call: Callable[[Any], Any]) -> ResolvedIds | Values:
    """Follows what a function of inputs returns back to them."""
    inputs = {"item": input_ids(), "pair": input_ids(2)}
    traced = trace(lambda features: {"ids": call(features)}, **inputs)
    return find_chain(Values(traced.results["ids"]), traced.calls, 50)


@pytest.mark.parametrize(
    ("call", "rule", "place"),
    [
        (lambda features: features["item"] % 9, NINE, None),
        (lambda features: hashed(features["item"]) + 0, FIFTY, None),
        (lambda features: hashed(features["item"]) + 1, ONE_LATER, None),
        (lambda features: hashed(features["item"] % 9), chain(NINE, FIFTY), None),
        (lambda features: hashed(features["item"] % 9) % 9, chain(NINE, FIFTY, NINE), None),
        (lambda features: hashed((features["pair"] % 9)[:, 1]), chain(NINE, FIFTY), 1),
    ],
)
def test_rules_are_followed_back_to_an_input(
    call: Callable[[Any], Any], rule: IdRule, place: int | None
) -> None:
    resolved = found(call)
    assert isinstance(resolved, ResolvedIds)
    assert resolved.rule == rule
    assert (resolved.source.name, resolved.source.place) == (
        "item" if place is None else "pair",
        place,
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda features: features["item"] ** 2,
        lambda features: hashed(features["item"] ** 2),
        lambda features: hashed(features["item"]) ** 2,
        lambda features: hashed(features["item"] + features["pair"][:, 1]),
    ],
)
def test_values_that_no_rules_compute_are_returned(call: Callable[[Any], Any]) -> None:
    assert isinstance(found(call), Values)
