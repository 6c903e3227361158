"""What a manifest says of inputs whose lists have one length, from the model and the recipe."""

from __future__ import annotations

from typing import Any

import pytest

from bundle.format.manifest import CrossedIds, CrossKey, EmbeddedFeature, InputLength
from export.errors import UsageError
from export.front_end.manifest_features import describe_features
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec, TableFacts
from tests.id_graphs import hash_ids
from tests.units.export.traced_features import dense, embedded
from tests.units.export.traced_models import movies_recipe

TABLES = {"items": TableFacts("items", "items", 10, 2)}
THREE = {"dtype": "int64", "shape": [3]}
TEXTS = {"dtype": "string", "shape": [3]}
HISTORY = embedded("seen", "items", kind="sequence", length=3)
WORDS = {"ids": hash_ids(9), "ids_dtype": "string"}


def bag(**options: Any) -> FeatureSpec:
    """A bag that the model takes as a dense tensor, as feature columns do."""
    return embedded("seen", "items", kind="bag", combiner="mean", ids_max=3, **options)


def length_of(
    spec: FeatureSpec | DenseSpec, part: dict[str, Any], **feature: Any
) -> InputLength | None:
    model = ModelSpec(TABLES, {spec.name: spec}, {})
    job = movies_recipe(inputs={"seen": part}, features={"seen": feature} if feature else {})
    return describe_features(model, job)[spec.name].input_length


@pytest.mark.parametrize(
    ("spec", "part", "length"),
    [
        (HISTORY, THREE, {"values": 3}),
        (HISTORY, {"dtype": "int64", "shape": [1, 3]}, {"values": 3}),
        (
            HISTORY,
            THREE | {"pad": 0, "pad_side": "start", "keep": "last"},
            {"values": 3, "pad": 0, "pad_side": "start", "keep": "last"},
        ),
        # Feature columns leave this id out, so that lists of fewer ids mean the same.
        (bag(padding=-1), THREE, {"values": 3, "pad": -1}),
        (bag(padding="", **WORDS), TEXTS, {"values": 3, "pad": ""}),
        (bag(padding=-1), THREE | {"keep": "first"}, {"values": 3, "pad": -1, "keep": "first"}),
        (bag(), THREE, {"values": 3}),
        (
            embedded("seen", "items", place=0, places=3),
            THREE,
            {"values": 3},
        ),
        (dense("seen", "float32", (3,)), {"dtype": "float32", "shape": [3]}, None),
        (
            dense("seen", "float32", (3,)),
            {"dtype": "float32", "shape": [3], "pad": 0.5},
            {"values": 3, "pad": 0.5},
        ),
        (embedded("seen", "items"), {"dtype": "int64"}, None),
        (embedded("seen", "items"), {"dtype": "int64", "shape": [1]}, None),
        # The model cuts and fills what these hold.
        (
            embedded("seen", "items", kind="sequence", encoding="ragged", length=3),
            {"dtype": "int64", "kind": "ragged"},
            None,
        ),
        (bag(encoding="sparse", padding=-1), {"dtype": "int64", "kind": "sparse"}, None),
    ],
)
def test_length_of_an_input_is_that_of_a_dense_tensor(
    spec: FeatureSpec | DenseSpec, part: dict[str, Any], length: dict[str, Any] | None
) -> None:
    expected = None if length is None else InputLength.model_validate(length)
    assert length_of(spec, part) == expected


def test_length_of_a_crossed_input_stands_with_its_key() -> None:
    keys = (CrossKey(dtype="int64", padding=-1), CrossKey(dtype="int64"))
    rule = CrossedIds(keys=keys, buckets=10)
    cross = embedded(
        "seen*user", "items", kind="bag", combiner="sum", inputs=("seen", "user"), ids=rule
    )
    job = movies_recipe(inputs={"seen": THREE, "user": {"dtype": "int64", "shape": [1]}})
    entry = describe_features(ModelSpec(TABLES, {"seen*user": cross}, {}), job)["seen*user"]
    assert isinstance(entry, EmbeddedFeature)
    assert isinstance(entry.ids, CrossedIds)
    assert [key.input_length for key in entry.ids.keys] == [
        InputLength(values=3, pad=-1),
        InputLength(values=1),
    ]


@pytest.mark.parametrize(
    ("part", "default", "words"),
    [
        (THREE, [], r"features\.seen\.default: .* inputs\.seen\.pad"),
        (THREE | {"pad": 0}, [1, 2, 3, 4], "at most 3 was expected"),
    ],
)
def test_default_that_does_not_fit_is_rejected(
    part: dict[str, Any], default: list[int], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        length_of(HISTORY, part, default=default)
