"""An index in partitions: each is an index of its own over a range of rows, and their results are
merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.format.indexes import CANDIDATES_MAX
from bundle.format.manifest import Distance
from bundle.tables.segments import RowRange, cut
from runtime.errors import IndexUnreadable
from runtime.scann import ScannIndex

Vectors = NDArray[np.float32]


def partition_rows(size: int, partitions: int) -> tuple[RowRange, ...]:
    """Returns the rows of each partition: all have the same length but the last, which may be
    shorter.

    There are fewer partitions than requested where this number of equal length leaves no row for
    the last. A request for the lower number returns the same partitions.
    """
    return cut(size, ceil_div(size, partitions))


def load_index(
    directories: Sequence[Path], distance: Distance, vectors: Vectors, rows: Sequence[int] = ()
) -> ScannIndex:
    """Loads an index from the directories of its partitions, or from its one directory; as
    `ScannIndex.load` does.

    Args:
      directories: The directories of the partitions, or the one directory.
      distance: The distance of the index.
      vectors: [size, dim] float32, the vectors of all partitions.
      rows: The number of rows of each partition. Empty: The numbers that `partition_rows` returns
        for a whole index.

    Raises:
      IndexUnreadable: The same as for `ScannIndex.load`; or there are more vectors than positions
        of 32 bits.
    """
    if len(vectors) > CANDIDATES_MAX:
        raise IndexUnreadable(
            f"index {directories[0].parent.name!r} has {len(vectors)} vectors; positions have 32 "
            f"bits, for at most {CANDIDATES_MAX}"
        )
    if len(directories) == 1:
        return ScannIndex.load(directories[0], distance, vectors)
    rows = rows or [each.rows for each in partition_rows(len(vectors), len(directories))]
    where = f"index {directories[0].parents[1].name!r}"
    ends = list(accumulate(rows))
    if len(rows) != len(directories):
        raise IndexUnreadable(
            f"{where} has {len(directories)} partitions; {len(vectors)} vectors have {len(rows)}"
        )
    return PartitionedIndex(
        [
            ScannIndex.load(
                directory, distance, vectors[end - count : end], f"{where}, {directory.name}"
            )
            for directory, count, end in zip(directories, rows, ends, strict=True)
        ],
        vectors,
    )


class PartitionedIndex(ScannIndex):
    """Finds the nearest candidates of all partitions. `leaves_to_search` applies to each partition,
    `reorder` to the merged candidates.

    Attributes:
      partitions: The partitions, in the order of their rows.
    """

    def __init__(self, partitions: Sequence[ScannIndex], vectors: Vectors) -> None:
        """Takes indexes over ranges of rows that follow one another, and the vectors of all."""
        one = partitions[0]
        super().__init__(None, one.distance, len(vectors), one.dim, one.reorder, vectors)
        self.partitions = partitions

    def scored_candidates(
        self, query: Vectors, pool: int, leaves_to_search: int | None = None
    ) -> tuple[NDArray[np.uint32], Vectors]:
        """Finds `pool` candidates in every partition, and merges them by their scores; of equal
        scores, the smaller position comes first.
        """
        positions = []
        scores = []
        first = 0
        for each in self.partitions:
            found, scored = each.scored_candidates(query, min(pool, each.size), leaves_to_search)
            positions.append(found + np.uint32(first))
            scores.append(scored)
            first += each.size
        merged = np.concatenate(positions)
        keys = -np.concatenate(scores)
        best = np.lexsort((merged, keys))[:pool]
        return merged[best], -keys[best]
