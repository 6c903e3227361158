from __future__ import annotations

import farmhash
import numpy as np
import pytest

from bundle.features.rules.hashing import hashes

KEY = (0x0706050403020100, 0x0F0E0D0C0B0A0908)


@pytest.mark.parametrize("size", [0, 1, 300, 301, 4096, 9000])
def test_integers_hash_as_their_decimal_strings(size: int) -> None:
    random = np.random.default_rng(size)
    ends = [sign * 10**digits + by for digits in range(19) for sign in (1, -1) for by in (-1, 0, 1)]
    ends += [(1 << 63) - 1, -(1 << 63), 1 - (1 << 63)]
    numbers = np.concatenate([random.integers(-(10**digits), 10**digits, 1 + size // 18) for digits in range(1, 19)])
    numbers = random.permutation(np.concatenate([ends, numbers]).astype(np.int64))[:size]
    assert hashes("f", numbers).tolist() == [farmhash.fingerprint64(str(each)) for each in numbers.tolist()]


def test_hashes_with_a_key_are_those_of_the_reference() -> None:
    """Source: veorq/SipHash, vectors.h: hashes of the bytes 0, 1, 2 ... with the key 00 01 ... 0f."""
    texts = ["", "\x00", "".join(map(chr, range(7))), "".join(map(chr, range(8))), "".join(map(chr, range(15)))]
    wanted = ["310e0edd47db6f72", "fd67dc93c539f874", "37d1018bf50002ab", "6224939a79f5f593", "e545be4961ca29a1"]
    found = hashes("f", np.array(texts, object), KEY)
    assert found.astype("<u8").tobytes().hex() == "".join(wanted)
