"""Candidates that no store holds, changes that a store does not take, and files that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bundle.errors import DigestMismatch, FormatError
from bundle.features.columns import Column
from bundle.format.manifest import Corpus
from bundle.storage import arrow, catalog
from bundle.stores.attribute_index import AttributeIndex, check_attribute_index
from bundle.stores.reader import CandidateStore, check_store
from bundle.stores.writer import write_store
from tests.laws.test_stores import ENTRY
from tests.units.bundle.features.readers import objects

THREE = np.arange(3)
NO_ATTRIBUTES = (
    *(pa.array([0, 1, 2], dtype) for dtype in (pa.timestamp("us"), pa.date32())),
    *(pa.array(values) for values in ([b"a", b"b", b"c"], [[1], [2], [3]], [{"a": 1}] * 3, [1, 2])),
    *(pa.array([1 << 63] * 3, pa.uint64()), pa.array([float("inf"), 1.0, 2.0]), pa.nulls(3)),
    pa.array([["a"], ["b", None], None]),
)
NO_FEATURES = (
    *(Column(np.arange(4)), Column(np.arange(2)), Column(np.array([True] * 3))),
    Column(objects("a", None, "b")),
    *(Column(THREE, np.array(ends)) for ends in ([0, 1, 2], [0, 2, 1, 3], [0, 1, 2, 4])),
)


@pytest.mark.parametrize(
    ("ids", "columns", "attributes", "words"),
    [
        (np.array([1, 2, 1]), {}, {}, "id 1 comes twice"),
        (objects("a", "b", "b"), {}, {}, "id 'b' comes twice"),
        (pa.array([1, None, 3]), {}, {}, "candidate 1 is null"),
        (pa.array(["a", "b", None]), {}, {}, "candidate 2 is null"),
        (objects("a", None, "c"), {}, {}, "None"),
        (np.array([1.0, 2.0, 3.0]), {}, {}, r"1\.0"),
        (np.array([True, False, True]), {}, {}, "True"),
        *((THREE, {}, {"when": values}, "'when'") for values in NO_ATTRIBUTES),
        *((THREE, {"f": column}, {}, "'f'") for column in NO_FEATURES),
    ],
)
def test_candidates_that_no_store_holds_are_rejected_and_not_written(
    tmp_path: Path, ids: Any, columns: Any, attributes: Any, words: str
) -> None:
    with pytest.raises(FormatError, match=words):
        write_store(tmp_path / "s", ids, columns, attributes)
    assert not (tmp_path / "s").exists()


IDS_OF_THREE = {"id": pa.array([0, 1, 2])}
LISTS = pa.array([[1, 2], [3], []], pa.large_list(pa.int64()))
FLOATS = pa.large_list(pa.float32())


@pytest.mark.parametrize(
    ("columns", "entry", "words"),
    [
        ({}, {"size": 4}, "manifest says 4"),
        ({}, {"id_dtype": "string"}, "string"),
        ({}, {"features": ("gone",)}, "feature:gone"),
        ({"attribute:title": pa.array([1, 2, 3])}, {"attributes": {"title": "string"}}, "'title'"),
        ({"id": pa.array([5, 5, 7])}, {}, "id 5 comes twice"),
        ({"id": pa.array(["a", "b", "a"])}, {"id_dtype": "string"}, "id 'a' comes twice"),
        *(
            (columns, {"features": ("f",)}, "'f'")
            for columns in (
                {"feature:f": pa.array([1, None, 2])},
                {"feature:f": pa.array([[1], None, [2]], LISTS.type)},
                {"feature:f": pa.array([True, False, True])},
                {"feature:f": THREE, "weights:f": pa.array([1.0, 2.0, None], pa.float32())},
                {"feature:f": THREE, "weights:f": pa.array([1.0, 2.0, 3.0])},
                {"feature:f": LISTS, "weights:f": pa.array([[1.0], [2.0, 3.0], []], FLOATS)},
            )
        ),
    ],
)
def test_a_store_that_contradicts_its_entry_is_rejected(
    tmp_path: Path, columns: dict[str, Any], entry: dict[str, Any], words: str
) -> None:
    arrow.write(tmp_path / "s", pa.table(IDS_OF_THREE | columns))
    fields = {"size": 3, "id_dtype": "int64", "features": (), "attributes": {}} | entry
    corpus = Corpus(file="s", **fields)
    for opened in (CandidateStore, check_store):
        with pytest.raises(FormatError, match=words):
            opened(tmp_path / "s", corpus)


INTEGERS = pa.array([1, 2, 5])
ENDS = pa.array([2, 3, 6])
NO_INDEXES: list[dict[str, Any]] = [
    {"value": INTEGERS},
    {"value": pa.array(["1", "2", "5"], pa.large_string()), "end": ENDS},
    *({"value": pa.array(values), "end": ENDS} for values in ([1, None, 5], [1, 5, 2], [1, 2, 2])),
    {"value": INTEGERS, "end": pa.array([2, 3, 6], pa.int32())},
    *(
        {"value": INTEGERS, "end": pa.array(ends)}
        for ends in ([3, 2, 6], [2, 2, 6], [-2, 3, 6], [2, 3, 5], [2, 3, 1 << 62], [2, 3, None])
    ),
    {"value": INTEGERS[:0], "end": ENDS[:0]},
]


@pytest.fixture
def index_files(tmp_path: Path) -> Path:
    """An attribute index of six candidates with the values 1, 2 and 5."""
    arrow.write(tmp_path / ENTRY.values, pa.table({"value": INTEGERS, "end": ENDS}))
    np.array([0, 3, 1, 2, 4, 5], "<u4").tofile(tmp_path / ENTRY.rows)
    AttributeIndex(tmp_path, ENTRY, "int64", 6)
    return tmp_path


@pytest.mark.parametrize("columns", NO_INDEXES)
def test_an_attribute_index_with_invalid_values_is_rejected(
    index_files: Path, columns: dict[str, Any]
) -> None:
    arrow.write(index_files / ENTRY.values, pa.table(columns))
    with pytest.raises(FormatError, match=r"values\.arrow"):
        AttributeIndex(index_files, ENTRY, "int64", 6)


def test_an_attribute_index_with_invalid_positions_is_rejected(index_files: Path) -> None:
    rows = (index_files / ENTRY.rows).read_bytes()
    for size in (5, 0, (1 << 32) + 1):
        with pytest.raises(FormatError, match=f"the corpus has {size}"):
            AttributeIndex(index_files, ENTRY, "int64", size)
    for changed in (b"", rows[:-1], rows[:-4], rows + b"\0" * 4):
        (index_files / ENTRY.rows).write_bytes(changed)
        with pytest.raises(FormatError, match="position 6"):
            AttributeIndex(index_files, ENTRY, "int64", 6)
    (index_files / ENTRY.rows).unlink()
    with pytest.raises(DigestMismatch, match="missing"):
        AttributeIndex(index_files, ENTRY, "int64", 6)


def test_an_index_of_other_candidates_is_found_by_the_check(sample_bundle: Path) -> None:
    corpus = catalog.read_manifest(sample_bundle).corpora["movies"]
    for attribute in corpus.filters:
        check_attribute_index(sample_bundle, corpus, attribute)
    rows = sample_bundle / corpus.filters["title"].rows
    # The index is sound, but it was built from other candidates.
    rows.write_bytes(rows.read_bytes()[4:] + rows.read_bytes()[:4])
    with pytest.raises(FormatError, match="'title'"):
        check_attribute_index(sample_bundle, corpus, "title")
    swapped = corpus.model_copy(update={"filters": {"year": corpus.filters["title"]}})
    with pytest.raises(FormatError, match="int64"):
        check_attribute_index(sample_bundle, swapped, "year")
