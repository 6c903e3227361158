"""Which row of a stored variable holds row r of a table: one formula for every training layout. Pure, no I/O.

A layout deals the rows of a table to `lanes`, one after the other, as cards are dealt. Row r goes to lane r % lanes,
where it is row r // lanes; the rows of a lane follow one another in the variable from the lane's base on:

    stored row = bases[r % lanes] + r // lanes

    plain        one lane from row 0: the table is the variable
    mod          TF1's partition_strategy="mod": a lane is a partition, its base the partition's first row
    sparse_core  a lane is a sparse core shard; several tables share the variable (a stack), each turned by its rotation

The columns of a table are the first ones of the variable; what is right of them, or in no lane, is padding or another
table of the stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["plain", "mod", "sparse_core"]


@dataclass(frozen=True, slots=True)
class Plain:
    """Row r of the table is row r of the variable, which may be cut into slices in any way."""

    kind: ClassVar[Kind] = "plain"

    @property
    def lanes(self) -> int:
        """One."""
        return 1

    def bases(self) -> NDArray[np.int64]:
        """Returns [lanes] int64: the first stored row of each lane."""
        return np.zeros(1, np.int64)


@dataclass(frozen=True, slots=True)
class Mod:
    """Row r is row r // P of partition r % P. The first partitions have one row more where P does not divide the rows.

    Attributes:
      starts: first stored row of each partition.
    Source: TensorFlow 2.20, python/ops/embedding_ops.py, embedding_lookup with partition_strategy="mod".
    """

    kind: ClassVar[Kind] = "mod"
    starts: tuple[int, ...]

    @property
    def lanes(self) -> int:
        """Partitions."""
        return len(self.starts)

    def bases(self) -> NDArray[np.int64]:
        """Returns [lanes] int64: the first stored row of each lane."""
        return np.array(self.starts, np.int64)


@dataclass(frozen=True, slots=True)
class SparseCore:
    """Row r lies on sparse core (r + rotation) % cores, at row offset + r // cores of its shard.

    Attributes:
      cores: sparse cores, over all chips.
      core_rows: rows of the variable that each core holds, all tables of the stack and their padding together.
      offset: first row of this table in each core's shard.
      rotation: cores by which this table is turned, so that the first rows of stacked tables lie on different cores.
    Source: TensorFlow 2.20, python/tpu/tpu_embedding_v3_utils.py (SparseCoreTableLayout); jax-tpu-embedding 0.1.0,
    sparsecore/lib/nn/table_stacking.py, compute_physical_row_ids, is the same formula.
    """

    kind: ClassVar[Kind] = "sparse_core"
    cores: int
    core_rows: int
    offset: int
    rotation: int

    @property
    def lanes(self) -> int:
        """Sparse cores."""
        return self.cores

    def bases(self) -> NDArray[np.int64]:
        """Returns [lanes] int64: the first stored row of each lane."""
        core = (np.arange(self.cores, dtype=np.int64) + self.rotation) % self.cores
        return core * self.core_rows + self.offset


Layout = Plain | Mod | SparseCore


def lane_ranges(layout: Layout, first: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yields the stored rows [first, end) of each lane that holds some of rows [first, first + rows) of a table."""
    lanes, bases = layout.lanes, layout.bases().tolist()
    for place in range(min(lanes, rows)):
        row = first + place
        start = bases[row % lanes] + row // lanes
        yield start, start + -(-(rows - place) // lanes)


def occupied(layout: Layout, rows: int) -> list[tuple[int, int]]:
    """Returns the stored rows that a table takes, as ranges [first, end) in ascending order; none overlap.

    Raises:
      ValueError: two lanes of the layout overlap, as no layout's do.
    """
    joined: list[tuple[int, int]] = []
    for first, end in sorted(lane_ranges(layout, 0, rows)):
        if joined and first < joined[-1][1]:
            raise ValueError(f"two lanes hold stored row {first}")
        if joined and first == joined[-1][1]:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((first, end))
    return joined


def stored_rows(layout: Layout, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns [n] int64: the stored row of each of the table's [n] int64 rows."""
    return layout.bases()[rows % layout.lanes] + rows // layout.lanes
