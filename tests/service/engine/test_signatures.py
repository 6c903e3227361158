"""What clients can learn of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from bundle.manifest import BucketIds, DenseFeature, EmbeddedFeature, HashIds, HeadEffect, TextIds, dump
from bundle.paths import MANIFEST
from service.engine.signatures import describe
from tests.service.engine.served import Served

Load = Callable[..., Served]


def described(load: Load, **options: Any) -> Any:
    """Returns what a client receives of a bundle that is written with some options."""
    return orjson.loads(orjson.dumps(describe(load(**options).version)))


def by_name(values: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in values}


def features(details: Any, call: str, tower: str = "") -> dict[str, dict[str, Any]]:
    """Returns the features of a call by name."""
    return by_name(
        next(each for each in details["calls"] if each["call"] == call and tower in ("", each["tower"]))["features"]
    )


def pick(value: dict[str, Any], names: str) -> list[Any]:
    return [value[name] for name in names.split()]


def test_describe_has_all_fields_of_each_kind(load: Load) -> None:
    details = described(load, parts=True, users=True)
    assert " ".join(details) == (
        "model version created calls tables indexes corpora contexts readers towers current labels"
    )
    assert pick(details, "model version current labels") == ["movies", 1, False, []]
    fields = {
        "calls": "call tower features outputs",
        "tables": "name rows dim dtype bytes",
        "indexes": "name corpus kind distance dim size recall_k recall",
        "corpora": "name size id_type attributes features",
        "contexts": "name size id_type attributes features",
        "readers": "name inputs kind role table ids unknown combiner encoding weighted length shape dtype take place "
        "places max_norm empty_row padding below cast",
        "towers": "name role inputs outputs result formula forms parts device",
    }
    for name, expected in fields.items():
        for each in details[name]:
            assert sorted(each) == sorted(expected.split())
    for call in details["calls"]:
        for feature in call["features"]:
            assert " ".join(feature) == (
                "name kind type role required shape length combiner weighted unknown table default stored readers"
            )
    ranking = by_name(details["towers"])["ranking"]
    for each in (*ranking["inputs"], *ranking["outputs"], *ranking["parts"][1]["inputs"]):
        assert list(each) == ["name", "dtype", "shape", "readers", "tensor"]
    for each in (*ranking["forms"], *ranking["parts"][1]["forms"]):
        assert list(each) == ["kind", "precision", "max_abs_error", "effects", "runs"]


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
    taken = ["city", "history", "hour", "liked", "mood", "recent", "user"]  # by query tower and contexts, once
    assert sorted(features(details, "recommend")) == taken
    embedded = features(details, "embed", "candidate").values()
    assert all(feature["required"] and not feature["stored"] for feature in embedded)  # no store is read


@pytest.mark.parametrize("id_kind", ["int64", "string"])
def test_describe_features_has_all_that_a_client_must_know(load: Load, id_kind: str) -> None:
    found = features(described(load, id_kind=id_kind), "rank")
    assert pick(found["user"], "type unknown required") == ["int64", "row 0", True]
    assert pick(found["liked"], "kind weighted combiner default required") == ["bag", True, "sum", [], False]
    assert pick(found["recent"], "kind length") == ["sequence", 3]
    assert pick(found["mood"], "kind type shape") == ["dense", "float32", [2]]
    expected = [id_kind, "candidate", True, False, "refuse", "movies"]
    assert pick(found["movie"], "type role stored required unknown table") == expected


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"ids": BucketIds(boundaries=(18.0, 65.0))}, ["single", "float32", [], 0, "", "users"]),
        ({"ids": HashIds(buckets=9)}, ["single", "int64 or string", [], 0, "", "users"]),
        ({"place": 1, "places": 3}, ["dense", "int64", [3], 0, "", ""]),
        (
            {"kind": "bag", "combiner": "mean", "ids": TextIds(split="whitespace", ids=HashIds(buckets=50))},
            ["single", "string", [], 0, "", "users"],
        ),
    ],
    ids=["buckets", "hash", "place", "words"],
)
def test_describe_feature_by_id_rule_has_what_is_to_be_sent(
    load: Load, entry: dict[str, Any], expected: list[Any]
) -> None:
    user = EmbeddedFeature.model_validate({"kind": "single", "table": "users", "role": "context", **entry})
    details = described(load, features={"user": user})
    assert pick(features(details, "retrieve")["user"], "kind type shape length combiner table") == expected
    assert pick(by_name(details["readers"])["user"], "kind table") == [entry.get("kind", "single"), "users"]


def test_describe_has_sizes_and_recall(load: Load) -> None:
    details = described(load, size=25)
    assert pick(by_name(details["tables"])["movies"], "rows dim dtype bytes") == [26, 8, "float32", 26 * 8 * 4]
    assert pick(details["indexes"][0], "name corpus size dim recall_k") == ["movies", "movies", 25, 8, 10]
    corpus = details["corpora"][0]
    assert pick(corpus, "size id_type") == [25, "int64"]
    assert set(corpus["features"]) == {"movie", "genres", "year"}
    assert set(corpus["attributes"]) == {"title", "year", "rating", "genres"}


def test_describe_tower_has_parts_forms_and_formula(load: Load) -> None:
    towers = by_name(described(load, parts=True, formula="watch * 2")["towers"])
    ranking = towers["ranking"]
    assert pick(ranking, "role result formula device") == ["ranking", "score", "watch * 2", "cpu"]
    assert pick(ranking["inputs"][0], "name readers shape") == ["user", ["user"], [-1, 8]]
    assert [pick(form, "kind runs") for form in ranking["forms"]] == [["saved_model", False], ["litert", False]]
    parts = [pick(part, "name per") for part in ranking["parts"]]
    assert parts[:3] == [["context", "context"], ["trunk", "candidate"], ["score", "candidate"]]
    assert {each["name"]: pick(each, "readers tensor") for each in ranking["parts"][1]["inputs"]} == {
        "packed": [["movie", "mood", "genres", "hour", "year"], ""],
        "context": [[], "context"],
    }
    assert [form["runs"] for part in ranking["parts"] for form in part["forms"]] == [True] * 5
    query = towers["query"]
    assert pick(query, "parts formula") == [[], ""]
    forms = [pick(form, "kind precision runs") for form in query["forms"]]
    assert forms == [["saved_model", "f32", False], ["litert", "f32", True]]


def test_describe_inputs_has_their_readers_and_id_rules(load: Load) -> None:
    again = EmbeddedFeature(kind="single", table="cities", role="context", inputs=("user",), ids=HashIds(buckets=16))
    details = described(load, features={"user@cities": again}, users=True)
    assert pick(features(details, "rank")["user"], "readers stored required") == [["user", "user@cities"], True, False]
    readers = by_name(details["readers"])
    assert readers["user@cities"]["inputs"] == ["user"]
    assert readers["user@cities"]["ids"] == {"kind": "hash", "buckets": 16, "first_row": 0}
    assert readers["liked"]["ids"]["kind"] == "vocabulary"
    assert pick(readers["liked"], "combiner encoding weighted") == ["sum", "sparse", True]
    assert pick(readers["mood"], "shape dtype take") == [[2], "float32", "values"]
    (store,) = details["contexts"]
    assert pick(store, "name size id_type features") == ["users", 3, "int64", ["user", "liked", "mood"]]


def test_describe_precision_has_its_effects(load: Load) -> None:
    service = load()
    tower = service.small.manifest.towers["query"]
    effect = HeadEffect(kendall_tau=0.98, overlap=0.9, k=10)
    form = tower.forms[0].model_copy(update={"precision": "bf16", "effect": {"vector": effect}})
    entry = tower.model_copy(update={"forms": (*tower.forms[1:], form)})
    towers = {**service.small.manifest.towers, "query": entry}
    (service.small.directory / MANIFEST).write_bytes(dump(service.small.manifest.model_copy(update={"towers": towers})))
    query = by_name(describe(Served(service.small).version)["towers"])["query"]
    effects = {form["precision"]: form["effects"] for form in query["forms"]}
    expected = {"kendall_tau": 0.98, "overlap": 0.9, "k": 10, "auc": None, "auc_original": None}
    assert effects == {"bf16": {"vector": expected}, "f32": {}}


def test_describe_readers_has_places_norms_and_empty_rows(load: Load) -> None:
    placed = EmbeddedFeature(kind="single", table="users", role="context", place=1, places=3)
    entry = {"kind": "bag", "table": "cities", "role": "context", "inputs": ("user",), "combiner": "mean"}
    bag = EmbeddedFeature.model_validate(entry | {"max_norm": 1.5, "empty_row": 0, "padding": -1})
    mood = DenseFeature(kind="dense", role="context", shape=(2,), dtype="int64", below=9)
    details = described(load, features={"user": placed, "user@cities": bag, "mood": mood})
    readers = by_name(details["readers"])
    assert pick(readers["user"], "place places max_norm") == [1, 3, None]
    assert pick(readers["user@cities"], "max_norm empty_row padding place") == [1.5, 0, -1, None]
    assert pick(readers["mood"], "below padding") == [9, None]
