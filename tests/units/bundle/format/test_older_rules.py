"""Rules of ids in manifests of version 1 give the rows that they gave."""

from __future__ import annotations

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


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> TableReader:
    root = tmp_path_factory.mktemp("table")
    return TableReader(root, write_table(root, "t", np.zeros((ROWS, 1), "<f4"), "float32", []))


def rows(table: TableReader, ids: Any, columns: list[Column], **fields: Any) -> list[list[int]]:
    """Returns the rows of each example by a rule of version 1; -1 where there are none."""
    inputs = [f"i{number}" for number in range(len(columns))]
    entry = {"kind": "single", "table": "t", "role": "context", "inputs": inputs, "ids": ids}
    dtypes = {name: {"dtype": keys.dtype} for name, keys in VOCABULARIES.items()}
    content = translate({"vocabularies": dtypes, "features": {"f": entry | fields}})
    assert content["format_version"] == 2
    features = {"f": EmbeddedFeature.model_validate(content["features"]["f"])}
    reader = FeatureReader(features, {"t": table}, VOCABULARIES)
    sent_column = dict(zip(inputs, columns, strict=True))
    found_rows, offsets = reader.rows("f", sent_column, columns[0].values.size)
    return [part.tolist() for part in np.split(found_rows, offsets[1:-1])]


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


def text(*steps: tuple[str, ...], **fields: Any) -> Any:
    names = ("do", "what", "by")
    written = [dict(zip(names, (*step, "", ""), strict=False)) for step in steps]
    return {"kind": "text", "ids": hashed(), "steps": written} | fields


def crossed(*keys: Any) -> Any:
    return {"kind": "crossed", "keys": keys, "buckets": 1000, "hash_key": 0xDECAFCAFFE}


def joined(ids: Any, texts: list[str], *keys: Any) -> Any:
    return {"kind": "joined", "keys": keys, "texts": texts, "ids": ids}


def key(dtype: str, **fields: Any) -> Any:
    return {"dtype": dtype, "role": "context"} | fields


def numbers(*values: float) -> Column:
    return Column(np.array(values, np.float32))


OTHERS = {"oov_buckets": 4, "oov_first_row": 1}
STEPS = [("strip",), ("lower",), ("replace_any", "!-?"), ("replace", "a.b", "c")]
STRANGE = column("  Ab!c-\u00c9?ab ", "A.b", "")
"""\u00c9 is no ASCII letter, which alone have a lower case."""
LOWER = [{"do": "lower", "what": "", "by": ""}]
GRAPH = {
    "kind": "graph",
    "nodes": [
        {"op": "Input", "dtype": "int64"},
        {"op": "Const", "dtype": "int64", "values": [7], "is_list": False},
        {"op": "LookupTableFindV2", "inputs": [0, 1], "attributes": {"vocabulary": 0}},
    ],
    "vocabularies": [listed("tens", first_row=2)],
}
INTEGERS = column(7, -1)
COLORS = column("red", "blue")

SINGLES: list[tuple[Any, list[Column], list[int]]] = [
    ({"kind": "identity"}, [column(0, 999, 1000, -1)], [0, 999, -1, -1]),
    # Hashes are those of tf.strings.to_hash_bucket_fast and _strong, and of the layer Hashing.
    (hashed(), [column("a", "", "5", "\u00e9")], [939, 263, 971, 25]),
    (hashed(key=[1, 2]), [column("a", "", "5", "\u00e9")], [646, 435, 233, 591]),
    (hashed(mask="a", buckets=999, first_row=1), [column("a", "b")], [0, 938]),
    *(
        (hashed(mask=5, buckets=999, first_row=1), [sent_column], [0, 30, 714])
        for sent_column in (column(5, -7, 6), column("5", "-7", "6"))
    ),
    # Positions are those of the layers IntegerLookup and StringLookup.
    (
        listed("tens", first_row=5, oov_hash="modulo", mask=-1, **OTHERS),
        [column(10, 20, 30, -1, 7, 8, -7, 100)],
        [5, 6, 7, 0, 4, 1, 2, 1],
    ),
    (listed("tens", first_row=1000, oov_buckets=1000), [column(5, -7)], [971, 62]),
    (
        listed("letters", first_row=4, mask="", **OTHERS | {"oov_buckets": 3}),
        [column("x", "y", "", "a", "b", "\u00e9")],
        [4, 5, 0, 1, 2, 2],
    ),
    (listed("letters", first_row=4, mask="y"), [column("x", "y", "a")], [4, 0, -1]),
    (buckets(0.0, 0.1, 10.0), [numbers(-3, 0, 0.1, 11)], [0, 1, 2, 3]),
    (buckets(0.0, 9.0, first_row=4, falling=True), [numbers(-1, 0, 9.5)], [6, 5, 4]),
    (computed(("add", 3), ("multiply", 5), ("divide", 2)), [column(-3, 0, 4)], [0, 7, 17]),
    (computed(("remainder", 7)), [column(-1, 20)], [6, 6]),
    (computed(("truncated_remainder", 7), ("absolute", None)), [column(-9, 20)], [2, 6]),
    (computed(("at_least", 2), ("at_most", 5)), [column(-9, 3, 20)], [2, 3, 5]),
    (computed(("int32", None)), [column((1 << 32) + 5, 1 << 31)], [5, -1]),
    (chained(computed(("add", -7)), hashed()), [column(5, 12)], [205, 971]),
    (chained(listed("letters"), computed(("add", 1))), [column("x", "y", "z")], [1, 2, 0]),
    (chained(buckets(1.0), listed("tens", mask=1)), [numbers(0, 2)], [-1, 0]),
    (chained(computed(("add", 10)), GRAPH), [column(0, 10, 11)], [2, 3, 7]),
    (text(*STEPS), [STRANGE], [167, 872, 263]),
    # Crosses are those of tf.sparse.cross_hashed.
    (
        crossed(key("int64"), key("string", steps=LOWER)),
        [INTEGERS, column("RED", "blue")],
        [795, 351],
    ),
    (
        crossed(
            key("string", ids=listed("letters"), rows=6, unknown_row=5),
            key("float32", ids=buckets(0.5, 1.5), rows=2),
        ),
        [column("x", "z", ""), numbers(1, 0, 2)],
        [963, 44, 240],
    ),
    (
        crossed(key("int64", ids=hashed()), key("int64", ids=computed(("multiply", 0)))),
        [column(5, -7, 5), column(1, 2, 3)],
        [425, 244, 425],
    ),
    (
        joined(hashed(), ["", "_X_", ""], key("int64"), key("string")),
        [INTEGERS, COLORS],
        [547, 338],
    ),
    (
        joined(
            listed("joined"),
            ["", "", "b"],
            key("string", steps=[{"do": "replace", "what": "A", "by": "a"}]),
            key("float32", ids=buckets(0.5, first_row=-1)),
        ),
        [column("a", "a-", "A"), numbers(0, 1, 0)],
        [0, 1, 0],
    ),
]


@pytest.mark.parametrize(("ids", "columns", "expected"), SINGLES)
def test_a_rule_gives_the_same_rows(
    table: TableReader, ids: Any, columns: list[Column], expected: list[int]
) -> None:
    assert rows(table, ids, columns) == [[row] for row in expected]


SMALLEST = -(1 << 31)
HALVES = numbers(-2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5)
CASTS: list[tuple[Any, Column, list[int]]] = [
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
    ({"of": "int64", "to": "int32"}, column("4294967301", str(1 << 31)), [5, SMALLEST]),
]


@pytest.mark.parametrize(("cast", "sent_column", "expected"), CASTS)
def test_a_cast_gives_the_same_integers(
    table: TableReader, cast: Any, sent_column: Column, expected: list[int]
) -> None:
    for ids, added in ((computed(("add", 2)), 2), ({"kind": "identity"}, 0)):
        wanted = [row + added if 0 <= row + added < ROWS else -1 for row in expected]
        assert rows(table, ids, [sent_column], cast=cast) == [[row] for row in wanted]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [[910, 345], [], [910]]),
        ({"length": 1}, [[910], [], [910]]),
        ({"ngrams": [2]}, [[705], [], []]),
    ],
)
def test_a_text_that_is_split_gives_the_same_rows(
    table: TableReader, fields: Any, expected: list[list[int]]
) -> None:
    ids = text(("lower",), split="whitespace", **fields)
    sent_column = column("Red  BLUE", " ", "red")
    assert rows(table, ids, [sent_column], kind="bag", combiner="sum") == expected


def test_an_input_that_a_rule_did_not_take_is_rejected(table: TableReader) -> None:
    with pytest.raises(FeatureError, match="7 is an integer"):
        rows(table, text(), [column(7)])


@pytest.mark.parametrize(
    "ids",
    [
        *({"kind": "other"}, {}, [], chained(), chained({"kind": "text"}), {"kind": "graph"}),
        *(listed("gone"), hashed(buckets="9") | {"kind": ["hash"]}, computed(("power", 2))),
        {"kind": "text", "steps": [{"do": 1}], "ids": hashed()},
        joined(hashed(), [""]),
    ],
)
def test_a_rule_that_is_none_of_version_1_is_rejected(ids: Any) -> None:
    with pytest.raises(FormatError, match="none of version 1"):
        translate({"features": {"f": {"kind": "single", "ids": ids}}})
