from __future__ import annotations

import farmhash
import numpy as np
import pytest

from bundle.features.rules import fingerprints


@pytest.mark.parametrize("size", [0, 1, 300, 301, 4096, 9000])
def test_integers_hash_as_their_decimal_strings(size: int) -> None:
    random = np.random.default_rng(size)
    numbers = np.concatenate([random.integers(-(10**digits), 10**digits, 1 + size // 18) for digits in range(1, 19)])
    numbers = random.permutation(numbers)[:size]
    assert fingerprints.of_integers(numbers).tolist() == [
        farmhash.fingerprint64(str(each)) for each in numbers.tolist()
    ]


def test_integers_of_every_length_and_both_ends_of_int64_hash_as_their_decimal_strings() -> None:
    ends = [sign * 10**digits + by for digits in range(19) for sign in (1, -1) for by in (-1, 0, 1)]
    numbers = np.array([*ends, (1 << 63) - 1, -(1 << 63), 1 - (1 << 63)] * 4, np.int64)
    assert numbers.size > 300
    assert fingerprints.of_integers(numbers).tolist() == [
        farmhash.fingerprint64(str(each)) for each in numbers.tolist()
    ]
