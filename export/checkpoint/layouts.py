"""Which row of a stored variable holds row r of a table: one formula for every training layout.
Pure, no I/O.

A layout deals the rows of a table to `lanes`, one after the other, as cards are dealt. Row r goes
to lane r % lanes, where it is row r // lanes; the rows of a lane follow one another in the variable
from the lane's base on:

    stored row = bases[r % lanes] + r // lanes

    plain        one lane from row 0: the table is the variable
    mod          TF1's partition_strategy="mod": a lane is a partition, its base the first row
    sparse_core  a lane is a sparse core shard; tables share the variable (a stack), each rotated

The columns of a table are the first ones of the variable; what is right of them, or behind the last
row of a lane, is padding or another table of the stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div

Kind = Literal["plain", "mod", "sparse_core"]


@dataclass(frozen=True, slots=True)
class Plain:
    """Row r of the table is row r of the variable, which may be cut into slices in any way."""

    kind: ClassVar[Kind] = "plain"

    @property
    def lanes(self) -> int:
        """The number of lanes: one."""
        return 1

    def bases(self) -> NDArray[np.int64]:
        """Returns [lanes] int64: the first stored row of each lane."""
        return np.zeros(1, np.int64)


@dataclass(frozen=True, slots=True)
class Mod:
    """Row r is row r // P of partition r % P. The first partitions have one row more where P does
    not divide the rows.

    Attributes:
      starts: First stored row of each partition.
    Source: TensorFlow 2.20, python/ops/embedding_ops.py, embedding_lookup with
    partition_strategy="mod".
    """

    kind: ClassVar[Kind] = "mod"
    starts: tuple[int, ...]

    @property
    def lanes(self) -> int:
        """The number of lanes, which are partitions."""
        return len(self.starts)

    def bases(self) -> NDArray[np.int64]:
        """Returns [lanes] int64: the first stored row of each lane."""
        return np.array(self.starts, np.int64)


@dataclass(frozen=True, slots=True)
class SparseCore:
    """Row r lies on sparse core (r + rotation) % cores, at row offset + r // cores of its shard.

    Attributes:
      cores: Sparse cores, over all chips.
      core_rows: Rows of the variable that each core holds, all tables of the stack and their
        padding together.
      offset: First row of this table in each core's shard.
      rotation: Cores by which this table is turned, so that the first rows of stacked tables lie on
        different cores.
    Source: TensorFlow 2.20, python/tpu/tpu_embedding_v3_utils.py (SparseCoreTableLayout);
    jax-tpu-embedding 0.1.0, sparsecore/lib/nn/table_stacking.py, compute_physical_row_ids, is the
    same formula.
    """

    kind: ClassVar[Kind] = "sparse_core"
    cores: int
    core_rows: int
    offset: int
    rotation: int

    @property
    def lanes(self) -> int:
        """The number of lanes, which are SparseCores."""
        return self.cores

    def bases(self) -> NDArray[np.int64]:
        """Returns [lanes] int64: the first stored row of each lane."""
        core = (np.arange(self.cores, dtype=np.int64) + self.rotation) % self.cores
        return core * self.core_rows + self.offset


Layout = Plain | Mod | SparseCore


def lane_ranges(layout: Layout, first: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yields the stored rows [first, end) of each lane that holds some of rows [first, first +
    rows) of a table.
    """
    lanes = layout.lanes
    bases = layout.bases().tolist()
    # Where there are fewer rows than lanes, the other lanes hold none of them.
    for turn in range(min(lanes, rows)):
        row = first + turn
        start = bases[row % lanes] + row // lanes
        yield start, start + ceil_div(rows - turn, lanes)


def fits(layout: Layout, rows: int, dim: int, stored: tuple[int, int]) -> bool:
    """Returns whether a variable can hold a table: no row and no column lies outside the variable.

    The variable may have padding rows and columns, but for `mod`, whose partitions hold nothing
    but the table.

    Args:
      layout: Which row of the variable holds row r.
      rows, dim: The shape of the table.
      stored: The shape of the variable.
    """
    if not 1 <= rows <= stored[0] or not 1 <= dim <= stored[1]:
        return False
    if isinstance(layout, Mod) and rows != stored[0]:
        return False
    # The last row of each lane has the highest stored row of the lane.
    last = np.arange(max(0, rows - layout.lanes), rows)
    return bool(stored_rows(layout, last).max() < stored[0])


def occupied(layout: Layout, rows: int) -> list[tuple[int, int]]:
    """Returns the stored rows that a table takes, as ranges [first, end) in ascending order; none
    overlap.

    Raises:
      ValueError: Two lanes of the layout overlap, as no layout's do.
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


class StoredOrder:
    """The rows of a table in the order in which a variable stores them, without a list of them."""

    def __init__(self, layout: Layout, rows: int, *, descending: bool = False) -> None:
        """Orders the lanes.

        Args:
          layout: Which row of the variable holds row r.
          rows: The number of rows of the table.
          descending: Whether the row that is stored last comes first.
        """
        self._last = None
        if descending:
            self._last = rows - 1
        self._lanes = layout.lanes
        self._lane_at = np.argsort(layout.bases(), kind="stable")
        # ceil((rows - lane) / lanes): the first lanes have one row more.
        lane_rows = (rows - self._lane_at + self._lanes - 1) // self._lanes
        self._starts: NDArray[np.int64] = np.concatenate([[0], np.cumsum(lane_rows)])
        # The argsort of a permutation is its inverse.
        self._number_of_lane = np.argsort(self._lane_at)

    def rows_at(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns [n] int64: the rows at the [n] int64 ranks, each in [0, rows)."""
        if self._last is not None:
            ranks = self._last - ranks
        lane_number = np.searchsorted(self._starts, ranks, side="right") - 1
        rows: NDArray[np.int64] = (
            self._lane_at[lane_number] + (ranks - self._starts[lane_number]) * self._lanes
        )
        return rows

    def ranks_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns [n] int64: at which rank each of [n] int64 rows comes."""
        ranks = self._starts[self._number_of_lane[rows % self._lanes]] + rows // self._lanes
        if self._last is not None:
            ranks = self._last - ranks
        return np.asarray(ranks)


def place_alike(first: Layout, second: Layout, rows: int) -> bool:
    """Returns whether two layouts place every row of a table alike."""
    if first == second:
        return True
    # Lanes repeat, so two rounds of the longer ones represent all rows.
    round_rows = 2 * max(first.lanes, second.lanes) + 1
    rounds = np.arange(min(rows, round_rows), dtype=np.int64)
    last = np.arange(max(0, rows - 2), rows, dtype=np.int64)
    sample = np.concatenate([rounds, last])
    return bool(np.array_equal(stored_rows(first, sample), stored_rows(second, sample)))


def layout_text(layout: Layout) -> str:
    """Returns a layout for reading, such as `32 cores, offset 8, rotation 4`."""
    if isinstance(layout, Plain):
        return "rows in order"
    if isinstance(layout, Mod):
        return f"mod over {layout.lanes} partitions"
    parts = ["1 core"]
    if layout.cores > 1:
        parts = [f"{layout.cores} cores"]
    if layout.offset:
        parts.append(f"offset {layout.offset}")
    if layout.rotation:
        parts.append(f"rotation {layout.rotation}")
    return ", ".join(parts)
