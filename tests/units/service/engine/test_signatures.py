"""What clients can learn of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest

from bundle.format.id_graphs import InputNode, OperationNode
from bundle.format.manifest import (
    EmbeddedFeature,
    GraphIds,
)
from service.engine.signatures import describe
from tests.bundles.small import SmallBundle
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


def test_describe_on_a_shard_has_no_model(
    write: Write, serve: Callable[..., RunningService]
) -> None:
    write()
    rejected = httpx.get(f"{serve(shard='1/2').http}/v1/models/movies/versions/1").json()["error"]
    assert (rejected["code"], "shard 1/2" in rejected["message"]) == ("UNIMPLEMENTED", True)
