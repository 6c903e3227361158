"""What clients can learn of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from bundle.format.id_graphs import InputNode, OperationNode
from bundle.format.manifest import EmbeddedFeature, GraphIds
from tests.bundles.small import SmallBundle
from tests.e2e.process import WAIT_S
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
    return httpx.get(service.http + MODEL, timeout=WAIT_S, verify=False).json()


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


def test_model_has_its_calls_towers_stage_features_readers_and_contexts(
    write: Write, serve: Serve
) -> None:
    hashed = EmbeddedFeature(
        kind="single", table="cities", role="context", inputs=("user",), ids=hash_ids(16)
    )
    computed = hashed.model_copy(update={"table": "users", "ids": LENGTHS})
    more = {"user@cities": hashed, "user@users": computed}
    write(keep=7, formula="watch * 2", features=more, users=True)
    details = described(serve())
    calls = {(call["call"], call["tower"]): call["outputs"] for call in details["calls"]}
    assert calls["retrieve", "query"] == ["vector"]
    assert calls["rank", "ranking"] == ["score", "watch", "rating"]
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

    ranked = features(details, "rank")
    expected: dict[str, tuple[str, list[Any]]] = {
        "user": (
            "readers stored required",
            [["user", "user@cities", "user@users"], True, False],
        ),
        "liked": ("kind weighted combiner required", ["bag", True, "sum", False]),
        "recent": ("kind length", ["sequence", 3]),
        "mood": ("kind type shape", ["dense", "float32", [2]]),
        "movie": (
            "type role stored unknown table",
            ["int64", "candidate", True, "refuse", "movies"],
        ),
    }
    for name, (names, values) in expected.items():
        assert pick(ranked[name], names) == values, name
    readers = by_name(details["readers"])
    expressions = {
        "user@cities": "fingerprint64(user) mod 16",
        "user@users": "len(user)",
        "liked": "position of liked in movies + 1, else -1",
    }
    assert {name: readers[name]["ids"]["expression"] for name in expressions} == expressions
    (store,) = details["contexts"]
    stored = ["users", 3, "int64", ["user", "liked", "mood"]]
    assert pick(store, "name size id_type features") == stored


def test_shard_describes_no_model(write: Write, serve: Serve) -> None:
    write()
    rejected = httpx.get(f"{serve(shard='1/2').http}{MODEL}/versions/1", verify=False).json()[
        "error"
    ]
    assert (rejected["code"], "shard 1/2" in rejected["message"]) == ("UNIMPLEMENTED", True)
