"""What the exporter measures of searches. How long searches take depends on the machine: the
numbers can be used, and those of a busy machine are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bundle.format import paths
from bundle.format.search_costs import SearchCosts
from export.corpora.codes import write_codes
from export.corpora.indexes import build_index, note_of_costs
from export.recipe.schema import IndexSection
from runtime.vectors import VectorFile

SIZE = 20_000
DIM = 16


def staged(base: Path, size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Writes vectors where the exporter does, and returns them."""
    vectors = np.random.default_rng(5).standard_normal((size, DIM), np.float32)
    path = base / paths.index_vectors("movies")
    path.parent.mkdir(parents=True)
    vectors.astype("<f4").tofile(path)
    return vectors


TREE = IndexSection.model_validate(
    {
        "corpus": "movies",
        "query_tower": "query",
        "candidate_tower": "candidate",
        "kind": "tree_ah",
        "distance": "cosine",
        "recall": {"value": 0.5},
    }
)


def test_tree_has_costs_that_can_be_true_and_one_of_few_vectors_typical_ones(
    tmp_path: Path,
) -> None:
    vectors = staged(tmp_path / "large", SIZE)
    file = VectorFile(tmp_path / "large" / paths.index_vectors("movies"), DIM)
    write_codes(tmp_path / "large", "movies", file, "cosine")
    halves = TREE.model_copy(update={"partitions": 2})
    index = build_index(tmp_path / "large", "movies", halves, vectors[:30], coded=True)
    assert index.costs is not None
    assert index.costs.cached >= SIZE
    assert not index.implausible_cost(SIZE)
    # A machine that is too busy to measure is noted, but not for trees that are never measured.
    typical = SearchCosts.typical(DIM, coded=True)
    unmeasured = index.model_copy(update={"costs": typical})
    assert "too busy" in note_of_costs("movies", unmeasured, SIZE)

    few_vectors = staged(tmp_path / "small", 500)
    index = build_index(tmp_path / "small", "movies", TREE, few_vectors[:30], coded=True)
    assert index.costs == typical
    assert note_of_costs("movies", index, 500) == ""
