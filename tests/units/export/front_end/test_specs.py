from __future__ import annotations

from typing import Any

import pytest

from bundle.format.manifest import (
    CrossedIds,
    CrossKey,
    TowerInput,
    TowerOutput,
)
from export.front_end.calls import Call
from export.front_end.specs import FeatureSpec, ModelSpec, TableFacts, TowerSpec
from tests.id_graphs import hash_ids, vocabulary_ids
from tests.units.export.traced_features import dense, embedded

USERS = TableFacts("users", "users", 50, 8)
ITEMS = TableFacts("items", "items", 40, 4)
CROSS = CrossedIds(keys=(CrossKey(dtype="int64"), CrossKey(dtype="string", padding="-")), buckets=9)
BAG: dict[str, Any] = {"kind": "bag", "combiner": "sum", "inputs": ("user", "city")}


def tower(name: str, *features: str) -> TowerSpec:
    return TowerSpec(
        name=name,
        role="ranking",
        call=Call("", features),
        paths={},
        inputs=tuple(
            TowerInput(name=feature, feature=feature, dtype="float32", shape=(None, 4))
            for feature in features
        ),
        outputs=(TowerOutput(name="score", dtype="float32", shape=(None,)),),
        result="score",
    )


@pytest.fixture
def model() -> ModelSpec:
    return ModelSpec(
        tables={"users": USERS, "items": ITEMS},
        features={
            "user": embedded("user", "users"),
            "pair": embedded("pair", "items", ids=CROSS, **BAG),
            "flag": embedded("flag", "", indicator=3),
            "age": dense("age", "float32", ()),
            "user@values": dense("user@values", "int64", (), inputs=("user",)),
        },
        towers={"one": tower("one", "user", "age"), "two": tower("two", "pair", "user@values")},
    )


def test_model_inputs_list_every_feature_that_reads_them(model: ModelSpec) -> None:
    readers = {name: [spec.name for spec in specs] for name, specs in model.inputs.items()}
    assert readers == {
        "user": ["user", "pair", "user@values"],
        "city": ["pair"],
        "flag": ["flag"],
        "age": ["age"],
    }


def test_model_of_a_tower_keeps_its_features_and_tables(model: ModelSpec) -> None:
    part = model.of("two")
    assert set(part.features) == {"pair", "user@values"}
    assert part.tables == {"items": ITEMS}
    assert set(part.towers) == {"two"}
    assert model.read_by(model.towers["two"]) == ("user", "city")


def test_rows_of_an_indicator_are_its_own(model: ModelSpec) -> None:
    rows = {
        name: model.rows_of(spec)
        for name, spec in model.features.items()
        if isinstance(spec, FeatureSpec)
    }
    assert rows == {"user": 50, "pair": 40, "flag": 3}


def test_feature_is_plain_if_its_rows_are_the_ids() -> None:
    assert embedded("user", "users").plain
    assert not embedded("user", "users", ids=hash_ids(9)).plain
    assert not embedded("user", "users", encoding="ragged").plain
    assert not embedded("user", "users", ids_dtype="string").plain


def test_padding_of_a_crossed_feature_is_that_of_the_input() -> None:
    crossed = embedded("pair", "items", ids=CROSS, padding=7, **BAG)
    assert (crossed.padding_of("user"), crossed.padding_of("city")) == (None, "-")
    assert embedded("user", "users", padding=7).padding_of("user") == 7


def test_half_cure_names_the_dtype_of_a_tower_in_half_precision() -> None:
    tower_spec = tower("one", "user")
    assert tower_spec.half_cure == ""
    half = TowerSpec(**{**vars(tower_spec), "half": "bfloat16"})
    assert half.half_cure.startswith("it computes in bfloat16")


def test_feature_of_one_place_of_an_input_is_not_plain() -> None:
    assert not embedded("user", "users", place=1, places=2).plain


def test_model_knows_its_own_vocabularies_and_paddings() -> None:
    rule = vocabulary_ids("kinds")
    model = ModelSpec(
        {},
        {
            "kind": embedded("kind", "users", ids=rule, keys=(("a", "b"),)),
            "user": embedded("user", "users", padding=7),
            "plain": embedded("plain", "users"),
            "age": dense("age", "float32", ()),
        },
        {},
    )
    assert model.vocabularies == {"kinds": ("a", "b")}
    paddings = {name: model.padding_of(name) for name in ("user", "plain", "age", "other")}
    assert paddings == {"user": 7, "plain": None, "age": None, "other": None}
