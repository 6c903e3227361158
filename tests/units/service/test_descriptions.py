"""Rules of ids as a client reads them: `tests/units/client/test_descriptions.py` compares
descriptions of a bundle with their JSON; these are the rules that it does not have.
"""

from __future__ import annotations

import pytest
from rowcast_client.stubs import embedding_service_pb2 as pb
from rowcast_client.stubs.message_values import value_of

from bundle.format.graph_builder import GraphBuilder
from bundle.format.id_graphs import GraphIds
from bundle.format.ids import KeyedIds
from service.descriptions import rule_message
from tests.id_graphs import crossed_ids, hash_ids, word_ids

HASH = hash_ids(7, "string")
HASHED = "fingerprint64({}) mod 7"
NUMBER = GraphBuilder("int64").graph()
LOWER = GraphBuilder("string")
LOWER.compute("StringLower", LOWER.last)
RULES: list[tuple[GraphIds, list[str], str]] = [
    (NUMBER, ["int64"], "x"),
    (HASH, ["string"], HASHED.format("x")),
    (
        crossed_ids((NUMBER, HASH), 10),
        ["int64", "string"],
        f"cross of x and {HASHED.format('y')} mod 10",
    ),
    (crossed_ids((NUMBER, NUMBER), 10, 7), ["int64"] * 2, "cross of x and y mod 10 by key 7"),
    (
        word_ids(HASH, ngrams=(1, 2), length=3),
        ["string"],
        f"{HASHED.format('word')} for the first 3 of runs of 1 and 2 of the words of x",
    ),
    (
        word_ids(HASH, "separator", separator="|", length=3, padding=""),
        ["string"],
        f"{HASHED.format('word')} for the first 3 of the words of x at '|', filled up to 3 by ''",
    ),
    (
        word_ids(HASH, "characters", LOWER.graph()),
        ["string"],
        f"{HASHED.format('character')} for the characters of lower(x)",
    ),
]
"""Graphs, the types of their inputs, and their words."""


@pytest.mark.parametrize(("rule", "dtypes", "words"), RULES)
def test_graphs_reach_the_client_in_words(rule: GraphIds, dtypes: list[str], words: str) -> None:
    message = rule_message(rule, ["x", "y"][: len(dtypes)])
    received = value_of(pb.IdRule.FromString(message.SerializeToString()))
    assert received == {"kind": "graph", "dtypes": dtypes, "expression": words}


def test_keyed_ids_reach_the_client_with_their_index() -> None:
    assert value_of(rule_message(KeyedIds(keys="k"), ["x"])) == {"kind": "keyed", "keys": "k"}


def test_what_does_not_apply_is_null_and_zero_is_not() -> None:
    reader = value_of(pb.ReaderDetails(place=0, padding=pb.Id(string="")))
    assert (reader["place"], reader["padding"]) == (0, "")
