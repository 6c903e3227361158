"""Examples that are made where a recipe names none: whatever the feature, they lead to rows of its
table and reach all that it can read; some ids are in no table where the feature takes such ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from bundle.features.columns import Column
from bundle.format import manifest
from export.front_end.outside_ids import OutsideIds
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec, TableFacts
from export.verify.synthetic_examples import make_examples
from tests.id_graphs import bucket_ids, cast_ids, computed_ids, hash_ids, vocabulary_ids, word_ids
from tests.units.export.traced_features import dense, embedded

COUNT = 48
ROWS = 10
TABLES = {"t": TableFacts("t", "t", ROWS, 2)}
KEYS = {
    "names": np.array(["ann", "bob", "cid", "dot"], object),
    "numbers": np.array([-7, 5, 9]),
    "ends": np.array([0, 3, -(1 << 63), (1 << 63) - 1]),
    "near_end": np.array([1, 2, (1 << 63) - 900]),
    "int32_ends": np.array([0, 1, -(1 << 31), (1 << 31) - 1]),
}
NAMES = {"ann", "bob", "cid", "dot"}
Spec = FeatureSpec | DenseSpec


def made(*specs: Spec, unknown_ids: bool = False, **entry: Any) -> dict[str, Column]:
    """Makes examples of features that may read one input; `entry` changes those of the first."""
    model = ModelSpec(tables=TABLES, features={spec.name: spec for spec in specs}, towers={})
    pages = {spec.name: spec.entry for spec in specs}
    pages[specs[0].name] = specs[0].entry.model_copy(update=entry)
    return dict(make_examples(model, pages, KEYS, COUNT, unknown_ids=unknown_ids).columns)


def sizes(column: Column) -> list[int]:
    assert column.offsets is not None
    assert column.offsets[-1] == len(column.values)
    lengths: list[int] = np.diff(column.offsets).tolist()
    return lengths


@dataclass(frozen=True)
class Known:
    """Ids that are made for a feature.

    Attributes:
      spec: Reads the input `f`.
      values: All values that are made; or, of `row`, all of its results.
      row: What the model computes of a value.
    """

    spec: Spec
    values: set[Any]
    row: Callable[[Any], Any] = lambda value: value


def feature(ids: Any = None, dtype: Any = "int64", **more: Any) -> FeatureSpec:
    rule = {} if ids is None else {"ids": ids}
    return embedded("f", "t", ids_dtype=dtype, **rule, **more)


NUMBERS = {-7, 5, 9}
KNOWN = {
    "rows": Known(feature(), {*range(ROWS)}),
    "keys": Known(feature(vocabulary_ids("names"), "string"), NAMES),
    # The other keys would be rows behind the table.
    "fewer numbers": Known(feature(vocabulary_ids("numbers", "int64", first_row=8)), {-7, 5}),
    "all numbers": Known(feature(vocabulary_ids("numbers", "int64", is_complete=True)), NUMBERS),
    "a sum": Known(feature(computed_ids(("AddV2", 4))), {*range(ROWS)}, lambda value: value + 4),
    "a product": Known(feature(computed_ids(("Mul", 3))), {0, 3, 6, 9}, lambda value: value * 3),
    "numbers rounded down": Known(
        feature(cast_ids("float32", "int64", "Floor"), "float32"), {*range(ROWS)}, np.floor
    ),
    "buckets": Known(
        feature(bucket_ids((-1.0, 0.0, 1.0, 2.0)), "float32"),
        {*range(5)},
        lambda value: np.digitize(value, (-1, 0, 1, 2)),
    ),
    "a number for a row": Known(dense("f", "int32", (2,), below=3), {0, 1, 2}),
    "words": Known(
        feature(
            word_ids(vocabulary_ids("names")),
            "string",
            kind="bag",
            combiner="mean",
        ),
        {*range(8)},
        lambda text: len(text.split()),
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_made_values_lead_to_all_rows_and_to_no_others(name: str) -> None:
    known = KNOWN[name]
    values = made(known.spec)["f"].values.tolist()
    rows = {known.row(value) for value in values}
    assert rows <= known.values
    assert len(rows) >= min(len(known.values), 6)


BAG: dict[str, Any] = {"kind": "bag", "combiner": "sum"}
UP_TO_5 = [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("spec", "pattern"),
    [
        (feature(encoding="ragged", **BAG), UP_TO_5),
        (feature(kind="sequence", encoding="ragged", length=3), UP_TO_5),
        (feature(kind="sequence", length=3), [3]),
        (feature(ids_max=4, **BAG), [4]),
        (feature(ids_max=2, padding=-1, **BAG), [0, 1, 2]),
        (dense("f", "int32", (), take="lengths"), UP_TO_5),
        (dense("f", "int64", (3,), take="padded", below=4), [0, 1, 2, 3]),
        (dense("f", "int64", (20,), take="padded", below=4), UP_TO_5),
    ],
)
def test_made_lists_have_every_length_that_is_read(spec: Spec, pattern: list[int]) -> None:
    entry: dict[str, Any] = {"padding": -1} if len(pattern) == 3 else {}
    assert sizes(made(spec, **entry)["f"]) == pattern * (COUNT // len(pattern))


NEAREST = OutsideIds(from_end=True, outcome="nearest")
REFUSE = {"unknown": manifest.Unknown(rule="refuse")}
OUTSIDE = {10, -1, 15, -11}


@pytest.mark.parametrize(
    ("spec", "entry", "unknown"),
    [
        (feature(), {}, OUTSIDE),
        (feature(), {"unknown": manifest.Unknown(rule="row", row=3)}, OUTSIDE),
        (feature(), REFUSE, set()),
        (feature(outside=NEAREST), REFUSE, OUTSIDE),
        (feature(hash_ids(ROWS)), {}, set()),
        (feature(vocabulary_ids("numbers", "int64")), {}, {10, 1009}),
        (feature(vocabulary_ids("ends", "int64")), {}, {1, 2}),
        (feature(vocabulary_ids("near_end", "int64")), {}, {0, 3}),
        (feature(vocabulary_ids("int32_ends", "int64"), "int32"), {}, {2, 3}),
        (feature(vocabulary_ids("numbers", "int64", is_complete=True)), {}, set()),
        (feature(vocabulary_ids("names"), "string"), {}, {"unknown", "UNKNOWN 2", "?"}),
        (feature(padding=-1, ids_max=4, **BAG), {"padding": -1}, {10, 15, -11}),
        (dense("f", "int64", (), below=4), {}, set()),
        (dense("f", "int64", (), below=4, outside="zeros"), {}, {4, -1, 9, -5}),
        (dense("f", "int64", ()), {}, set()),
    ],
)
def test_some_made_ids_are_in_no_table_where_the_feature_takes_them(
    spec: Spec, entry: dict[str, Any], unknown: set[Any]
) -> None:
    known = made(spec, **entry)["f"].values
    mixed = made(spec, unknown_ids=True, **entry)["f"].values
    differs = known != mixed
    assert set(mixed[differs].tolist()) == unknown
    assert differs.sum() <= known.size / 7 + 1
