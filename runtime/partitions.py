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
from bundle.format.indexes import CANDIDATES_MAX, Engine
from bundle.format.manifest import Distance
from bundle.tables.segments import RowRange, cut
from runtime.candidate_index import CandidateIndex
from runtime.engines import open_engine
from runtime.errors import IndexUnreadable

Vectors = NDArray[np.float32]


def partition_rows(size: int, partitions: int) -> tuple[RowRange, ...]:
    """Returns the rows of each partition: all have the same length but the last, which may be
    shorter.

    There are fewer partitions than requested where this number of equal length leaves no row for
    the last. A request for the lower number returns the same partitions.
    """
    return cut(size, ceil_div(size, partitions))


def load_index(
    engine: Engine,
    directories: Sequence[Path],
    distance: Distance,
    vectors: Vectors,
    rows: Sequence[int] = (),
) -> CandidateIndex:
    """Loads an index from the directories of its partitions, or from its one directory; as
    `IndexEngine.load` does.

    Args:
      engine: The engine of the index.
      directories: The directories of the partitions, or the one directory.
      distance: The distance of the index.
      vectors: [size, dim] float32, the vectors of all partitions.
      rows: The number of rows of each partition. Empty: The numbers that `partition_rows` returns
        for a whole index.

    Raises:
      IndexUnreadable: The same as for `IndexEngine.load`; or there are more vectors than positions
        of 32 bits.
      LibraryMissing: The library of the engine is not installed.
    """
    if len(vectors) > CANDIDATES_MAX:
        raise IndexUnreadable(
            f"index {directories[0].parent.name!r} has {len(vectors)} vectors; positions have 32 "
            f"bits, for at most {CANDIDATES_MAX}"
        )
    opened_engine = open_engine(engine)
    if len(directories) == 1:
        return opened_engine.load(directories[0], distance, vectors)
    if not rows:
        rows = [partition.rows for partition in partition_rows(len(vectors), len(directories))]
    where = f"index {directories[0].parents[1].name!r}"
    if len(rows) != len(directories):
        raise IndexUnreadable(
            f"{where} has {len(directories)} partitions; {len(vectors)} vectors have {len(rows)}"
        )

    partitions = []
    for directory, count, end in zip(directories, rows, accumulate(rows), strict=True):
        own_vectors = vectors[end - count : end]
        name = f"{where}, {directory.name}"
        partition = opened_engine.load(directory, distance, own_vectors, name)
        partitions.append(partition)
    return PartitionedIndex(partitions, vectors)


class PartitionedIndex(CandidateIndex):
    """Finds the nearest candidates of all partitions. `leaves_to_search` applies to each partition,
    `reorder` to the merged candidates.

    Attributes:
      partitions: The partitions, in the order of their rows.
    """

    def __init__(self, partitions: Sequence[CandidateIndex], vectors: Vectors) -> None:
        """Takes indexes over ranges of rows that follow one another, and the vectors of all."""
        super().__init__(partitions[0].distance, vectors, partitions[0].reorder)
        self.partitions = partitions

    def scored_candidates(
        self, query: Vectors, pool: int, leaves_to_search: int | None = None
    ) -> tuple[NDArray[np.uint32], Vectors]:
        """Finds `pool` candidates in every partition, and merges them by their scores; of equal
        scores, the smaller position comes first. See `CandidateIndex.scored_candidates`.
        """
        position_parts = []
        score_parts = []
        first_row = 0
        for partition in self.partitions:
            # A partition cannot know how many of the best are its own, so that each has them all.
            count = min(pool, partition.size)
            positions, scores = partition.scored_candidates(query, count, leaves_to_search)
            position_parts.append(positions + np.uint32(first_row))
            score_parts.append(scores)
            first_row += partition.size

        merged_positions = np.concatenate(position_parts)
        merged_scores = np.concatenate(score_parts)
        best = np.lexsort((merged_positions, -merged_scores))[:pool]
        return merged_positions[best], merged_scores[best]
