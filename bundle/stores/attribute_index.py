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
from bundle.tables.segments import RowRange

Positions = NDArray[np.uint32]
Bound = int | float | None

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

        owners = np.arange(len(column))
        values = column
        if pa.types.is_large_list(column.type):
            owners = np.repeat(owners, pc.fill_null(pc.list_value_length(column), 0).to_numpy())
            values = column.flatten()
        owners = owners[values.is_valid().to_numpy(zero_copy_only=False)]
        values = values.drop_null().cast(_stored_type(arrow.kind_of(values.type)))
        if pa.types.is_floating(values.type):
            values = pc.add(values, 0.0)  # -0 becomes 0, which it equals
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
        held: RowRange | None = None,
    ) -> None:
        """Maps an index and checks all of it.

        Args:
          directory: The directory of the bundle.
          entry: The entry of the index in the manifest.
          kind: The Arrow type of the attribute.
          size: The number of candidates of the corpus.
          held: The candidates whose positions are returned, counted from the first of them. None:
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
        self._held = held
        path = files.locate(directory, entry.rows)
        count, left = divmod(path.stat().st_size, 4)
        self._rows: Positions = np.empty(0, np.uint32)
        if count:
            self._rows = np.memmap(path, "<u4", "r", shape=(count,)).view(np.ndarray)
        table = arrow.open_mapped(files.locate(directory, entry.values))
        self._values, ends = (_column(table, name, entry.values) for name in (_VALUE, _END))
        if (self._values.type, str(ends.type)) != (
            _stored_type(kind),
            "int64",
        ) or self._values.null_count:
            raise FormatError(
                f"{entry.values!r} holds values of {self._values.type} with "
                f"{self._values.null_count} nulls and ends "
                f"of {ends.type}; {_stored_type(kind)} without nulls and int64 were expected of "
                f"{kind}"
            )
        if not _ascend(self._values):
            raise FormatError(f"{entry.values!r} holds values that do not ascend")
        if ends.null_count or not _ascend(ends) or (len(ends) and ends[0].as_py() < 1):
            raise FormatError(f"{entry.values!r} holds ends that do not ascend from 1")
        self._ends: NDArray[np.int64] = arrow.values(ends)
        end = self._ends[-1] if len(ends) else 0
        if left or end != count:
            raise FormatError(
                f"{entry.rows!r} has {4 * count + left} bytes, {entry.values!r} ends at position "
                f"{end}"
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

        places, found = _find(self._values, pa.array(values, self._values.type))
        wanted = distinct(places[found])
        starts = np.where(wanted > 0, self._ends[wanted - 1], 0)
        stops = self._ends[wanted]
        if wanted.size <= _COPIED_MAX:
            parts = [self._rows[start:stop] for start, stop in zip(starts, stops, strict=True)]
            return self._in(np.concatenate(parts)) if parts else self._rows[:0]
        counts = stops - starts
        first = starts - (np.cumsum(counts) - counts)
        return self._in(self._rows[np.repeat(first, counts) + np.arange(counts.sum())])

    def rows_between(
        self, ge: Bound = None, gt: Bound = None, le: Bound = None, lt: Bound = None
    ) -> Positions:
        """Returns the positions of candidates whose int64 or double is within all bounds given,
        compared exactly; without bounds, of those that have a value.

        Returns:
          [n] uint32 in no order, a view of the mapped file. A candidate comes once, without bounds
          as often as it has values.
        """
        span = self._between(ge, gt, le, lt)
        return self._in(self._rows[self._rows_from(span.start) : self._rows_from(span.stop)])

    def numbers_between(
        self, ge: Bound = None, le: Bound = None
    ) -> tuple[Positions, NDArray[np.float64]]:
        """Returns the candidates whose number is within bounds, with their numbers.

        Returns:
          [n] uint32 positions in no order, and [n] float64.
        """
        span = self._between(ge, None, le, None)
        first = self._rows_from(span.start)
        rows = self._rows[first : self._rows_from(span.stop)]
        counts = np.diff(self._ends[span.start : span.stop], prepend=first)
        values = arrow.values(self._values)[span.start : span.stop].astype(np.float64)
        numbers = np.repeat(values, counts)
        if self._held is None:
            return rows, numbers
        within = rows - np.uint32(self._held.first)
        held = within < self._held.rows
        return within[held], numbers[held]

    def _between(self, ge: Bound, gt: Bound, le: Bound, lt: Bound) -> range:
        """Returns which of the values are within all bounds given."""
        lowest = ((bisect_left, ge), (bisect_right, gt))
        highest = ((bisect_right, le), (bisect_left, lt))
        # In Python's numbers, which compare exactly: an int64 and a float need not.
        starts = [
            place(self._values, bound, key=_python) for place, bound in lowest if bound is not None
        ]
        stops = [
            place(self._values, bound, key=_python) for place, bound in highest if bound is not None
        ]
        start = max(starts, default=0)
        stop = min(stops, default=len(self._values))
        return range(start, max(start, stop))

    def _rows_from(self, value: int) -> int:
        """Returns where the positions of a value begin, by its number."""
        return int(self._ends[value - 1]) if value else 0

    def _in(self, rows: Positions) -> Positions:
        """Returns those of the positions that are held, counted from the first."""
        if self._held is None:
            return rows
        within = rows - np.uint32(self._held.first)  # what lies before becomes huge
        return within[within < self._held.rows]


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

    counted: list[Any] = []
    for values, _, numbers in _slices(store, attribute):
        counted.append(
            pa.table({_VALUE: values, "count": np.bincount(numbers, minlength=len(values))})
        )
        if sum(map(len, counted)) > 2 * len(counted[0]) + _MERGED_MIN:
            counted = [_merged(counted)]
    table = _merged(counted).sort_by(_VALUE).combine_chunks()
    ends = np.cumsum(table["count"].to_numpy(), dtype=np.int64)
    table = pa.table({_VALUE: table[_VALUE], _END: ends}).combine_chunks()
    arrow.write(directory / entry.values, table)
    count = int(ends[-1]) if ends.size else 0
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
    held = corpus.filters[attribute]
    again = manifest.AttributeIndex(values="values", rows="rows")
    AttributeIndex(directory, held, corpus.attributes[attribute], corpus.size)
    with tempfile.TemporaryDirectory(prefix="filter-") as beside:
        write_attribute_index(files.locate(directory, corpus.file), attribute, Path(beside), again)
        values, expected = (
            arrow.open_mapped(path)
            for path in (directory / held.values, Path(beside, again.values))
        )
        same = values.equals(expected)
        if not (
            same and filecmp.cmp(directory / held.rows, Path(beside, again.rows), shallow=False)
        ):
            raise FormatError(
                f"{held.values!r} and {held.rows!r} are not of attribute {attribute!r} as it is "
                "stored"
            )


def _fill(rows: Positions, slices: Iterator[Any], values: Any, ends: NDArray[np.int64]) -> None:
    """Writes the positions of each value behind those of the slices before."""
    free = np.concatenate([[0], ends[:-1]])
    for found, positions, numbers in slices:
        places, _ = _find(values, found)
        order = np.argsort(places[numbers], kind="stable")
        ascending = places[numbers][order]
        held, first, counts = np.unique(ascending, return_index=True, return_counts=True)
        rows[free[ascending] + np.arange(order.size) - np.repeat(first, counts)] = positions[order]
        free[held] += counts


def _slices(
    store: Path, attribute: str
) -> Iterator[tuple[Any, NDArray[np.int64], NDArray[np.int64]]]:
    """Yields, of each record batch, distinct values, and pairs of position and value, by its
    number, each once.
    """
    table, release = arrow.open_trusted(store)
    start = 0
    for chunk in arrow.column(table, f"attribute:{attribute}", store.name).chunks:
        pairs = DistinctValues.of_column(chunk)
        yield pairs.values, pairs.positions + start, pairs.numbers
        start += len(chunk)
        release()


def _merged(counted: list[Any]) -> Any:
    import pyarrow as pa

    table = (
        pa.concat_tables(counted).group_by(_VALUE, use_threads=False).aggregate([("count", "sum")])
    )
    return table.rename_columns({"count_sum": "count"})


def _find(values: Any, wanted: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Returns, of each wanted value, the first place in ascending ones that is not less, and
    whether it is there.
    """
    import pyarrow.compute as pc

    low = np.zeros(len(wanted), np.int64)
    if not len(values):
        return low, low > 0
    if arrow.kind_of(values.type) != "string":
        low = np.searchsorted(arrow.values(values), arrow.values(wanted))
    elif len(wanted) <= _ONE_BY_ONE_MAX:
        low = np.array(
            [bisect_left(values, each, key=_python) for each in wanted.to_pylist()], np.int64
        )
    else:
        high = np.full(len(wanted), len(values))
        for _ in range(len(values).bit_length()):  # a binary search of all at once
            middle = (low + high) // 2
            less = pc.less(values.take(np.minimum(middle, len(values) - 1)), wanted).to_numpy(
                zero_copy_only=False
            )
            less &= middle < high
            low = np.where(less, middle + 1, low)
            high = np.where(less, high, middle)
    there = pc.equal(values.take(np.minimum(low, len(values) - 1)), wanted)
    return low, there.to_numpy(zero_copy_only=False)


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


def _python(scalar: Any) -> Any:
    return scalar.as_py()
