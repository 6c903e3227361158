"""Fingerprints of texts are those of TensorFlow, by compiled code and by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from bundle.fingerprints import column_fingerprints, fingerprints, numpy_fingerprints
from tests.units.bundle.features.readers import objects

GOLDEN = {
    0: 0x9AE16A3B2F90404F,
    1: 0x47A24C13B17E583E,
    2: 0x0708AFFAB7FD0E6E,
    3: 0xC3374EBD3359A9FA,
    4: 0x0151F43EC6A6651C,
    5: 0x96BD515F669A406D,
    7: 0xB516355B6903A810,
    8: 0x3A473DB9E97ECBF6,
    9: 0xCE813783A3EF53A6,
    15: 0xB13799B6BD498E73,
    16: 0xA89EEA9D0B1064F9,
    17: 0xB6FE44A7528EE183,
    24: 0xC1BD775090DCD0FB,
    31: 0x69EF462FD473B008,
    32: 0x8DBD1FEA9D058207,
    33: 0xC2AC3F827AFFCED4,
    48: 0xAAC35B64F846FA6D,
    63: 0x59BF323BC38ABD4B,
    64: 0x1ED5C5161B55B8CA,
    65: 0xDC5F62FB15829582,
    66: 0x1E722772CFF0949A,
    100: 0xFB4D6D99F35D2DF5,
    127: 0x518916F3A535B166,
    128: 0x44488049DFC1F201,
    129: 0xA49CF4CD5F3E18F6,
    191: 0x6FBD465141857C7D,
    192: 0x7988C49EF11B980D,
    193: 0xF17F5B5639F64BFC,
    255: 0xE45BA7B9A7B1C6AB,
    256: 0x0FA4BD823D92DEF6,
    300: 0x36CB4F14CE7F55AC,
}
"""What `tf.raw_ops.Fingerprint` of TensorFlow 2.20 makes of the text of each length."""

FORMS = pytest.mark.parametrize("form", [fingerprints, numpy_fingerprints])
"""The first is compiled code, where it was built."""

Form = Callable[[NDArray[Any]], NDArray[np.uint64]]


def text_of(length: int) -> bytes:
    """Returns a text of one length; it holds bytes of all values, as far as they fit."""
    return bytes((length + 167 * position) % 256 for position in range(length))


@FORMS
def test_texts_of_each_length_have_the_recorded_fingerprints(form: Form) -> None:
    texts = objects(*map(text_of, GOLDEN))
    assert form(texts).tolist() == [*GOLDEN.values()]


@FORMS
def test_texts_of_all_lengths_have_the_fingerprints_of_tensorflow(form: Form) -> None:
    tf = pytest.importorskip("tensorflow")
    random = np.random.default_rng(0)
    texts = []
    expected = []
    for length in range(301):
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
