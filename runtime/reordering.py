"""The best of an index' candidates by their exact scores, out of the vectors in their mapped file.

An index that reorders by itself holds a copy of all vectors in each process, four times as much as its codes and
leaves or more; the file's pages are in memory once, whoever reads them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bundle import native
from bundle.manifest import Distance

Vectors = NDArray[np.float32]
_LANES = 16


def nearest(
    vectors: Vectors, query: Vectors, positions: NDArray[np.uint32], k: int, distance: Distance
) -> tuple[NDArray[np.int64], Vectors]:
    """Scores candidates exactly and picks the k best; fewer only where there are fewer.

    Args:
      vectors: [size, dim] float32, in one piece; may be mapped from a file.
      query: [dim] float32; of cosine, of length 1.
      positions: [m] uint32, of the candidates.
      k: at least 0.
    Returns:
      positions int64 and scores float32, larger is better, best first, of equals the smaller position first.
    """
    found = in_numpy if native.nearest is None else native.nearest
    return found(vectors, query, positions, k, distance)


def in_numpy(
    vectors: Vectors, query: Vectors, positions: NDArray[np.uint32], k: int, distance: Distance
) -> tuple[NDArray[np.int64], Vectors]:
    """As `nearest`, to the bit: sums run in lanes, as the compiled code's do."""
    rows = np.asarray(vectors[positions])
    with np.errstate(over="ignore", invalid="ignore"):
        if distance == "squared_l2":
            differences = rows - query
            scores = np.float32(0) - _sums(differences * differences)
        else:
            scores = _sums(rows * query)
        if distance == "cosine":
            lengths = np.sqrt(_sums(rows * rows))
            scores = np.divide(scores, lengths, out=np.zeros_like(scores), where=lengths > 0) + np.float32(0)  # no -0
    scores[np.isnan(scores)] = np.nan
    order = np.lexsort((positions, -scores, np.isnan(scores)))[:k]
    return positions[order].astype(np.int64), scores[order]


def _sums(terms: Vectors) -> Vectors:
    lanes = np.zeros((len(terms), _LANES), np.float32)
    for first in range(0, terms.shape[1], _LANES):
        part = terms[:, first : first + _LANES]
        lanes[:, : part.shape[1]] += part
    width = _LANES
    while width > 1:
        width //= 2
        lanes[:, :width] += lanes[:, width : 2 * width]
    return np.ascontiguousarray(lanes[:, 0])
