"""Rows of a table that have other vectors than its files: immutable states, each made of the one
before.

States share the memory of their vectors. A new state copies only the numbers of the rows that
changed last. Most rows can lie in a file that all processes map (`row_file.py`). Until they do, as
while a process starts, many of them lie in a file without a name, which this process alone maps.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.errors import RowOutOfRange, VectorRejected
from bundle.format.dtypes import narrowed, widened
from bundle.tables.id_values import distinct
from bundle.tables.row_file import RowFile

Rows = NDArray[np.int64]
Vectors = NDArray[np.float32]

_SLOTS_MIN = 64
"""The minimum capacity, so that the first few changes do not move the vectors each time."""
_RECENT_MAX = 16_384
"""The maximum number of rows that are sorted apart from the others. A change copies the numbers of
these alone: 0.02 ms, in place of 10 ms for a million rows.
"""
_COMPARED = 16_384
"""The number of rows that are compared or copied at a time, which bounds the memory for it."""
_UNMAPPED_BYTES = 16 << 20
"""The maximum size of the vectors in memory, where there is a directory for a file of them."""


class _Slots:
    """Memory of vectors, one in a slot. A slot is written once, before any state refers to it."""

    def __init__(self, capacity: int, dim: int, directory: Path | None) -> None:
        self.dim = dim
        self.directory = directory
        self.vectors = _empty_vectors(capacity, dim, directory)
        self._used = 0
        self._lock = threading.Lock()

    def add(self, vectors: Vectors) -> int | None:
        """Writes vectors into the next slots; returns the first one, or None if they do not fit."""
        with self._lock:
            first = self._used
            end = first + len(vectors)
            if end > len(self.vectors):
                return None
            self._used = end
        # Outside the lock: these slots are this caller's alone.
        self.vectors[first:end] = vectors
        return first


def _empty_vectors(capacity: int, dim: int, directory: Path | None) -> Vectors:
    """Returns room for vectors, [capacity, dim] float32: beyond 16 MiB, in a file without a name in
    a directory, whose pages the kernel can write to the disk and take back.
    """
    size = 4 * capacity * dim
    if directory is not None and size > _UNMAPPED_BYTES:
        # Without room on the disk, or on one that is only read, it is memory as below.
        with suppress(OSError), tempfile.TemporaryFile(dir=directory) as file:
            os.posix_fallocate(file.fileno(), 0, size)  # a disk that is full later ends no process
            mapped = mmap.mmap(file.fileno(), size)
            return np.frombuffer(mapped, np.float32).reshape(capacity, dim)
    return np.empty((capacity, dim), np.float32)


class _MemoryRows(NamedTuple):
    """Changed rows whose vectors are in memory.

    Attributes:
      rows: [c] int64, ascending and distinct.
      slots: [c] int64, the slot of each row.
    """

    rows: Rows
    slots: Rows

    def find(self, rows: Rows) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Returns the position of each row, or where it would be inserted, and whether it is one of
        these rows.
        """
        return _find(self.rows, rows)

    def merged(self, rows: Rows, slots: Rows) -> _MemoryRows:
        """Returns these rows and further ones, ascending, whose new slots count."""
        positions, is_known = self.find(rows)
        # Copied: other states share the arrays.
        merged_slots = self.slots.copy()
        merged_slots[positions[is_known]] = slots[is_known]
        if is_known.all():
            return _MemoryRows(self.rows, merged_slots)
        is_new = ~is_known
        before = positions[is_new]
        return _MemoryRows(
            np.insert(self.rows, before, rows[is_new]),
            np.insert(merged_slots, before, slots[is_new]),
        )


_EMPTY = _MemoryRows(np.empty(0, np.int64), np.empty(0, np.int64))


class Exchange(NamedTuple):
    """How a file of changed rows differs from the one before.

    Attributes:
      before: The file before; None: there was none.
      file: The file.
      lacking: [n] int64, rows of the file before that this one does not have to the bit.
      further: [n] int64, rows that the file before does not have.
    """

    before: RowFile | None
    file: RowFile
    lacking: Rows
    further: Rows


class ChangedRows:
    """The changed rows of one table in one state. Immutable; safe for any number of threads.

    A row may be in a file and in memory: then that in memory counts.

    Attributes:
      count: The number of changed rows.
      memory_count: The number of changed rows that are read from memory.
      file: The file that has most of them; None: all are in memory.
    """

    def __init__(
        self,
        memory: _Slots,
        settled: _MemoryRows,
        recent: _MemoryRows,
        file: RowFile | None,
        count: int,
        memory_count: int,
    ) -> None:
        """Begins a state; callers use `none`, and the methods that derive a state from another one.

        Args:
          memory: Holds the slots.
          settled: Rows in memory.
          recent: Rows that changed since, which may be among the others.
          file: Rows in a file, which may be in memory, too; None: there is none.
          count: The number of changed rows.
          memory_count: The number of changed rows in memory.
        """
        self.count = count
        self.memory_count = memory_count
        self.file = file
        self._memory = memory
        self._settled = settled
        self._recent = recent

    @classmethod
    def none(cls, dim: int, directory: Path | None = None) -> ChangedRows:
        """Returns the state of a table without changed rows.

        Args:
          dim: The number of values of a row.
          directory: The directory for a file of the vectors of this state and of states that follow
            it, where they take more than 16 MiB; None: they are in memory.
        """
        return cls(_Slots(0, dim, directory), _EMPTY, _EMPTY, None, 0, 0)

    @property
    def dim(self) -> int:
        """Number of values of a row."""
        return self._memory.dim

    @property
    def memory_bytes(self) -> int:
        """Bytes of the vectors that are in memory."""
        return 4 * self.dim * (self._settled.rows.size + self._recent.rows.size)

    @property
    def rows(self) -> Rows:
        """[count] int64, ascending and distinct, owned by the caller."""
        rows = [self._settled.rows, self._recent.rows]
        if self.file is not None:
            rows.append(self.file.rows)
        return distinct(np.concatenate(rows))

    @property
    def end_row(self) -> int:
        """The row behind the last one that is changed; 0: none is."""
        end_row = 0
        arrays = [self._settled.rows, self._recent.rows]
        if self.file is not None:
            arrays.append(self.file.rows)
        # Each of them ascends.
        for rows in arrays:
            if rows.size:
                end_row = max(end_row, int(rows[-1]) + 1)
        return end_row

    @property
    def vectors(self) -> Vectors:
        """[count, dim] float32, owned by the caller: the vectors of `rows`."""
        return self.vectors_of(self.rows)

    def vectors_of(self, rows: Rows) -> Vectors:
        """Returns the vectors of changed rows.

        Args:
          rows: [n] int64, in any order; all are changed.

        Returns:
          [n, dim] float32.
        """
        vectors: Vectors = np.empty((rows.size, self.dim), np.float32)
        self.replace(rows, vectors)
        return vectors

    def with_rows(self, rows: Rows, vectors: Vectors) -> ChangedRows:
        """Returns a state in which further rows are changed, or again; this one stays as it is.

        Args:
          rows: [n] int64, at least 0. The last one of duplicates counts.
          vectors: [n, dim] float32 as they are read, such as those that `rounded` returns.

        Raises:
          RowOutOfRange: A row is negative.
          ValueError: The vectors do not have the shape [n, dim].
        """
        rows = np.asarray(rows, np.int64)
        vectors = np.asarray(vectors, np.float32)
        expected = (rows.size, self.dim)
        if vectors.shape != expected:
            raise ValueError(f"vectors of shape {vectors.shape}; {expected} was expected")
        if not rows.size:
            return self
        rows, vectors = _last_of_each(rows, vectors)
        if rows[0] < 0:
            raise RowOutOfRange(f"row {rows[0]} is negative; a row of the table was expected")

        memory = self._memory
        settled = self._settled
        recent = self._recent
        first = memory.add(vectors)
        if first is None:
            # Only the vectors of this state move. As many as they are fit in before they move
            # again, so that a change copies two vectors on average.
            settled = settled.merged(*recent)
            recent = _EMPTY
            settled_count = settled.rows.size
            memory = self._slots_for(settled_count + rows.size)
            for start in range(0, settled_count, _COMPARED):
                slots = settled.slots[start : start + _COMPARED]
                memory.add(self._memory.vectors.take(slots, axis=0))
            memory.add(vectors)
            settled = _MemoryRows(settled.rows, np.arange(settled_count))
            first = settled_count
        recent = recent.merged(rows, first + np.arange(rows.size))
        if recent.rows.size > _RECENT_MAX:
            settled = settled.merged(*recent)
            recent = _EMPTY

        # Counted by what this state has, before the new rows: each new one adds to the counts.
        is_in_memory = self._is_in_memory(rows)
        is_changed = is_in_memory | self._is_in_file(rows)
        count = self.count + int(np.count_nonzero(~is_changed))
        memory_count = self.memory_count + int(np.count_nonzero(~is_in_memory))
        return ChangedRows(memory, settled, recent, self.file, count, memory_count)

    def exchange(self, file: RowFile) -> Exchange:
        """Returns how a file differs from that of this state, for `with_file`."""
        before = self.file
        if before is None:
            empty = np.empty(0, np.int64)
            return Exchange(None, file, empty, file.rows)
        is_further = ~_find(before.rows, file.rows)[1]
        return Exchange(before, file, _differing_rows(before, file), file.rows[is_further])

    def with_file(self, exchange: Exchange) -> ChangedRows | None:
        """Returns a state with the same vectors, in which rows that a file has are not in memory.

        Args:
          exchange: The exchange of the file, and of a state with the same file as this one.

        Returns:
          The state; None: this state does not have all rows of the file, or another file.
        """
        if exchange.before is not self.file:
            return None
        # Further rows of the file that are not in memory are not changed in this state.
        in_memory = self._settled.merged(*self._recent).rows
        if not _find(in_memory, exchange.further)[1].all():
            return None

        # Rows that changed since the file was written stay in memory.
        candidates = distinct(np.concatenate([in_memory, exchange.lacking]))
        differing = [np.empty(0, np.int64)]
        for start in range(0, candidates.size, _COMPARED):
            rows = candidates[start : start + _COMPARED]
            differing.append(rows[~_is_equal(exchange.file, rows, self.vectors_of(rows))])
        memory_rows = np.concatenate(differing)
        memory = self._slots_for(memory_rows.size)
        for start in range(0, memory_rows.size, _COMPARED):
            memory.add(self.vectors_of(memory_rows[start : start + _COMPARED]))
        settled = _MemoryRows(memory_rows, np.arange(memory_rows.size))
        return ChangedRows(memory, settled, _EMPTY, exchange.file, self.count, memory_rows.size)

    def contains(self, rows: Rows) -> NDArray[np.bool_]:
        """Returns which of some rows are changed; negative ones never are.

        Args:
          rows: [n] int64, in any order.
        """
        return self._is_in_memory(rows) | self._is_in_file(rows)

    def replace(self, rows: Rows, out: Vectors) -> None:
        """Writes the vectors of changed rows over the vectors that were read of the table.

        Args:
          rows: [n] int64, in any order. Negative ones are never changed.
          out: [n, dim] float32 of these rows.
        """
        # From the oldest vectors to the latest, which therefore count.
        if self.file is not None:
            positions, is_changed = _find(self.file.rows, rows)
            (changed,) = is_changed.nonzero()
            if changed.size:
                out[changed] = self.file.vectors(positions[changed])
        for memory_rows in (self._settled, self._recent):
            if not memory_rows.rows.size:
                continue
            positions, is_changed = memory_rows.find(rows)
            (changed,) = is_changed.nonzero()
            if changed.size:
                slots = memory_rows.slots[positions[changed]]
                out[changed] = self._memory.vectors.take(slots, axis=0)

    def _slots_for(self, count: int) -> _Slots:
        """Returns slots for some vectors, and for as many again."""
        return _Slots(max(_SLOTS_MIN, 2 * count), self.dim, self._memory.directory)

    def _is_in_memory(self, rows: Rows) -> NDArray[np.bool_]:
        _, is_in_memory = self._recent.find(rows)
        if self._settled.rows.size:
            is_in_memory = is_in_memory | self._settled.find(rows)[1]
        return is_in_memory

    def _is_in_file(self, rows: Rows) -> NDArray[np.bool_]:
        if self.file is None:
            return np.zeros(len(rows), np.bool_)
        return _find(self.file.rows, rows)[1]


def _find(ascending: Rows, rows: Rows) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Returns the position of each row among ascending ones, or where it would be inserted, and
    whether it is one of them.
    """
    positions = ascending.searchsorted(rows)
    if not ascending.size:
        return positions, np.zeros(len(rows), np.bool_)
    is_known: NDArray[np.bool_] = ascending.take(positions, mode="clip") == rows
    return positions, is_known


def _is_equal(file: RowFile, rows: Rows, vectors: Vectors) -> NDArray[np.bool_]:
    """Returns which rows a file has with the same vectors, to the bit."""
    positions, is_known = _find(file.rows, rows)
    (numbers,) = is_known.nonzero()
    # As bits: 0 and -0 are equal as numbers.
    stored_bits = file.vectors(positions[numbers]).view(np.uint32)
    expected_bits = vectors[numbers].view(np.uint32)
    is_equal = np.zeros(rows.size, np.bool_)
    is_equal[numbers] = (stored_bits == expected_bits).all(axis=1)
    return is_equal


def _differing_rows(before: RowFile, file: RowFile) -> Rows:
    """Returns the rows of a file that another one does not have with the same vectors."""
    differing = [np.empty(0, np.int64)]
    for start in range(0, before.rows.size, _COMPARED):
        rows = before.rows[start : start + _COMPARED]
        vectors = before.vectors(np.arange(start, start + rows.size))
        differing.append(rows[~_is_equal(file, rows, vectors)])
    return np.concatenate(differing)


def rounded(vectors: Vectors, dtype: str) -> Vectors:
    """Returns vectors as they are read after a table has stored them, to the bits that an export of
    them gives.

    Rounded vectors stay as they are.

    Args:
      vectors: [n, dim] float32.
      dtype: The dtype of the table: float32, bfloat16, float16 or int8.

    Returns:
      [n, dim] float32.

    Raises:
      VectorRejected: A value is NaN or infinite, or too large for the dtype; names the position of
        its vector.
    """
    vectors = np.asarray(vectors, np.float32)
    _check_finite(vectors, vectors, "a finite number")
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        stored, scales = narrowed(vectors, dtype)
        read = widened(stored, dtype, scales)
    _check_finite(read, vectors, f"a number that {dtype} holds")
    return read


def _check_finite(read: Vectors, vectors: Vectors, expected: str) -> None:
    """Checks that vectors are read as finite numbers.

    Raises:
      VectorRejected: One is not; names the value.
    """
    is_finite = np.isfinite(read)
    if is_finite.all():
        return
    position, column = np.argwhere(~is_finite)[0].tolist()
    value = vectors[position, column]
    raise VectorRejected(position, f"{value:g} in column {column}", expected)


def _last_of_each(rows: Rows, vectors: Vectors) -> tuple[Rows, Vectors]:
    """Returns rows in ascending order, each once, with the last vector of each."""
    if (rows[1:] > rows[:-1]).all():
        return rows, vectors
    # A stable sort keeps duplicates in the order in which they were sent.
    order = rows.argsort(kind="stable")
    ordered = rows[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)
    return ordered[is_last], vectors[order[is_last]]
