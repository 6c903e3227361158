"""SipHash-2-4, as TensorFlow hashes ids with a key; of a few strings one by one, of many of one length at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_BITS = (1 << 64) - 1
_FEW = 16
"""Strings up to which one by one is faster (measured)."""


def of_strings(texts: Sequence[str], key: tuple[int, int]) -> Hashes:
    """Returns [m] uint64 hashes of strings in UTF-8.

    Args:
      texts: strings.
      key: two integers of 64 bits, signed or not.
    Raises:
      UnicodeEncodeError: one is no Unicode text.
    Source: Aumasson, Bernstein: SipHash, a fast short-input PRF, 2012 (the formula); TensorFlow 2.20,
      core/platform/strong_hash.h (the use).
    """
    padded = [_padded(text.encode()) for text in texts]
    hashes = np.empty(len(padded), np.uint64)
    sizes: dict[int, list[int]] = {}
    for place, each in enumerate(padded):
        sizes.setdefault(len(each) // 8, []).append(place)
    for size, places in sizes.items():
        words = np.frombuffer(b"".join([padded[place] for place in places]), "<u8").reshape(-1, size)
        if len(places) > _FEW:
            hashes[places] = _hashed(list(words.T.astype(np.uint64)), key)
        else:
            hashes[places] = [_hashed(each, key) for each in words.tolist()]
    return hashes


def _padded(data: bytes) -> bytes:
    return data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])


def _hashed(words: Sequence[Any], key: tuple[int, int]) -> Any:
    """Hashes words that are integers, or arrays of uint64, one for each string: masking the latter changes nothing."""
    low, high = key[0] & _BITS, key[1] & _BITS
    state: tuple[Any, ...] = (
        low ^ 0x736F6D6570736575,
        high ^ 0x646F72616E646F6D,
        low ^ 0x6C7967656E657261,
        high ^ 0x7465646279746573,
    )
    for word in words:
        a, b, c, d = _mixed(_mixed((*state[:3], state[3] ^ word)))
        state = (a ^ word, b, c, d)
    a, b, c, d = state
    a, b, c, d = _mixed(_mixed(_mixed(_mixed((a, b, c ^ 0xFF, d)))))
    return a ^ b ^ c ^ d


def _mixed(state: tuple[Any, ...]) -> tuple[Any, ...]:
    a, b, c, d = state
    a, c = (a + b) & _BITS, (c + d) & _BITS
    b, d = _turned(b, 13) ^ a, _turned(d, 16) ^ c
    a, c = (_turned(a, 32) + d) & _BITS, (c + b) & _BITS
    b, d = _turned(b, 17) ^ c, _turned(d, 21) ^ a
    return a, b, _turned(c, 32), d


def _turned(number: Any, bits: int) -> Any:
    return ((number << bits) & _BITS) | (number >> (64 - bits))
