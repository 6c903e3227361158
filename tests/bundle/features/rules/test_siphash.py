from __future__ import annotations

import numpy as np

from bundle.features.rules import siphash

KEY = (0x0706050403020100, 0x0F0E0D0C0B0A0908)


def test_hashes_are_those_of_the_reference() -> None:
    """Source: veorq/SipHash, vectors.h: hashes of the bytes 0, 1, 2 ... with the key 00 01 ... 0f."""
    texts = ["", "\x00", "".join(map(chr, range(7))), "".join(map(chr, range(8))), "".join(map(chr, range(15)))]
    wanted = ["310e0edd47db6f72", "fd67dc93c539f874", "37d1018bf50002ab", "6224939a79f5f593", "e545be4961ca29a1"]
    assert siphash.of_strings(texts, KEY).astype("<u8").tobytes().hex() == "".join(wanted)


def test_many_hash_as_each_does_alone() -> None:
    texts = [str(number) * (1 + number % 3) for number in range(0, 100_000, 1000)] + ["\u00fc" * 9, "x" * 300]
    for key in (KEY, (-1, -(1 << 63))):
        alone = [int(siphash.of_strings([text], key)[0]) for text in texts]
        assert siphash.of_strings(texts, key).tolist() == alone


def test_none_is_no_hash() -> None:
    assert siphash.of_strings([], KEY).dtype == np.uint64
    assert siphash.of_strings([], KEY).size == 0
