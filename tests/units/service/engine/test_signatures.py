"""What clients can learn of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest
from rowcast_client.descriptions import plain_message

from bundle.format.id_graphs import InputNode, OperationNode
from bundle.format.manifest import (
    CrossedIds,
    CrossKey,
    EmbeddedFeature,
    GraphIds,
    InputLength,
    JoinedIds,
    TextIds,
)
from service.codec.signatures import details_message
from service.codec.stubs import embedding_service_pb2 as pb
from service.engine.signatures import describe
from tests.bundles.small import SmallBundle, feature_entries
from tests.id_graphs import hash_ids
from tests.units.service.engine.served import Served
from tests.units.service.running import RunningService

Load = Callable[..., Served]
Write = Callable[..., SmallBundle]
LENGTHS = GraphIds(
    nodes=(
        InputNode(dtype="string"),
        OperationNode(op="StringLength", inputs=(0,), attributes={"unit": "BYTE"}),
    )
)
LOWERED = GraphIds(nodes=(InputNode(dtype="string"), OperationNode(op="StringLower", inputs=(0,))))


def described(load: Load, **options: Any) -> Any:
    """Returns what a client receives of a bundle that is written with some options."""
    return orjson.loads(orjson.dumps(describe(load(**options).version)))


def by_name(values: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {value["name"]: value for value in values}


def features(details: Any, call: str, tower: str = "") -> dict[str, dict[str, Any]]:
    """Returns the features of a call by name."""
    return by_name(
        next(
            described_call
            for described_call in details["calls"]
            if described_call["call"] == call and tower in ("", described_call["tower"])
        )["features"]
    )


def graph(expression: str, *dtypes: str) -> dict[str, Any]:
    """Returns the description of ids that a graph computes."""
    return {"kind": "graph", "dtypes": list(dtypes), "expression": expression}


def pick(value: dict[str, Any], names: str) -> list[Any]:
    return [value[name] for name in names.split()]


def test_describe_lists_each_call_and_its_tower(load: Load) -> None:
    details = described(load)
    assert [pick(call, "call tower outputs") for call in details["calls"]] == [
        ["retrieve", "query", ["vector"]],
        ["rank", "ranking", ["score", "watch", "rating"]],
        ["recommend", "ranking", ["score"]],
        ["embed", "query", ["vector"]],
        ["embed", "candidate", ["vector"]],
        ["embed", "ranking", ["score"]],
    ]
    # What the query tower and contexts read is listed once.
    ranked_calls = [
        "city",
        "history",
        "hour",
        "liked",
        "mood",
        "recent",
        "user",
    ]
    assert sorted(features(details, "recommend")) == ranked_calls
    embedded = features(details, "embed", "candidate").values()
    # Nothing is read from the store of candidates.
    assert all(feature["required"] and not feature["stored"] for feature in embedded)


@pytest.mark.parametrize("id_kind", ["int64", "string"])
def test_describe_features_has_all_that_a_client_must_know(load: Load, id_kind: str) -> None:
    ranking_features = features(described(load, id_kind=id_kind), "rank")
    assert pick(ranking_features["user"], "type unknown required") == ["int64", "row 0", True]
    assert pick(ranking_features["liked"], "kind weighted combiner default required") == [
        "bag",
        True,
        "sum",
        [],
        False,
    ]
    assert pick(ranking_features["recent"], "kind length") == ["sequence", 3]
    assert pick(ranking_features["mood"], "kind type shape") == ["dense", "float32", [2]]
    expected = [id_kind, "candidate", True, False, "refuse", "movies"]
    assert pick(ranking_features["movie"], "type role stored required unknown table") == expected


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"ids": hash_ids(9)}, ["single", "int64_or_string", [], 0, "", "users"]),
        ({"ids": LENGTHS}, ["single", "string", [], 0, "", "users"]),
        ({"place": 1, "places": 3}, ["dense", "int64", [3], 0, "", ""]),
    ],
    ids=["hash", "graph", "place"],
)
def test_describe_feature_by_id_rule_has_what_is_to_be_sent(
    load: Load, entry: dict[str, Any], expected: list[Any]
) -> None:
    user = EmbeddedFeature.model_validate(
        {"kind": "single", "table": "users", "role": "context", **entry}
    )
    details = described(load, features={"user": user})
    assert (
        pick(features(details, "retrieve")["user"], "kind type shape length combiner table")
        == expected
    )
    assert pick(by_name(details["readers"])["user"], "kind table") == [
        entry.get("kind", "single"),
        "users",
    ]


def test_describe_tower_has_parts_forms_and_formula(load: Load) -> None:
    towers = by_name(described(load, parts=True, formula="watch * 2")["towers"])
    ranking = towers["ranking"]
    assert pick(ranking, "role result formula device") == ["ranking", "score", "watch * 2", "cpu"]
    assert pick(ranking["inputs"][0], "name readers shape") == ["user", ["user"], [-1, 8]]
    assert [pick(form, "kind runs") for form in ranking["forms"]] == [
        ["saved_model", False],
        ["litert", False],
    ]
    parts = [pick(part, "name per") for part in ranking["parts"]]
    assert parts[:3] == [["context", "context"], ["trunk", "candidate"], ["score", "candidate"]]
    assert {
        tensor["name"]: pick(tensor, "readers tensor") for tensor in ranking["parts"][1]["inputs"]
    } == {
        "packed": [["movie", "mood", "genres", "hour", "year"], ""],
        "context": [[], "context"],
    }
    assert [form["runs"] for part in ranking["parts"] for form in part["forms"]] == [True] * 5


def test_describe_inputs_has_their_readers_and_id_graphs(load: Load) -> None:
    second_feature = EmbeddedFeature(
        kind="single", table="cities", role="context", inputs=("user",), ids=hash_ids(16)
    )
    computed = second_feature.model_copy(update={"table": "users", "ids": LENGTHS})
    details = described(
        load, features={"user@cities": second_feature, "user@users": computed}, users=True
    )
    assert pick(features(details, "rank")["user"], "readers stored required") == [
        ["user", "user@cities", "user@users"],
        True,
        False,
    ]
    readers = by_name(details["readers"])
    assert readers["user@cities"]["inputs"] == ["user"]
    rules = {
        "user@cities": graph("fingerprint64(user) mod 16", "int64_or_string"),
        "user@users": graph("len(user)", "string"),
        "liked": graph("position of liked in movies + 1, else -1", "int64"),
    }
    assert {name: readers[name]["ids"] for name in rules} == rules
    assert pick(readers["liked"], "combiner encoding weighted") == ["sum", "sparse", True]
    assert pick(readers["mood"], "shape dtype take") == [[2], "float32", "values"]
    (store,) = details["contexts"]
    assert pick(store, "name size id_type features") == [
        "users",
        3,
        "int64",
        ["user", "liked", "mood"],
    ]


CROSSED = CrossedIds(
    buckets=16,
    keys=(
        CrossKey(dtype="string", default="nowhere", ids=LENGTHS),
        CrossKey(dtype="int64", default=[], input_length=InputLength(values=2, pad=1000)),
    ),
)
JOINED = JoinedIds(
    keys=(CrossKey(dtype="string", default="nowhere"), CrossKey(dtype="int64")),
    ids=GraphIds(
        nodes=(
            InputNode(dtype="string"),
            InputNode(dtype="int64", input=1),
            OperationNode(op="StringLength", inputs=(0,), attributes={"unit": "BYTE"}),
            OperationNode(op="Cast", inputs=(2,), attributes={"DstT": "int64"}),
            OperationNode(op="AddV2", inputs=(3, 1)),
        )
    ),
)
TEXT = TextIds(text=LOWERED, split="characters", length=3, ids=hash_ids(9))


@pytest.mark.parametrize(
    ("kind", "inputs", "ids", "expected"),
    [
        (
            "bag",
            ("city", "history"),
            CROSSED,
            {
                "kind": "crossed",
                "buckets": 16,
                "hash_key": 956888297470,
                "keys": [
                    {"dtype": "string", "role": "context", "default": "nowhere"}
                    | {"ids": {"dtypes": ["string"], "expression": "len(city)"}},
                    {"dtype": "int64", "role": "context", "default": []},
                ],
            },
        ),
        (
            "single",
            ("city", "user"),
            JOINED,
            {
                "kind": "joined",
                "keys": [
                    {"dtype": "string", "role": "context", "default": "nowhere"},
                    {"dtype": "int64", "role": "context"},
                ],
                "ids": {"dtypes": ["string", "int64"], "expression": "int64(len(city)) + user"},
            },
        ),
        (
            "bag",
            ("city",),
            TEXT,
            {
                "kind": "text",
                "text": {"dtypes": ["string"], "expression": "lower(city)"},
                "split": "characters",
                "ngrams": [],
                "length": 3,
                "ids": {
                    "dtypes": ["int64_or_string"],
                    "expression": "fingerprint64(character) mod 9",
                },
            },
        ),
    ],
    ids=["crossed", "joined", "text"],
)
def test_describe_ids_of_several_values_has_their_computations_in_both_forms(
    load: Load, kind: str, inputs: tuple[str, ...], ids: Any, expected: dict[str, Any]
) -> None:
    city = EmbeddedFeature(
        kind=kind,
        table="cities",
        role="context",
        inputs=inputs,
        ids=ids,
        combiner="sum" if kind == "bag" else None,
        default="nowhere" if len(inputs) == 1 else None,
    )
    length = InputLength(values=2, pad=1000) if "history" in inputs else None
    history = feature_entries()["history"].model_copy(update={"input_length": length})
    details = described(load, features={"city": city, "history": history})
    assert by_name(details["readers"])["city"]["ids"] == expected
    message = next(reader for reader in details_message(details).readers if reader.name == "city")
    assert plain_message(message)["ids"] == expected


def test_describe_on_a_shard_has_no_model(
    write: Write, serve: Callable[..., RunningService]
) -> None:
    write()
    rejected = httpx.get(f"{serve(shard='1/2').http}/v1/models/movies/versions/1").json()["error"]
    assert (rejected["code"], "shard 1/2" in rejected["message"]) == ("UNIMPLEMENTED", True)


@pytest.mark.parametrize(
    ("length", "column"),
    [
        (InputLength(values=3), None),
        (
            InputLength(values=3, pad=1000, pad_side="start", keep="last"),
            pb.Column(int64s=(1000).to_bytes(8, "little")),
        ),
    ],
)
def test_describe_input_of_a_fixed_length_has_what_becomes_of_other_lists(
    load: Load, length: InputLength, column: pb.Column | None
) -> None:
    entry = feature_entries()["recent"].model_copy(update={"input_length": length, "default": None})
    details = described(load, features={"recent": entry})
    ranking_features = features(details, "rank")
    assert ranking_features["recent"]["input_length"] == length.model_dump()
    assert ranking_features["user"]["input_length"] is None

    calls = details_message(details).calls
    message = next(
        feature for call in calls for feature in call.features if feature.name == "recent"
    )
    assert message.input_length.values == 3
    assert message.input_length.HasField("pad") == (column is not None)
    if column is not None:
        assert message.input_length.pad == column
        assert message.input_length.pad_side == pb.PAD_SIDE_START
        assert message.input_length.keep == pb.KEEP_LAST
