from __future__ import annotations

from typing import Any

import pytest

from bundle.format import manifest
from export.id_rules.descriptions import describe, describe_cross, describe_text

HASH = manifest.HashIds(buckets=9)


def computed(*operations: tuple[Any, int | None]) -> manifest.ComputedIds:
    steps = tuple(manifest.IdOperation(do=do, by=by) for do, by in operations)
    return manifest.ComputedIds(operations=steps)


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (manifest.IdentityIds(), "the id is the row"),
        (HASH, "hash mod 9"),
        (
            manifest.HashIds(buckets=9, key=(1, 2), first_row=3, mask="x"),
            "hash with a key mod 9, from row 3, but 'x' is row 0",
        ),
        (manifest.VocabularyIds(vocabulary="names"), "place in vocabulary names"),
        (
            manifest.VocabularyIds(vocabulary="names", first_row=2, oov_buckets=5),
            "place in vocabulary names, from row 2, else hash mod 5",
        ),
        (computed(("add", -3), ("remainder", 7)), "the id - 3, mod 7"),
        (computed(("add", 3), ("at_least", 0)), "the id + 3, at least 0"),
        (
            computed(("absolute", None), ("int32", None)),
            "the id without its sign, wrapped to int32",
        ),
        (manifest.BucketIds(boundaries=(1.0, 2.0), first_row=-1), "bucket of 3"),
        (
            manifest.BucketIds(boundaries=(1.0,), first_row=4, falling=True),
            "bucket of 2, from row 4, the largest number first",
        ),
        (
            manifest.ChainedIds(rules=(HASH, computed(("add", 1)))),
            "hash mod 9, then the id + 1",
        ),
    ],
)
def test_describe_tells_a_rule_or_chain_in_a_few_words(rule: manifest.IdRule, told: str) -> None:
    assert describe(rule) == told


def test_describe_text_tells_what_is_done_to_the_text_before_its_words_are_found() -> None:
    steps = (
        manifest.TextStep(do="lower"),
        manifest.TextStep(do="strip"),
        manifest.TextStep(do="replace_any", what="!"),
        manifest.TextStep(do="replace", what="&", by="and"),
    )
    rule = manifest.TextIds(ids=HASH, split="whitespace", steps=steps, ngrams=(1, 2), length=4)
    assert describe_text(rule) == (
        "hash mod 9 of the first 4 of runs of 1 and 2 of the words of the text, in lower case, "
        "stripped, without '!', '&' replaced by 'and'"
    )
    assert describe_text(manifest.TextIds(ids=HASH, split=None)) == "hash mod 9 of the text"


def test_describe_cross_names_its_inputs() -> None:
    keys = tuple(manifest.CrossKey(dtype="string", ids=None) for _ in range(2))
    cross = manifest.CrossedIds(keys=keys, buckets=100, hash_key=7)
    assert describe_cross(cross, ["user", "city"]) == "cross of user and city mod 100"
    join = manifest.JoinedIds(keys=keys, texts=("", "-", ">"), ids=HASH)
    assert (
        describe_cross(join, ["user", "city"]) == "hash mod 9 of the string user + '-' + city + '>'"
    )
