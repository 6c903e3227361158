"""Which layouts a stored variable can have, given the tables in it and their numbers of rows.

    sparse_core  any number of cores that divides the rows of the variable and leaves room for all
                 tables; the tables packed in any order; each rotated by any number of cores
    mod          any number of partitions, if the table is the whole variable
    plain        rows in order, if the variable holds one table

Pure, no I/O. Candidates come in families of one number of cores and one offset, so that all
rotations are computed at once.

Source: TensorFlow 2.20, python/tpu/tpu_embedding_v3_utils.py; jax-tpu-embedding 0.1.0,
sparsecore/lib/nn/table_stacking.py: both pad each table to a multiple of 8 rows on each core, and
place the tables of a stack one behind the other.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from export.checkpoint.layouts import Layout, Mod, Plain, SparseCore, stored_rows

CORE_ROWS_MULTIPLE = 8
"""Tables are padded to a multiple of this number of rows on each SparseCore."""
PARTITIONS_MAX = 128
"""The maximum number of partitions of `mod`, unless the variable is saved in more slices. Training
programs have one partition per parameter server or host.
"""
CORES_MAX = 1 << 16
"""The maximum number of SparseCores of a training job. The largest TPU slices have half as many."""
OFFSETS_MAX = 256
"""The approximate maximum number of offsets of a table in a stack that are tried for one number of
cores. More offsets find tables in larger stacks and take longer.
"""
_DEVICE_CORES = (1, 2, 4)
"""Possible numbers of SparseCores of a device. Rotations are multiples of this number unless a
program sets others.
"""


@dataclass(frozen=True)
class Family:
    """Layouts that differ in their rotation alone, or a single layout of another kind.

    Attributes:
      layout: The layout with rotation 0.
      rotations: [k] int64, ascending; [0] where the kind has no rotation.
    """

    layout: Layout
    rotations: NDArray[np.int64]

    @classmethod
    def of(cls, layout: Layout) -> Family:
        """Returns the family of one layout alone."""
        if not isinstance(layout, SparseCore):
            return cls(layout, np.zeros(1, np.int64))
        return cls(replace(layout, rotation=0), np.array([layout.rotation], np.int64))

    def stored_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns [n, k] int64: the stored row of each of [n] int64 rows, by each layout."""
        if not isinstance(self.layout, SparseCore):
            return stored_rows(self.layout, rows)[:, None]
        layout = self.layout
        # The formula of `layouts.SparseCore`, for all rotations at once.
        core = (rows[:, None] + self.rotations) % layout.cores
        row_on_core = layout.offset + rows // layout.cores
        return core * layout.core_rows + row_on_core[:, None]

    def member(self, number: int) -> Layout:
        """Returns the layout with rotation number `number`."""
        if not isinstance(self.layout, SparseCore):
            return self.layout
        return replace(self.layout, rotation=int(self.rotations[number]))

    def overlaps(self, rows: int, layout: Layout, layout_rows: int) -> bool:
        """Returns whether a table of `rows` rows, by any layout of this family, and a table of
        `layout_rows` rows by `layout` take the same rows of each core.
        """
        first, end = _core_range(self.layout, rows)
        other_first, other_end = _core_range(layout, layout_rows)
        return first < other_end and other_first < end


def _core_range(layout: Layout, rows: int) -> tuple[int, int]:
    """Returns the rows [first, end) that a table takes on each core; of a layout without cores, the
    table takes the whole variable.
    """
    if not isinstance(layout, SparseCore):
        return 0, rows
    return layout.offset, layout.offset + ceil_div(rows, layout.cores)


def families(
    stored_rows: int, table_rows: Sequence[int], number: int, slices: Sequence[int], *, usual: bool
) -> Iterator[Family]:
    """Yields the layouts that one table of a variable can have.

    Args:
      stored_rows: The number of rows of the variable.
      table_rows: The numbers of rows of all its tables.
      number: The position of the table among them.
      slices: The first stored rows of the slices that the variable is saved in, which may be the
        partitions of `mod`.
      usual: Whether only rotations that programs choose by themselves are considered: the number
        of the table in the stack times the SparseCores of a device.
    """
    numbers_of_cores = _core_counts(stored_rows, table_rows)
    if len(table_rows) == 1:
        yield Family.of(Plain())
        # Partitions of `mod` have no padding.
        if table_rows[0] == stored_rows:
            yield from _partitions(stored_rows, slices, numbers_of_cores)

    for cores in numbers_of_cores:
        core_rows = stored_rows // cores
        rotations = np.arange(cores, dtype=np.int64)
        if usual:
            steps = {
                number_in_stack * step % cores
                for number_in_stack in range(len(table_rows))
                for step in _DEVICE_CORES
            }
            rotations = np.array(sorted(steps), np.int64)
        for offset in _offsets(cores, core_rows, table_rows, number):
            yield Family(SparseCore(cores, core_rows, offset, 0), rotations)


def _core_counts(stored_rows: int, table_rows: Sequence[int]) -> list[int]:
    """Returns the numbers of SparseCores over which a variable can be spread, ascending; each core
    holds at least the rows to which programs pad.

    One core is the order of the rows, which a table alone in its variable has as `plain`.
    """
    multiple = _multiple(stored_rows)
    first = 2 if len(table_rows) == 1 else 1
    last = min(CORES_MAX, stored_rows // CORE_ROWS_MULTIPLE)
    counts = []
    for cores in _divisors(stored_rows // multiple):
        rows_needed = sum(_core_rows(rows, cores, multiple) for rows in table_rows)
        if first <= cores <= last and rows_needed <= stored_rows // cores:
            counts.append(cores)
    return counts


def _multiple(rows: int) -> int:
    """Returns the multiple to which tables are padded in a variable or a core of `rows` rows."""
    # Other numbers of rows occur: then no program padded the tables.
    if rows % CORE_ROWS_MULTIPLE == 0:
        return CORE_ROWS_MULTIPLE
    return 1


def _core_rows(rows: int, cores: int, multiple: int) -> int:
    """Returns the rows that a table takes on each core, with its padding."""
    return ceil_div(ceil_div(rows, cores), multiple) * multiple


def _divisors(number: int) -> list[int]:
    low = [part for part in range(1, math.isqrt(number) + 1) if number % part == 0]
    return sorted({*low, *(number // part for part in low)})


def _offsets(cores: int, core_rows: int, table_rows: Sequence[int], number: int) -> list[int]:
    """Returns where a table can begin on each core: behind any of the other tables."""
    last = core_rows - ceil_div(table_rows[number], cores)
    multiple = _multiple(core_rows)
    # Tables may be packed in any order, so that any subset of the others can lie before this one.
    # The number of subsets doubles with each table, hence the limit.
    sums = {0}
    for position, rows in enumerate(table_rows):
        if position != number and len(sums) < OFFSETS_MAX:
            size = _core_rows(rows, cores, multiple)
            sums |= {before + size for before in sums}
    return sorted(offset for offset in sums if offset <= last)


def _partitions(
    rows: int, slices: Sequence[int], numbers_of_cores: Collection[int]
) -> Iterator[Family]:
    """Yields the layouts of `mod`. Partitions of equal size are as many cores, so that they are
    left out unless the variable is saved in such slices.
    """
    # A single partition has the rows in order, as `plain` does.
    counts = {len(slices), *range(2, min(rows, PARTITIONS_MAX) + 1)} - {0, 1}
    for partitions in sorted(counts):
        if partitions in numbers_of_cores and partitions != len(slices):
            continue
        short, longer = divmod(rows, partitions)
        sizes = [short + (partition < longer) for partition in range(partitions)]
        yield Family.of(Mod((0, *accumulate(sizes[:-1]))))
