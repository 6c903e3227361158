from __future__ import annotations

from typing import Any, Literal

import pytest

from bundle.format.manifest import TowerInput, TowerOutput
from export.errors import UsageError
from export.front_end.calls import Call
from export.front_end.manifest_features import describe_features
from export.front_end.roles import check_candidate_inputs, input_roles
from export.front_end.specs import ModelSpec, TowerSpec
from export.recipe.schema import ExportJob
from tests.units.export.traced_features import dense
from tests.units.export.traced_models import recipe

Role = Literal["query", "candidate", "ranking"]
READ: dict[str, tuple[Role, tuple[str, ...]]] = {
    "query": ("query", ("user", "country")),
    "offer": ("candidate", ("item", "country")),
    "rank": ("ranking", ("user", "item", "price", "age", "hour")),
}


def tower(name: str, role: Role, inputs: tuple[str, ...]) -> TowerSpec:
    tensors = tuple(
        TowerInput(name=name, feature=name, dtype="float32", shape=(None,)) for name in inputs
    )
    return TowerSpec(name, role, Call("", inputs), {}, tensors, (RESULT,), "result")


RESULT = TowerOutput(name="result", dtype="float32", shape=(None,))
MODEL = ModelSpec(
    {},
    {
        name: dense(name, "float32", ())
        for name in ("user", "country", "item", "price", "age", "hour")
    },
    {name: tower(name, *read) for name, read in READ.items()},
)
STORES = {
    "corpora": {"items": {"file": "i.csv", "id": "id", "features": {"price": "price"}}},
    "contexts": {"users": {"file": "u.csv", "id": "id", "features": {"age": "age"}}},
}


def job(**parts: Any) -> ExportJob:
    inputs = {name: {"dtype": "float32"} for name in MODEL.features}
    towers = {name: {"role": role, "inputs": list(read)} for name, (role, read) in READ.items()}
    return recipe("model.py:build", inputs, towers, STORES | parts)


def test_input_roles_follow_from_towers_and_stores() -> None:
    roles = input_roles(MODEL, job())
    assert roles == {
        "user": "context",
        "country": "context",  # both, but no ranking tower reads it
        "item": "candidate",
        "price": "candidate",
        "age": "context",
        "hour": "context",  # unused: the default
    }


def test_input_roles_that_conflict_must_be_stated() -> None:
    corpus = STORES["corpora"]["items"] | {"features": {"user": "user"}}
    message = (
        "input 'user' is a context's by tower 'query', and a candidate's by corpora.items; "
        "state .* features.user.role"
    )
    with pytest.raises(UsageError, match=message):
        input_roles(MODEL, job(corpora={"items": corpus}))
    stated = job(corpora={"items": corpus}, features={"user": {"role": "candidate"}})
    assert input_roles(MODEL, stated)["user"] == "candidate"


def test_ranking_tower_reads_an_input_of_a_candidate() -> None:
    entries = describe_features(MODEL, job())
    check_candidate_inputs(MODEL, entries)
    name = next(name for name, tower in MODEL.towers.items() if tower.role == "ranking")
    of_contexts = {
        name: entry.model_copy(update={"role": "context"}) for name, entry in entries.items()
    }
    message = (
        f"towers.{name}: all inputs of this ranking tower belong to the context, so every "
        "candidate would get the same score"
    )
    with pytest.raises(UsageError, match=message):
        check_candidate_inputs(MODEL, of_contexts)
