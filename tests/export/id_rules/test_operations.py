"""Rows by TensorFlow's own operations, which a bundle's rows of ids are compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.rules.ids import cast, rule_of
from bundle.format import manifest
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary
from export.graphs.loading import tf
from export.id_rules import operations
from export.id_rules.operations import rows_by_tensorflow
from export.recipe.schema import VocabularyPart

KEYS = ["ann", "böb", " c", "d\re"]
NUMBERS = [-5, 7, 1 << 62]
PAGES = {
    "names": VocabularyPart(file="names.txt"),
    "numbers": VocabularyPart(file="numbers.txt", dtype="int64"),
}
OPENED = {
    "names": Vocabulary(StringKeys(KEYS)),
    "numbers": Vocabulary(IntegerKeys(np.array(NUMBERS))),
}
TEXTS = np.array(["ann", "d\re", "", "no", "böb"], object)
INTEGERS = np.array([1 << 62, 0, 8, -1, -5])
NAMES = {"vocabulary": "names", "first_row": 2}
LISTED = {"vocabulary": "numbers"}
BEYOND = {"first_row": 1, "oov_buckets": 100, "oov_first_row": 5}


def computed(*operations: tuple[Any, int | None]) -> manifest.ComputedIds:
    steps = tuple(manifest.IdOperation(do=do, by=by) for do, by in operations)
    return manifest.ComputedIds(operations=steps)


@pytest.mark.parametrize(
    ("rule", "values", "rows"),
    [
        (manifest.IdentityIds(), np.array([0, 9, 12]), [0, 9, 12]),
        (manifest.VocabularyIds(**NAMES), TEXTS, [2, 5, -1, -1, 3]),
        (manifest.VocabularyIds(**LISTED), np.array([1 << 62, 8, -5]), [2, -1, 0]),
        (
            manifest.VocabularyIds(
                **LISTED, first_row=4, oov_buckets=3, oov_first_row=1, oov_hash="modulo", mask=0
            ),
            INTEGERS,
            [6, 0, 3, 3, 4],
        ),
        (
            manifest.BucketIds(boundaries=(0.5, 2.0)),
            np.array([0.4, 0.5, 3.0, -9.0], np.float32),
            [0, 1, 2, 0],
        ),
        (
            manifest.BucketIds(boundaries=(0.5, 2.0), falling=True, first_row=3),
            np.array([0.4, 0.5, 3.0], np.float32),
            [5, 4, 3],
        ),
        (manifest.HashIds(buckets=999), INTEGERS, None),
        (manifest.HashIds(buckets=999, first_row=5, mask=8), INTEGERS, None),
        (manifest.HashIds(buckets=999, key=(3, 4)), TEXTS, None),
        (computed(("remainder", 7)), np.array([-1, 6, 15]), [6, 6, 1]),
        (computed(("truncated_remainder", 7)), np.array([-1, 6, 15]), [-1, 6, 1]),
        (computed(("divide", 4)), np.array([-1, 3, 9]), [-1, 0, 2]),
        (computed(("multiply", 3), ("add", -2)), np.array([-1, 4]), [-5, 10]),
        (computed(("at_least", 0), ("at_most", 5)), np.array([-1, 4, 9]), [0, 4, 5]),
        (computed(("absolute", None)), np.array([-3, 3]), [3, 3]),
        (computed(("int32", None)), np.array([(1 << 31) + 1, 5]), [1 - (1 << 31), 5]),
        (
            manifest.ChainedIds(rules=(manifest.HashIds(buckets=50), computed(("add", 7)))),
            INTEGERS,
            None,
        ),
        (manifest.HashIds(buckets=999), TEXTS, None),
        (manifest.VocabularyIds(vocabulary="names", **BEYOND), TEXTS, None),
        (manifest.VocabularyIds(vocabulary="numbers", **BEYOND), INTEGERS, None),
    ],
)
def test_rows_by_tensorflow_equal_those_of_the_bundle(
    rule: Any, values: np.ndarray[Any, Any], rows: list[int] | None, tmp_path: Path
) -> None:
    (tmp_path / "names.txt").write_text("".join(f"{key}\n" for key in KEYS), newline="")
    (tmp_path / "numbers.txt").write_text("".join(f"{key}\n" for key in NUMBERS))
    found = rows_by_tensorflow(rule, values, PAGES, tmp_path)
    assert found.tolist() == rule_of(rule, OPENED).resolve("f", values).tolist()
    assert rows is None or found.tolist() == rows


@pytest.mark.parametrize(
    ("entry", "values", "whole"),
    [
        (manifest.Cast(of="float32", to="int64", rounding="toward_zero"), [-1.5, 2.9], [-1, 2]),
        (manifest.Cast(of="float32", to="int64", rounding="down"), [-1.5, 2.9], [-2, 2]),
        (manifest.Cast(of="float32", to="int32", rounding="up"), [-1.5, 2.1], [-1, 3]),
        (manifest.Cast(of="float32", to="int64", rounding="half_even"), [0.5, 1.5], [0, 2]),
        (manifest.Cast(of="int64", to="int32"), [(1 << 31) + 1, 7], [1 - (1 << 31), 7]),
    ],
)
def test_cast_gives_the_integers_of_the_rounding(
    entry: manifest.Cast, values: list[float], whole: list[int]
) -> None:
    dtype = np.float32 if entry.of == "float32" else np.int64
    given = np.array(values, dtype)
    assert operations.cast(entry, tf.constant(given)).numpy().tolist() == whole
    assert cast(entry, "f", given).tolist() == whole


def test_words_are_split_changed_joined_and_cut() -> None:
    texts = tf.constant(["A b, c", "", "x"])
    every = manifest.TextStep(do="replace_any", what=",", by="")
    steps = (manifest.TextStep(do="lower"), every)

    def found(**how: Any) -> list[Any]:
        rule = manifest.TextIds(ids=manifest.HashIds(buckets=9), steps=steps, **how)
        listed: list[Any] = operations.words(rule, texts).numpy().tolist()
        return [each.tolist() if isinstance(each, np.ndarray) else each for each in listed]

    assert found(split="whitespace") == [[b"a", b"b", b"c"], [], [b"x"]]
    assert found(split="whitespace", length=2) == [[b"a", b"b"], [], [b"x"]]
    assert found(split="whitespace", ngrams=(1, 2))[0] == [b"a", b"b", b"c", b"a b", b"b c"]
    assert found(split="characters", length=3)[0] == [b"a", b" ", b"b"]
    assert found(split=None) == [b"a b c", b"", b"x"]


def test_joined_and_crossed_rows_are_those_of_the_whole_string_and_of_all_pairs() -> None:
    small = manifest.CrossKey(dtype="int64", ids=computed(("remainder", 5)), rows=5, unknown_row=0)
    name = manifest.CrossKey(dtype="string", ids=None)
    numbers = tf.constant([3, 12], tf.int64)
    names = tf.constant(["ann", "bob"])

    hashed = manifest.HashIds(buckets=1000)
    join = manifest.JoinedIds(keys=(name, small), texts=("<", "-", ">"), ids=hashed)
    rows = operations.joined(join, [names, numbers], {})
    whole = operations.rows_of(hashed, tf.constant(["<ann-3>", "<bob-2>"]), {})
    assert rows.numpy().tolist() == whole.numpy().tolist()

    cross = manifest.CrossedIds(keys=(name, small), buckets=100, hash_key=7)
    bags = tf.ragged.constant([["ann", "bob"], []])
    others = tf.ragged.constant([[3, 12], [1]], dtype=tf.int64)
    pairs = operations.crossed(cross, [bags, others], {})
    assert pairs.indices.numpy()[:, 0].tolist() == [0, 0, 0, 0]
    assert ((pairs.values.numpy() >= 0) & (pairs.values.numpy() < 100)).all()
