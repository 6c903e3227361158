"""Rules of ids as a client reads them: `tests/units/client/test_descriptions.py` compares
descriptions of a bundle with their JSON; these are the rules that it does not have.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter
from rowcast_client.stubs import embedding_service_pb2 as pb
from rowcast_client.stubs.message_values import value_of

from bundle.features.ids.expressions import expression
from bundle.format.ids import IdRule
from service.descriptions import rule_message
from tests.id_graphs import crossed_ids, hash_ids

HASH = hash_ids(7, "string")
STORED = HASH.model_dump(mode="json")
"""A graph as the manifest has it."""
WORDS = {"split": "whitespace", "ngrams": [1, 2], "length": 3}
PADDED = {"split": "separator", "separator": "|", "ngrams": [], "length": 3, "padding": ""}
CHARACTERS = {"split": "characters", "ngrams": []}


def shown(name: str) -> dict[str, Any]:
    return {"dtypes": ["string"], "expression": expression(HASH, name)}


RULES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("graph", STORED, shown("x")),
    ("text", {**WORDS, "ids": STORED}, {**WORDS, "ids": shown("word")}),
    ("text", {**PADDED, "ids": STORED}, {**PADDED, "ids": shown("word")}),
    (
        "text",
        {**CHARACTERS, "text": STORED, "ids": STORED},
        {**CHARACTERS, "text": shown("x"), "ids": shown("character")},
    ),
    ("keyed", {"keys": "k"}, {}),
]
"""The kind of each rule, its fields in the manifest, and in a description where they differ."""


@pytest.mark.parametrize(("kind", "stored", "described"), RULES)
def test_every_rule_reaches_the_client_as_the_manifest_has_it(
    kind: str, stored: dict[str, Any], described: dict[str, Any]
) -> None:
    rule: Any = TypeAdapter(IdRule).validate_python({**stored, "kind": kind}, strict=False)
    message = rule_message(rule, ["x"])
    received = pb.IdRule.FromString(message.SerializeToString())
    assert value_of(received) == {"kind": kind, **(described or stored)}


def test_a_cross_is_told_with_its_inputs() -> None:
    rule = crossed_ids(("int64", HASH), 10)
    message = rule_message(rule, ["x", "y"])
    expected = f"cross of x and {expression(HASH, 'y')} mod 10"
    assert value_of(message) == {
        "kind": "graph",
        "dtypes": ["int64", "string"],
        "expression": expected,
    }


def test_what_does_not_apply_is_null_and_zero_is_not() -> None:
    reader = value_of(pb.ReaderDetails(place=0, padding=pb.Id(string="")))
    assert (reader["place"], reader["padding"]) == (0, "")
