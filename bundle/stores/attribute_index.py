"""Positions of candidates by the value of one attribute: an inverted index, mapped, for filters.

Values are int64 (of a bool 0 and 1), double, or strings (those of a list one by one), distinct and
ascending; strings in the order of their UTF-8 bytes. The positions of each ascend. Nulls, NaN and
empty lists have none.
"""

from __future__ import annotations

import filecmp
import os
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FormatError
from bundle.format import manifest
from bundle.format.indexes import CANDIDATES_MAX
from bundle.storage import arrow, files
from bundle.tables.id_values import distinct
from bundle.tables.position_sets import PositionSet
from bundle.tables.segments import RowRange

Positions = NDArray[np.uint32]
Bound = int | float | None

# The columns of the file of values: each value, and where its positions end in the file of rows.
_VALUE = "value"
_END = "end"
_MERGED_MIN = 1 << 20
"""The number of values of slices of a store that are merged at a time."""

_ONE_BY_ONE_MAX = 20
"""The maximum number of strings that are found one after the other: a call of Arrow takes longer
than a few steps of Python.
"""

_COPIED_MAX = 1000
"""The maximum number of values whose positions are copied one value after the other: a few values
have many positions each. The positions of more values are gathered at once.
"""


class Bounds(NamedTuple):
    """Bounds of a number; None: there is none on that side.

    Attributes:
      ge, le: The smallest and the largest number.
      gt, lt: The numbers above and below which it has to lie.
    """

    ge: Bound = None
    gt: Bound = None
    le: Bound = None
    lt: Bound = None


ANY_VALUE = Bounds()
"""No bounds: whatever has a value is within them."""


class DistinctValues(NamedTuple):
    """The values of an attribute, without nulls, and which candidates have them.

    Attributes:
      values: A `pyarrow.Array` as an index stores them; what `of_column` returns is distinct.
      positions: [n] int64, the candidate of each pair of a candidate and a value that it has. Each
        pair comes once; positions ascend.
      numbers: [n] int64, the number of the value of each pair.
    """

    values: Any
    positions: NDArray[np.int64]
    numbers: NDArray[np.int64]

    @staticmethod
    def of_column(column: Any) -> DistinctValues:
        """Returns the values of a `pyarrow.Array` of the attribute."""
        import pyarrow as pa
        import pyarrow.compute as pc

        # One owner of each value, also of lists, which are laid flat.
        owners = np.arange(len(column))
        values = column
        if pa.types.is_large_list(column.type):
            lengths = pc.fill_null(pc.list_value_length(column), 0)
            owners = np.repeat(owners, lengths.to_numpy())
            values = column.flatten()
        owners = owners[values.is_valid().to_numpy(zero_copy_only=False)]
        values = values.drop_null().cast(_stored_type(arrow.kind_of(values.type)))
        if pa.types.is_floating(values.type):
            values = pc.add(values, 0.0)  # -0 becomes 0, which it equals
        # Pairs as single numbers, owner * count + value: sorted and distinct in one step.
        encoded = values.dictionary_encode()
        count = max(1, len(encoded.dictionary))
        pairs = distinct(owners * count + encoded.indices.to_numpy())
        return DistinctValues(encoded.dictionary, *np.divmod(pairs, count))


class AttributeIndex:
    """Candidates by the value of one attribute. Safe for any number of threads; none of it stays in
    memory.

    Attributes:
      kind: The Arrow type of the attribute: int64, double, string, bool or list<string>.
    """

    def __init__(
        self,
        directory: Path,
        entry: manifest.AttributeIndex,
        kind: str,
        size: int,
        served: RowRange | None = None,
    ) -> None:
        """Maps an index and checks all of it.

        Args:
          directory: The directory of the bundle.
          entry: The entry of the index in the manifest.
          kind: The Arrow type of the attribute.
          size: The number of candidates of the corpus.
          served: The candidates whose positions are returned, counted from the first of them. None:
            All candidates.

        Raises:
          DigestMismatch: A file is missing.
          FormatError: A file is not what the format says.
        """
        if size > CANDIDATES_MAX:
            raise FormatError(
                f"{entry.rows!r} holds positions of 32 bits, for at most {CANDIDATES_MAX} "
                f"candidates; the corpus has {size}"
            )
        self.kind = kind
        self._size = size
        self._served = served
        path = files.locate(directory, entry.rows)
        count, excess_bytes = divmod(path.stat().st_size, 4)
        self._rows: Positions = np.empty(0, np.uint32)
        # An empty file cannot be mapped.
        if count:
            self._rows = np.memmap(path, "<u4", "r", shape=(count,)).view(np.ndarray)

        # All is checked now: a search would read beyond the file, or return wrong candidates.
        table = arrow.open_mapped(files.locate(directory, entry.values))
        self._values = _column(table, _VALUE, entry.values)
        ends = _column(table, _END, entry.values)
        types = (self._values.type, str(ends.type))
        expected_type = _stored_type(kind)
        if types != (expected_type, "int64") or self._values.null_count:
            raise FormatError(
                f"{entry.values!r} holds values of {self._values.type} with "
                f"{self._values.null_count} nulls and ends of {ends.type}; {expected_type} without "
                f"nulls and int64 were expected of {kind}"
            )
        if not _ascend(self._values):
            raise FormatError(f"{entry.values!r} holds values that do not ascend")
        begin_below_1 = len(ends) > 0 and ends[0].as_py() < 1
        if ends.null_count or begin_below_1 or not _ascend(ends):
            raise FormatError(f"{entry.values!r} holds ends that do not ascend from 1")
        self._ends: NDArray[np.int64] = arrow.values(ends)
        end = 0
        if len(ends):
            end = self._ends[-1]
        if excess_bytes or end != count:
            raise FormatError(
                f"{entry.rows!r} has {4 * count + excess_bytes} bytes, {entry.values!r} ends at "
                f"position {end}"
            )
        if count and self._rows.max() >= size:
            raise FormatError(
                f"{entry.rows!r} holds position {self._rows.max()}; the corpus has {size} "
                "candidates"
            )

    def rows_of(self, values: NDArray[Any]) -> Positions:
        """Returns the positions of candidates that have one of some values.

        Args:
          values: [m] int64 for an int64 attribute, 0 and 1 for a bool; [m] object holding str for
            strings and lists of them. Values that no candidate has are left out.

        Returns:
          [n] uint32 in no order; a candidate that has several of the values comes as often.
        """
        import pyarrow as pa

        indices, is_stored = _find(self._values, pa.array(values, self._values.type))
        value_numbers = distinct(indices[is_stored])
        if not value_numbers.size:
            return self._rows[:0]
        starts = np.where(value_numbers > 0, self._ends[value_numbers - 1], 0)
        stops = self._ends[value_numbers]
        if value_numbers.size <= _COPIED_MAX:
            slices = [self._rows[start:stop] for start, stop in zip(starts, stops, strict=True)]
            return self._served_rows(np.concatenate(slices))

        # Value i fills result positions from the sum of the counts before it: shifted by this, the
        # numbers 0, 1, 2, ... become indices into the rows.
        counts = stops - starts
        shifts = starts - (np.cumsum(counts) - counts)
        row_indices = np.repeat(shifts, counts) + np.arange(counts.sum())
        return self._served_rows(self._rows[row_indices])

    def rows_between(self, bounds: Bounds) -> Positions:
        """Returns the positions of candidates whose int64 or double is within all bounds given,
        compared exactly; within `ANY_VALUE`, of those that have a value.

        Returns:
          [n] uint32 in no order, a view of the mapped file. A candidate comes once, within
          `ANY_VALUE` as often as it has values.
        """
        span = self._between(bounds)
        first = self._rows_from(span.start)
        end = self._rows_from(span.stop)
        return self._served_rows(self._rows[first:end])

    def rows_by_bounds(self, bounds: Bounds) -> tuple[Positions, bool]:
        """Returns what `rows_between` does and True, or the positions of all other candidates and
        False, whichever are fewer. Without a value of each candidate, the others are not known.

        Returns:
          [n] uint32 in no order, and whether they are the positions within the bounds.
        """
        span = self._between(bounds)
        first = self._rows_from(span.start)
        end = self._rows_from(span.stop)
        has_one_each = self.kind != "list<string>" and self._rows.size == self._size
        if not has_one_each or 2 * (end - first) <= self._rows.size:
            return self._served_rows(self._rows[first:end]), True
        others = np.concatenate([self._rows[:first], self._rows[end:]])
        return self._served_rows(others), False

    def numbers_between(
        self, bounds: Bounds, among: PositionSet
    ) -> tuple[Positions, NDArray[np.float64]]:
        """Returns the candidates of a set whose number is within bounds, with their numbers.

        Returns:
          [n] uint32 positions in no order, and [n] float64.
        """
        span = self._between(bounds)
        first = self._rows_from(span.start)
        rows = self._rows[first : self._rows_from(span.stop)]
        served_rows = self._served_rows(rows)
        kept = among.where(served_rows)
        positions = served_rows[kept]
        if self._served is not None:
            kept = self._is_served(rows).nonzero()[0][kept]

        values = arrow.values(self._values)[span.start : span.stop]
        # Most often, as many candidates have a number as there are numbers: each has its own.
        if values.size < rows.size:
            counts = np.diff(self._ends[span.start : span.stop], prepend=first)
            kept = np.repeat(np.arange(values.size), counts)[kept]
        return positions, values[kept].astype(np.float64)

    def _between(self, bounds: Bounds) -> range:
        """Returns the numbers of the values that are within all bounds."""
        start = 0
        stop = len(self._values)
        # In Python's numbers, which compare exactly: an int64 and a float need not.
        if bounds.ge is not None:
            start = max(start, bisect_left(self._values, bounds.ge, key=_python_value))
        if bounds.gt is not None:
            start = max(start, bisect_right(self._values, bounds.gt, key=_python_value))
        if bounds.le is not None:
            stop = min(stop, bisect_right(self._values, bounds.le, key=_python_value))
        if bounds.lt is not None:
            stop = min(stop, bisect_left(self._values, bounds.lt, key=_python_value))
        return range(start, max(start, stop))

    def _rows_from(self, value_number: int) -> int:
        """Returns where the positions of a value begin, by its number."""
        if not value_number:
            return 0
        return int(self._ends[value_number - 1])

    def _served_rows(self, rows: Positions) -> Positions:
        """Returns the positions that are served, counted from the first of them."""
        if self._served is None:
            return rows
        return rows[self._is_served(rows)] - np.uint32(self._served.first)

    def _is_served(self, rows: Positions) -> NDArray[np.bool_]:
        """Returns which positions are served, if not all are."""
        assert self._served is not None  # noqa: S101 - the callers look first
        # Unsigned, so that what lies before the first becomes huge.
        return rows - np.uint32(self._served.first) < self._served.rows


def write_attribute_index(
    store: Path, attribute: str, directory: Path, entry: manifest.AttributeIndex
) -> None:
    """Writes the index of one attribute; memory holds the distinct values and a record batch of the
    store.

    Args:
      store: A candidate store that this program wrote.
      attribute: One of its attributes.
      directory: The directory of the bundle.
      entry: The files to be written in it.

    Raises:
      OSError: The files cannot be written.
    """
    import pyarrow as pa

    # Two passes over the store: the first counts the positions of each value, so that the second
    # can write each position where it belongs.
    tables: list[Any] = []
    for values, _, numbers in _slices(store, attribute):
        counts = np.bincount(numbers, minlength=len(values))
        tables.append(pa.table({_VALUE: values, "count": counts}))
        # Merged whenever the new values are as many as those merged before, which bounds the memory
        # as well as the number of merges.
        if sum(map(len, tables)) > 2 * len(tables[0]) + _MERGED_MIN:
            tables = [_merged(tables)]
    table = _merged(tables).sort_by(_VALUE).combine_chunks()
    ends = np.cumsum(table["count"].to_numpy(), dtype=np.int64)
    table = pa.table({_VALUE: table[_VALUE], _END: ends}).combine_chunks()
    arrow.write(directory / entry.values, table)

    count = 0
    if ends.size:
        count = int(ends[-1])
    (directory / entry.rows).parent.mkdir(parents=True, exist_ok=True)
    with (directory / entry.rows).open("w+b") as file:
        if count:
            # A full disk raises an error here; in a map it would be a fault.
            os.posix_fallocate(file.fileno(), 0, 4 * count)
            rows = np.memmap(file, "<u4", "r+", shape=(count,))
            _fill(rows, _slices(store, attribute), table[_VALUE].chunk(0), ends)
            rows.flush()


def check_attribute_index(directory: Path, corpus: manifest.Corpus, attribute: str) -> None:
    """Opens an index of a bundle as a service does, and compares it with one that is written anew,
    aside.

    Raises:
      DigestMismatch, FormatError: The same as for `AttributeIndex`; FormatError also where the
        index is not what the store holds.
    """
    actual = corpus.filters[attribute]
    expected = manifest.AttributeIndex(values="values", rows="rows")
    AttributeIndex(directory, actual, corpus.attributes[attribute], corpus.size)
    with tempfile.TemporaryDirectory(prefix="filter-") as scratch:
        expected_directory = Path(scratch)
        store = files.locate(directory, corpus.file)
        write_attribute_index(store, attribute, expected_directory, expected)
        # By value: the format does not state the bytes of an Arrow file.
        actual_values = arrow.open_mapped(directory / actual.values)
        expected_values = arrow.open_mapped(expected_directory / expected.values)
        is_equal = actual_values.equals(expected_values) and filecmp.cmp(
            directory / actual.rows, expected_directory / expected.rows, shallow=False
        )
        if not is_equal:
            raise FormatError(
                f"{actual.values!r} and {actual.rows!r} are not of attribute {attribute!r} as it "
                "is stored"
            )


def _fill(rows: Positions, slices: Iterator[Any], values: Any, ends: NDArray[np.int64]) -> None:
    """Writes the positions of each value behind those of the slices before."""
    # The next free row of each value.
    free = np.concatenate([[0], ends[:-1]])
    for slice_values, positions, numbers in slices:
        value_numbers = _find(values, slice_values)[0][numbers]
        # A stable sort keeps the positions of each value ascending.
        order = np.argsort(value_numbers, kind="stable")
        ascending = value_numbers[order]
        present, first, counts = np.unique(ascending, return_index=True, return_counts=True)
        steps = np.arange(order.size) - np.repeat(first, counts)
        rows[free[ascending] + steps] = positions[order]
        free[present] += counts


def _slices(
    store: Path, attribute: str
) -> Iterator[tuple[Any, NDArray[np.int64], NDArray[np.int64]]]:
    """Yields the distinct values of each record batch, and pairs of a position and the number of a
    value, each once.
    """
    table, release = arrow.open_trusted(store)
    start = 0
    for chunk in arrow.column(table, f"attribute:{attribute}", store.name).chunks:
        pairs = DistinctValues.of_column(chunk)
        yield pairs.values, pairs.positions + start, pairs.numbers
        start += len(chunk)
        # The pages of a large store would otherwise stay in memory.
        release()


def _merged(tables: list[Any]) -> Any:
    """Returns a table of the distinct values of some tables, with the sums of their counts."""
    import pyarrow as pa

    groups = pa.concat_tables(tables).group_by(_VALUE, use_threads=False)
    return groups.aggregate([("count", "sum")]).rename_columns({"count_sum": "count"})


def _find(values: Any, keys: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Returns the index of each key among ascending values, and whether it is one of them; of one
    that is not, the index of the first value that is larger.
    """
    import pyarrow.compute as pc

    low = np.zeros(len(keys), np.int64)
    if not len(values):
        return low, low > 0
    last = len(values) - 1
    if arrow.kind_of(values.type) != "string":
        low = np.searchsorted(arrow.values(values), arrow.values(keys))
    elif len(keys) <= _ONE_BY_ONE_MAX:
        indices = [bisect_left(values, key, key=_python_value) for key in keys.to_pylist()]
        low = np.array(indices, np.int64)
    else:
        # A binary search of all keys at once: NumPy cannot search Arrow's strings.
        high = np.full(len(keys), len(values))
        for _ in range(len(values).bit_length()):
            middle = (low + high) // 2
            less = pc.less(values.take(np.minimum(middle, last)), keys)
            is_less = less.to_numpy(zero_copy_only=False)
            is_less &= middle < high
            low = np.where(is_less, middle + 1, low)
            high = np.where(is_less, high, middle)
    is_equal = pc.equal(values.take(np.minimum(low, last)), keys)
    return low, is_equal.to_numpy(zero_copy_only=False)


def _column(table: Any, name: str, file: str) -> Any:
    stored = arrow.column(table, name, repr(file))
    if stored.num_chunks != 1:
        raise FormatError(f"{file!r} has {stored.num_chunks} record batches; one was expected")
    return stored.chunk(0)


def _stored_type(kind: str) -> Any:
    import pyarrow as pa

    return {"int64": pa.int64(), "bool": pa.int64(), "double": pa.float64()}.get(
        kind, pa.large_string()
    )


def _ascend(values: Any) -> bool:
    import pyarrow.compute as pc

    return bool(pc.all(pc.less(values[:-1], values[1:]), min_count=0).as_py())


def _python_value(scalar: Any) -> Any:
    return scalar.as_py()
