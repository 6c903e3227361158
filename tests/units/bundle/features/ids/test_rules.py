"""Rows of ids by each rule, and what is no id; TensorFlow judges those that it has in
tests/differential.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.features.ids.rules import rule_of, within
from bundle.format.graph_builder import GraphBuilder
from bundle.format.manifest import GraphIds, IdentityIds
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary
from tests.id_graphs import bucket_ids, computed_ids, hash_ids, vocabulary_ids
from tests.units.bundle.features.readers import objects

VOCABULARIES = {
    "v": Vocabulary(IntegerKeys(np.arange(10))),
    "tens": Vocabulary(IntegerKeys(np.array([10, 20, 30]))),
    "letters": Vocabulary(StringKeys(["x", "y"])),
}
SMALLEST = -(1 << 63)


def masked_hash_ids(mask: int | str) -> GraphIds:
    """Returns rows as the layer Hashing has them, with 1000 bins, one of which is the mask's."""
    hashed = hash_ids(999, "string" if isinstance(mask, str) else "int64", first_row=1)
    builder = GraphBuilder(hashed.dtype, hashed)
    builder.masked(builder.last, 0, "string" if isinstance(mask, str) else "int64", mask)
    return builder.graph()


def rows(entry: IdentityIds | GraphIds, values: NDArray[Any], count: int = 10) -> NDArray[np.int64]:
    return within(rule_of(entry, VOCABULARIES).resolve("f", values), count)


@pytest.mark.parametrize(
    ("rule", "values", "expected"),
    [
        (IdentityIds(), np.array([0, 9, 10, -1, 1 << 62, SMALLEST]), [0, 9, -1, -1, -1, -1]),
        (IdentityIds(), objects("7", "-3", "9223372036854775807"), [7, -1, -1]),
        *(
            (IdentityIds(), np.array([3, 11], dtype), [3, -1])
            for dtype in (np.int32, np.int8, np.uint8, np.uint64)
        ),
        (
            bucket_ids((0.0, 10.0, 10.0)),
            np.array([-1, 0, 9, 10, 11], np.float32),
            [0, 1, 1, 3, 3],
        ),
        (bucket_ids((0.0, 0.1, 10.0)), np.array([-3, 11]), [0, 3]),
        (bucket_ids(range(12)), np.array([11]), [-1]),
        (bucket_ids((0.0, 9.0), first_row=-1), np.array([-3, 11]), [-1, 1]),
        (vocabulary_ids("v", "int64", first_row=8), np.arange(4), [8, 9, -1, -1]),
        (computed_ids(("AddV2", 1), ("FloorMod", 7)), objects("-2", "12"), [6, 6]),
        *((rule, np.empty(0), []) for rule in (hash_ids(9), masked_hash_ids(5))),
    ],
)
def test_rows_of_ids_outside_the_table_are_negative(
    rule: IdentityIds | GraphIds, values: NDArray[Any], expected: list[int]
) -> None:
    assert rows(rule, values).tolist() == expected


NO_INTEGERS: list[NDArray[Any]] = [
    *(np.array([value]) for value in (1.5, np.nan, True, b"1")),
    *(
        np.array([1.0], np.float32),
        np.array([1 << 63], np.uint64),
        np.array(["2020-01-01"], "M8[D]"),
    ),
    *(
        objects(value)
        for value in (None, 3.5, True, [1], "1.0", " 1", "1_0", "+1", "\u0663", "", "1" * 5000)
    ),
    *(objects("1", None), objects("9223372036854775808"), objects("-9223372036854775809")),
]
NO_NUMBERS: list[NDArray[Any]] = [
    *(np.array([value]) for value in (np.nan, np.inf, 1e300, True)),
    objects("1"),
]


@pytest.mark.parametrize(
    ("rule", "values", "message"),
    [
        *((IdentityIds(), values, "'f'") for values in NO_INTEGERS),
        *((bucket_ids((0.0,)), values, "'f'") for values in NO_NUMBERS),
        *(
            (IdentityIds(), values, message)  # the shortest text of the first that is none
            for values, message in (
                (np.array([1e20], np.float32), r"an id of about 1e\+20 is beyond int64"),
                (np.array([0.1], np.float32), r"'f': 0\.1 is no id"),
                (np.array([5, np.inf], np.float32), "inf is no id"),
                (np.array([1.0, 2.0]), r"'f': 1\.0 is no id"),
            )
        ),
        (bucket_ids((0.0,)), np.array([1, 1e300]), r"1e\+300 is not finite in float32"),
        (computed_ids(("FloorMod", 3)), objects("a"), "'a' is no integer id"),
        (computed_ids(("FloorMod", 3)), objects("007"), "'007' is no integer id"),
        (hash_ids(10, key=(1, 2)), objects("\ud800"), "no Unicode text"),
        (hash_ids(10), objects("\ud800"), "UTF-8"),
        (hash_ids(10), np.array([0.5]), r"0\.5 is no id; an integer or a string was expected"),
        (hash_ids(10, "string"), np.array([5]), "5 is an integer; a string was expected"),
        (hash_ids(10, "int64"), objects("a"), "'a' is no integer id"),
        (vocabulary_ids("letters"), np.array([5]), "5 is an integer; a string was expected"),
        (vocabulary_ids("v", "int64"), objects("a"), "'a' is no integer id"),
    ],
)
def test_invalid_id_is_rejected_with_the_name_of_the_feature(
    rule: IdentityIds | GraphIds, values: NDArray[Any], message: str
) -> None:
    with pytest.raises(FeatureError, match=message) as problem:
        rows(rule, values)
    assert len(str(problem.value)) < 300


@pytest.mark.parametrize(
    ("rule", "values", "expected"),
    [
        # Those of tf.strings.to_hash_bucket_fast and _strong.
        (hash_ids(1000), np.array([5, -7]), [971, 62]),
        (hash_ids(1000), objects("a", "", "5", "\u00e9"), [939, 263, 971, 25]),
        (hash_ids(1000, key=(1, 2)), objects("a", "", "5", "\u00e9"), [646, 435, 233, 591]),
        # Those of the layer Hashing.
        (masked_hash_ids(5), np.array([5, -7, 6]), [0, 30, 714]),
        (masked_hash_ids("a"), objects("a", "b"), [0, 938]),
        # Those of the layer IntegerLookup, with 4 rows for other ids and a mask.
        (
            vocabulary_ids(
                "tens",
                "int64",
                first_row=5,
                oov_buckets=4,
                oov_first_row=1,
                oov_hash="modulo",
                mask=-1,
            ),
            np.array([10, 20, 30, -1, 7, 8, -7, 100]),
            [5, 6, 7, 0, 4, 1, 2, 1],
        ),
        # Those of the layer StringLookup, with 3 rows for other ids and a mask.
        (
            vocabulary_ids("letters", first_row=4, oov_buckets=3, oov_first_row=1, mask=""),
            objects("x", "y", "", "a", "b", "\u00e9"),
            [4, 5, 0, 1, 2, 2],
        ),
        # A mask that the vocabulary holds, too, and no rows for other ids.
        (vocabulary_ids("letters", first_row=4, mask="y"), objects("x", "y", "a"), [4, 0, -1]),
    ],
)
def test_rows_are_those_of_tensorflow_and_keras(
    rule: IdentityIds | GraphIds, values: NDArray[Any], expected: list[int]
) -> None:
    assert rows(rule, values, 1000).tolist() == expected
