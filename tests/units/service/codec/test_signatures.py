"""Descriptions of models as messages: `tests/units/client/test_descriptions.py` compares those of a
bundle with their JSON; these are the rules that it does not have.
"""

from __future__ import annotations

from typing import Any

import pytest
from rowcast_client.descriptions import plain_message, text_of

from bundle.format.ids import TextIds
from service.codec import signatures
from service.codec.stubs import embedding_service_pb2 as pb
from service.codec.value_messages import enum_number

LARGE = (1 << 62) - 1
GRAPH = {"dtypes": ["int64_or_string"], "expression": "fingerprint64(x) mod 7"}
KEYS = [
    {"dtype": "string", "role": "candidate", "default": ["a", "b"]},
    {"dtype": "float32", "role": "context", "default": 0.5, "ids": GRAPH},
    {"dtype": "int64", "role": "context", "default": {"ids": [7], "weights": [0.5]}, "padding": -1},
]
RULES: list[dict[str, Any]] = [
    {"kind": "identity"},
    {"kind": "graph", **GRAPH},
    {"kind": "crossed", "keys": KEYS, "buckets": 10, "hash_key": LARGE},
    {
        "kind": "joined",
        "keys": KEYS[:1],
        "ids": {"dtypes": ["string", "int32"], "expression": "len(x + str(y))"},
    },
    {"kind": "text", "split": "whitespace", "ngrams": [1, 2], "length": 3, "ids": GRAPH},
    {
        "kind": "text",
        "split": "separator",
        "separator": "|",
        "ngrams": [],
        "length": 3,
        "padding": "",
        "ids": GRAPH,
    },
    {"kind": "text", "text": GRAPH, "split": "characters", "ngrams": [], "ids": GRAPH},
    {"kind": "keyed", "keys": "k"},
]


@pytest.mark.parametrize("rule", RULES, ids=[rule["kind"] for rule in RULES])
def test_every_rule_reaches_the_client_as_it_is_described(rule: dict[str, Any]) -> None:
    reader = {"name": "r", "inputs": ["r"], "ids": rule, "place": 0, "padding": ""}
    message = signatures.details_message({"model": "m", "version": 1, "readers": [reader]})
    received = pb.GetModelResponse.FromString(message.SerializeToString())
    described = plain_message(received.readers[0])
    assert (described["ids"], described["place"], described["padding"]) == (rule, 0, "")
    # Zero is not null.
    assert (described["places"], described["below"]) == (None, None)


def test_every_split_of_texts_is_a_value_of_its_enum() -> None:
    values = TextIds.model_json_schema()["properties"]["split"]["enum"]
    numbers = [enum_number(pb.TextSplit.DESCRIPTOR, value) for value in values]
    assert sorted(numbers) == sorted(pb.TextSplit.values())[1:]
    assert [text_of(pb.TextSplit.DESCRIPTOR, number) for number in numbers] == values
