"""Features as a manifest has them: what the model and the recipe say of an input together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bundle.features.ids.rules import rule_of
from bundle.format import manifest
from bundle.format.manifest import TowerInput, TowerOutput
from export.errors import UsageError
from export.front_end.calls import Call
from export.front_end.manifest_features import describe_features
from export.front_end.outside_ids import OutsideIds
from export.front_end.roles import check_candidate_inputs, input_roles
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec, TableFacts, TowerSpec
from export.recipe.schema import ExportJob
from tests.id_graphs import cast_ids, hash_ids, vocabulary_ids
from tests.units.export.traced_features import dense, embedded
from tests.units.export.traced_models import movies_recipe, recipe

TABLES = {"users": TableFacts("users", "users", 10, 2)}
USER = embedded("user", "users")
SEEN = embedded(
    "seen", "users", kind="bag", encoding="ragged", combiner="mean", weights="seen_weights"
)
FEATURES = (
    USER,
    SEEN,
    embedded("recent", "users", kind="sequence", encoding="sparse", length=3),
    dense("2nd", "float32", (2,)),
)
KIND = embedded(
    "kind",
    "users",
    kind="bag",
    combiner="sum",
    ids=vocabulary_ids("kinds", oov_buckets=2, oov_first_row=3),
    keys=(("a", "b", "c"),),
    padding="",
)
NAMES = {"vocabularies": {"names": {"file": "names.txt", "dtype": "string"}}}
DUMPED = {"tables": {"users": {"dump": "dump"}}}


def described(
    parts: Mapping[str, Any], *specs: FeatureSpec | DenseSpec
) -> Mapping[str, manifest.Feature]:
    """Returns what a manifest says of features, those of FEATURES without others."""
    features = {spec.name: spec for spec in specs or FEATURES}
    return describe_features(ModelSpec(TABLES, features, {}), movies_recipe(**parts))


def stated(name: str, **part: Any) -> dict[str, Any]:
    return {"features": {name: part}}


def stored(kind: str, name: str) -> dict[str, Any]:
    return {kind: {"c": {"file": "c.csv", "id": "id", "features": {name: "column"}}}}


def other_keys(buckets: int) -> dict[str, Any]:
    """States a vocabulary whose other keys have rows from 8 on."""
    rule = {"kind": "vocabulary", "vocabulary": "names"}
    return NAMES | stated("user", ids=rule | {"oov_first_row": 8, "oov_buckets": buckets})


OF_CONTEXT = stored("contexts", "user") | stated("user", role="candidate")
BUCKETS = {"kind": "buckets", "boundaries": list(range(10))}
REFUSED: list[tuple[dict[str, Any], list[FeatureSpec], tuple[str, ...]]] = [
    # the recipe, other features than FEATURES, words of the message
    (stated("usr"), [], ("features.usr", "'user'")),
    (stated("hour", role="context"), [], ("features.hour", "no tower's result")),
    (stated("seen_weights"), [], ("weights of feature 'seen'",)),
    (stored("corpora", "zzzz"), [], ("corpora.c.features.zzzz", "2nd, recent, seen, user")),
    (stated("2nd", unknown={"rule": "refuse"}), [], ("features.2nd", "no table")),
    (stated("seen", ids={"kind": "hash", "buckets": 11}), [], ("ids.buckets", "row 10")),
    (stated("seen", ids=BUCKETS), [], ("ids.boundaries", "row 10")),
    (stated("user", unknown={"rule": "row", "row": 10}), [], ("row is 10", "10 rows")),
    (other_keys(3), [], ("features.user.ids.oov_buckets", "row 10")),
    (OF_CONTEXT, [], ("contexts.c.features.user", "features.user.role")),
    (stated("kind", ids={"kind": "hash"}), [KIND], ("features.kind.ids", "leave it out")),
    (
        stated("user", unknown={"rule": "refuse"}),
        [embedded("user", "users", unknown=manifest.Unknown(rule="row", row=3))],
        ("features.user.unknown", "the model itself"),
    ),
    (stated("user", ids={"kind": "keyed"}), [USER], ("no keys", "tables.users.dump")),
    (DUMPED, [USER], ("features.user.ids", 'ids = { kind = "keyed" }')),
    (DUMPED, [embedded("user", "users", ids=hash_ids(10))], ("a dump", "model makes rows")),
    (
        stated("user", ids={"kind": "hash"}),
        [embedded("user", "users", place=0, places=2)],
        ("by their positions", "an input of its own"),
    ),
]


@pytest.mark.parametrize(("parts", "specs", "words"), REFUSED)
def test_recipe_that_does_not_fit_the_features_of_the_model_is_refused(
    parts: dict[str, Any], specs: list[FeatureSpec], words: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as refused:
        described(parts, *specs)
    assert [word for word in words if word not in str(refused.value)] == [], refused.value


@pytest.mark.parametrize(("from_end", "rows"), [(False, [0, 0, 3, 9]), (True, [-10, -3, 3, 9])])
def test_cast_ids_outside_of_the_table_read_the_nearest_row(
    from_end: bool, rows: list[int]
) -> None:
    cast = cast_ids("float32", "int32", "Floor")
    spec = embedded("user", "users", ids=cast, outside=OutsideIds(from_end, "nearest"))
    user = described({}, replace(spec, has_rule=False))["user"]
    assert isinstance(user, manifest.EmbeddedFeature)
    assert isinstance(user.ids, manifest.GraphIds)
    numbers = np.array([-99, -2.5, 3.5, 99], np.float32)
    assert rule_of(user.ids, {}).resolve("user", numbers).tolist() == rows


def test_rules_are_those_of_the_model_or_of_the_recipe_and_stores_give_roles() -> None:
    assert described(stored("contexts", "user"))["user"].role == "context"
    user = described(other_keys(2))["user"]
    assert isinstance(user, manifest.EmbeddedFeature)
    assert user.ids == vocabulary_ids("names", oov_buckets=2, oov_first_row=8)
    refuse = manifest.Unknown(rule="refuse")
    spec = embedded("user", "users", ids=hash_ids(10), unknown=refuse)
    user = described(stated("user", default=3), spec)["user"]
    assert isinstance(user, manifest.EmbeddedFeature)
    assert (user.ids, user.unknown, user.default) == (hash_ids(10), refuse, 3)


READ: dict[str, tuple[Any, tuple[str, ...]]] = {
    "query": ("query", ("user", "country")),
    "offer": ("candidate", ("item", "country")),
    "rank": ("ranking", ("user", "item", "price", "age", "hour")),
}
ROLES = {
    "user": "context",
    "country": "context",  # both, but no ranking tower reads it
    "item": "candidate",
    "price": "candidate",
    "age": "context",
    "hour": "context",  # unused: the default
}
PRICE = {"file": "i.csv", "id": "id", "features": {"price": "price"}}
AGE = {"file": "u.csv", "id": "id", "features": {"age": "age"}}


def ranker() -> ModelSpec:
    """Returns a model of three towers that read numbers."""
    towers = {}
    for name, (role, inputs) in READ.items():
        tensors = tuple(
            TowerInput(name=read, feature=read, dtype="float32", shape=(None,)) for read in inputs
        )
        result = TowerOutput(name="result", dtype="float32", shape=(None,))
        towers[name] = TowerSpec(name, role, Call("", inputs), {}, tensors, (result,), "result")
    return ModelSpec({}, {name: dense(name, "float32", ()) for name in ROLES}, towers)


def ranker_recipe(corpus: Mapping[str, Any] = PRICE, **parts: Any) -> ExportJob:
    inputs = {name: {"dtype": "float32"} for name in ROLES}
    towers = {name: {"role": role, "inputs": list(read)} for name, (role, read) in READ.items()}
    stores = {"corpora": {"items": corpus}, "contexts": {"users": AGE}}
    return recipe("model.py:build", inputs, towers, stores | parts)


def test_roles_follow_from_towers_and_stores_or_must_be_stated() -> None:
    assert input_roles(ranker(), ranker_recipe()) == ROLES
    of_users = PRICE | {"features": {"user": "user"}}
    with pytest.raises(UsageError, match=r"'query'.* corpora\.items.* features\.user\.role"):
        input_roles(ranker(), ranker_recipe(of_users))
    job = ranker_recipe(of_users, **stated("user", role="candidate"))
    assert input_roles(ranker(), job)["user"] == "candidate"


def test_ranking_tower_reads_an_input_of_a_candidate() -> None:
    entries = describe_features(ranker(), ranker_recipe())
    check_candidate_inputs(ranker(), entries)
    of_contexts = {
        name: entry.model_copy(update={"role": "context"}) for name, entry in entries.items()
    }
    with pytest.raises(UsageError, match=r"towers\.rank: .* belong to the context"):
        check_candidate_inputs(ranker(), of_contexts)
