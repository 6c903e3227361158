"""Facts that no check of a bundle could verify are named, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bundle.format.manifest import (
    DenseFeature,
    EmbeddedFeature,
    Feature,
    Manifest,
    TableCheck,
    TowerInput,
)
from bundle.storage.catalog import read_manifest
from export.front_end.calls import Call
from export.front_end.specs import TowerSpec
from export.verify.unverified import features_behind, tables_behind, unverified

GOLDEN = Path(__file__).parents[3] / "differential/bundle/root/movies/1"
RECALL = "the recall for real queries (movies): no real examples (verify.examples)"


def golden(tables: dict[str, TableCheck] | None = None, **changes: Any) -> Manifest:
    """Returns the golden bundle's manifest with other checks of tables, or other parts."""
    manifest = read_manifest(GOLDEN)
    checks = manifest.verification.tables | (tables or {})
    verification = manifest.verification.model_copy(update={"tables": checks})
    return manifest.model_copy(update={"verification": verification, **changes})


def invented(manifest: Manifest) -> Manifest:
    """Returns a manifest whose recall was measured on invented queries."""
    index = manifest.indexes["movies"]
    recall = index.recall.model_copy(update={"representative": False})
    indexes = {"movies": index.model_copy(update={"recall": recall})}
    return manifest.model_copy(update={"indexes": indexes})


def test_ids_are_unverified_but_of_features_behind_recorded_outputs() -> None:
    manifest = golden()
    embedded = [
        name for name, feature in manifest.features.items() if isinstance(feature, EmbeddedFeature)
    ]
    inputs = ", ".join(manifest.inputs_of(embedded))
    reason = "no recorded outputs (verify.expected)"
    assert unverified(manifest) == (f"how ids become rows ({inputs}): {reason}",)
    other_inputs = ", ".join(manifest.inputs_of(embedded[1:]))
    assert unverified(manifest, embedded[:1]) == (
        f"how ids become rows ({other_inputs}): {reason}",
    )
    assert unverified(manifest, embedded) == ()


def test_without_towers_ids_are_row_numbers() -> None:
    assert unverified(golden(towers={})) == ()


@pytest.mark.parametrize(
    ("checks", "line"),
    [
        (
            {"users": TableCheck(rows_compared=50, rows=50, stated_layout="accepted")},
            "the order of the rows of users: its statement was accepted",
        ),
        ({"users": TableCheck(rows_compared=50, rows=50, stated_layout="expected")}, None),
        (
            {
                "users": TableCheck(rows_compared=40, rows=50),
                "movies": TableCheck(rows_compared=0, rows=41),
            },
            "rows outside of the samples (users, movies): --full compares all",
        ),
        (
            {
                "users": TableCheck(rows_compared=50, rows=50, decoder="h5py 3"),
                "movies": TableCheck(rows_compared=41, rows=41, decoder="h5py 3"),
            },
            "the decoding of rows: trusted to h5py 3",
        ),
        (
            {f"t{number}": TableCheck(rows_compared=1, rows=2) for number in range(11)},
            "rows outside of the samples (t0, t1, t2, t3, t4, t5, t6, t7 and 3 more): --full "
            "compares all",
        ),
    ],
)
def test_what_was_not_compared_of_tables_is_named(
    checks: dict[str, TableCheck], line: str | None
) -> None:
    manifest = golden(checks)
    recorded = tuple(manifest.features)
    assert unverified(manifest, recorded) == (() if line is None else (line,))


def test_recall_of_invented_queries_is_unverified() -> None:
    manifest = golden()
    recorded = tuple(manifest.features)
    assert unverified(invented(manifest), recorded) == (RECALL,)


def read_by(name: str, *features: str, outputs: tuple[str, ...]) -> TowerSpec:
    inputs = tuple(
        TowerInput(name=feature, feature=feature, dtype="float32", shape=(None, 2))
        for feature in features
    )
    return TowerSpec(name, "ranking", Call(), dict.fromkeys(outputs, ()), inputs, (), outputs[0])


@pytest.mark.parametrize(
    ("expected", "features"),
    [
        ([], set()),
        (["vector"], {"user"}),
        (["rank.click"], {"user", "movie", "age"}),
        (["click", "vector"], {"user", "movie", "age"}),
        (["query.click", "rank.vector", "other"], set()),
        (["number"], {"age"}),
    ],
)
def test_recorded_outputs_are_of_the_features_and_tables_that_their_towers_read(
    expected: list[str], features: set[str]
) -> None:
    entries: dict[str, Feature] = {
        name: EmbeddedFeature(kind="single", table=f"{name}s", role="context")
        for name in ("user", "movie")
    }
    entries["age"] = DenseFeature(kind="dense", role="context")
    towers = {
        "query": read_by("query", "user", outputs=("vector",)),
        "rank": read_by("rank", "user", "movie", "age", outputs=("click", "buy")),
        "plain": read_by("plain", "age", outputs=("number",)),
    }
    assert features_behind(expected, towers) == features
    assert tables_behind(expected, towers, entries) == {f"{name}s" for name in features - {"age"}}
