"""Indexes of random vectors: they record the recall that NumPy computes of what they find, take the
cheapest setting that reaches the target, and are rejected below it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import parquet

from bundle.format import paths
from bundle.format.indexes import CurvePoint, Engine, Index
from export.corpora.indexes import build_index
from export.corpora.recall import (
    measure_again,
    note_of_cold_users,
    recall_of_cold_users,
    recall_of_tables,
)
from export.corpora.size_estimates import forecast_index
from export.errors import ExportError, UsageError, VerificationFailed
from export.recipe.schema import IndexSection
from rows.files import SourceFile
from runtime.engines import default_engine
from runtime.partitions import load_index
from tests.bundles.indexes import ENGINES

pytestmark = pytest.mark.slow

Vectors = NDArray[np.float32]
DISTANCES = ("dot_product", "squared_l2", "cosine")
DIM = 16


def clustered(size: int, seed: int, clusters: int = 50) -> Vectors:
    random = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(clusters, DIM))
    noise = random.standard_normal((size, DIM))
    return (centers[random.integers(0, clusters, size)] + 0.8 * noise).astype(np.float32)


def section(recall: dict[str, Any] | None = None, **changes: Any) -> IndexSection:
    entry = {"corpus": "movies", "query_tower": "query", "candidate_tower": "candidate"}
    return IndexSection.model_validate(entry | {"recall": recall or {}} | changes)


def staged(base: Path, vectors: Vectors) -> Path:
    """Writes vectors where the exporter does."""
    path = base / paths.index_vectors("movies")
    path.parent.mkdir(parents=True)
    vectors.astype("<f4").tofile(path)
    return base


def share_found(
    base: Path,
    index: Index,
    vectors: Vectors,
    queries: Vectors,
    k: int = 10,
    point: CurvePoint | None = None,
) -> float:
    """Returns the share of the true neighbors that an index finds, by float64 and a full sort; one
    that is as near as the last of them is true, too.
    """
    directories = [base / directory for directory in index.directories]
    setting = [] if point is None else [point.leaves_to_search, point.reorder]
    loaded = load_index(index.engine, directories, index.distance, vectors)
    positions, _ = loaded.search(queries, k, *setting)
    wide = vectors.astype(np.float64)
    shares = []
    for query, mine in zip(queries.astype(np.float64), positions, strict=True):
        scores = wide @ query
        if index.distance == "squared_l2":
            scores = -np.square(wide - query).sum(axis=1)
        if index.distance == "cosine":
            scores /= np.linalg.norm(wide, axis=1)
        last = np.sort(scores)[-k]
        shares.append((scores[list({*mine})] >= last - 1e-5 * abs(last)).sum() / k)
    return float(np.mean(shares))


EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)


@EACH_ENGINE
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("distance", DISTANCES)
def test_brute_force_finds_all_of_many_ties(
    tmp_path: Path, engine: Engine, distance: Any, partitions: int
) -> None:
    vectors = np.random.default_rng(1).integers(1, 3, (600, DIM)).astype(np.float32)
    part = section({"value": 1.0}, engine=engine, distance=distance, partitions=partitions)
    index = build_index(staged(tmp_path, vectors), "movies", part, vectors[:10])
    assert (index.engine, index.kind, index.partitions) == (engine, "brute_force", partitions)
    assert index.parameters == {}
    assert (index.recall.value, index.recall.queries, index.recall.chosen_on) == (1, 10, 0)
    assert index.recall.low == pytest.approx(0.722467, abs=1e-6)  # R: prop.test(10, 10)
    assert (index.recall_curves, index.costs) == ((), None)
    assert share_found(tmp_path, index, vectors, vectors[:10]) == 1


@EACH_ENGINE
@pytest.mark.parametrize(
    ("distance", "partitions", "size"),
    [
        ("dot_product", 1, 10_000),
        ("cosine", 1, 5000),
        ("squared_l2", 2, 5000),
    ],
)
def test_tree_records_its_true_recall_and_how_deep_to_search_for_more_neighbors(
    tmp_path: Path, engine: Engine, distance: Any, partitions: int, size: int
) -> None:
    vectors = clustered(size, 1, 200)
    queries = clustered(60, 2, 200)
    recall = {"value": 0.9, "queries": 60}
    part = section(recall, engine=engine, distance=distance, partitions=partitions, kind="tree_ah")
    index = build_index(staged(tmp_path, vectors), "movies", part, queries)
    assert (index.engine, index.kind, index.dim) == (engine, "tree_ah", DIM)
    assert len(index.directories) == partitions
    assert index.parameters["num_leaves"] == pytest.approx((size / partitions) ** 0.5, abs=1)
    # ScaNN adds up in the order that its threads give: a tie may fall the other way.
    judged = share_found(tmp_path, index, vectors, queries[1::2])
    assert index.recall.value == pytest.approx(judged, abs=2 / 300)
    assert index.recall.value >= 0.9
    assert index.recall.low < index.recall.value
    assert (index.recall.queries, index.recall.chosen_on) == (30, 30)
    assert [curve.k for curve in index.recall_curves] == [10, 20, 50, 100, 200, 500, 1000]
    for curve in index.recall_curves:
        lows = [point.low for point in curve.points]
        assert lows == sorted(lows)
        assert all(point.low < point.recall or point.recall == 1 for point in curve.points)
        for point in (curve.points[0], curve.points[-1]):
            share = share_found(tmp_path, index, vectors, queries, curve.k, point)
            assert point.recall == pytest.approx(share, abs=0.005)
    points = {tuple(sorted(point.parameters.items())): point for point in index.curve}
    assert len(points) == len(index.curve)
    costs = [point.relative_cost for point in index.curve]
    assert costs == sorted(costs)
    setting = {name: index.parameters[name] for name in ("leaves_to_search", "reorder")}
    assert points[tuple(sorted(setting.items()))].recall >= 0.9
    measured = measure_again(tmp_path, "movies", index, queries, queries, tmp_path / index.vectors)
    assert measured.value == pytest.approx(index.recall.value, abs=2 / 300)


@pytest.mark.parametrize(
    ("stated", "tried"),
    [
        ({}, {(leaves, reorder) for leaves in (1, 2, 4) for reorder in (20, 50, 150, 300)}),
        ({"leaves_to_search": 3}, {(3, 20), (3, 50), (3, 150), (3, 300)}),
        ({"leaves_to_search": 3, "reorder": 70}, {(3, 70)}),
    ],
)
def test_settings_of_the_recipe_are_kept_and_others_are_tried_until_beyond_the_target(
    tmp_path: Path, stated: dict[str, int], tried: set[tuple[int, int]]
) -> None:
    vectors = clustered(300, 1, 10)
    part = section({"value": 0.1}, kind="tree_ah", parameters={"num_leaves": 10} | stated)
    index = build_index(staged(tmp_path, vectors), "movies", part, clustered(40, 2, 10))
    settings = [point.parameters for point in index.curve]
    assert {(setting["leaves_to_search"], setting["reorder"]) for setting in settings} == tried


BASE = {"kind": "tree_ah"}


@pytest.mark.parametrize(
    ("size", "queries", "changes", "words"),
    [
        (300, np.zeros((3, DIM)), BASE | {"parameters": {"num_leaves": 301}}, "only 300 vectors"),
        (300, np.zeros((3, DIM)), BASE | {"parameters": {"leaves": 3}}, "unknown key 'leaves'"),
        (300, np.zeros((3, DIM)), {"parameters": {"reorder": 3}}, "set kind = 'tree_ah'"),
        (300, np.zeros((3, DIM)), {"partitions": 301}, "only 300 candidates"),
        (300, np.zeros((3, DIM)), BASE | {"partitions": 30, "engine": "scann"}, "over 10 vectors"),
    ],
)
def test_index_that_cannot_be_built_is_rejected(
    tmp_path: Path, size: int, queries: Any, changes: dict[str, Any], words: str
) -> None:
    base = staged(tmp_path, clustered(size, 1))
    with pytest.raises(ExportError, match=words):
        build_index(base, "movies", section(**changes), queries.astype(np.float32))


@pytest.mark.parametrize("engine", ["scann", "faiss"])
def test_engine_of_a_recipe_that_is_not_installed_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    # To Python, a module that is None is not installed.
    monkeypatch.setitem(sys.modules, engine, None)
    base = staged(tmp_path, clustered(300, 1))
    with pytest.raises(UsageError, match=rf"indexes\.movies\.engine is '{engine}'.*not installed"):
        build_index(base, "movies", section(engine=engine), clustered(3, 2))


def test_index_is_of_faiss_where_scann_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scann", None)
    vectors = clustered(300, 1, 10)
    part = section({"value": 0.9}, kind="tree_ah")
    index = build_index(staged(tmp_path, vectors), "movies", part, clustered(40, 2, 10))
    assert index.engine == "faiss"
    assert share_found(tmp_path, index, vectors, clustered(40, 2, 10)) >= 0.9


def test_recall_out_of_reach_is_rejected_with_the_best_setting_and_the_remedy(
    tmp_path: Path,
) -> None:
    vectors = clustered(5000, 1)
    stated = {"leaves_to_search": 1, "reorder": 10}
    part = section({"value": 0.99}, kind="tree_ah", parameters=stated)
    base = staged(tmp_path, vectors)
    with pytest.raises(VerificationFailed, match=r"indexes\.movies\.recall\.value"):
        build_index(base, "movies", part, clustered(50, 2))
    assert (tmp_path / paths.index_directory("movies", default_engine())).exists()
    # Made-up queries show nothing of real ones.
    index = build_index(base, "movies", part, clustered(50, 2), representative=False)
    assert (index.recall.value < 0.99, index.recall.representative) == (True, False)


def test_recall_of_tables_compares_converted_rows_with_trained_ones(tmp_path: Path) -> None:
    trained = clustered(2000, 1, 20)
    queries = clustered(40, 2, 20)
    noise = np.random.default_rng(5)
    vectors, sent_queries = (
        rows + noise.normal(0, 0.05, rows.shape).astype(np.float32) for rows in (trained, queries)
    )
    base = staged(tmp_path, vectors)
    index = build_index(base, "movies", section(), sent_queries)
    trained.tofile(base / "aside")

    def measured(limit: float | None) -> float:
        part = section({"of_tables": limit})
        arguments = (base, "movies", part, index, sent_queries, queries, base / "aside")
        return recall_of_tables(*arguments).value

    def nearest(among: Vectors, query: Vectors) -> set[int]:
        return {*np.argsort(-(among.astype(np.float64) @ query))[:10].tolist()}

    hits = [
        len(nearest(trained, query) & nearest(vectors, served))
        for query, served in zip(queries, sent_queries, strict=True)
    ]
    assert measured(None) == pytest.approx(sum(hits) / 400, abs=1e-9)
    assert 0.7 < measured(0.7) < 1
    with pytest.raises(VerificationFailed, match=r"0\.999"):
        measured(0.999)


def test_recall_of_cold_users_counts_each_of_their_queries_once_and_may_be_limited(
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(1)
    vectors = random.standard_normal((4000, DIM), np.float32)
    queries = random.standard_normal((8, DIM), np.float32)
    base = staged(tmp_path, vectors)
    tree = {"num_leaves": 60, "leaves_to_search": 2, "reorder": 200}

    def part(**limits: float) -> IndexSection:
        return section({"value": 0.01, **limits}, kind="tree_ah", parameters=tree)

    index = build_index(base, "movies", part(), queries)
    rows = np.arange(6)
    alike = np.repeat(queries[:1], 6, axis=0)
    of_one_user = recall_of_cold_users(base, "movies", part(), index, alike, rows)
    cold = recall_of_cold_users(base, "movies", part(), index, queries, rows)
    assert of_one_user is not None
    assert cold is not None
    assert (of_one_user.queries, cold.queries) == (1, 6)
    assert cold.low < cold.value < 0.9
    with_cold = index.model_copy(update={"recall_of_cold_users": cold})
    for target, noted in ((0.9, True), (cold.value, False)):
        recall = index.recall.model_copy(update={"target": target})
        note = note_of_cold_users("movies", with_cold.model_copy(update={"recall": recall}))
        assert bool(note) is noted
    assert "rejects such users" in note_of_cold_users("movies", index)
    limited = part(of_cold_users=cold.value)
    assert recall_of_cold_users(base, "movies", limited, index, queries, rows) is not None
    alike[3, 0] = np.inf
    assert recall_of_cold_users(base, "movies", part(), index, alike, rows) is None
    for rejected in (queries, alike):
        with pytest.raises(VerificationFailed, match=r"0\.95"):
            recall_of_cold_users(base, "movies", part(of_cold_users=0.95), index, rejected, rows)


def counted(directory: Path, *sizes: int) -> list[SourceFile]:
    files = []
    for number, size in enumerate(sizes):
        path = directory / f"{number}.parquet"
        parquet.write_table(pa.table({"id": np.arange(size)}), path)
        files.append(SourceFile(path, "parquet", False))
    return files


@EACH_ENGINE
@pytest.mark.parametrize(("size", "partitions"), [(3000, 1), (3000, 4), (20_000, 1)])
def test_index_takes_no_more_disk_than_forecast(
    tmp_path: Path, engine: Engine, size: int, partitions: int
) -> None:
    vectors = np.random.default_rng(0).random((size, DIM), np.float32)
    base = staged(tmp_path, vectors)
    stated = {"parameters": {"leaves_to_search": 1, "reorder": 10}} if size >= 20_000 else {}
    part = section(engine=engine, partitions=partitions, **stated)
    index = build_index(base, "movies", part, vectors[:5], representative=False)
    assert index.kind == ("tree_ah" if stated else "brute_force")
    folder = (base / paths.index_vectors("movies")).parent
    written = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    files = counted(tmp_path, size - 1000, 1000)
    forecast = forecast_index("movies", part, files, DIM, encoders=2)
    assert (forecast.candidates, forecast.partitions) == (size, partitions)
    # Settings, centroids and the code book are not of each vector.
    assert 0.5 * forecast.disk_bytes < written <= forecast.disk_bytes + (1 << 20)
