"""What clients can learn of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from bundle.format.id_graphs import InputNode, OperationNode
from bundle.format.manifest import EmbeddedFeature, GraphIds
from tests.bundles.small import SmallBundle
from tests.id_graphs import hash_ids
from tests.units.service.running import RunningService

Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]
MODEL = "/v1/models/movies"
LENGTHS = GraphIds(
    nodes=(
        InputNode(dtype="string"),
        OperationNode(op="StringLength", inputs=(0,), attributes={"unit": "BYTE"}),
    )
)


def described(service: RunningService) -> Any:
    return httpx.get(service.http + MODEL, timeout=20).json()


def by_name(values: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {value["name"]: value for value in values}


def features(details: Any, call: str, tower: str = "") -> dict[str, dict[str, Any]]:
    """Returns the features of a call by name."""
    described_call = next(
        entry
        for entry in details["calls"]
        if entry["call"] == call and tower in ("", entry["tower"])
    )
    return by_name(described_call["features"])


def pick(value: dict[str, Any], names: str) -> list[Any]:
    return [value.get(name) for name in names.split()]


def test_model_has_its_calls_towers_and_stage(write: Write, serve: Serve) -> None:
    write(keep=7, formula="watch * 2")
    details = described(serve())
    calls = {(call["call"], call["tower"]): call["outputs"] for call in details["calls"]}
    assert calls["retrieve", "query"] == ["vector"]
    assert calls["rank", "ranking"] == ["score", "watch", "rating"]
    assert calls["embed", "candidate"] == ["vector"]
    # What the query tower and contexts read is listed once.
    recommended = ["city", "history", "hour", "liked", "mood", "recent", "user"]
    assert sorted(features(details, "recommend")) == recommended
    # Nothing is read from the store of candidates.
    embedded = features(details, "embed", "candidate").values()
    assert all(feature["required"] and not feature["stored"] for feature in embedded)
    ranking = by_name(details["towers"])["ranking"]
    assert pick(ranking, "role result formula device") == ["ranking", "score", "watch * 2", "cpu"]
    assert pick(ranking["inputs"][0], "name readers shape") == ["user", ["user"], [-1, 8]]
    forms = [pick(form, "kind runs") for form in ranking["forms"]]
    assert forms == [["saved_model", False], ["litert", True]]
    (stage,) = details["stages"]
    assert pick(stage, "before tower keep") == ["ranking", "quick", 7]


@pytest.mark.parametrize("id_kind", ["int64", "string"])
def test_features_have_all_that_a_client_must_know(
    id_kind: str, write: Write, serve: Serve
) -> None:
    write(id_kind=id_kind)
    ranked = features(described(serve()), "rank")
    expected: dict[str, tuple[str, list[Any]]] = {
        "user": ("type unknown required", ["int64", "row 0", True]),
        "liked": ("kind weighted combiner required", ["bag", True, "sum", False]),
        "recent": ("kind length", ["sequence", 3]),
        "mood": ("kind type shape", ["dense", "float32", [2]]),
        "movie": (
            "type role stored unknown table",
            [id_kind, "candidate", True, "refuse", "movies"],
        ),
    }
    assert {name: pick(ranked[name], names) for name, (names, _) in expected.items()} == {
        name: values for name, (_, values) in expected.items()
    }


def test_inputs_have_their_readers_and_id_graphs(write: Write, serve: Serve) -> None:
    hashed = EmbeddedFeature(
        kind="single", table="cities", role="context", inputs=("user",), ids=hash_ids(16)
    )
    computed = hashed.model_copy(update={"table": "users", "ids": LENGTHS})
    write(features={"user@cities": hashed, "user@users": computed}, users=True)
    details = described(serve())
    assert pick(features(details, "rank")["user"], "readers stored required") == [
        ["user", "user@cities", "user@users"],
        True,
        False,
    ]
    readers = by_name(details["readers"])
    assert readers["user@cities"]["inputs"] == ["user"]
    expressions = {
        "user@cities": "fingerprint64(user) mod 16",
        "user@users": "len(user)",
        "liked": "position of liked in movies + 1, else -1",
    }
    assert {name: readers[name]["ids"]["expression"] for name in expressions} == expressions
    (store,) = details["contexts"]
    assert pick(store, "name size id_type features") == [
        "users",
        3,
        "int64",
        ["user", "liked", "mood"],
    ]


def test_shard_describes_no_model(write: Write, serve: Serve) -> None:
    write()
    rejected = httpx.get(f"{serve(shard='1/2').http}{MODEL}/versions/1").json()["error"]
    assert (rejected["code"], "shard 1/2" in rejected["message"]) == ("UNIMPLEMENTED", True)
