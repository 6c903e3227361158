"""An index in partitions: each is an index of its own over a range of rows, and what they find is
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
    """Returns the rows of each partition: of equal length but the last, which may be shorter.

    There are fewer than asked for where so many of equal length leave no row for the last; asked
    for these again, it returns the same.
    """
    return cut(size, ceil_div(size, partitions))


def load_index(
    directories: Sequence[Path], distance: Distance, vectors: Vectors, rows: Sequence[int] = ()
) -> ScannIndex:
    """Loads an index from the directories of its partitions, or from its one directory; as
    `ScannIndex.load` does.

    Args:
      rows: of each partition; none: as `partition_rows` of a whole index.
    Raises:
      IndexUnreadable: as `ScannIndex.load`, or there are more vectors than positions have bits for.
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
    """Nearest candidates of all partitions. `leaves_to_search` is of each, `reorder` of those that
    are merged.

    Attributes:
      partitions: in the order of their rows.
    """

    def __init__(self, partitions: Sequence[ScannIndex], vectors: Vectors) -> None:
        """Takes indexes over ranges of rows that follow one another, and the vectors of all."""
        one = partitions[0]
        super().__init__(None, one.distance, len(vectors), one.dim, one.reorder, vectors)
        self.partitions = partitions

    def scored_candidates(
        self, query: Vectors, pool: int, leaves_to_search: int | None = None
    ) -> tuple[NDArray[np.uint32], Vectors]:
        """Finds as many in every partition, and merges them by their scores; of equals the smaller
        position first.
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
