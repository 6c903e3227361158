from __future__ import annotations

from pathlib import Path

from bundle.format import manifest as entries
from bundle.format.manifest import dump, parse
from bundle.storage.staging import read_manifest


def test_manifest_written_twice_has_the_same_bytes(committed_bundle: Path) -> None:
    manifest = read_manifest(committed_bundle)
    data = (committed_bundle / "manifest.json").read_bytes()
    assert dump(manifest) == dump(parse(data)) == data
    assert data.startswith(b'{\n  "format_version": 1,\n  "digest": ')


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
    sample = read_manifest(committed_bundle)
    told = sample.model_dump() | {"features": {**sample.features, **features}}
    manifest = entries.Manifest.model_validate(told)
    assert manifest.inputs["id"] == ("id@deep", "id@wide", "id*age", "id@values")
    assert manifest.inputs_of(["id@values", "id*age", "user"]) == ("id", "zip", "user")
    assert (manifest.role_of("id"), manifest.role_of("zip"), manifest.role_of("user")) == (
        "candidate",
        "context",
        "context",
    )
    assert (manifest.default_of("zip"), manifest.default_of("id"), manifest.default_of("age")) == ("?", None, 30.0)
