"""FarmHash Fingerprint64, as TensorFlow hashes ids: of strings, and of the decimal strings of many integers at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import farmhash
import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_K0 = np.uint64(0xC3A5C85C97CB3127)
_K1 = np.uint64(0xB492B66FBE98F273)
_K2 = np.uint64(0x9AE16A3B2F90404F)
_CAT = np.uint64(0xC6A4A7935BD1E995)

_FEW = 300
"""Integers up to which one call for each is faster (measured)."""
_TOGETHER = 4096
"""Integers hashed at a time, so that what is made of them stays in the cache."""
_CHARACTERS = 24
"""Room for a number of 64 bits, its digits at the end: 20 digits, of which a multiple of four is written."""
_FOUR_DIGITS = np.array([b"%04d" % number for number in range(10_000)]).view("<u4")
_POWERS = np.array([10**digits for digits in range(1, 20)], np.uint64)


def of_strings(texts: Sequence[str]) -> Hashes:
    """Returns [m] uint64 hashes of strings in UTF-8.

    Raises:
      UnicodeEncodeError: one is no Unicode text.
    """
    return np.fromiter(map(farmhash.fingerprint64, texts), np.uint64, len(texts))


def of_integers(numbers: NDArray[np.int64]) -> Hashes:
    """Returns [m] uint64 hashes of the decimal strings of [m] int64.

    Source: google/farmhash, src/farmhash.cc, farmhashna::Hash64 of up to 32 bytes (the formulas).
    """
    if numbers.size <= _FEW:
        return of_strings(list(map(str, numbers.tolist())))
    if numbers.size > _TOGETHER:
        parts = [numbers[first : first + _TOGETHER] for first in range(0, numbers.size, _TOGETHER)]
        return np.concatenate([of_integers(part) for part in parts])
    text, lengths = _decimal(numbers)
    hashes = np.empty(numbers.size, np.uint64)
    for low, high, hashed in ((1, 3, _hash_1_to_3), (4, 7, _hash_4_to_7), (8, 16, _hash_8_to_16), (17, 20, _hash_17)):
        places = np.flatnonzero((lengths >= low) & (lengths <= high))
        if places.size == numbers.size:
            return hashed(text, lengths)
        if places.size:
            hashes[places] = hashed(text[places], lengths[places])
    return hashes


def joined(first: Hashes, second: Hashes) -> Hashes:
    """Returns the hash of two hashes in their order.

    Source: TensorFlow 2.20, core/platform/fingerprint.h, FingerprintCat64 (the formula).
    """
    result = first ^ _CAT ^ (_mixed(second * _CAT) * _CAT)
    return _mixed(_mixed(result * _CAT) * _CAT)


def _decimal(numbers: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Returns [m, 24] characters, each number's at the end of its row, and how many it has."""
    negative = numbers < 0
    left = np.abs(numbers).view(np.uint64)  # of the least int64, too: its absolute value wraps to the right bits
    lengths = np.searchsorted(_POWERS, left, side="right") + 1
    longest = int(lengths.max())
    lengths += negative
    text = np.empty((numbers.size, _CHARACTERS // 4), "<u4")
    for place in range(text.shape[1] - 1, text.shape[1] - 1 - (longest + 3) // 4, -1):
        quotient = left // np.uint64(10_000)
        text[:, place] = _FOUR_DIGITS[(left - quotient * np.uint64(10_000)).view(np.int64)]
        left = quotient
    characters = text.view(np.uint8)
    below = np.flatnonzero(negative)
    characters[below, _CHARACTERS - lengths[below]] = ord("-")
    return characters, lengths


def _fetched(text: NDArray[np.uint8], at: NDArray[np.int64], count: int) -> Hashes:
    """Returns the little-endian number that `count` characters from `at` of each row are."""
    overlapping: NDArray[Any] = np.ndarray((text.size - count + 1,), f"<u{count}", text, strides=(1,))
    found: Hashes = overlapping[at + np.arange(0, text.size, _CHARACTERS)].astype(np.uint64, copy=False)
    return found


def _hash_1_to_3(text: NDArray[np.uint8], lengths: NDArray[np.int64]) -> Hashes:
    rows, size = np.arange(len(text)), lengths.astype(np.uint64)
    first = _CHARACTERS - lengths
    a, b, c = (text[rows, at].astype(np.uint64) for at in (first, first + lengths // 2, first + lengths - 1))
    return _mixed(((a + (b << np.uint64(8))) * _K2) ^ ((size + (c << np.uint64(2))) * _K0)) * _K2


def _hash_4_to_7(text: NDArray[np.uint8], lengths: NDArray[np.int64]) -> Hashes:
    size = lengths.astype(np.uint64)
    last = text[:, -4:].copy().view("<u4")[:, 0].astype(np.uint64)
    first = _fetched(text, _CHARACTERS - lengths, 4)
    return _joined_by(size + (first << np.uint64(3)), last, _multiplier(size))


def _hash_8_to_16(text: NDArray[np.uint8], lengths: NDArray[np.int64]) -> Hashes:
    multiplier = _multiplier(lengths.astype(np.uint64))
    a = _fetched(text, _CHARACTERS - lengths, 8) + _K2
    b = text.view("<u8")[:, 2]
    return _joined_by(_turned(b, 37) * multiplier + a, (_turned(a, 25) + b) * multiplier, multiplier)


def _hash_17(text: NDArray[np.uint8], lengths: NDArray[np.int64]) -> Hashes:
    multiplier = _multiplier(lengths.astype(np.uint64))
    a = _fetched(text, _CHARACTERS - lengths, 8) * _K1
    b = _fetched(text, _CHARACTERS - lengths + 8, 8)
    words = text.view("<u8")
    c, d = words[:, 2] * multiplier, words[:, 1] * _K2
    return _joined_by(_turned(a + b, 43) + _turned(c, 30) + d, a + _turned(b + _K2, 18) + c, multiplier)


def _multiplier(size: Hashes) -> Hashes:
    return _K2 + size * np.uint64(2)


def _mixed(hashes: Hashes) -> Hashes:
    return hashes ^ (hashes >> np.uint64(47))


def _turned(hashes: Hashes, bits: int) -> Hashes:
    return (hashes >> np.uint64(bits)) | (hashes << np.uint64(64 - bits))


def _joined_by(first: Hashes, second: Hashes, multiplier: Hashes) -> Hashes:
    return _mixed((second ^ _mixed((first ^ second) * multiplier)) * multiplier) * multiplier
