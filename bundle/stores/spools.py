"""A column that grows batch by batch on disk and is then seen as one Arrow array, mapped.

The columns of an Arrow file that is to be mapped lie in one piece each, so they are gathered beside it first; memory
holds a batch. pyarrow is imported on first use.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FormatError

BLOCK_ROWS = 1 << 16
"""Rows in memory at a time where a whole column is gone through."""


class Spool:
    """One column of int64, float, double, bool or large_string, or of lists of them; only files grow.

    Values of one type: whole numbers become text where text follows them, if that is allowed; another type is refused.

    Attributes:
      type: as it is so far; None while only nulls were seen.
    """

    def __init__(self, directory: Path, name: str, number: int, text_may_follow: bool = False) -> None:
        """Begins a column.

        Args:
          directory: where its files go.
          name: of the column, for messages.
          number: tells its files from those of other columns.
          text_may_follow: integers become strings if strings follow.
        """
        self.type: Any = None
        self.length = 0
        self._name, self._text_may_follow = name, text_may_follow
        self._directory, self._stem = directory, str(number)
        self._leading_nulls = 0
        self._width = 1
        self._ends: _Bytes | None = None
        self._end = 0
        self._lists_valid = _Validity(directory / f"{number}.lists")
        self._values = _Values(directory / f"{number}.values")
        self._parts = 0

    def append(self, array: Any) -> None:
        """Appends a `pyarrow.Array` of one of those types, or of nulls.

        Raises:
          FormatError: its type does not go with what the column holds.
        """
        import pyarrow as pa

        if pa.types.is_null(array.type):
            if self.type is None:
                self._leading_nulls += len(array)
                self.length += len(array)
                return
            array = pa.nulls(len(array), self.type)
        if self.type is None:
            self.type, leading = array.type, self._leading_nulls
            self.length = 0
            if leading:
                self._append(pa.nulls(leading, array.type))
        elif array.type != self.type:
            array = self._joined(array)
        self._append(array)

    def array(self) -> Any:
        """Returns the column as one mapped `pyarrow.Array`; nothing may be appended any more."""
        import pyarrow as pa

        if self.type is None:
            return pa.nulls(self.length)
        values = self._values.array()
        if self._ends is not None:
            buffers = [self._lists_valid.buffer(), self._ends.buffer()]
            kind = pa.large_list(values.type)
            return pa.Array.from_buffers(kind, self.length, buffers, children=[values])
        return pa.FixedSizeListArray.from_arrays(values, self._width) if self._width > 1 else values

    def slices(self) -> Iterator[Any]:
        """Yields the column in slices of bounded size; nothing may be appended any more."""
        whole = self.array()
        for first in range(0, self.length, BLOCK_ROWS):
            yield whole.slice(first, BLOCK_ROWS)
            self.release()

    def release(self) -> None:
        """Lets go of the pages that were read; they stay in the file."""
        self._values.release()
        self._lists_valid.file.release()
        if self._ends is not None:
            self._ends.release()

    def _append(self, array: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = array.type
        if pa.types.is_large_list(kind):
            if self._ends is None:
                self._begin_lists()
            lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
            self._lists_valid.append(array)
            self._append_ends(np.cumsum(lengths, dtype=np.int64))
            self._values.append(array.flatten())
        else:
            width, flat = 1, array
            if pa.types.is_fixed_size_list(kind):
                width, flat = kind.list_size, array.flatten()
            self._width = width if self._ends is None else self._width
            if self._ends is not None:
                self._append_ends(np.arange(1, len(array) + 1) * width)
            self._values.append(flat)
        self.length += len(array)

    def _begin_lists(self) -> None:
        # What came before had equally many values in each row.
        self._ends = _Bytes(self._directory / f"{self._stem}.ends")
        self._ends.append(np.zeros(1, np.int64))
        for first in range(0, self.length, BLOCK_ROWS):
            rows = np.arange(first + 1, min(first + BLOCK_ROWS, self.length) + 1, dtype=np.int64)
            self._ends.append(rows * self._width)
        self._end = self.length * self._width
        self._lists_valid.skip(self.length)

    def _append_ends(self, ends: NDArray[np.int64]) -> None:
        assert self._ends is not None  # noqa: S101 - by the callers
        self._ends.append(ends + self._end)
        self._end += int(ends[-1]) if ends.size else 0

    def _joined(self, array: Any) -> Any:
        import pyarrow as pa

        held, new = _leaf(self.type), _leaf(array.type)
        if held != new and self._text_may_follow and {held, new} == {pa.int64(), pa.large_string()}:
            if new == pa.int64():
                array = array.cast(_with_leaf(array.type, held))
            else:
                self._become_text()
        elif held != new or not self._text_may_follow:
            raise FormatError(f"{self._name} holds {array.type} after {self.type}; one type was expected")
        if pa.types.is_large_list(array.type) or array.type != self.type:
            self.type = pa.large_list(_leaf(array.type))
            if self._ends is None:
                self._begin_lists()
        return array

    def _become_text(self) -> None:
        import pyarrow as pa

        self._parts += 1
        text = _Values(self._directory / f"{self._stem}.text-{self._parts}")
        whole = self._values.array()
        for first in range(0, len(whole), BLOCK_ROWS):
            text.append(whole.slice(first, BLOCK_ROWS).cast(pa.large_string()))
            self._values.release()
        self._values = text
        self.type = _with_leaf(self.type, pa.large_string())


class _Values:
    """Values of one type, some null; the type is that of the first array."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kind: Any = None
        self._data = _Bytes(path)
        self._ends = _Bytes(path.with_name(path.name + ".ends"))
        self._end = 0
        self._valid = _Validity(path.with_name(path.name + ".valid"))
        self.length = 0

    def append(self, array: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._kind is None:
            self._kind = array.type
            if array.type == pa.large_string():
                self._ends.append(np.zeros(1, np.int64))
        self._valid.append(array)
        self.length += len(array)
        if array.type == pa.large_string():
            filled = pc.fill_null(array, "")
            _, offsets, data = filled.buffers()
            ends = np.frombuffer(offsets, np.int64, len(filled) + 1, filled.offset * 8) if len(filled) else np.zeros(1)
            if len(filled) and ends[-1] > ends[0]:
                self._data.append(np.frombuffer(data, np.uint8, int(ends[-1] - ends[0]), int(ends[0])))
            self._ends.append((ends[1:] - ends[0]).astype(np.int64) + self._end)
            self._end += int(ends[-1] - ends[0])
        else:
            filled = pc.fill_null(array, pa.scalar(False if array.type == pa.bool_() else 0, array.type))
            self._data.append(np.ascontiguousarray(filled.to_numpy(zero_copy_only=False)))

    def array(self) -> Any:
        import pyarrow as pa

        buffers = [self._valid.buffer(), self._data.buffer()]
        if self._kind == pa.large_string():
            buffers.insert(1, self._ends.buffer())
        elif self._kind == pa.bool_():
            buffers[1] = self._data.bits()
        return pa.Array.from_buffers(self._kind, self.length, buffers)

    def release(self) -> None:
        for file in (self._data, self._ends, self._valid.file):
            file.release()


class _Validity:
    """Which rows are valid; takes no room until the first null."""

    def __init__(self, path: Path) -> None:
        self.file = _Bytes(path)
        self._length, self._any_null = 0, False

    def append(self, array: Any) -> None:
        if array.null_count and not self._any_null:
            self._any_null = True
            for first in range(0, self._length, BLOCK_ROWS):
                self.file.append(np.ones(min(BLOCK_ROWS, self._length - first), np.uint8))
        if self._any_null:
            self.file.append(array.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8))
        self._length += len(array)

    def skip(self, length: int) -> None:
        """Counts rows that came before as valid."""
        self._length = length

    def buffer(self) -> Any:
        return self.file.bits() if self._any_null else None


class _Bytes:
    """A file that grows, then is mapped. It is made with its first byte."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._map: mmap.mmap | None = None
        self._bits: _Bytes | None = None

    def append(self, values: NDArray[Any]) -> None:
        if not values.nbytes:
            return
        with self.path.open("ab") as file:
            file.write(values.data)
        self.size += values.nbytes

    def buffer(self) -> Any:
        import pyarrow as pa

        if not self.size:
            return pa.py_buffer(b"")
        if self._map is None:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return pa.py_buffer(self._map)

    def bits(self) -> Any:
        """Returns one bit for each byte, which are 0 or 1."""
        if self._bits is None:
            self._bits = _Bytes(self.path.with_name(self.path.name + ".bits"))
            whole = np.frombuffer(self.buffer(), np.uint8)
            for first in range(0, whole.size, BLOCK_ROWS):  # a multiple of 8
                self._bits.append(np.packbits(whole[first : first + BLOCK_ROWS], bitorder="little"))
                self.release()
        return self._bits.buffer()

    def release(self) -> None:
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)


def _leaf(kind: Any) -> Any:
    import pyarrow as pa

    lists = pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return kind.value_type if lists else kind


def _with_leaf(kind: Any, leaf: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_large_list(kind):
        return pa.large_list(leaf)
    return pa.list_(leaf, kind.list_size) if pa.types.is_fixed_size_list(kind) else leaf
