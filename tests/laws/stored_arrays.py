"""Arrays of any dtype, shape and bits, and every way to cut them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

Values: TypeAlias = NDArray[Any]
Box: TypeAlias = tuple[tuple[int, int], ...]
"""A part of an array: its first index and its extent on each axis."""
Reach: TypeAlias = Literal["nothing", "a bit", "a chunk"]
"""What changes at most, without being noticed, when a bit is flipped among stored values."""

DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        "float64": "<f8",
        "float32": "<f4",
        "float16": "<f2",
        "bfloat16": ml_dtypes.bfloat16,
        "int64": "<i8",
        "int32": "<i4",
        "int16": "<i2",
        "int8": "i1",
        "uint64": "<u8",
        "uint32": "<u4",
        "uint16": "<u2",
        "uint8": "u1",
        "bool": "?",
    }.items()
}
FRACTION_BITS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}
EXTENTS_MAX = (12, 6, 3)
"""Of rows, columns and the third axis."""


class StoredArray(NamedTuple):
    """An array, and how a format stores it.

    Attributes:
      values: The array.
      boxes: Parts that are together all of it, in any order; for formats of slices.
      chunk: The extent of a chunk on each axis; for formats of equal chunks.
      encoding: One of the format's encodings; the first, plain one, if there is nothing to cut.
    """

    values: Values
    boxes: tuple[Box, ...]
    chunk: tuple[int, ...]
    encoding: str


def special_floats(dtype: str) -> list[int]:
    """Returns the bits of floats that a conversion or a sum might change."""
    fraction_bits = FRACTION_BITS[dtype]
    sign = 1 << 8 * DTYPES[dtype].itemsize - 1
    infinity = sign - (1 << fraction_bits)
    quiet_nan = infinity + (1 << fraction_bits - 1)
    zero = 0
    smallest_denormal = 1
    signaling_nan = infinity + 1
    quiet_nan_with_a_payload = quiet_nan + 5
    positive = [zero, smallest_denormal, infinity, signaling_nan, quiet_nan_with_a_payload]
    return positive + [sign + bits for bits in positive]


def random_values(dtype: str, shape: Sequence[int], seed: int) -> Values:
    """Returns an array of random bits, of which half of the floats are special, or of zeros."""
    random = np.random.default_rng(seed)
    zeros = np.zeros(shape, DTYPES[dtype])
    if seed % 8 == 0:  # formats in chunks may leave out those of zeros
        return zeros
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(np.bool_)
    unsigned = np.dtype(f"<u{zeros.itemsize}")
    bits = np.frombuffer(random.bytes(zeros.nbytes), unsigned).reshape(shape)
    if dtype in FRACTION_BITS:
        special = random.choice(np.array(special_floats(dtype), unsigned), shape)
        bits = np.where(random.random(shape) < 0.5, special, bits)
    return np.array(bits).view(DTYPES[dtype])


def part_of(values: Values, box: Box) -> Values:
    """Returns a copy of a part, its rows one behind the other."""
    return np.array(values[tuple(slice(start, start + size) for start, size in box)], order="C")


@st.composite
def boxes(draw: st.DrawFn, shape: Sequence[int]) -> tuple[Box, ...]:
    """Cuts an array in two up to seven times: first itself, then any of its parts, along any
    axis.
    """
    parts: list[Box] = [tuple((0, size) for size in shape)]
    for _ in range(draw(st.integers(0, 7))):
        divisible = [
            (part, axis)
            for part in parts
            for axis, (_, size) in enumerate(part)
            if size > 1 and min(shape) > 0
        ]
        if not divisible:
            break
        part, axis = draw(st.sampled_from(divisible))
        start, size = part[axis]
        rows = draw(st.integers(1, size - 1))
        parts.remove(part)
        parts += [
            (*part[:axis], extent, *part[axis + 1 :])
            for extent in ((start, rows), (start + rows, size - rows))
        ]
    return tuple(draw(st.permutations(parts)))


@st.composite
def stored_arrays(
    draw: st.DrawFn,
    dtypes: Sequence[str],
    encodings: Sequence[str],
    ranks: Sequence[int],
    extent_min: int,
) -> StoredArray:
    """Draws an array of one of some dtypes and ranks, and how it is cut and encoded."""
    dtype = draw(st.sampled_from(dtypes))
    rank = draw(st.sampled_from(ranks))
    shape = tuple(draw(st.integers(extent_min, limit)) for limit in EXTENTS_MAX[:rank])
    has_chunks = rank > 0 and min(shape) > 0
    return StoredArray(
        values=random_values(dtype, shape, draw(st.integers(0, 1 << 32))),
        boxes=draw(boxes(shape)),
        chunk=tuple(draw(st.integers(1, max(1, size))) for size in shape),
        encoding=draw(st.sampled_from(encodings if has_chunks else encodings[:1])),
    )
