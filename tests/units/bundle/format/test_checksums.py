from __future__ import annotations

import random

import google_crc32c
import numpy as np
import pytest

from bundle.format.checksums import (
    combine,
    crc32c,
    extend,
    joined,
)


def test_crc32c_of_known_strings_equals_the_published_values() -> None:
    # Source: RFC 3720, B.4.
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"") == 0


def test_crc32c_of_a_strided_array_is_rejected() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        crc32c(np.arange(10)[::2])


def test_combine_of_random_cuts_equals_the_crc_of_the_whole() -> None:
    rng = random.Random(1)
    data = rng.randbytes(5000)
    for _ in range(50):
        cut = rng.randrange(len(data) + 1)
        front = data[:cut]
        back = data[cut:]
        assert combine(crc32c(front), crc32c(back), len(back)) == google_crc32c.value(data)
        assert extend(crc32c(front), back) == google_crc32c.value(data)
    assert joined(
        (crc32c(data[i : i + 700]), len(data[i : i + 700])) for i in range(0, 5000, 700)
    ) == crc32c(data)
