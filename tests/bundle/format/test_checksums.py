from __future__ import annotations

import io
import random
from itertools import pairwise

import google_crc32c
import numpy as np
import pytest

from bundle.format.checksums import (
    BLOCK_BYTES,
    Digest,
    PlacedDigest,
    combine,
    crc32c,
    digest,
    extend,
    joined,
)


def test_crc32c_of_known_strings_is_the_published_value() -> None:
    # Source: RFC 3720, B.4.
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"") == 0


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, "<u2")])
def test_crc32c_of_any_buffer_is_that_of_its_bytes(wrap: type) -> None:
    data = bytes(range(250))
    assert crc32c(wrap(data)) == google_crc32c.value(data)


def test_crc32c_of_a_strided_array_is_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        crc32c(np.arange(10)[::2])


def test_combine_of_random_cuts_equals_the_crc_of_the_whole() -> None:
    rng = random.Random(1)
    data = rng.randbytes(5000)
    for _ in range(50):
        cut = rng.randrange(len(data) + 1)
        front, back = data[:cut], data[cut:]
        assert combine(crc32c(front), crc32c(back), len(back)) == google_crc32c.value(data)
        assert extend(crc32c(front), back) == google_crc32c.value(data)
    assert joined((crc32c(data[i : i + 700]), len(data[i : i + 700])) for i in range(0, 5000, 700)) == crc32c(data)


@pytest.mark.parametrize("size", [BLOCK_BYTES, 2 * BLOCK_BYTES + 12345])
def test_digest_of_pieces_is_that_of_the_whole_however_they_come(size: int) -> None:
    rng = random.Random(3)
    data = rng.randbytes(size)
    blocks = tuple(google_crc32c.value(data[start : start + BLOCK_BYTES]) for start in range(0, size, BLOCK_BYTES))
    updated, summed, placed = Digest(), Digest(), PlacedDigest(size)
    pieces = list(pairwise(sorted({0, size, *rng.sample(range(1, size), 5000), *range(0, size, BLOCK_BYTES)})))
    for start, end in pieces:
        updated.update(data[start:end])
        summed.append(crc32c(data[start:end]), end - start)
    rng.shuffle(pieces)
    for start, end in pieces:
        placed.place(start, data[start:end])
    for found in (updated, summed, placed.digest(), digest(io.BytesIO(data))):
        assert (found.bytes, found.crc32c, found.blocks) == (size, google_crc32c.value(data), blocks)
    assert digest(io.BytesIO(b"abcdef"), 4).crc32c == crc32c(b"abcd")


def test_pieces_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="cross the end of the block"):
        Digest().append(0, BLOCK_BYTES + 1)
    placed = PlacedDigest(10)
    placed.place(4, b"abcdef")
    with pytest.raises(ValueError, match="6 bytes came of a file of 10"):
        placed.digest()
    with pytest.raises(ValueError, match="leave a file of 10"):
        placed.place(8, b"abc")
