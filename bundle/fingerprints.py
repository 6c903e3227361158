"""FarmHash Fingerprint64, which TensorFlow's `tf.strings.to_hash_bucket_fast` and Keras make of
texts: by compiled code, or by NumPy where it was not built.

`bundle/native/fingerprints.h` computes the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle import native

Hashes = NDArray[np.uint64]

_BITS = (1 << 64) - 1
_K0 = np.uint64(0xC3A5C85C97CB3127)
_K1 = np.uint64(0xB492B66FBE98F273)
_K2 = np.uint64(0x9AE16A3B2F90404F)
_SEED = 81
_HASHED_TOGETHER = 65_536
"""The number of texts of a column that are objects of Python at a time."""


def fingerprints(texts: NDArray[Any]) -> Hashes:
    """Returns the [m] uint64 fingerprints of [m] objects: str, hashed as UTF-8, or bytes.

    Raises:
      UnicodeEncodeError: A string is no Unicode text.
    """
    if native.text_fingerprints is not None:
        return native.text_fingerprints(texts)
    return numpy_fingerprints(texts)


def column_fingerprints(column: Any) -> Hashes:
    """Returns the [m] uint64 fingerprints of a `pyarrow.LargeStringArray` without nulls."""
    if not len(column):
        return np.empty(0, np.uint64)
    if native.column_fingerprints is not None:
        _, offsets, memory = column.buffers()
        ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        # Texts that are all empty may come without memory.
        return native.column_fingerprints(np.frombuffer(memory or b"", np.uint8), ends)

    result = np.empty(len(column), np.uint64)
    for first in range(0, len(column), _HASHED_TOGETHER):
        texts = column.slice(first, _HASHED_TOGETHER).to_numpy(zero_copy_only=False)
        result[first : first + texts.size] = numpy_fingerprints(texts)
    return result


def numpy_fingerprints(texts: NDArray[Any]) -> Hashes:
    """Returns what `fingerprints` does, without compiled code.

    Source: FarmHash 1.1, farmhash.cc, farmhashna::Hash64 (the formula; copyright 2014 Google, Inc.,
    MIT license).
    """
    encoded = []
    for text in texts.tolist():
        if isinstance(text, str):
            encoded.append(text.encode())
        else:
            encoded.append(text)

    result = np.empty(len(encoded), np.uint64)
    for positions, rows in texts_by_length(encoded):
        size = rows.shape[1]
        if size <= 16:
            result[positions] = _of_up_to_16(rows)
        elif size <= 32:
            result[positions] = _of_up_to_32(rows)
        elif size <= 64:
            result[positions] = _of_up_to_64(rows)
        else:
            result[positions] = _of_more_than_64(rows)
    return result


def texts_by_length(
    texts: Sequence[bytes],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
    """Yields the positions of texts of one length, and their bytes, [texts, length], which are
    hashed at once.
    """
    lengths = np.array([len(text) for text in texts], np.int64)
    for length in np.unique(lengths).tolist():
        positions = np.flatnonzero(lengths == length)
        joined = b"".join([texts[position] for position in positions.tolist()])
        yield positions, np.frombuffer(joined, np.uint8).reshape(positions.size, length)


def mixed(hashes: Hashes) -> Hashes:
    """Returns hashes whose upper 17 bits change the lower ones, too."""
    return hashes ^ (hashes >> np.uint64(47))


def rotated_right(hashes: Hashes, bits: int) -> Hashes:
    """Returns hashes whose lowest bits have become the highest."""
    return (hashes >> np.uint64(bits)) | (hashes << np.uint64(64 - bits))


def _words(rows: NDArray[np.uint8], start: int, dtype: str = "<u8") -> Hashes:
    """Returns the unsigned integer that begins at one byte of each text."""
    end = start + np.dtype(dtype).itemsize
    words: Hashes = rows[:, start:end].copy().view(dtype)[:, 0].astype(np.uint64)
    return words


def _factor(size: int) -> np.uint64:
    return np.uint64((int(_K2) + 2 * size) & _BITS)


def _combined(first: Hashes, second: Hashes, factor: Any) -> Hashes:
    hashes: Hashes = mixed((second ^ mixed((first ^ second) * factor)) * factor) * factor
    return hashes


def _of_up_to_16(rows: NDArray[np.uint8]) -> Hashes:
    count, size = rows.shape
    factor = _factor(size)
    if size >= 8:
        first = _words(rows, 0) + _K2
        last = _words(rows, size - 8)
        low = rotated_right(last, 37) * factor + first
        high = (rotated_right(first, 25) + last) * factor
        return _combined(low, high, factor)
    if size >= 4:
        first = np.uint64(size) + (_words(rows, 0, "<u4") << np.uint64(3))
        return _combined(first, _words(rows, size - 4, "<u4"), factor)
    if size > 0:
        first, middle, last = rows[:, [0, size // 2, size - 1]].astype(np.uint64).T
        begin = first + (middle << np.uint64(8))
        end = np.uint64(size) + (last << np.uint64(2))
        return mixed(begin * _K2 ^ end * _K0) * _K2
    return np.full(count, _K2)


def _sums_of_both_ends(
    rows: NDArray[np.uint8], first: Hashes, factor: np.uint64
) -> tuple[Hashes, Hashes]:
    """Returns two sums of the first and the last 16 bytes of texts; `first` is the first word times
    a constant.
    """
    size = rows.shape[1]
    second = _words(rows, 8)
    last = _words(rows, size - 8) * factor
    low = rotated_right(first + second, 43) + rotated_right(last, 30)
    low += _words(rows, size - 16) * _K2
    return low, first + rotated_right(second + _K2, 18) + last


def _of_up_to_32(rows: NDArray[np.uint8]) -> Hashes:
    factor = _factor(rows.shape[1])
    low, high = _sums_of_both_ends(rows, _words(rows, 0) * _K1, factor)
    return _combined(low, high, factor)


def _of_up_to_64(rows: NDArray[np.uint8]) -> Hashes:
    size = rows.shape[1]
    factor = _factor(size)
    first = _words(rows, 0) * _K2
    low, high = _sums_of_both_ends(rows, first, factor)
    whole = _combined(low, high, factor)
    third = _words(rows, 16) * factor
    fourth = _words(rows, 24)
    before_last = (low + _words(rows, size - 32)) * factor
    last = (whole + _words(rows, size - 24)) * factor
    return _combined(
        rotated_right(third + fourth, 43) + rotated_right(before_last, 30) + last,
        third + rotated_right(fourth + first, 18) + before_last,
        factor,
    )


def _of_more_than_64(rows: NDArray[np.uint8]) -> Hashes:
    count, size = rows.shape
    y = np.full(count, (_SEED * int(_K1) + 113) & _BITS, np.uint64)
    z = mixed(y * _K2 + np.uint64(113)) * _K2
    x = np.uint64(_SEED * int(_K2) & _BITS) + _words(rows, 0)
    v_low, v_high, w_low, w_high = np.zeros((4, count), np.uint64)

    starts = range(0, size - 64, 64)
    for start in (*starts, size - 64):
        factor: Any = _K1
        weight = np.uint64(1)
        # The last block overlaps the one before it, and has constants of its own.
        if start == size - 64:
            factor = _K1 + ((z & np.uint64(0xFF)) << np.uint64(1))
            weight = np.uint64(9)
            w_low = w_low + np.uint64((size - 1) & 63)
            v_low = v_low + w_low
            w_low = w_low + v_low
        x = rotated_right(x + y + v_low + _words(rows, start + 8), 37) * factor
        x ^= w_high * weight
        y = rotated_right(y + v_high + _words(rows, start + 48), 42) * factor
        y += v_low * weight + _words(rows, start + 40)
        z = rotated_right(z + w_low, 33) * factor
        v_low, v_high = _sums_of_32(rows, start, v_high * factor, x + w_low)
        w_low, w_high = _sums_of_32(rows, start + 32, z + w_high, y + _words(rows, start + 16))
        x, z = z, x

    return _combined(
        _combined(v_low, w_low, factor) + mixed(y) * _K0 + z,
        _combined(v_high, w_high, factor) + x,
        factor,
    )


def _sums_of_32(
    rows: NDArray[np.uint8], start: int, low: Hashes, high: Hashes
) -> tuple[Hashes, Hashes]:
    """Returns two sums of 32 bytes and two seeds."""
    first = low + _words(rows, start)
    last = _words(rows, start + 24)
    total = first + _words(rows, start + 8) + _words(rows, start + 16)
    return total + last, rotated_right(high + first + last, 21) + rotated_right(total, 44) + first
