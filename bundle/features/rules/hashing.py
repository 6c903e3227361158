"""The hashes that TensorFlow makes of ids: FarmHash Fingerprint64, and SipHash-2-4 where there is a key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import farmhash
import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.tables.id_values import Values, known_kind

Hashes = NDArray[np.uint64]

_K0 = np.uint64(0xC3A5C85C97CB3127)
_K1 = np.uint64(0xB492B66FBE98F273)
_K2 = np.uint64(0x9AE16A3B2F90404F)
_CAT = np.uint64(0xC6A4A7935BD1E995)
_BITS = (1 << 64) - 1
_START = tuple(map(np.uint64, (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)))
"""Of SipHash."""

_FEW = 300
"""Integers up to which one call for each is faster (measured)."""
_TOGETHER = 4096
"""Integers hashed at a time, so that what is made of them stays in the cache."""
_CHARACTERS = 24
"""Room for a number of 64 bits, its digits at the end: 20 digits, of which a multiple of four is written."""
_FOUR_DIGITS = np.array([b"%04d" % number for number in range(10_000)]).view("<u4")
_POWERS = np.array([10**digits for digits in range(1, 20)], np.uint64)


def hashes(feature: str, values: Values, key: tuple[int, int] | None = None) -> Hashes:
    """Returns [m] uint64 hashes of strings, or of the decimal strings of integers.

    Args:
      feature: named in errors.
      values: ids.
      key: of SipHash; None: FarmHash.
    Raises:
      FeatureError: a value is no id, or no Unicode text.
    """
    ids = known_kind(feature, values)
    if ids.dtype == np.int64 and key is None:
        return _of_integers(ids)
    texts = list(map(str, ids.tolist()))
    try:
        return _fingerprints(texts, len(texts)) if key is None else _siphashes(texts, key)
    except UnicodeEncodeError as problem:
        raise FeatureError(feature, f"a string is no Unicode text: {problem}; UTF-8 was expected") from problem


def _fingerprints(texts: Iterable[str], count: int) -> Hashes:
    return np.fromiter(map(farmhash.fingerprint64, texts), np.uint64, count)


def _of_integers(numbers: NDArray[np.int64]) -> Hashes:
    """Returns [m] uint64 hashes of the decimal strings of [m] int64.

    Source: google/farmhash, src/farmhash.cc, farmhashna::Hash64 of up to 32 bytes (the formulas).
    """
    if numbers.size <= _FEW:
        return _fingerprints(map(str, numbers.tolist()), numbers.size)
    if numbers.size > _TOGETHER:
        parts = [numbers[first : first + _TOGETHER] for first in range(0, numbers.size, _TOGETHER)]
        return np.concatenate([_of_integers(part) for part in parts])
    text, lengths = _decimal(numbers)
    hashes = np.empty(numbers.size, np.uint64)
    for low, high, hashed in ((1, 3, _hash_1_to_3), (4, 7, _hash_4_to_7), (8, 16, _hash_8_to_16), (17, 20, _hash_17)):
        places = np.flatnonzero((lengths >= low) & (lengths <= high))
        if places.size == numbers.size:
            return hashed(text, lengths)
        if places.size:
            hashes[places] = hashed(text[places], lengths[places])
    return hashes


def concatenated(first: Hashes, second: Hashes) -> Hashes:
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


def _siphashes(texts: Sequence[str], key: tuple[int, int]) -> Hashes:
    """Returns the SipHash-2-4 of strings in UTF-8; those of one length are hashed together.

    Source: Aumasson, Bernstein: SipHash, a fast short-input PRF, 2012 (the formula); TensorFlow 2.20,
      core/platform/strong_hash.h (the use).
    """
    padded = [data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF]) for data in (text.encode() for text in texts)]
    lengths = np.array([len(each) for each in padded], np.int64)
    found = np.empty(len(padded), np.uint64)
    for length in np.unique(lengths).tolist():
        places = np.flatnonzero(lengths == length)
        words = np.frombuffer(b"".join([padded[place] for place in places.tolist()]), "<u8").reshape(-1, length // 8)
        found[places] = _siphash(words.T.astype(np.uint64), *(np.uint64(part & _BITS) for part in key))
    return found


def _siphash(words: NDArray[np.uint64], low: np.uint64, high: np.uint64) -> Hashes:
    """Hashes the words of many strings, [words of each, strings]."""
    a, b, c, d = (
        np.full(words.shape[1], part ^ start) for part, start in zip((low, high, low, high), _START, strict=True)
    )
    for word in words:
        a, b, c, d = _siphash_round(*_siphash_round(a, b, c, d ^ word))
        a = a ^ word
    c = c ^ np.uint64(0xFF)
    for _ in range(4):
        a, b, c, d = _siphash_round(a, b, c, d)
    return a ^ b ^ c ^ d


def _siphash_round(a: Hashes, b: Hashes, c: Hashes, d: Hashes) -> tuple[Hashes, Hashes, Hashes, Hashes]:
    a, c = a + b, c + d
    b, d = _turned(b, 64 - 13) ^ a, _turned(d, 64 - 16) ^ c
    a, c = _turned(a, 32) + d, c + b
    b, d = _turned(b, 64 - 17) ^ c, _turned(d, 64 - 21) ^ a
    return a, b, _turned(c, 32), d
