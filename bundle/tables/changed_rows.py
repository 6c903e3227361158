"""Rows of a table that have other vectors than its files: immutable states, each made of the one
before.

States share the memory of their vectors. A new state copies only the numbers of its rows, so that
100,000 changed rows can change again a hundred times per second.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from bundle.errors import RowOutOfRange, VectorRefused
from bundle.format.dtypes import narrowed, widened

Rows = NDArray[np.int64]
Vectors = NDArray[np.float32]

_SLOTS_MIN = 64


class _Slots:
    """Memory of vectors, one in a slot. A slot is written once, before any state refers to it."""

    def __init__(self, capacity: int, dim: int) -> None:
        self.dim = dim
        self.vectors: Vectors = np.empty((capacity, dim), np.float32)
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
        self.vectors[first:end] = vectors
        return first


class ChangedRows:
    """The changed rows of one table in one state. Immutable; safe for any number of threads.

    Attributes:
      rows: [c] int64, ascending and distinct.
    """

    def __init__(self, rows: Rows, slots: Rows, memory: _Slots) -> None:
        """Begins a state; callers use `none` and `with_rows`.

        Args:
          rows: [c] int64, ascending and distinct.
          slots: [c] int64, the slot of each row.
          memory: Holds the slots.
        """
        self.rows = rows
        self.rows.setflags(write=False)
        self._slots = slots
        self._memory = memory

    @classmethod
    def none(cls, dim: int) -> ChangedRows:
        """Returns the state of a table without changed rows.

        Args:
          dim: Number of values of a row.
        """
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), _Slots(0, dim))

    @property
    def dim(self) -> int:
        """Number of values of a row."""
        return self._memory.dim

    @property
    def vectors(self) -> Vectors:
        """[c, dim] float32, owned by the caller: the vectors of `rows`."""
        vectors: Vectors = self._memory.vectors.take(self._slots, axis=0)
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
        slots = self._slots
        first = memory.add(vectors)
        if first is None:
            # Only the vectors of this state move. As many as they are fit in before they move
            # again, so that a change copies two vectors on average.
            count = self.rows.size + rows.size
            memory = _Slots(max(_SLOTS_MIN, 2 * count), self.dim)
            memory.add(self.vectors)
            memory.add(vectors)
            slots = np.arange(self.rows.size)
            first = self.rows.size
        return self._with_slots(rows, first + np.arange(rows.size), slots, memory)

    def _with_slots(
        self, rows: Rows, slots: Rows, older_slots: Rows, memory: _Slots
    ) -> ChangedRows:
        """Returns the state in which ascending rows have slots of their own."""
        positions, is_known = self._find(rows)
        merged_slots = older_slots.copy()
        merged_slots[positions[is_known]] = slots[is_known]
        if is_known.all():
            return ChangedRows(self.rows, merged_slots, memory)
        is_new = ~is_known
        before = positions[is_new]
        merged_rows = np.insert(self.rows, before, rows[is_new])
        merged_slots = np.insert(merged_slots, before, slots[is_new])
        return ChangedRows(merged_rows, merged_slots, memory)

    def contains(self, rows: Rows) -> NDArray[np.bool_]:
        """Returns which of some rows are changed; negative ones never are.

        Args:
          rows: [n] int64, in any order.
        """
        _, is_changed = self._find(rows)
        return is_changed

    def replace(self, rows: Rows, out: Vectors) -> None:
        """Writes the vectors of those rows that are changed over what was read of the table.

        Args:
          rows: [n] int64, in any order. Negative ones are never changed.
          out: [n, dim] float32 of these rows.
        """
        positions, is_changed = self._find(rows)
        (changed,) = is_changed.nonzero()
        if changed.size:
            slots = self._slots[positions[changed]]
            out[changed] = self._memory.vectors.take(slots, axis=0)

    def _find(self, rows: Rows) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Returns the position of each row among the changed ones, or where it would be inserted,
        and whether it is one of them.
        """
        positions = self.rows.searchsorted(rows)
        if not self.rows.size:
            return positions, np.zeros(len(rows), np.bool_)
        is_changed: NDArray[np.bool_] = self.rows.take(positions, mode="clip") == rows
        return positions, is_changed


def rounded(vectors: Vectors, dtype: str) -> Vectors:
    """Returns vectors as they are read after a table has stored them, to the bits that an export of
    them gives.

    Rounded vectors stay as they are.

    Args:
      vectors: [n, dim] float32.
      dtype: Of the table: float32, bfloat16, float16 or int8.

    Returns:
      [n, dim] float32.

    Raises:
      VectorRefused: A value is NaN or infinite, or too large for the dtype; names the position of
        its vector.
    """
    vectors = np.asarray(vectors, np.float32)
    _check_finite(vectors, vectors, "a finite number was expected")
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        stored, scales = narrowed(vectors, dtype)
        read = widened(stored, dtype, scales)
    _check_finite(read, vectors, f"a smaller number was expected: the table stores {dtype}")
    return read


def _check_finite(read: Vectors, vectors: Vectors, expected: str) -> None:
    """Checks that vectors are read as finite numbers.

    Raises:
      VectorRefused: One is not; names the value.
    """
    is_finite = np.isfinite(read)
    if is_finite.all():
        return
    position, column = np.argwhere(~is_finite)[0].tolist()
    value = vectors[position, column]
    raise VectorRefused(position, f"column {column} holds {value:g}; {expected}")


def _last_of_each(rows: Rows, vectors: Vectors) -> tuple[Rows, Vectors]:
    """Returns rows in ascending order, each once, with the last vector of each."""
    if (rows[1:] > rows[:-1]).all():
        return rows, vectors
    order = rows.argsort(kind="stable")
    ordered = rows[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)
    return ordered[is_last], vectors[order[is_last]]
