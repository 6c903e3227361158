"""Rules in a few words."""

from __future__ import annotations

from typing import Any

import pytest

from bundle.format import manifest
from bundle.format.graph_builder import GraphBuilder
from export.id_graphs.descriptions import describe_ids
from tests.id_graphs import computed_ids, hash_ids, vocabulary_ids

HASH = hash_ids(9)


def lowered() -> manifest.GraphIds:
    builder = GraphBuilder("string")
    builder.compute("StringLower", builder.last)
    return builder.graph()


def joined() -> manifest.GraphIds:
    builder = GraphBuilder("string")
    parts = (builder.last, builder.constant("-", "string"), builder.input("string", 1))
    builder.hashed(builder.compute("StringJoin", *parts, separator=""), 9)
    return builder.graph()


KEYS = (
    manifest.CrossKey(dtype="int64", ids=computed_ids(("FloorMod", 7))),
    manifest.CrossKey(dtype="string"),
)
PLAIN = (manifest.CrossKey(dtype="string"),) * 2


@pytest.mark.parametrize(
    ("rule", "properties", "words"),
    [
        (manifest.IdentityIds(), {}, "the id is the row"),
        (manifest.IdentityIds(), {"from_end": True}, "the id is the row, below 0 from the end"),
        (manifest.KeyedIds(keys="k"), {}, "key of table items"),
        (HASH, {}, "fingerprint64(the id) mod 9"),
        (vocabulary_ids("names", first_row=2), {}, "position of the id in names + 2, else -1"),
        (
            manifest.TextIds(ids=HASH, split="whitespace"),
            {},
            "fingerprint64(word) mod 9 for the words of the text",
        ),
        (
            manifest.TextIds(text=lowered(), ids=HASH, split="characters", ngrams=(1, 2), length=4),
            {},
            "fingerprint64(character) mod 9 for the first 4 of runs of 1 and 2 of the characters "
            "of lower(the text)",
        ),
        (
            manifest.TextIds(ids=HASH, split="separator", separator="|", length=4, padding="none"),
            {},
            "fingerprint64(word) mod 9 for the first 4 of the words of the text at '|', filled up "
            "to 4 by 'none'",
        ),
        (
            manifest.CrossedIds(keys=KEYS, buckets=100, hash_key=7),
            {},
            "cross of user mod 7 and city mod 100",
        ),
        (
            manifest.JoinedIds(keys=PLAIN, ids=joined()),
            {},
            "fingerprint64(user + '-' + city) mod 9",
        ),
    ],
)
def test_rules_are_described_in_a_few_words(rule: Any, properties: Any, words: str) -> None:
    feature = manifest.EmbeddedFeature.model_construct(
        **{"table": "items", "ids": rule, "from_end": False} | properties
    )
    assert describe_ids(feature, ["user", "city"]) == words
