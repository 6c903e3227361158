"""Key indexes: int64 keys -> rows, for tables whose rows are found by key, mapped and never read on
open.

A file of little-endian 64-bit integers without header: `size` entries of key and row, ordered by a
mix of their key's bits; then `buckets + 1` starts. The leading bits of the mix are a key's bucket,
whose entries are those from its start to the next. There are two to four entries to a bucket, side
by side: a lookup reads two neighboring starts, and the entries between them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.errors import DigestMismatch, FormatError
from bundle.tables.id_values import Rows

ENTRY_BYTES = 16
_BUCKET_ENTRIES = 4
"""The maximum number of entries of a bucket on average."""
_WINDOW_MAX = 64
"""The maximum number of entries of one bucket that are compared. Of 2^40 keys no bucket has as
many, if the keys were not chosen for it.
"""
_FOUND_TOGETHER = 4096
"""The number of keys that are found at a time: more would need more memory for their buckets."""
_PARTITIONS = 256
"""The number of parts of a writer's keys, each of which is sorted in memory."""


class KeyIndex:
    """The rows of distinct int64 keys. Safe for any number of threads."""

    def __init__(self, path: Path, size: int) -> None:
        """Maps an index.

        Args:
          path: The file of the index.
          size: The number of keys in it.

        Raises:
          DigestMismatch: The file is missing or has not the size of such an index.
        """
        self.size = size
        self._bits = _bits(size)
        buckets = 1 << self._bits
        expected = index_bytes(size)
        try:
            size_bytes = path.stat().st_size
        except OSError as problem:
            raise DigestMismatch(
                f"key index {path.name!r} is missing ({problem.strerror})"
            ) from problem
        if size_bytes != expected:
            raise DigestMismatch(
                f"key index {path.name!r} has {size_bytes} bytes; one of {size} keys has {expected}"
            )
        whole: NDArray[np.int64] = np.memmap(path, np.dtype("<i8"), "r")
        self._entries = np.asarray(whole[: 2 * size]).reshape(size, 2)
        self._starts = np.asarray(whole[2 * size :])
        assert self._starts.size == buckets + 1  # noqa: S101 - by the size that was checked

    def find(self, keys: NDArray[np.int64]) -> Rows:
        """Returns [m] int64 rows of [m] int64 keys, -1 for those that it does not hold."""
        if keys.size <= _FOUND_TOGETHER:
            return self._find(keys)
        starts = range(0, keys.size, _FOUND_TOGETHER)
        rows = [self._find(keys[start : start + _FOUND_TOGETHER]) for start in starts]
        return np.concatenate(rows)

    def _find(self, keys: NDArray[np.int64]) -> Rows:
        buckets = _buckets(_mixed(keys), self._bits)
        starts = self._starts[buckets]
        ends = self._starts[buckets + 1]
        longest = min(int(np.max(ends - starts, initial=0)), _WINDOW_MAX)
        if longest <= 0:
            return np.full(keys.size, -1, np.int64)
        # [keys, longest]: all entries of the bucket of each key.
        positions = starts[:, np.newaxis] + np.arange(longest)
        # A damaged start leads to another entry, not out.
        entries = self._entries.take(positions, axis=0, mode="clip")
        is_key = (entries[:, :, 0] == keys[:, np.newaxis]) & (positions < ends[:, np.newaxis])
        rows = entries[np.arange(keys.size), is_key.argmax(axis=1), 1]
        return np.where(is_key.any(axis=1), rows, -1)


class KeyIndexWriter:
    """Writes an index of keys that come in the order of their rows; memory holds a 256th of them.

    Used as a context: it removes its scratch files, and the unfinished index if it is left by an
    exception.
    """

    def __init__(self, path: Path) -> None:
        """Begins an index.

        Args:
          path: The path of its file; keys are sorted in a directory beside it.

        Raises:
          OSError: It cannot be entry_count.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._scratch = Path(mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        self.size = 0

    def append(self, keys: NDArray[np.int64]) -> None:
        """Adds keys; the first of all is row 0.

        Raises:
          OSError: The disk is full or broken.
        """
        entries = np.empty((keys.size, 2), "<i8")
        entries[:, 0] = keys
        entries[:, 1] = np.arange(self.size, self.size + keys.size)
        # By the leading 8 bits of the mix, in which the entries of the index are ordered.
        partition = (_mixed(entries[:, 0]) >> np.uint64(56)).astype(np.int64)
        order = np.argsort(partition, kind="stable")
        ends = np.cumsum(np.bincount(partition, minlength=_PARTITIONS))
        for number in np.unique(partition).tolist():
            start = 0
            if number:
                start = ends[number - 1]
            with self._partition_file(number).open("ab") as file:
                file.write(entries[order[start : ends[number]]].tobytes())
        self.size += keys.size

    def finish(self) -> int:
        """Writes the index and returns how many keys it holds.

        Raises:
          FormatError: A key comes twice, or there is none; names the key.
          OSError: The disk is full or broken.
        """
        if not self.size:
            raise FormatError(f"key index {self._path.name!r} would hold no key")
        bits = _bits(self.size)
        entry_count = 0
        with self._path.open("wb") as file, (self._scratch / "starts").open("w+b") as starts:
            for number in range(_PARTITIONS):
                mixed, entries = self._sorted_entries(number)
                file.write(entries.tobytes())
                # The buckets that begin in this partition; with few buckets, there may be none.
                first = ceil_div(number << bits, _PARTITIONS)
                end = ceil_div((number + 1) << bits, _PARTITIONS)
                if bits:
                    bounds = np.arange(first, end, dtype=np.uint64) << np.uint64(64 - bits)
                else:  # NumPy does not shift by 64
                    bounds = _ZERO[first:end]
                starts.write((entry_count + np.searchsorted(mixed, bounds)).astype("<i8").tobytes())
                entry_count += len(entries)
            starts.write(np.array([entry_count], "<i8").tobytes())
            starts.seek(0)
            shutil.copyfileobj(starts, file)
        return self.size

    def _sorted_entries(self, number: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        if not self._partition_file(number).exists():
            return np.empty(0, np.uint64), np.empty((0, 2), np.int64)
        entries = np.fromfile(self._partition_file(number), "<i8").reshape(-1, 2)
        mixed = _mixed(entries[:, 0])
        order = np.argsort(mixed, kind="stable")
        mixed = mixed[order]
        entries = entries[order]
        # The mix is a permutation: equal mixes are equal keys.
        repeated = np.flatnonzero(mixed[1:] == mixed[:-1])
        if repeated.size:
            (key, first_row), (_, second_row) = entries[repeated[0] : repeated[0] + 2].tolist()
            raise FormatError(
                f"key {key} comes twice, as row {first_row} and row {second_row}; keys must be "
                "distinct"
            )
        return mixed, entries

    def _partition_file(self, number: int) -> Path:
        return self._scratch / str(number)

    def __enter__(self) -> KeyIndexWriter:
        return self

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        if problem is not None:
            self._path.unlink(missing_ok=True)


def index_bytes(size: int) -> int:
    """Returns the bytes of an index of `size` keys."""
    return ENTRY_BYTES * size + 8 * ((1 << _bits(size)) + 1)


_ZERO = np.zeros(1, np.uint64)


def _bits(size: int) -> int:
    return max(0, (size - 1) // _BUCKET_ENTRIES).bit_length()


def _mixed(keys: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Returns a permutation of 64-bit integers whose every bit depends on all of the key's.

    Source: Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014; splitmix64.c
    (the formula).
    """
    mixed = np.ascontiguousarray(keys).view(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _buckets(mixed: NDArray[np.uint64], bits: int) -> NDArray[np.int64]:
    """Returns the bucket of each key: the leading bits of its mixed bits."""
    if not bits:  # NumPy does not shift by 64
        return np.zeros(mixed.size, np.int64)
    return (mixed >> np.uint64(64 - bits)).astype(np.int64)
