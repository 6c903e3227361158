"""Fingerprints of texts are those of TensorFlow, by compiled code and by NumPy."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from bundle.fingerprints import column_fingerprints, fingerprints, numpy_fingerprints
from tests.units.bundle.features.readers import objects

RECORDED = "febb1e1c8efc221a8feae9f5aebc2ae52a3d065cdbb6ab6929e56cc154fc27b7"
"""SHA-256 of the fingerprints that `tf.raw_ops.Fingerprint` of TensorFlow 2.20 makes of a text of
each length.
"""
LENGTHS = range(301)

FORMS = pytest.mark.parametrize("form", [fingerprints, numpy_fingerprints])
"""The first is compiled code, where it was built."""

Form = Callable[[NDArray[Any]], NDArray[np.uint64]]


def text_of(length: int) -> bytes:
    """Returns a text of one length; it holds bytes of all values, as far as they fit."""
    return bytes((length + 167 * position) % 256 for position in range(length))


@FORMS
def test_texts_of_each_length_have_the_recorded_fingerprints(form: Form) -> None:
    fingerprints_of_texts = form(objects(*map(text_of, LENGTHS)))
    recorded = hashlib.sha256(fingerprints_of_texts.astype("<u8").tobytes()).hexdigest()
    assert recorded == RECORDED


@FORMS
def test_texts_of_all_lengths_have_the_fingerprints_of_tensorflow(form: Form) -> None:
    tf = pytest.importorskip("tensorflow")
    random = np.random.default_rng(0)
    texts = []
    expected = []
    for length in LENGTHS:
        data = random.integers(0, 256, (3, length), np.uint8)
        data[0] = 0
        texts += [row.tobytes() for row in data]
        hashes = tf.raw_ops.Fingerprint(data=data, method="farmhash64").numpy()
        expected += hashes.view("<u8")[:, 0].tolist()
    order = random.permutation(len(texts))
    actual = form(objects(*[texts[position] for position in order]))
    assert actual.tolist() == [expected[position] for position in order]


@FORMS
def test_strings_have_the_buckets_of_tensorflow(form: Form) -> None:
    tf = pytest.importorskip("tensorflow")
    letters = [*"ab\0 é€😀", "\u00a0", "e\u0301", "\U0010ffff"]
    random = np.random.default_rng(1)
    texts = ["".join(random.choice(letters, length)) for length in range(120)]
    buckets = (1 << 62) + 1
    expected = tf.strings.to_hash_bucket_fast(texts, buckets).numpy()
    hashes = form(objects(*texts))
    assert (hashes % np.uint64(buckets)).tolist() == expected.tolist()
    assert form(objects(*[text.encode() for text in texts])).tolist() == hashes.tolist()


@FORMS
def test_a_text_that_is_no_unicode_is_an_error(form: Form) -> None:
    with pytest.raises(UnicodeEncodeError, match=r"\\ud800"):
        form(objects("a", "\ud800"))
    assert form(objects()).size == 0


@pytest.mark.parametrize("texts", [[], [""], ["", ""], ["a", "", "é\0", "b" * 100] * 50_000])
def test_a_column_has_the_fingerprints_of_its_texts(texts: list[str]) -> None:
    column = pa.array(["before", *texts, "after"], pa.large_string())
    expected = numpy_fingerprints(objects(*texts)).tolist()
    assert column_fingerprints(column.slice(1, len(texts))).tolist() == expected
    assert column_fingerprints(pa.array(texts, pa.large_string())).tolist() == expected
