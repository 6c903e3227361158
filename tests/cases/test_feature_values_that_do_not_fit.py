"""Values, defaults and changes that features do not take are errors that name the feature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from bundle.errors import FeatureError, FormatError
from bundle.features.columns import Column, OutputBlock
from bundle.features.ids.crosses import COMBINATIONS_MAX
from bundle.features.reader import FeatureReader, open_features
from bundle.format import manifest as entries
from bundle.storage.catalog import read_manifest
from bundle.tables.reader import TableReader
from tests.bundles.tables import write_table
from tests.hostile.manifest_edits import rewrite, setting
from tests.id_graphs import bucket_ids, crossed_ids, hash_ids, word_ids
from tests.units.bundle.features.readers import column, objects

ROWS = 9
FEATURE = TypeAdapter(entries.Feature)
BAG = {"kind": "bag", "combiner": "sum"}
CROSS = {"ids": crossed_ids(("int64", "string"), 9)}
TEXT = word_ids(hash_ids(9, "string"))
FEATURES: dict[str, dict[str, Any]] = {
    "row": {"kind": "single"},
    "bag": {**BAG, "weighted": True},
    "recent": {"kind": "sequence", "length": 3},
    "hashed": {"kind": "single", "ids": hash_ids(9)},
    "text_hash": {"kind": "single", "ids": hash_ids(9, "string")},
    "number_hash": {"kind": "single", "ids": hash_ids(9, "int64")},
    "bucket": {"kind": "single", "ids": bucket_ids((0.0,))},
    "cross": {**BAG, **CROSS, "inputs": ["user", "genre"], "joint": [{"default": 4}, {}]},
    "text": {**BAG, "ids": TEXT},
    "second": {"kind": "single", "inputs": ["wide"], "place": 1, "places": 2},
    "age": {"kind": "dense"},
    "grid": {"kind": "dense", "shape": [2, 2], "dtype": "int32"},
    "name": {"kind": "dense", "dtype": "string"},
    "padded": {"kind": "dense", "take": "padded", "shape": [3], "dtype": "int64"},
    "inside": {"kind": "dense", "dtype": "int64", "below": 4},
}
TWO = [0, 1, 2]


def feature(**fields: Any) -> entries.Feature:
    table = {} if fields["kind"] == "dense" else {"table": "t"}
    return FEATURE.validate_python({"role": "context", **table, **fields})


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> TableReader:
    root = tmp_path_factory.mktemp("table")
    return TableReader(root, write_table(root, "t", np.ones((ROWS, 3), "<f4"), "float32", []))


@pytest.fixture(scope="module")
def reader(table: TableReader) -> FeatureReader:
    features = {name: feature(**fields) for name, fields in FEATURES.items()}
    return FeatureReader(features, {"t": table}, {})


LONG = int(COMBINATIONS_MAX**0.5) + 1
VALUES: list[tuple[str, dict[str, Column], str]] = [
    *(
        ("row", {"row": Column(np.array([value, value]))}, "'row'")
        for value in (
            1.5,
            1e20,
            np.nan,
            True,
            b"1",
            np.uint64(1 << 63),
            np.datetime64("2020-01-01"),
        )
    ),
    *(
        ("row", {"row": column("1", value)}, "no integer id|is no id")
        for value in (None, 3.5, "", "1.0", " 1", "+1", "1_0", "007", "\u0663", str(1 << 63))
    ),
    ("row", {}, "no value was sent"),
    ("row", {"row": column(1)}, "1 values for 2 examples"),
    ("row", {"row": column(1, 2, 3, offsets=[0, 2, 3])}, "2 values in example 0"),
    ("row", {"row": column(1, offsets=[0, 1, 1])}, "no value"),
    ("row", {"row": column(1, 2, weights=[1, 1])}, "weights"),
    ("row", {"row": Column(np.ones((2, 1), int))}, "shape"),
    ("bag", {"bag": column(1, 5, weights=[1.0])}, "1 weights for 2 values"),
    ("bag", {"bag": column(1, 5, weights=[1.0, np.nan])}, "finite"),
    *(
        ("bag", {"bag": column(1, 5, offsets=offsets)}, "offsets")
        for offsets in ([0, 1], [0, 3, 2], [1, 1, 2], [0, 1, 3])
    ),
    ("bag", {"bag": Column(np.array([1, 5]), np.array([0.0, 1.0, 2.0]))}, "integers"),
    ("recent", {"recent": column(1, 5, offsets=TWO, weights=[1, 1])}, "weights"),
    ("hashed", {"hashed": column(0.5, 1.5)}, r"0\.5"),
    ("hashed", {"hashed": column("a", "\ud800")}, "UTF-8"),
    ("text_hash", {"text_hash": column(5, 6)}, "5 is an integer"),
    ("number_hash", {"number_hash": column("a", "1")}, "'a' is no integer id"),
    *(
        (
            "bucket",
            {"bucket": Column(objects(1, 2) if number == "1" else np.array([1, number]))},
            "'bucket'",
        )
        for number in (np.nan, np.inf, 1e300, "1")
    ),
    ("bucket", {"bucket": column(True, False)}, "no number"),
    ("cross", {}, "'genre'"),
    ("cross", {"genre": column(3, 4)}, "'genre': 3 is an integer"),
    ("cross", {"user": column("x", "1"), "genre": column("a", "b")}, "'user': 'x'"),
    (
        "cross",
        {
            "user": Column(np.zeros(LONG, np.int64), np.array([0, LONG, LONG])),
            "genre": Column(np.full(LONG, "a", object), np.array([0, LONG, LONG])),
        },
        f"more than {COMBINATIONS_MAX}",
    ),
    ("text", {"text": column(7, 8)}, "7 is an integer"),
    ("text", {"text": column("a", "b", offsets=[0, 2, 2])}, "2 values in example 0"),
    ("text", {"text": column("a", "\ud800")}, "Unicode"),
    ("second", {"wide": column(0, 1, 2, offsets=[0, 2, 3])}, "'wide': 1 values in example 1"),
    *(
        ("age", {"age": column(*values)}, "'age'")
        for values in (
            (np.nan, 1.0),
            (1.0, np.inf),
            (1e39, 1.0),
            ("1", "2"),
            (True, False),
            (1.0,) * 4,
        )
    ),
    ("age", {}, "no value"),
    *(
        ("grid", {"grid": Column(values)}, "'grid'")
        for values in (np.ones(2), np.full(8, 1 << 31), np.full(8, 0.5), np.arange(7))
    ),
    ("name", {"name": column(1, 2)}, "1 is an integer"),
    ("padded", {"padded": column(1, 2, 3, 4, offsets=[0, 0, 4])}, "4 values in example 1"),
    ("inside", {"inside": column(4, 1)}, "id 4"),
    ("absent", {}, "no such feature"),
]


@pytest.mark.parametrize(("name", "columns", "words"), VALUES)
def test_values_of_two_examples_that_do_not_fit_are_rejected(
    reader: FeatureReader, name: str, columns: dict[str, Column], words: str
) -> None:
    all_columns = {"hashed": column("a", "b")} | columns
    names = [name] if name == "hashed" else ["hashed", name]
    blocks = [OutputBlock(np.zeros((2, 30), np.float32), tuple(names), (3, 6))]
    with pytest.raises(FeatureError, match=words) as rejected:
        reader.activations(names, all_columns, 2)
    assert rejected.value.feature in {name, *columns, "genre"}
    assert len(str(rejected.value)) < 300
    with pytest.raises(FeatureError, match=words):
        reader.write(blocks, all_columns, 2)


def test_rows_of_a_dense_feature_are_rejected(reader: FeatureReader) -> None:
    with pytest.raises(FeatureError, match=r"'age'.*dense"):
        reader.rows("age", {"age": column(1.0)}, 1)


PLACE = {"kind": "single", "place": 1, "places": 2}
DEFAULTS: list[dict[str, Any]] = [
    *({"kind": "single", "default": default} for default in ([1], 1.5, "x")),
    {"kind": "single", "default": 99, "unknown": {"rule": "refuse"}},
    *(BAG | {"default": default} for default in (1, [[1], [2, 3]], [1, None], {"ids": [1]})),
    BAG | {"default": {"ids": [1], "weights": [1]}},
    {"kind": "sequence", "length": 2, "default": {"ids": [1]}},
    *(PLACE | {"default": default} for default in (1, [1], [1, 2, 3])),
    {"kind": "single", "table": "gone"},
    {"kind": "dense", "default": [1.0]},
    *({"kind": "dense", "shape": [2], "default": wrong} for wrong in (["a", "b"], [[1], [2, 3]])),
    {"kind": "sequence", "length": 2, "input_length": {"values": 2, "pad": "x"}},
    {
        "kind": "single",
        "inputs": ["f", "g"],
        "joint": [{"default": 4}, {"default": ["a"]}],
        **CROSS,
    },
]


@pytest.mark.parametrize("fields", DEFAULTS)
def test_a_default_that_does_not_fit_is_rejected_when_features_are_opened(
    table: TableReader, fields: dict[str, Any]
) -> None:
    with pytest.raises(FormatError, match=r"features\.[fg]"):
        FeatureReader({"f": feature(**fields)}, {"t": table}, {})


def test_a_vocabulary_of_another_size_than_the_manifest_states_is_rejected(
    sample_bundle: Path,
) -> None:
    rewrite(sample_bundle, setting("vocabularies.names.size", 3))
    with pytest.raises(FormatError, match=r"'names' holds 2 keys.*says 3"):
        open_features(sample_bundle, read_manifest(sample_bundle))
