"""Features as a manifest has them: what the model and the recipe say of an input together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bundle.format import manifest
from export.errors import UsageError
from export.front_end.manifest_features import describe_features
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec, TableFacts
from tests.id_graphs import vocabulary_ids
from tests.units.export.traced_features import dense, embedded
from tests.units.export.traced_models import movies_recipe

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
REFUSED: list[tuple[dict[str, Any], list[FeatureSpec], tuple[str, ...]]] = [
    # the recipe, other features than FEATURES, words of the message
    (stated("usr"), [], ("features.usr", "'user'")),
    (stated("seen_weights"), [], ("weights of feature 'seen'",)),
    (stored("corpora", "zzzz"), [], ("corpora.c.features.zzzz", "2nd, recent, seen, user")),
    (stated("seen", ids={"kind": "hash", "buckets": 11}), [], ("ids.buckets", "row 10")),
    (stated("user", unknown={"rule": "row", "row": 10}), [], ("row is 10", "10 rows")),
    (other_keys(3), [], ("features.user.ids.oov_buckets", "row 10")),
    (OF_CONTEXT, [], ("contexts.c.features.user", "features.user.role")),
    (stated("kind", ids={"kind": "hash"}), [KIND], ("features.kind.ids", "leave it out")),
    (
        stated("user", unknown={"rule": "refuse"}),
        [embedded("user", "users", unknown=manifest.Unknown(rule="row", row=3))],
        ("features.user.unknown", "the model itself"),
    ),
    (DUMPED, [USER], ("features.user.ids", 'ids = { kind = "keyed" }')),
    (
        stated("user", ids={"kind": "hash"}),
        [embedded("user", "users", place=0, places=2)],
        ("by their positions", "an input of its own"),
    ),
]


THREE = {"inputs": {"seen": {"dtype": "int64", "shape": [3]}}}
PADDED = {"inputs": {"seen": {"dtype": "int64", "shape": [3], "pad": 0}}}
SEQUENCE = embedded("seen", "users", kind="sequence", length=3)
REFUSED += [
    (THREE | stated("seen", default=[]), [SEQUENCE], ("features.seen.default", "inputs.seen.pad")),
    (PADDED | stated("seen", default=[1, 2, 3, 4]), [SEQUENCE], ("at most 3",)),
]


@pytest.mark.parametrize(("parts", "specs", "words"), REFUSED)
def test_recipe_that_does_not_fit_the_features_of_the_model_is_refused(
    parts: dict[str, Any], specs: list[FeatureSpec], words: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as refused:
        described(parts, *specs)
    assert [word for word in words if word not in str(refused.value)] == [], refused.value
