"""Rules that read other rows than the model's own operations are rejected, whatever the value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format.manifest import GraphIds, IdentityIds, TextIds, Unknown
from export.errors import VerificationFailed
from export.front_end.interface import OwnRows, PartitionedModel
from export.front_end.manifest_features import describe_features
from export.front_end.specs import ModelSpec, TableFacts
from export.graphs.loading import load_tensorflow
from export.tensorflow_models.model.tracing import trace_towers
from export.verify.own_rows import HOSTILE_VALUES, check_own_rows, hostile_values
from tests.id_graphs import bucket_ids, cast_ids, computed_ids, hash_ids, vocabulary_ids
from tests.units.export.traced_features import embedded
from tests.units.export.traced_models import tower_recipe

ROWS = 10
REMAINDER = computed_ids(("FloorMod", ROWS))
HASH = hash_ids(ROWS)
STEPS = (0.25, 2.0, 3.5)
Columns = Mapping[str, NDArray[Any]]
Rows = NDArray[np.int64]


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


def elsewhere(value: object, row: int, compute: Any) -> Callable[[Columns, int], Rows]:
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


def check(compute: Any, dtype: str, **described: Any) -> tuple[str, ...]:
    """Checks one feature `x` of a table of 10 rows; returns notes."""
    job = tower_recipe("one_table.py:build", {"x": {"dtype": dtype}})
    keys = described.pop("listed", ())
    spec = embedded("x", "t", keys=keys, **described)
    model = ModelSpec({"t": TableFacts("t", "t", ROWS, 4)}, {"x": spec}, {})
    original: Any = None
    traced = PartitionedModel(model, (), original, {"x": OwnRows(("x",), compute)})
    return check_own_rows(job, traced, {"x": spec.entry}).notes


WORDS = {
    "ids": TextIds(split="whitespace", ids=hash_ids(ROWS, "string")),
    "kind": "bag",
    "combiner": "sum",
}


@pytest.mark.parametrize(
    ("compute", "dtype", "described"),
    [
        (remainder, "int64", {"ids": REMAINDER}),
        (remainder, "int32", {"ids": REMAINDER}),
        (rejecting_negative, "int64", {"ids": REMAINDER}),
        (hashed, "int64", {"ids": HASH}),
        (hashed, "string", {"ids": hash_ids(ROWS, "string")}),
        (split_words, "string", WORDS),
        (within_table, "int32", {"ids": IdentityIds()}),
        (buckets, "float32", {"ids": bucket_ids(STEPS)}),
        (beside_a_step, "float32", {"ids": bucket_ids(STEPS)}),
        (
            elsewhere(77, 4, within_table),
            "int64",
            {"ids": IdentityIds(), "unknown": Unknown(rule="refuse")},
        ),
    ],
)
def test_rule_that_reads_the_models_rows_passes(
    compute: Any, dtype: str, described: dict[str, Any]
) -> None:
    assert check(compute, dtype, **described) == ()


@pytest.mark.parametrize(
    ("compute", "dtype", "described", "message"),
    [
        (
            elsewhere(-(1 << 63), 3, remainder),
            "int64",
            {"ids": REMAINDER},
            r"with x = \[-9223372036854775808\], a bundle would read row 2 of 't', and the model's "
            r"own operations read row 3; 1 of 20000 values differ",
        ),
        (elsewhere((1 << 31) - 1, 0, remainder), "int32", {"ids": REMAINDER}, r"\[2147483647\]"),
        (
            elsewhere("\u6771\u4eac", 0, hashed),
            "string",
            {"ids": hash_ids(ROWS, "string")},
            "\u6771\u4eac",
        ),
        (elsewhere("", 9, hashed), "string", {"ids": hash_ids(ROWS, "string")}, r"with x = \[''\]"),
        (
            elsewhere(-1, 9, within_table),
            "int64",
            {"ids": IdentityIds()},
            r"with x = \[-1\], a bundle would read no row of 't', .* read row 9",
        ),
        (
            within_table,
            "int64",
            {"ids": IdentityIds(), "unknown": Unknown(rule="row", row=5)},
            "a bundle would read row 5 of 't', and the model's own operations read no row",
        ),
        (
            within_table,
            "string",
            {"ids": vocabulary_ids("v"), "listed": (("a", "0", "-1"),)},
            "row 1 of 't'",
        ),
        (
            elsewhere(np.float32(0.5), 0, buckets),
            "float32",
            {"ids": bucket_ids(STEPS)},
            r"with x = \[0\.5\]",
        ),
        (
            elsewhere("ÉCOLE", 0, split_words),
            "string",
            WORDS,
            "a bundle would read row . of 't', and the model's own operations read row 0",
        ),
        (without_the_last_word, "string", WORDS, "the model's own operations read no more words"),
    ],
)
def test_rule_that_reads_another_row_is_rejected(
    compute: Any, dtype: str, described: dict[str, Any], message: str
) -> None:
    with pytest.raises(VerificationFailed, match=message):
        check(compute, dtype, **described)


def test_note_names_a_feature_that_cannot_be_compared() -> None:
    job = tower_recipe("one_table.py:build", {"x": {"dtype": "int64"}})
    spec = embedded("x", "t", ids=HASH)
    model = ModelSpec({"t": TableFacts("t", "t", ROWS, 4)}, {"x": spec}, {})
    original: Any = None
    traced = PartitionedModel(model, (), original, {"x": OwnRows(None, remainder)})
    (note,) = check_own_rows(job, traced, {"x": spec.entry}).notes
    assert note.startswith("the rows of x were compared with the model's on the examples alone")


def test_own_operations_of_a_traced_model_tell_a_wrong_rule(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import tensorflow as tf\n\n\n"
        "class Model(tf.Module):\n"
        "    def __init__(self):\n"
        "        self.table = tf.Variable(tf.zeros([100, 4]))\n\n"
        "    def __call__(self, given):\n"
        "        return tf.gather(self.table, tf.math.floormod(given['x'], 100))\n"
    )
    job = tower_recipe("model.py:Model", {"x": {"dtype": "int64"}}, code={"table_threshold": 0})
    model = trace_towers(job, tmp_path)
    entry: Any = describe_features(model.spec, job)["x"]
    original: Any = None

    def check_rule(ids: GraphIds) -> None:
        changed = entry.model_copy(update={"ids": ids})
        spec: Any = model.spec.features["x"]
        spec = replace(model.spec, features={"x": replace(spec, entry=changed)})
        traced = PartitionedModel(spec, model.towers, original, model.own_rows)
        check_own_rows(job, traced, {"x": changed})

    check_rule(entry.ids)
    for wrong in (
        computed_ids(("FloorMod", 99)),
        computed_ids(("TruncateMod", 100)),
        cast_ids("int64", "int32"),
    ):
        with pytest.raises(VerificationFailed, match="the model's own operations read row"):
            check_rule(wrong)


def test_rule_of_the_recipe_is_not_compared() -> None:
    job = tower_recipe(
        "one_table.py:build",
        {"x": {"dtype": "int64"}},
        features={"x": {"ids": {"kind": "hash", "buckets": ROWS}}},
    )
    spec = embedded("x", "t")
    model = ModelSpec({"t": TableFacts("t", "t", ROWS, 4)}, {"x": spec}, {})
    original: Any = None
    traced = PartitionedModel(model, (), original, {"x": OwnRows(("x",), remainder)})
    check_own_rows(job, traced, {"x": spec.entry})


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "string"])
def test_hostile_values_are_distinct_kinds_of_one_type(dtype: Any) -> None:
    values = hostile_values(dtype)
    assert values.shape == (HOSTILE_VALUES,)
    if dtype == "string":
        assert {"", "0", "[UNK]"} <= {*values.tolist()}
        assert all(isinstance(text, str) for text in values.tolist())
        return
    ends = np.iinfo(dtype) if dtype.startswith("int") else np.finfo(dtype)
    assert (
        values.astype(dtype).astype(values.dtype).tolist() == values.tolist() or dtype == "float32"
    )
    if dtype == "float32":
        assert np.isnan(values).any()
        assert np.isinf(values).any()
        assert np.signbit(values).any()
    else:
        assert {ends.min, ends.max, 0, -1, 1} <= {*values.tolist()}
