from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.errors import DigestMismatch, FormatError
from bundle.format import manifest
from bundle.storage import arrow, catalog
from bundle.stores import writer as store_writer
from bundle.stores.attribute_index import (
    AttributeIndex,
    check_attribute_index,
    write_attribute_index,
)
from bundle.stores.writer import StoreWriter
from bundle.tables.segments import RowRange
from tests.units.bundle.features.readers import objects

ENTRY = manifest.AttributeIndex(values="values.arrow", rows="rows.bin")
BIG = (1 << 53) + 1
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int64": (pa.int64(), [3, None, -1, 3, BIG, BIG - 1, (1 << 63) - 1, -(1 << 63), 3]),
    "double": (pa.float64(), [0.5, None, -0.0, 0.0, 2.0**53, 1e300, math.nan, -1.5, 0.5]),
    "string": (pa.string(), ["b", None, "é", "", "b", "a", "zz", "\U0001f600", "b"]),
    "bool": (pa.bool_(), [True, None, False, True, True, None, False, True, True]),
    "list<string>": (
        pa.list_(pa.string()),
        [["b", "a", "b"], None, [], ["a"], ["c", None], ["a", "b"], ["é"], [""], ["d"]],
    ),
}


def written(directory: Path, kind: str, values: list[Any], batch: int = 4) -> AttributeIndex:
    """Writes a store in batches, and the index of its one attribute."""
    with StoreWriter(directory / "store") as writer:
        for first in range(0, len(values), batch):
            part = values[first : first + batch]
            ids = np.arange(first, first + len(part))
            writer.append(ids, {}, {"a": pa.array(part, COLUMNS[kind][0])})
        writer.finish()
    write_attribute_index(directory / "store", "a", directory, ENTRY)
    return AttributeIndex(directory, ENTRY, kind, len(values))


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_writer, "BATCH_BYTES", 1)


def having(values: list[Any], meets: Callable[[Any], bool]) -> list[int]:
    """Returns the positions of candidates that have a value that meets something."""
    lists = [value if isinstance(value, list) else [value] for value in values]
    return [
        row
        for row, row_values in enumerate(lists)
        if any(value is not None and value == value and meets(value) for value in row_values)
    ]


def tokens(*values: Any) -> NDArray[Any]:
    return objects(*values) if isinstance(values[0], str) else np.array(values)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", COLUMNS)
def test_index_finds_the_candidates_of_each_value_and_of_several(tmp_path: Path, kind: str) -> None:
    values = COLUMNS[kind][1]
    index = written(tmp_path, kind, values)
    assert index.kind == kind
    lists = [value if isinstance(value, list) else [value] for value in values]
    distinct = sorted(
        {
            value
            for row_values in lists
            for value in row_values
            if value is not None and value == value
        }
    )
    for value in distinct:
        assert index.rows_of(tokens(value)).tolist() == having(values, value.__eq__)
    positions = index.rows_of(tokens(*distinct, *distinct))
    assert positions.dtype == np.uint32
    assert sorted(set(positions.tolist())) == having(values, lambda _: True)
    unknown = tokens("aa", "\U0001f601") if isinstance(distinct[0], str) else tokens(7, -7)
    assert index.rows_of(unknown).size == 0
    assert index.rows_of(unknown[:0]).size == 0


BOUNDS = (
    -(1 << 63) - 1,
    -1,
    0,
    0.5,
    3,
    BIG - 1,
    BIG,
    float(BIG),
    BIG + 1,
    (1 << 63) - 1,
    2.0**63,
    1 << 70,
    1e308,
)
MEETS = {"ge": operator.le, "gt": operator.lt, "le": operator.ge, "lt": operator.gt}
"""Of bound and value."""


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", ["int64", "double"])
def test_index_compares_bounds_exactly(tmp_path: Path, kind: str) -> None:
    values = COLUMNS[kind][1]
    index = written(tmp_path, kind, values)
    rows = {
        name: [having(values, partial(meets, bound)) for bound in BOUNDS]
        for name, meets in MEETS.items()
    }
    for name, expected in rows.items():
        assert [sorted(index.rows_between(**{name: bound})) for bound in BOUNDS] == expected
    for (low, above), (high, below) in product(
        zip(BOUNDS, rows["gt"], strict=True), zip(BOUNDS, rows["le"], strict=True)
    ):
        assert sorted(index.rows_between(gt=low, le=high)) == sorted({*above} & {*below})
    assert sorted(index.rows_between()) == having(values, lambda _: True)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.none() | st.lists(st.none() | st.text(max_size=3), max_size=4), min_size=1, max_size=30
    ),
    st.lists(st.text(max_size=3)),
)
def test_attribute_index_of_any_lists_finds_the_same_as_a_scan(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], wanted: list[str]
) -> None:
    index = written(tmp_path_factory.mktemp("lists"), "list<string>", values)
    assert sorted(set(index.rows_of(objects(*wanted)).tolist())) == having(
        values, lambda value: value in wanted
    )


def test_many_values_at_once_are_found(tmp_path: Path) -> None:
    values = [f"sku{row % 5000}" for row in range(20_000)]
    index = written(tmp_path, "string", values, len(values))
    wanted = objects(*(f"sku{number}" for number in range(1000, 100_000)))
    assert np.sort(index.rows_of(wanted)).tolist() == having(
        values, lambda value: int(value[3:]) >= 1000
    )


def test_attribute_that_is_null_everywhere_matches_nothing(tmp_path: Path) -> None:
    index = written(tmp_path, "int64", [None, None])
    assert index.rows_of(np.array([0])).size == 0
    assert index.rows_between(ge=0).size == 0


@pytest.mark.parametrize("kind", ["int64", "double"])
def test_numbers_are_returned_with_the_candidates_that_have_them(tmp_path: Path, kind: str) -> None:
    values = [3, None, -1, 7, 3, 5]
    index = written(tmp_path, kind, values)
    for low, high in ((None, None), (-1, 3), (3, 5), (4, None), (8, 9)):
        within = [
            (row, value)
            for row, value in enumerate(values)
            if value is not None
            and (low is None or value >= low)
            and (high is None or value <= high)
        ]
        positions, numbers = index.numbers_between(low, high)
        assert numbers.dtype == np.float64
        assert sorted(zip(positions.tolist(), numbers.tolist(), strict=True)) == within


def test_numbers_of_the_candidates_that_are_held_are_counted_from_the_first(tmp_path: Path) -> None:
    written(tmp_path, "int64", [3, 1, 2, 2, 0])
    index = AttributeIndex(tmp_path, ENTRY, "int64", 5, RowRange(1, 3))
    positions, numbers = index.numbers_between(1, 2)
    assert dict(zip(positions.tolist(), numbers.tolist(), strict=True)) == {0: 1, 1: 2, 2: 2}


def test_same_store_gives_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        written(tmp_path / name, "list<string>", COLUMNS["list<string>"][1])
    for file in (ENTRY.values, ENTRY.rows):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def table(values: Any, ends: Any) -> pa.Table:
    return pa.table({"value": values, "end": ends})


INTEGERS = pa.array([1, 2, 5])
ENDS = pa.array([2, 3, 6])
UNSOUND = {
    "no column of ends": pa.table({"value": INTEGERS}),
    "values of another type": table(pa.array(["1", "2", "5"], pa.large_string()), ENDS),
    "a null": table(pa.array([1, None, 5]), ENDS),
    "values that do not ascend": table(pa.array([1, 5, 2]), ENDS),
    "a value twice": table(pa.array([1, 2, 2]), ENDS),
    "ends of another type": table(INTEGERS, pa.array([2, 3, 6], pa.int32())),
    "ends that do not ascend": table(INTEGERS, pa.array([3, 2, 6])),
    "a value without positions": table(INTEGERS, pa.array([2, 2, 6])),
    "ends below 0": table(INTEGERS, pa.array([-2, 3, 6])),
    "ends before the last position": table(INTEGERS, pa.array([2, 3, 5])),
    "ends beyond the last position": table(INTEGERS, pa.array([2, 3, 1 << 62])),
    "an end that is null": table(INTEGERS, pa.array([2, 3, None])),
    "no values": table(INTEGERS[:0], ENDS[:0]),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_attribute_index_with_invalid_values_is_rejected(tmp_path: Path, name: str) -> None:
    written(tmp_path, "int64", [1, 2, 5, 1, 5, 5])
    arrow.write(tmp_path / ENTRY.values, UNSOUND[name])
    with pytest.raises(FormatError, match=r"values\.arrow"):
        AttributeIndex(tmp_path, ENTRY, "int64", 6)


def test_attribute_index_with_invalid_positions_is_rejected(tmp_path: Path) -> None:
    written(tmp_path, "int64", [1, 2, 5, 1, 5, 5])
    rows = (tmp_path / ENTRY.rows).read_bytes()
    for size in (5, 0):
        with pytest.raises(FormatError, match=f"position 5; the corpus has {size}"):
            AttributeIndex(tmp_path, ENTRY, "int64", size)
    many = (1 << 32) + 1
    with pytest.raises(FormatError, match=f"positions of 32 bits, .* the corpus has {many}"):
        AttributeIndex(tmp_path, ENTRY, "int64", many)
    for changed in (b"", rows[:-1], rows[:-4], rows + b"\0" * 4):
        (tmp_path / ENTRY.rows).write_bytes(changed)
        with pytest.raises(FormatError, match="ends at position 6"):
            AttributeIndex(tmp_path, ENTRY, "int64", 6)
    (tmp_path / ENTRY.rows).unlink()
    with pytest.raises(DigestMismatch, match="missing"):
        AttributeIndex(tmp_path, ENTRY, "int64", 6)


def test_check_compares_an_index_with_its_store(sample_bundle: Path) -> None:
    corpus = catalog.read_manifest(sample_bundle).corpora["movies"]
    for attribute in corpus.filters:
        check_attribute_index(sample_bundle, corpus, attribute)
    rows = sample_bundle / corpus.filters["title"].rows
    # The index is sound, but it was built from other candidates.
    rows.write_bytes(rows.read_bytes()[4:] + rows.read_bytes()[:4])
    with pytest.raises(FormatError, match="'title' as it is stored"):
        check_attribute_index(sample_bundle, corpus, "title")
    swapped = corpus.model_copy(update={"filters": {"year": corpus.filters["title"]}})
    with pytest.raises(FormatError, match="int64"):
        check_attribute_index(sample_bundle, swapped, "year")
