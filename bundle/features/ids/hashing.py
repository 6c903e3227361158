"""The hashes that TensorFlow makes of ids: FarmHash Fingerprint64, its older MurmurHash64A, and
SipHash-2-4 where there is a key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.fingerprints import Hashes, fingerprints, mixed, rotated_right, texts_by_length
from bundle.tables.id_values import Values

_CAT = np.uint64(0xC6A4A7935BD1E995)
"""The multiplier of both FingerprintCat64 and MurmurHash64A."""
_BITS = (1 << 64) - 1
_OLDER_SEED = np.uint64(0xDECAFCAFFE)
_START = tuple(
    map(np.uint64, (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573))
)
"""The constants with which SipHash begins: "somepseudorandomlygeneratedbytes"."""


def no_text(feature: str, problem: UnicodeEncodeError) -> FeatureError:
    """Returns the error for a string that cannot be encoded."""
    return FeatureError(feature, "a string", "UTF-8", f"is no Unicode text: {problem}")


def hashes(feature: str, texts: Values) -> Hashes:
    """Returns [m] uint64 FarmHash fingerprints of [m] strings.

    Raises:
      FeatureError: A string is no Unicode text; names `feature`.
    """
    try:
        return fingerprints(texts)
    except UnicodeEncodeError as problem:
        raise no_text(feature, problem) from problem


def concatenated(first: Hashes, second: Hashes) -> Hashes:
    """Returns the hash of two hashes in their order.

    Source: TensorFlow 2.20, core/platform/fingerprint.h, FingerprintCat64 (the formula).
    """
    result = first ^ _CAT ^ (mixed(second * _CAT) * _CAT)
    return mixed(mixed(result * _CAT) * _CAT)


def siphashes(texts: Sequence[bytes], key: tuple[int, int]) -> Hashes:
    """Returns the SipHash-2-4 of texts.

    Source: Aumasson, Bernstein: SipHash, a fast short-input PRF, 2012 (the formula); TensorFlow
    2.20, core/platform/strong_hash.h (the use).
    """
    low, high = (np.uint64(half & _BITS) for half in key)
    # The last byte of the last word is the length; the bytes before it are zeros.
    padded = [text + bytes(7 - len(text) % 8) + bytes([len(text) & 0xFF]) for text in texts]
    result = np.empty(len(padded), np.uint64)
    for positions, rows in texts_by_length(padded):
        result[positions] = _siphash(_words(rows), low, high)
    return result


def older_hashes(texts: Sequence[bytes]) -> Hashes:
    """Returns the hash of texts that `tf.strings.to_hash_bucket` makes, a MurmurHash64A.

    Source: TensorFlow 2.20, tsl/platform/hash.cc, Hash64 (the formula).
    """
    sizes = np.array([len(text) for text in texts], np.uint64)
    whole = [text[: len(text) // 8 * 8] for text in texts]
    remainders = [text[len(text) // 8 * 8 :] for text in texts]
    starts = _OLDER_SEED ^ (sizes * _CAT)
    result = np.empty(len(texts), np.uint64)
    for positions, rows in texts_by_length(whole):
        hashes = starts[positions]
        for word in _words(rows):
            hashes = (hashes ^ (mixed(word * _CAT) * _CAT)) * _CAT
        result[positions] = hashes
    last = np.array([int.from_bytes(remainder, "little") for remainder in remainders], np.uint64)
    result = np.where(sizes % np.uint64(8) > 0, (result ^ last) * _CAT, result)
    return mixed(mixed(result) * _CAT)


def _words(rows: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Returns the [k, texts] words of [texts, 8 k] bytes."""
    return rows.view("<u8").T.astype(np.uint64)


def _siphash(words: NDArray[np.uint64], low: np.uint64, high: np.uint64) -> Hashes:
    """Hashes the words of many strings, [words of each, strings]."""
    a, b, c, d = (
        np.full(words.shape[1], half ^ start)
        for half, start in zip((low, high, low, high), _START, strict=True)
    )
    for word in words:
        a, b, c, d = _siphash_round(*_siphash_round(a, b, c, d ^ word))
        a = a ^ word
    c = c ^ np.uint64(0xFF)
    for _ in range(4):
        a, b, c, d = _siphash_round(a, b, c, d)
    return a ^ b ^ c ^ d


def _siphash_round(
    a: Hashes, b: Hashes, c: Hashes, d: Hashes
) -> tuple[Hashes, Hashes, Hashes, Hashes]:
    a = a + b
    c = c + d
    b = rotated_right(b, 64 - 13) ^ a
    d = rotated_right(d, 64 - 16) ^ c
    a = rotated_right(a, 32) + d
    c = c + b
    b = rotated_right(b, 64 - 17) ^ c
    d = rotated_right(d, 64 - 21) ^ a
    return a, b, rotated_right(c, 32), d
