from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from bundle.format import manifest as entries
from bundle.format.manifest import dump, parse
from bundle.storage.staging import read_manifest


def test_manifest_written_twice_has_the_same_bytes(committed_bundle: Path) -> None:
    manifest = read_manifest(committed_bundle)
    data = (committed_bundle / "manifest.json").read_bytes()
    assert dump(manifest) == dump(parse(data)) == data
    assert data.endswith(b"}\n")


def test_manifest_begins_with_its_format_version(committed_bundle: Path) -> None:
    assert (committed_bundle / "manifest.json").read_text().startswith('{\n  "format_version": 1,\n  "digest": ')


def test_manifest_is_frozen(committed_bundle: Path) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        read_manifest(committed_bundle).version = 2  # type: ignore[misc]


def test_unknown_rule_row_needs_its_row() -> None:
    assert entries.Unknown(rule="row", row=0).row == 0
    with pytest.raises(ValidationError, match="'row' is given with rule 'row'"):
        entries.Unknown(rule="row")


def test_bucket_boundaries_may_repeat_but_never_fall() -> None:
    assert entries.BucketIds(boundaries=(0.0, 0.0, 1.0)).boundaries == (0.0, 0.0, 1.0)
    for wrong in ((1.0, 0.0), (float("nan"),), (0.0, float("inf"))):
        with pytest.raises(ValidationError, match="ascend"):
            entries.BucketIds(boundaries=wrong)


def _page(committed_bundle: Path, **features: entries.Feature) -> entries.Manifest:
    manifest = read_manifest(committed_bundle)
    told = manifest.model_dump() | {"features": {**manifest.features, **features}}
    return entries.Manifest.model_validate(told)


def test_input_tells_its_readers_first_the_one_that_takes_least(committed_bundle: Path) -> None:
    embedded, id_ = entries.EmbeddedFeature, ("id",)
    key = entries.CrossKey(dtype="int64", role="candidate")
    features: dict[str, entries.Feature] = {
        "id@values": entries.DenseFeature(kind="dense", role="candidate", inputs=id_),
        "id*age": embedded(
            kind="bag",
            table="users",
            role="candidate",
            inputs=("id", "zip"),
            ids=entries.CrossedIds(keys=(key, entries.CrossKey(dtype="string", default="?")), buckets=9),
            combiner="sum",
        ),
        "id@wide": embedded(kind="bag", table="hours", role="candidate", inputs=id_, combiner="mean"),
        "id@deep": embedded(kind="single", table="users", role="candidate", inputs=id_),
    }
    manifest = _page(committed_bundle, **features)
    assert manifest.inputs["id"] == ("id@deep", "id@wide", "id*age", "id@values")
    assert manifest.inputs_of(["id@values", "id*age", "user"]) == ("id", "zip", "user")
    assert (manifest.role_of("id"), manifest.role_of("zip"), manifest.role_of("user")) == (
        "candidate",
        "context",
        "context",
    )
    assert (manifest.default_of("zip"), manifest.default_of("id"), manifest.default_of("age")) == ("?", None, 30.0)


@pytest.mark.parametrize(
    ("feature", "told"),
    [
        (entries.DenseFeature(kind="dense", role="candidate", inputs=("user",)), "with different roles or defaults"),
        (entries.DenseFeature(kind="dense", role="context", inputs=("user",), default=1), "with different roles"),
        (
            entries.EmbeddedFeature(kind="single", table="users", role="context", ids=entries.KeyedIds(keys="gone")),
            "features.new.ids.keys names 'gone'",
        ),
        (
            entries.EmbeddedFeature(
                kind="single", table="users", role="context", ids=entries.VocabularyIds(vocabulary="names", mask=3)
            ),
            "features.new.ids.mask is no string",
        ),
    ],
)
def test_feature_that_does_not_fit_the_others_is_refused(
    committed_bundle: Path, feature: entries.Feature, told: str
) -> None:
    with pytest.raises(ValidationError, match=told):
        _page(committed_bundle, new=feature)


def test_lengths_are_one_number_for_an_example() -> None:
    with pytest.raises(ValidationError, match="one number for an example"):
        entries.DenseFeature(kind="dense", role="context", take="lengths", shape=(2,))


@pytest.mark.parametrize(
    ("formula", "told"), [("vector +", "invalid syntax"), ("2 * scre", "takes 'scre', which is no output")]
)
def test_formula_that_the_tower_cannot_compute_is_refused(committed_bundle: Path, formula: str, told: str) -> None:
    tower = read_manifest(committed_bundle).towers["query"]
    with pytest.raises(ValidationError, match=told):
        entries.Tower.model_validate(tower.model_dump() | {"formula": formula})
