"""The recall that a request names: queries that the export has not seen find it at every k, by
scores that NumPy computes.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.bounded_cache import BoundedCache
from bundle.format import paths
from bundle.format.indexes import Distance, Engine
from export.corpora.codes import write_codes
from export.corpora.indexes import build_index
from export.recipe.schema import IndexSection
from runtime.partitions import load_index as load_tree
from runtime.vectors import VectorFile
from service.contract.forms import IdLists
from service.contract.messages import Condition, Filter
from service.versions.version import LoadedIndex
from tests.units.service.engine.retrieval.large_index import find, load_index

Vectors = NDArray[np.float32]
MARGIN = 0.01
"""What docs/explanation/indexes.md states: by this much the mean of other queries may be less."""
REQUESTED = (0.8, 0.9, 0.95, 0.99)


class Case(NamedTuple):
    """A corpus of random vectors, and how it is searched."""

    engine: Engine
    distance: Distance
    corpus: str
    size: int
    dim: int = 16
    recipe_k: int = 10
    partitions: int = 1

    def __str__(self) -> str:
        return f"{self.corpus}, {self.distance} by {self.engine}, k = {self.recipe_k}"

    def vectors(self, count: int, random: np.random.Generator) -> Vectors:
        """Returns [count, dim] vectors of the corpus, or queries like them."""
        if self.corpus == "uniform":
            return random.uniform(-1, 1, (count, self.dim)).astype(np.float32)
        centers = np.random.default_rng(7).normal(size=(100, self.dim))
        vectors = centers[random.integers(0, 100, count)]
        vectors += random.normal(size=vectors.shape) * 0.8
        if self.corpus == "of heavy norms":
            vectors *= np.exp(random.normal(size=(count, 1)) * 0.35)
        return vectors.astype(np.float32)

    def scores(self, vectors: Vectors, query: Vectors) -> NDArray[np.float64]:
        wide = vectors.astype(np.float64)
        if self.distance == "squared_l2":
            wide_query = query.astype(np.float64)
            distances: NDArray[np.float64] = np.square(wide - wide_query).sum(axis=1)
            return -distances
        scores: NDArray[np.float64] = wide @ query
        if self.distance == "cosine":
            scores /= np.linalg.norm(wide, axis=1)
        return scores


CASES = (
    Case("faiss", "squared_l2", "uniform", 3000),
    Case("scann", "dot_product", "of heavy norms", 3000, partitions=2),
    Case("scann", "squared_l2", "clustered", 6000),
)
CORPORA = (("uniform", 10), ("clustered", 100), ("of heavy norms", 1))
"""With the k of the recipe."""
ENGINES: tuple[Engine, ...] = ("scann", "faiss")
DISTANCES: tuple[Distance, ...] = ("dot_product", "cosine", "squared_l2")
MANY_CASES = [
    Case(ENGINES[number % 2], distance, corpus, 30_000, dim=32, recipe_k=recipe_k)
    for number, (distance, (corpus, recipe_k)) in enumerate(product(DISTANCES, CORPORA))
]


def exported(place: Path, case: Case, vectors: Vectors, examples: Vectors) -> LoadedIndex:
    """Returns an index as the exporter builds it and a service loads it; the candidates have an
    attribute `percent`.
    """
    file = place / paths.index_vectors("items")
    file.parent.mkdir(parents=True)
    vectors.tofile(file)
    fields: dict[str, Any] = {
        "corpus": "items",
        "query_tower": "query",
        "candidate_tower": "candidate",
        "engine": case.engine,
        "kind": "tree_ah",
        "distance": case.distance,
        "partitions": case.partitions,
        "recall": {"k": case.recipe_k, "value": 0.95, "queries": len(examples)},
    }
    section = IndexSection.model_validate(fields)
    write_codes(place, "items", VectorFile(file, case.dim), case.distance)
    entry = build_index(place, "items", section, examples, coded=True)
    directories = [place / directory for directory in entry.directories]
    percent = np.arange(len(vectors)) * 37 % 100
    loaded = load_index(
        place / "served",
        vectors,
        {"percent": percent},
        distance=case.distance,
        parameters=entry.parameters,
        coded=True,
        engine=case.engine,
    )
    # Of the exporter's entry and tree: the codes are those of both.
    entry = entry.model_copy(update={"codes": loaded.entry.codes})
    tree = load_tree(case.engine, directories, case.distance, vectors)
    return replace(loaded, entry=entry, approximate=tree, plans=BoundedCache(1))


def check_requested_recall(
    place: Path, case: Case, examples: int, queries: int, ks: tuple[int, ...]
) -> None:
    """Compares the mean recall of queries that the export has not seen with the requested one."""
    random = np.random.default_rng(len(case.corpus))
    vectors = case.vectors(case.size, random)
    index = exported(place, case, vectors, case.vectors(examples, random))
    percent = np.arange(case.size) * 37 % 100
    excluded = random.integers(0, case.size, (queries, 3))
    fresh = case.vectors(queries, random)
    for below in (100, 50, 10):
        matching = case.size * below // 100
        scores = []
        for query, excluded_positions in zip(fresh, excluded, strict=True):
            of_query = case.scores(vectors, query)
            of_query[percent >= below] = -np.inf
            of_query[excluded_positions] = -np.inf
            scores.append(of_query)
        # The score of the k-th best, for each k.
        best = [np.sort(of_query)[::-1][: max(ks)] for of_query in scores]
        options: dict[str, Any] = {}
        if below < 100:
            options["filter"] = Filter({"percent": Condition(lt=below)})
        for k, requested in product(ks, REQUESTED):
            if k > matching // 2:
                continue
            shares = []
            for number, query in enumerate(fresh):
                options["exclude_ids"] = IdLists(excluded[number])
                found = find(index, query[np.newaxis], k, recall=requested, **options).positions
                assert np.unique(found).size == found.size == k
                last = best[number][k - 1]
                is_right = scores[number][found] >= last - 1e-5 * abs(last)
                assert np.isfinite(scores[number][found]).all(), "excluded, or no match"
                shares.append(np.count_nonzero(is_right) / k)
            # Of as few queries, the mean itself is known within three of its standard errors.
            error = 3 * np.std(shares) / len(shares) ** 0.5
            assert np.mean(shares) + error >= requested - MARGIN, (below, k, requested)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_queries_that_the_export_has_not_seen_find_the_recall_that_they_request(
    tmp_path: Path, case: Case
) -> None:
    check_requested_recall(tmp_path, case, examples=200, queries=50, ks=(1, 10, 100, 500, 1000))


@pytest.mark.nightly
@pytest.mark.parametrize("case", MANY_CASES, ids=str)
def test_queries_find_the_recall_that_they_request_in_larger_corpora(
    tmp_path: Path, case: Case
) -> None:
    check_requested_recall(
        tmp_path, case, examples=500, queries=300, ks=(1, 10, 20, 100, 200, 500, 1000)
    )
