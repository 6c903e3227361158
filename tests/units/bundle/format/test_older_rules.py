"""Rules of ids in manifests of version 1 give the rows that they gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.errors import FeatureError, FormatError
from bundle.features.columns import Column
from bundle.features.reader import FeatureReader
from bundle.format.manifest import EmbeddedFeature
from bundle.format.older_rules import translate
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary
from tests.bundles.tables import write_table
from tests.units.bundle.features.readers import column

VOCABULARIES = {
    "tens": Vocabulary(IntegerKeys(np.array([10, 20, 30]))),
    "letters": Vocabulary(StringKeys(["x", "y"])),
    "joined": Vocabulary(StringKeys(["a-1b", "a-0b"])),
}
ROWS = 1000


def opened(root: Path, ids: Any, **fields: Any) -> FeatureReader:
    """Opens the feature `f` of a manifest of version 1."""
    inputs = [f"i{number}" for number in range(len(ids.get("keys", "f")))]
    entry = {"kind": "single", "table": "t", "role": "context", "inputs": inputs, "ids": ids}
    dtypes = {name: {"dtype": keys.dtype} for name, keys in VOCABULARIES.items()}
    content = translate({"vocabularies": dtypes, "features": {"f": entry | fields}})
    assert content["format_version"] == 2
    table = TableReader(root, write_table(root, "t", np.zeros((ROWS, 1), "<f4"), "float32", []))
    features = {"f": EmbeddedFeature.model_validate(content["features"]["f"])}
    return FeatureReader(features, {"t": table}, VOCABULARIES)


def rows(root: Path, ids: Any, *input_columns: Column, **fields: Any) -> list[int]:
    """Returns the rows of values of each input; -1 where there are none."""
    columns = {f"i{number}": values for number, values in enumerate(input_columns)}
    n = input_columns[0].values.size
    return list(opened(root, ids, **fields).rows("f", columns, n)[0].tolist())


def hashed(**fields: Any) -> Any:
    return {"kind": "hash", "buckets": 1000} | fields


def listed(vocabulary: str, **fields: Any) -> Any:
    return {"kind": "vocabulary", "vocabulary": vocabulary} | fields


def buckets(*boundaries: float, **fields: Any) -> Any:
    return {"kind": "buckets", "boundaries": boundaries} | fields


def computed(*operations: tuple[str, int | None]) -> Any:
    written = [{"do": do} | ({} if by is None else {"by": by}) for do, by in operations]
    return {"kind": "computed", "operations": written}


def chained(*rules: Any) -> Any:
    return {"kind": "chained", "rules": rules}


def numbers(*values: float) -> Column:
    return Column(np.array(values, np.float32))


def step(do: str, what: str = "", by: str = "") -> Any:
    return {"do": do, "what": what, "by": by}


MASKED = {"mask": "a", "buckets": 999, "first_row": 1}
OTHERS = {"oov_buckets": 4, "oov_first_row": 1}
STRANGE = column("  Ab!c-\u00c9?ab ", "A.b", "")
STEPS = [step("strip"), step("lower"), step("replace_any", "!-?"), step("replace", "a.b", "c")]
"""\u00c9 is no ASCII letter, which alone have a lower case."""
POSITION = {
    "op": "LookupTableFindV2",
    "inputs": [0, 1],
    "attributes": {"vocabulary": 0},
}
GRAPH = {
    "kind": "graph",
    "nodes": [
        {"op": "Input", "dtype": "int64"},
        {"op": "Const", "dtype": "int64", "values": [7], "is_list": False},
        POSITION,
    ],
    "vocabularies": [listed("tens", first_row=2)],
}


@pytest.mark.parametrize(
    ("ids", "column", "expected"),
    [
        ({"kind": "identity"}, column(0, 999, 1000, -1), [0, 999, -1, -1]),
        # Hashes are those of tf.strings.to_hash_bucket_fast and _strong, and of the layer Hashing.
        (hashed(), column(5, -7), [971, 62]),
        (hashed(), column("a", "", "5", "\u00e9"), [939, 263, 971, 25]),
        (hashed(key=[1, 2]), column("a", "", "5", "\u00e9"), [646, 435, 233, 591]),
        (hashed(**MASKED | {"mask": 5}), column(5, -7, 6), [0, 30, 714]),
        (hashed(**MASKED | {"mask": 5}), column("5", "-7", "6"), [0, 30, 714]),
        (hashed(**MASKED), column("a", "b"), [0, 938]),
        (hashed(**MASKED | {"mask": 5}, key=[1, 2]), column(5, -7, 6), [0, 349, 178]),
        # Positions are those of the layers IntegerLookup and StringLookup.
        (listed("tens"), column(10, 30, 7), [0, 2, -1]),
        (
            listed("tens", first_row=5, oov_hash="modulo", mask=-1, **OTHERS),
            column(10, 20, 30, -1, 7, 8, -7, 100),
            [5, 6, 7, 0, 4, 1, 2, 1],
        ),
        (listed("tens", first_row=1000, oov_buckets=1000), column(5, -7), [971, 62]),
        (
            listed("letters", first_row=4, mask="", **OTHERS | {"oov_buckets": 3}),
            column("x", "y", "", "a", "b", "\u00e9"),
            [4, 5, 0, 1, 2, 2],
        ),
        (listed("letters", first_row=4, mask="y"), column("x", "y", "a"), [4, 0, -1]),
        (buckets(0.0, 0.1, 10.0), numbers(-3, 0, 0.1, 11), [0, 1, 2, 3]),
        (buckets(0.0, 9.0, first_row=-1), numbers(-3, 11), [-1, 1]),
        (buckets(0.0, 9.0, first_row=4, falling=True), numbers(-1, 0, 9.5), [6, 5, 4]),
        (computed(("add", 3), ("multiply", 5), ("divide", 2)), column(-3, 0, 4), [0, 7, 17]),
        (computed(("remainder", 7)), column(-1, 20), [6, 6]),
        (computed(("truncated_remainder", 7), ("absolute", None)), column(-9, 20), [2, 6]),
        (computed(("at_least", 2), ("at_most", 5)), column(-9, 3, 20), [2, 3, 5]),
        (computed(("int32", None)), column((1 << 32) + 5, 1 << 31), [5, -1]),
        (chained(computed(("add", -7)), hashed()), column(5, 12), [205, 971]),
        (chained(listed("letters"), computed(("add", 1))), column("x", "y", "z"), [1, 2, 0]),
        (chained(listed("tens"), hashed()), column(10, 30, 7), [735, 759, 430]),
        (chained(buckets(1.0), listed("tens", mask=1)), numbers(0, 2), [-1, 0]),
        (chained(computed(("add", 1)), buckets(3.0)), column(1, 2), [0, 1]),
        (chained(computed(("add", 10)), GRAPH), column(0, 10, 11), [2, 3, 7]),
        (GRAPH, column(10, 30, 31), [2, 4, 7]),
        ({"kind": "text", "ids": hashed()}, column("a", ""), [939, 263]),
        ({"kind": "text", "ids": hashed(), "steps": STEPS}, STRANGE, [167, 872, 263]),
        (
            {"kind": "text", "ids": listed("letters", first_row=1), "steps": [step("lower")]},
            column("X", "Y", "z"),
            [1, 2, -1],
        ),
    ],
)
def test_rule_of_one_value_gives_the_same_rows(
    tmp_path: Path, ids: Any, column: Column, expected: list[int]
) -> None:
    assert rows(tmp_path, ids, column) == expected


SMALLEST = -(1 << 31)
HALVES = numbers(-2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5)


@pytest.mark.parametrize(
    ("cast", "column", "expected"),
    [
        ({"of": "float32", "to": "int32"}, HALVES, [-2, -1, 0, 0, 0, 1, 2]),
        *(
            ({"of": "float32", "to": "int32", "rounding": rounding}, HALVES, expected)
            for rounding, expected in (
                ("toward_zero", [-2, -1, 0, 0, 0, 1, 2]),
                ("down", [-3, -2, -1, 0, 0, 1, 2]),
                ("up", [-2, -1, 0, 0, 1, 2, 3]),
                ("half_even", [-2, -2, 0, 0, 0, 2, 2]),
            )
        ),
        # Numbers beyond the integers become the smallest, as on x86-64.
        ({"of": "float32", "to": "int32"}, numbers(2.0**31, -1e30), [SMALLEST, SMALLEST]),
        ({"of": "float32", "to": "int64"}, numbers(2.0**31, 1e30), [1 << 31, -(1 << 63)]),
        ({"of": "int64", "to": "int32"}, column((1 << 32) + 5, 1 << 31), [5, SMALLEST]),
        ({"of": "int64", "to": "int32"}, column("4294967301"), [5]),
    ],
)
def test_cast_gives_the_same_integers(
    tmp_path: Path, cast: Any, column: Column, expected: list[int]
) -> None:
    for ids, wanted in (
        (computed(("add", 2)), [within(number + 2) for number in expected]),
        ({"kind": "identity"}, [within(number) for number in expected]),
    ):
        assert rows(tmp_path, ids, column, cast=cast) == wanted


def within(row: int) -> int:
    return row if 0 <= row < ROWS else -1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"split": "whitespace", "steps": [step("lower")]}, [[910, 345], [], [910]]),
        ({"split": "whitespace", "steps": [step("lower")], "length": 1}, [[910], [], [910]]),
        ({"split": "whitespace", "steps": [step("lower")], "ngrams": [2]}, [[705], [], []]),
    ],
)
def test_text_that_is_split_gives_the_same_rows(
    tmp_path: Path, fields: Any, expected: list[list[int]]
) -> None:
    ids = {"kind": "text", "ids": hashed()} | fields
    reader = opened(tmp_path, ids, kind="bag", combiner="sum")
    rows, offsets = reader.rows("f", {"i0": column("Red  BLUE", " ", "red")}, 3)
    assert [part.tolist() for part in np.split(rows, offsets[1:-1])] == expected


def key(dtype: str, **fields: Any) -> Any:
    return {"dtype": dtype, "role": "context"} | fields


INTEGERS = column(7, -1)
COLORS = column("red", "blue")


@pytest.mark.parametrize(
    ("ids", "columns", "expected"),
    [
        # Crosses are those of tf.sparse.cross_hashed.
        ([key("int64"), key("string")], (INTEGERS, COLORS), [795, 351]),
        (
            [key("int64"), key("string", steps=[step("lower")])],
            (INTEGERS, column("RED", "Blue")),
            [795, 351],
        ),
        (
            [
                key("string", ids=listed("letters"), rows=6, unknown_row=5),
                key("float32", ids=buckets(0.5, 1.5), rows=2),
            ],
            (column("x", "z", ""), numbers(1, 0, 2)),
            [963, 44, 240],
        ),
        (
            [key("int64", ids=hashed()), key("int64", ids=computed(("multiply", 0)))],
            (column(5, -7, 5), column(1, 2, 3)),
            [425, 244, 425],
        ),
        (
            [
                key("string", ids=chained(hashed(), {"kind": "computed", "operations": []})),
                key("int64", ids={"kind": "identity"}),
            ],
            (column("5", "-7"), column(0, 0)),
            [425, 244],
        ),
    ],
)
def test_cross_gives_the_same_rows(
    tmp_path: Path, ids: Any, columns: tuple[Column, ...], expected: list[int]
) -> None:
    rule = {"kind": "crossed", "keys": ids, "buckets": 1000, "hash_key": 0xDECAFCAFFE}
    assert rows(tmp_path, rule, *columns) == expected


@pytest.mark.parametrize(
    ("fields", "columns", "expected"),
    [
        (
            {
                "keys": [key("int64"), key("string")],
                "texts": ["", "_X_", ""],
                "ids": hashed(),
            },
            (INTEGERS, COLORS),
            [547, 338],
        ),
        (
            {
                "keys": [key("string", ids=listed("letters"), rows=1)],
                "texts": ["a", "b"],
                "ids": listed("joined", first_row=3),
            },
            (column("x", "y", "z"),),
            [-1, 3, 3],
        ),
        (
            {
                "keys": [
                    key("string", steps=[step("upper"), step("replace", "A", "a")]),
                    key("float32", ids=buckets(0.5, first_row=-1)),
                ],
                "texts": ["", "", "b"],
                "ids": listed("joined"),
            },
            (column("a", "a-", "A"), numbers(0, 1, 0)),
            [0, 1, 0],
        ),
    ],
)
def test_joined_values_give_the_same_rows(
    tmp_path: Path, fields: Any, columns: tuple[Column, ...], expected: list[int]
) -> None:
    assert rows(tmp_path, {"kind": "joined"} | fields, *columns) == expected


def test_input_that_a_rule_did_not_take_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(FeatureError, match="7 is an integer; a string was expected"):
        rows(tmp_path, {"kind": "text", "ids": hashed()}, column(7))


@pytest.mark.parametrize(
    "ids",
    [
        {"kind": "other"},
        {},
        [],
        chained(),
        chained({"kind": "text"}),
        listed("gone"),
        hashed(buckets="9") | {"kind": ["hash"]},
        computed(("power", 2)),
        {"kind": "text", "steps": [{"do": 1}], "ids": hashed()},
        {"kind": "joined", "keys": [], "texts": [""], "ids": hashed()},
        {"kind": "graph"},
    ],
)
def test_rule_that_is_none_of_version_1_is_rejected(ids: Any) -> None:
    with pytest.raises(FormatError, match="features are none of version 1"):
        translate({"features": {"f": {"kind": "single", "ids": ids}}})
