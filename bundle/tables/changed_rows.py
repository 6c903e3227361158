"""Rows of a table that have other vectors than its files: immutable states, each made of the one
before.

The vectors lie in the change log, where they are read. A state has the rows that are changed, as
bits, and where the vector of each lies: 8 bytes for a row. Rows that changed last are kept apart,
so that a new state copies them alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.errors import RowOutOfRange
from bundle.tables.id_values import distinct
from bundle.tables.stored_rows import StoredRows, stored_bytes, vectors_of

Rows = NDArray[np.int64]
Vectors = NDArray[np.float32]
Offsets = NDArray[np.int64]
Words = NDArray[np.uint64]

_RECENT_MAX = 16_384
"""The maximum number of rows that are sorted apart from the others. A change copies the numbers of
these alone: 0.1 ms, in place of 10 ms for a million rows.
"""
_ONE = np.uint64(1)


class _Settled(NamedTuple):
    """The rows that have been changed for long. Without a search: the offset of a row is that of
    the number of changed rows before it.

    Attributes:
      bits: [w] uint64, a bit for each row of the table, from the lowest of the first number on.
      ranks: [w] uint32, the number of changed rows before each number of `bits`.
      offsets: [c] int64, the offset of each changed row in the log, in the order of the rows.
    """

    bits: Words
    ranks: NDArray[np.uint32]
    offsets: Offsets

    @property
    def rows(self) -> Rows:
        """[c] int64, ascending and distinct."""
        (words,) = self.bits.nonzero()
        bits = np.unpackbits(self.bits[words].view(np.uint8), bitorder="little").reshape(-1, 64)
        positions, bit_numbers = bits.nonzero()
        return 64 * words[positions] + bit_numbers

    def rank(self, rows: Rows) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Returns the number of changed rows before each row, and whether it is one itself.

        Args:
          rows: [n] int64, each less than the number of bits.
        """
        words = rows >> 6
        bits = self.bits[words]
        masks = _masks(rows)
        ranks = self.ranks[words].astype(np.intp)
        ranks += np.bitwise_count(bits & (masks - _ONE))
        return ranks, (bits & masks) != 0

    def with_room(self, word_count: int) -> _Settled:
        """Returns these rows with more bits.

        Args:
          word_count: The number of words of the bits, at least as many as here.
        """
        bits = np.zeros(word_count, np.uint64)
        bits[: self.bits.size] = self.bits
        ranks = np.full(word_count, self.offsets.size, np.uint32)
        ranks[: self.ranks.size] = self.ranks
        return _Settled(bits, ranks, self.offsets)

    def with_rows(self, rows: Rows, offsets: Offsets) -> _Settled:
        """Returns these rows and further ones, ascending and distinct, whose new offsets count."""
        ranks, is_known = self.rank(rows)
        all_offsets = _merged(self.offsets, ranks, is_known, offsets)
        bits = self.bits.copy()
        np.bitwise_or.at(bits, rows >> 6, _masks(rows))
        counts = np.bitwise_count(bits)
        return _Settled(bits, np.cumsum(counts, dtype=np.uint32) - counts, all_offsets)


class _Recent(NamedTuple):
    """The rows that changed last.

    Attributes:
      bits: [w] uint64, as of _Settled. Later states share them, so that a bit may be of a row that
        one of these has changed.
      rows: [c] int64, ascending and distinct.
      offsets: [c] int64, the offset of each row in the log.
    """

    bits: Words
    rows: Rows
    offsets: Offsets

    def with_rows(self, rows: Rows, offsets: Offsets) -> _Recent:
        """Returns these rows and further ones, ascending and distinct, whose new offsets count."""
        positions = self.rows.searchsorted(rows)
        is_known = np.zeros(rows.size, np.bool_)
        if self.rows.size:
            is_known = self.rows.take(positions, mode="clip") == rows
        all_rows = _merged(self.rows, positions, is_known, rows)
        all_offsets = _merged(self.offsets, positions, is_known, offsets)
        np.bitwise_or.at(self.bits, rows >> 6, _masks(rows))
        return _Recent(self.bits, all_rows, all_offsets)


class ChangedRows:
    """The changed rows of one table in one state. Immutable; safe for any number of threads.

    Attributes:
      dtype, dim: How the table stores a row.
      count: The number of changed rows.
    """

    def __init__(
        self,
        dtype: str,
        dim: int,
        count: int,
        settled: _Settled,
        recent: _Recent,
        log: NDArray[np.uint8],
    ) -> None:
        """Begins a state; callers use `none` and `with_rows`.

        Args:
          dtype: The dtype of the table.
          dim: The number of values of a row.
          count: The number of changed rows.
          settled: Rows.
          recent: Rows that changed since, which may be among the others.
          log: The log as it is mapped.
        """
        self.dtype = dtype
        self.dim = dim
        self.count = count
        self._settled = settled
        self._recent = recent
        self._log = log

    @classmethod
    def none(cls, dtype: str, dim: int) -> ChangedRows:
        """Returns the state of a table without changed rows.

        Args:
          dtype: The dtype of the table: float32, bfloat16, float16 or int8.
          dim: The number of values of a row.
        """
        settled = _Settled(np.zeros(1, np.uint64), np.zeros(1, np.uint32), np.empty(0, np.int64))
        return cls(dtype, dim, 0, settled, _no_recent(1), np.empty(0, np.uint8))

    @property
    def rows(self) -> Rows:
        """[count] int64, ascending and distinct, owned by the caller."""
        return distinct(np.concatenate([self._settled.rows, self._recent.rows]))

    @property
    def end_row(self) -> int:
        """The row behind the last one that is changed; 0: none is."""
        end_row = 0
        (words,) = self._settled.bits.nonzero()
        if words.size:
            last = int(words[-1])
            end_row = 64 * last + int(self._settled.bits[last]).bit_length()
        if self._recent.rows.size:
            end_row = max(end_row, int(self._recent.rows[-1]) + 1)
        return end_row

    def with_rows(self, rows: Rows, stored: StoredRows) -> ChangedRows:
        """Returns a state in which further rows are changed, or again; this one stays as it is.

        Args:
          rows: [n] int64, at least 0. The last one of duplicates counts.
          stored: The n rows in the log, whose memory has the rows of this state at their offsets.

        Raises:
          RowOutOfRange: A row is negative.
          ValueError: The stored rows are fewer or more, or of another size.
        """
        rows = np.asarray(rows, np.int64)
        expected = (rows.size, stored_bytes(self.dtype, self.dim))
        if (stored.offsets.size, stored.row_bytes) != expected:
            raise ValueError(
                f"{stored.offsets.size} rows of {stored.row_bytes} bytes; {expected[0]} of "
                f"{expected[1]} were expected"
            )
        if not rows.size:
            return self
        rows, offsets = _last_of_each(rows, stored.offsets)
        if rows[0] < 0:
            raise RowOutOfRange(f"row {rows[0]} is negative; a row of the table was expected")

        settled = self._settled
        recent = self._recent
        word_count = recent.bits.size
        end_word = int(rows[-1] >> 6) + 1
        has_room = end_word <= word_count
        if not has_room or recent.rows.size + rows.size > _RECENT_MAX:
            if not has_room:
                # Twice as many, so that a table that gets rows one by one seldom moves its bits.
                word_count = max(end_word, 2 * word_count)
                settled = settled.with_room(word_count)
            settled = settled.with_rows(recent.rows, recent.offsets)
            recent = _no_recent(word_count)
        if rows.size > _RECENT_MAX:
            settled = settled.with_rows(rows, offsets)
        else:
            recent = recent.with_rows(rows, offsets)
        # Counted by what this state has, before the new rows.
        count = self.count + int(np.count_nonzero(~self.contains(rows)))
        return ChangedRows(self.dtype, self.dim, count, settled, recent, stored.memory)

    def contains(self, rows: Rows) -> NDArray[np.bool_]:
        """Returns which of some rows are changed; negative ones never are.

        Args:
          rows: [n] int64, in any order.
        """
        is_changed = np.zeros(len(rows), np.bool_)
        positions, _ = self.find(rows)
        is_changed[positions] = True
        return is_changed

    def find(self, rows: Rows) -> tuple[NDArray[np.intp], StoredRows]:
        """Returns the positions, ascending, of those of some rows that are changed, and these rows
        as they lie in the log.

        Args:
          rows: [n] int64, in any order. Negative ones are never changed.
        """
        positions = self._candidates(rows)
        offsets = np.empty(0, np.int64)
        if positions.size:
            offsets = self._find(rows[positions])
            is_changed = offsets >= 0
            if not is_changed.all():
                positions = positions[is_changed]
                offsets = offsets[is_changed]
        return positions, StoredRows(self._log, offsets, stored_bytes(self.dtype, self.dim))

    def write(self, stored: StoredRows, positions: NDArray[np.intp], out: Vectors) -> None:
        """Writes the vectors of rows that `find` returned.

        Args:
          stored: The n rows.
          positions: [n], where they are written.
          out: [m, dim] float32 to write into.
        """
        if positions.size:
            out[positions] = vectors_of(stored.take(), self.dtype, self.dim)

    def _candidates(self, rows: Rows) -> NDArray[np.intp]:
        """Returns the positions of the rows that may be changed: most rows are not, and cost no
        more than their bits.
        """
        words = rows >> 6
        # A row that the bits do not have reads another one's bit.
        bits = self._settled.bits.take(words, mode="clip")
        if self._recent.rows.size:
            bits |= self._recent.bits.take(words, mode="clip")
        (positions,) = (bits & _masks(rows)).nonzero()
        if positions.size:
            candidates = rows[positions]
            is_here = (candidates >= 0) & (candidates < 64 * self._settled.bits.size)
            if not is_here.all():
                positions = positions[is_here]
        return positions

    def _find(self, rows: Rows) -> Offsets:
        """Returns the offset of each row in the log, -1 for those that are not changed.

        Args:
          rows: [n] int64, each less than the number of bits.
        """
        offsets = np.full(rows.size, -1, np.int64)
        settled = self._settled
        recent = self._recent
        if settled.offsets.size:
            ranks, is_settled = settled.rank(rows)
            offsets = settled.offsets.take(ranks, mode="clip")
            offsets[~is_settled] = -1
        if recent.rows.size:
            (positions,) = (recent.bits[rows >> 6] & _masks(rows)).nonzero()
            among = recent.rows.searchsorted(rows[positions])
            # A later state may have set the bit.
            is_recent = recent.rows.take(among, mode="clip") == rows[positions]
            offsets[positions[is_recent]] = recent.offsets[among[is_recent]]
        return offsets


def _no_recent(word_count: int) -> _Recent:
    empty = np.empty(0, np.int64)
    return _Recent(np.zeros(word_count, np.uint64), empty, empty)


def _masks(rows: Rows) -> Words:
    """Returns the bit of each row among those of its word, [n] uint64."""
    masks: Words = _ONE << (rows & 63).view(np.uint64)
    return masks


def _merged(
    values: Rows, positions: NDArray[np.intp], is_known: NDArray[np.bool_], new: Rows
) -> Rows:
    """Returns a copy of values with new ones.

    Args:
      values: [c], which other states share.
      positions: [n], ascending: where each new value is, or would be inserted.
      is_known: [n], whether it replaces a value.
      new: [n], the new values.
    """
    replaced = values.copy()
    replaced[positions[is_known]] = new[is_known]
    is_new = ~is_known
    return np.insert(replaced, positions[is_new], new[is_new])


def _last_of_each(rows: Rows, offsets: Offsets) -> tuple[Rows, Offsets]:
    """Returns rows in ascending order, each once, with the last offset of each."""
    if (rows[1:] > rows[:-1]).all():
        return rows, offsets
    # A stable sort keeps duplicates in the order in which they were sent.
    order = rows.argsort(kind="stable")
    ordered = rows[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)
    return ordered[is_last], offsets[order[is_last]]
