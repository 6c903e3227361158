"""The judge of an index: its recall once more, against an exact search that is written anew, over the stored vectors.

It shares nothing with what measured recall when the index was built (`export/corpora/indexes.py`,
`runtime/exact.py`): every score is computed in float64, a block of vectors at a time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import Distance, Index, Manifest
from bundle.storage import files
from export.errors import VerificationFailed
from runtime.scann import ScannIndex
from runtime.vectors import VectorFile

_TIE = 1e-6
"""Share of the k-th score by which a neighbor may miss it: float32 cannot tell closer ones apart."""


def check_recall(root: Path, page: Manifest, name: str, queries: NDArray[np.float32]) -> float:
    """Measures recall of an index by its page alone.

    Args:
      root: directory of the bundle.
      page: its manifest.
      name: of the index.
      queries: [q, dim] float32: what its query tower gives for examples; as many as the page tells are taken, evenly.
    Returns:
      recall@k.
    Raises:
      VerificationFailed: it is below the target, or below what the page's measurement allows.
    """
    index = page.indexes[name]
    size = page.candidates[index.corpus].size
    taken = np.unique(np.linspace(0, len(queries) - 1, min(index.recall.queries, len(queries))).round().astype(int))
    asked = np.ascontiguousarray(queries[taken], np.float32)
    vectors = VectorFile(files.locate(root, index.vectors), index.dim)
    searcher = ScannIndex.load(files.locate(root, index.directory), index.distance, vectors.mapped)
    k = min(index.recall.k, size)
    worst = _worst_right_scores(vectors, asked, index.distance, k)
    right = 0
    for query, least in zip(asked, worst, strict=True):
        found = searcher.search(query[np.newaxis], k)[0][0]
        positions = np.unique(found[found >= 0])
        scores = _scores(vectors[positions], query[np.newaxis], index.distance)[0]
        right += int((scores >= least - _TIE * abs(least)).sum())
    recall = right / (k * len(asked))
    _check_reached(index, name, recall)
    return recall


def _check_reached(index: Index, name: str, recall: float) -> None:
    told = index.recall
    if recall < min(told.target, told.value) or recall < told.low:
        raise VerificationFailed(
            f"index {name!r}: recall@{told.k} is {recall:.4f} against exact search over its vectors; its page tells "
            f"{told.value:.4f} (at least {told.low:.4f}) and the target {told.target}; export the index again"
        )


def _worst_right_scores(
    vectors: VectorFile, queries: NDArray[np.float32], distance: Distance, k: int
) -> NDArray[np.float64]:
    """Returns [q] float64: the score of each query's k-th neighbor."""
    best = np.full((len(queries), k), -np.inf)
    for first in range(0, len(vectors), vectors.block_rows):
        scores = _scores(vectors[first : first + vectors.block_rows], queries, distance)
        best = np.sort(np.concatenate([best, scores], axis=1), axis=1)[:, -k:]
    worst: NDArray[np.float64] = best[:, 0]
    return worst


def _scores(vectors: NDArray[np.float32], queries: NDArray[np.float32], distance: Distance) -> NDArray[np.float64]:
    """Returns [q, n] float64; larger is better."""
    wide, asked = vectors.astype(np.float64), queries.astype(np.float64)
    if distance == "cosine":
        wide, asked = (each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-30) for each in (wide, asked))
    dots: NDArray[np.float64] = asked @ wide.T
    if distance == "squared_l2":
        dots = 2 * dots - np.square(wide).sum(axis=1) - np.square(asked).sum(axis=1, keepdims=True)
    return dots
