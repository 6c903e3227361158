"""What clients can learn of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest

from bundle.format.id_graphs import InputNode, OperationNode
from bundle.format.manifest import EmbeddedFeature, GraphIds, HashIds, InputLength
from service.codec.signatures import details_message
from service.codec.stubs import embedding_service_pb2 as pb
from service.engine.signatures import describe
from tests.bundles.small import SmallBundle, feature_entries
from tests.service.engine.served import Served
from tests.service.running import RunningService

Load = Callable[..., Served]
Write = Callable[..., SmallBundle]
LENGTHS = GraphIds(
    nodes=(
        InputNode(dtype="string"),
        OperationNode(op="StringLength", inputs=(0,), attributes={"unit": "BYTE"}),
    )
)


def described(load: Load, **options: Any) -> Any:
    """Returns what a client receives of a bundle that is written with some options."""
    return orjson.loads(orjson.dumps(describe(load(**options).version)))


def by_name(values: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in values}


def features(details: Any, call: str, tower: str = "") -> dict[str, dict[str, Any]]:
    """Returns the features of a call by name."""
    return by_name(
        next(
            each
            for each in details["calls"]
            if each["call"] == call and tower in ("", each["tower"])
        )["features"]
    )


def pick(value: dict[str, Any], names: str) -> list[Any]:
    return [value[name] for name in names.split()]


def test_describe_lists_each_call_and_its_tower(load: Load) -> None:
    details = described(load)
    assert [pick(each, "call tower outputs") for each in details["calls"]] == [
        ["retrieve", "query", ["vector"]],
        ["rank", "ranking", ["score", "watch", "rating"]],
        ["recommend", "ranking", ["score"]],
        ["embed", "query", ["vector"]],
        ["embed", "candidate", ["vector"]],
        ["embed", "ranking", ["score"]],
    ]
    # What the query tower and contexts read is listed once.
    taken = [
        "city",
        "history",
        "hour",
        "liked",
        "mood",
        "recent",
        "user",
    ]
    assert sorted(features(details, "recommend")) == taken
    embedded = features(details, "embed", "candidate").values()
    # Nothing is read from the store of candidates.
    assert all(feature["required"] and not feature["stored"] for feature in embedded)


@pytest.mark.parametrize("id_kind", ["int64", "string"])
def test_describe_features_has_all_that_a_client_must_know(load: Load, id_kind: str) -> None:
    found = features(described(load, id_kind=id_kind), "rank")
    assert pick(found["user"], "type unknown required") == ["int64", "row 0", True]
    assert pick(found["liked"], "kind weighted combiner default required") == [
        "bag",
        True,
        "sum",
        [],
        False,
    ]
    assert pick(found["recent"], "kind length") == ["sequence", 3]
    assert pick(found["mood"], "kind type shape") == ["dense", "float32", [2]]
    expected = [id_kind, "candidate", True, False, "refuse", "movies"]
    assert pick(found["movie"], "type role stored required unknown table") == expected


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"ids": HashIds(buckets=9)}, ["single", "int64_or_string", [], 0, "", "users"]),
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
        each["name"]: pick(each, "readers tensor") for each in ranking["parts"][1]["inputs"]
    } == {
        "packed": [["movie", "mood", "genres", "hour", "year"], ""],
        "context": [[], "context"],
    }
    assert [form["runs"] for part in ranking["parts"] for form in part["forms"]] == [True] * 5


def test_describe_inputs_has_their_readers_and_id_rules(load: Load) -> None:
    again = EmbeddedFeature(
        kind="single", table="cities", role="context", inputs=("user",), ids=HashIds(buckets=16)
    )
    computed = again.model_copy(update={"table": "users", "ids": LENGTHS})
    details = described(load, features={"user@cities": again, "user@users": computed}, users=True)
    assert pick(features(details, "rank")["user"], "readers stored required") == [
        ["user", "user@cities", "user@users"],
        True,
        False,
    ]
    readers = by_name(details["readers"])
    assert readers["user@cities"]["inputs"] == ["user"]
    assert readers["user@cities"]["ids"] == {"kind": "hash", "buckets": 16, "first_row": 0}
    assert readers["liked"]["ids"]["kind"] == "vocabulary"
    lengths = {"kind": "graph", "dtype": "string", "expression": "len(x)"}
    assert readers["user@users"]["ids"] == lengths
    assert pick(readers["liked"], "combiner encoding weighted") == ["sum", "sparse", True]
    assert pick(readers["mood"], "shape dtype take") == [[2], "float32", "values"]
    (store,) = details["contexts"]
    assert pick(store, "name size id_type features") == [
        "users",
        3,
        "int64",
        ["user", "liked", "mood"],
    ]


def test_describe_on_a_shard_has_no_model(
    write: Write, serve: Callable[..., RunningService]
) -> None:
    write()
    refused = httpx.get(f"{serve(shard='1/2').http}/v1/models/movies/versions/1").json()["error"]
    assert (refused["code"], "shard 1/2" in refused["message"]) == ("UNIMPLEMENTED", True)


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
    found = features(details, "rank")
    assert found["recent"]["input_length"] == length.model_dump()
    assert found["user"]["input_length"] is None

    calls = details_message(details).calls
    message = next(each for call in calls for each in call.features if each.name == "recent")
    assert message.input_length.values == 3
    assert message.input_length.HasField("pad") == (column is not None)
    if column is not None:
        assert message.input_length.pad == column
        assert message.input_length.pad_side == pb.PAD_SIDE_START
        assert message.input_length.keep == pb.KEEP_LAST
