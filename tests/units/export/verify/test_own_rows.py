"""Rules that read other rows than the model's own operations are rejected, whatever the value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format.manifest import IDENTITY, Unknown
from export.errors import VerificationFailed
from export.front_end.interface import OwnRows, PartitionedModel
from export.front_end.specs import ModelSpec, TableFacts
from export.graphs.loading import load_tensorflow
from export.report_text import size_text
from export.verify.own_rows import check_own_rows
from tests.id_graphs import bucket_ids, computed_ids, hash_ids, vocabulary_ids, word_ids
from tests.units.export.traced_features import embedded
from tests.units.export.traced_models import tower_recipe

ROWS = 10
REMAINDER = {"ids": computed_ids(("FloorMod", ROWS))}
STEPS = (0.25, 2.0, 3.5)
BUCKETS = {"ids": bucket_ids(STEPS)}
TEXTS = {"ids": hash_ids(ROWS, "string")}
WORDS = {
    "ids": word_ids(hash_ids(ROWS, "string")),
    "kind": "bag",
    "combiner": "sum",
}
IDS = {"ids": IDENTITY}
REFUSED = IDS | {"unknown": Unknown(rule="refuse")}
Columns = Mapping[str, NDArray[Any]]
Rows = NDArray[np.int64]
Compute = Callable[[Columns, int], Rows]


def remainder(columns: Columns, _n: int) -> Rows:
    return np.mod(columns["x"], ROWS)


def hashed(columns: Columns, _n: int) -> Rows:
    tf = load_tensorflow()
    values = columns["x"]
    texts = tf.constant(values) if values.dtype == object else tf.strings.as_string(values)
    return np.asarray(tf.strings.to_hash_bucket_fast(texts, ROWS), np.int64)


def within_table(columns: Columns, _n: int) -> Rows:
    ids = columns["x"].astype(np.int64)
    return np.where((ids >= 0) & (ids < ROWS), ids, -1)


def buckets(columns: Columns, _n: int) -> NDArray[np.int64]:
    if np.isnan(columns["x"]).any():
        raise ValueError("no number")
    return np.searchsorted(np.array(STEPS, np.float32), columns["x"], side="right")


def beside_a_step(columns: Columns, n: int) -> Rows:
    """Buckets whose steps are a few floats away, as with another library's logarithm."""
    near = {"x": np.nextafter(columns["x"], np.float32(np.inf))}
    return buckets({"x": np.nextafter(near["x"], np.float32(np.inf))}, n)


def elsewhere(value: object, row: int, compute: Compute) -> Compute:
    """Returns a computation that differs for one value."""

    def computed(columns: Columns, n: int) -> Rows:
        rows = compute(columns, n)
        return np.where(columns["x"] == value, row, rows)

    return computed


def rejecting_negative(columns: Columns, n: int) -> Rows:
    if (columns["x"] < 0).any():
        raise ValueError("below zero")
    return remainder(columns, n)


def split_words(columns: Columns, _n: int) -> NDArray[np.int64]:
    texts = [" ".join(text.split()) for text in columns["x"]]
    return hashed({"x": np.array(" ".join(texts).split(), object)}, 0)


def without_the_last_word(columns: Columns, n: int) -> NDArray[np.int64]:
    return split_words(columns, n)[:-1]


def notes_of(
    compute: Any, dtype: str, described: Mapping[str, Any], **more: Any
) -> tuple[str, ...]:
    """Checks one feature `x` of a table of 10 rows; returns notes."""
    inputs = more.pop("inputs", ("x",))
    job = tower_recipe("one_table.py:build", {"x": {"dtype": dtype}}, **more)
    fields = dict(described)
    spec = embedded("x", "t", keys=fields.pop("listed", ()), **fields)
    model = ModelSpec({"t": TableFacts("t", "t", ROWS, 4)}, {"x": spec}, {})
    original: Any = None
    traced = PartitionedModel(model, (), original, {"x": OwnRows(inputs, compute)})
    return check_own_rows(job, traced, {"x": spec.entry}).notes


@pytest.mark.parametrize(
    ("compute", "dtype", "described"),
    [
        (remainder, "int64", REMAINDER),
        (rejecting_negative, "int64", REMAINDER),
        (hashed, "int64", {"ids": hash_ids(ROWS)}),
        (split_words, "string", WORDS),
        (buckets, "float32", BUCKETS),
        (beside_a_step, "float32", BUCKETS),
        (elsewhere(77, 4, within_table), "int64", REFUSED),
    ],
)
def test_rule_that_reads_the_models_rows_passes(
    compute: Compute, dtype: str, described: dict[str, Any]
) -> None:
    assert notes_of(compute, dtype, described) == ()


@pytest.mark.parametrize(
    ("compute", "dtype", "described", "words"),
    [
        (elsewhere(-(1 << 63), 3, remainder), "int64", REMAINDER, ("[-9223372036854775808]",)),
        (elsewhere("\u6771\u4eac", 0, hashed), "string", TEXTS, ("\u6771\u4eac",)),
        (elsewhere(-1, 9, within_table), "int64", IDS, ("[-1]", "no row of 't'", "row 9")),
        (
            within_table,
            "int64",
            IDS | {"unknown": Unknown(rule="row", row=5)},
            ("row 5 of 't'", "read no row"),
        ),
        (
            within_table,
            "string",
            {"ids": vocabulary_ids("v"), "listed": (("a", "0", "-1"),)},
            ("row 1 of 't'",),
        ),
        (elsewhere(np.float32(0.5), 0, buckets), "float32", BUCKETS, ("[0.5]",)),
        (without_the_last_word, "string", WORDS, ("no more words",)),
    ],
)
def test_rule_that_reads_another_row_is_rejected(
    compute: Compute, dtype: str, described: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(VerificationFailed) as failure:
        notes_of(compute, dtype, described)
    assert all(expected in str(failure.value) for expected in words), str(failure.value)


@pytest.mark.parametrize(("dtype", "described"), [("int64", REMAINDER), ("string", WORDS)])
def test_bug_of_the_exporter_is_no_value_that_the_model_rejects(
    dtype: str, described: dict[str, Any]
) -> None:
    compute: Any = lambda *_: size_text("many")  # type: ignore[arg-type]  # noqa: E731
    with pytest.raises(ValueError, match="many"):
        notes_of(compute, dtype, described)


def test_rule_that_cannot_be_compared_is_noted_and_one_of_the_recipe_is_its_own() -> None:
    hashes = {"ids": hash_ids(ROWS)}
    (note,) = notes_of(remainder, "int64", hashes, inputs=None)
    assert "x" in note
    assert "examples alone" in note
    stated = {"x": {"ids": {"kind": "hash", "buckets": ROWS}}}
    assert notes_of(remainder, "int64", {}, features=stated) == ()
