from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bundle.errors import FeatureError, FormatError, RowOutOfRange, UnknownCandidate
from bundle.features.reader import Column
from bundle.format.manifest import Corpus
from bundle.storage import arrow
from bundle.stores.reader import CandidateStore, check_store
from bundle.stores.writer import write_store
from tests.units.bundle.features.readers import objects

IDS = np.array([30, -2, 7], np.int64)
FEATURES = {
    "movie": Column(IDS),
    "name": Column(objects("x", "", "é")),
    "age": Column(np.array([1.5, 2, 3], np.float32)),
    "grid": Column(np.arange(6, dtype=np.float32)),
    "genres": Column(objects("a", "b", "a"), np.array([0, 2, 2, 3])),
    "tags": Column(
        np.array([5, 6, 7]), np.array([0, 0, 1, 3]), np.array([0.5, 1.5, 2.5], np.float32)
    ),
}
ATTRIBUTES = {
    "title": pa.array(["T", None, "U"]),
    "year": pa.array([1999, None, 2001], pa.int16()),
    "score": pa.array([1.5, float("nan"), None]),
    "seen": pa.array([True, False, None]),
    "words": pa.array([["a", "b"], [], None]),
    "kind": pa.array(["k", "l", "k"]).dictionary_encode(),
}


def write(path: Path, ids: Any = IDS, **changed: Any) -> CandidateStore:
    written = write_store(
        path, ids, changed.get("features", FEATURES), changed.get("attributes", ATTRIBUTES)
    )
    return CandidateStore(path, Corpus(file="s", **vars(written)))


def test_store_reads_back_after_it_was_written(tmp_path: Path) -> None:
    written = write_store(tmp_path / "s", IDS, FEATURES, ATTRIBUTES)
    assert (written.size, written.id_dtype, written.features) == (3, "int64", tuple(FEATURES))
    assert written.attributes == {
        "title": "string",
        "year": "int64",
        "score": "double",
        "seen": "bool",
        "words": "list<string>",
        "kind": "string",
    }
    store = CandidateStore(tmp_path / "s", Corpus(file="s", **vars(written)))
    attributes = store.attributes(np.array([2, 0, 0, 1]), list(ATTRIBUTES))
    assert attributes == {
        "title": ["U", "T", "T", None],
        "year": [2001, 1999, 1999, None],
        "score": [None, 1.5, 1.5, None],
        "seen": [None, True, True, False],
        "words": [None, ["a", "b"], ["a", "b"], []],
        "kind": ["k", "k", "k", "l"],
    }


def test_store_returns_numbers_of_attributes_and_codes_of_equal_values(tmp_path: Path) -> None:
    store = write(tmp_path / "s")
    positions = np.array([2, 1, 0, 0])
    numbers = store.numbers(positions, ["year", "score", "seen"])
    assert {name: values.tolist() for name, values in numbers.items()} == {
        "year": [2001, 0, 1999, 1999],
        "score": [0, 0, 1.5, 1.5],
        "seen": [0, 0, 1, 1],
    }
    for name, (first, second, third, fourth) in [
        (name, store.codes(positions, name)) for name in ("title", "year")
    ]:
        assert second == -1, name
        assert third == fourth != first
        assert min(first, third) >= 0
    assert len(set(store.codes(positions, "seen").tolist())) == 3
    assert [store.cardinality(name) for name in ("title", "kind", "seen", "title")] == [
        (2, 1),
        (2, 0),
        (2, 1),
        (2, 1),
    ]


def test_store_returns_features_as_they_were_sent(tmp_path: Path) -> None:
    features = write(tmp_path / "s").features(np.array([2, 0, 2]), list(FEATURES))
    assert features["movie"].values.tolist() == [7, 30, 7]
    assert features["name"].values.tolist() == ["é", "x", "é"]
    assert features["age"].values.dtype == np.float32
    assert features["grid"].values.tolist() == [4, 5, 0, 1, 4, 5]
    assert features["grid"].offsets is None
    genres = features["genres"]
    tags = features["tags"]
    assert genres.offsets is not None
    assert tags.offsets is not None
    assert tags.weights is not None
    assert (genres.values.tolist(), genres.offsets.tolist()) == (["a", "a", "b", "a"], [0, 1, 3, 4])
    assert (tags.values.tolist(), tags.offsets.tolist()) == ([6, 7, 6, 7], [0, 2, 2, 4])
    assert tags.weights.tolist() == [1.5, 2.5, 1.5, 2.5]


@pytest.mark.parametrize(
    ("ids", "unknown"),
    [
        (np.array([30, -2, 7], np.int64), np.array([0, 31])),
        (np.array([4, 5, 6], np.int64), np.array([3, 7])),
        (objects("a", "", "é"), objects("A", "e")),
    ],
)
def test_store_positions_and_ids_are_inverse(tmp_path: Path, ids: Any, unknown: Any) -> None:
    store = write(tmp_path / "s", ids)
    assert store.size == 3
    assert store.positions(store.ids(np.array([2, 0, 1]))).tolist() == [2, 0, 1]
    assert store.ids(np.arange(3)).tolist() == ids.tolist()
    assert store.positions(unknown).tolist() == [-1, -1]


def test_store_positions_of_ids_of_another_type_raise(tmp_path: Path) -> None:
    numbers = write(tmp_path / "n")
    names = write(tmp_path / "s", objects("a", "b", "c"))
    assert numbers.positions(objects("-2")).tolist() == [1]
    for store, ids in ((numbers, objects("x")), (numbers, np.array([1.0])), (names, np.array([1]))):
        with pytest.raises(UnknownCandidate, match=f"^exclude_ids: {ids.tolist()[0]!r} is"):
            store.positions(ids, "exclude_ids")


def test_store_read_of_an_unknown_feature_or_position_raises(tmp_path: Path) -> None:
    store = write(tmp_path / "s")
    for position in (-1, 3, 1 << 40):
        where = np.array([0, position])
        for read in (
            store.ids,
            lambda positions: store.features(positions, ["movie"]),
            lambda positions: store.attributes(positions, ["title"]),
        ):
            with pytest.raises(RowOutOfRange, match=str(position)):
                read(where)
    for named in (store.features, store.attributes):
        with pytest.raises(FeatureError, match="'colour'"):
            named(np.array([0]), ["colour"])


THREE = np.arange(3)
ATTRIBUTES_REJECTED = (
    *(pa.array([0, 1, 2], dtype) for dtype in (pa.timestamp("us"), pa.date32())),
    *(pa.array(values) for values in ([b"a", b"b", b"c"], [[1], [2], [3]], [{"a": 1}] * 3, [1, 2])),
    *(pa.array([1 << 63] * 3, pa.uint64()), pa.array([float("inf"), 1.0, 2.0]), pa.nulls(3)),
)
FEATURES_REJECTED = (
    *(
        Column(np.arange(4)),
        Column(np.arange(2)),
        Column(objects("a", None, "b")),
        Column(np.array([True] * 3)),
    ),
    *(Column(THREE, np.array(ends)) for ends in ([0, 1, 2], [0, 2, 1, 3], [0, 1, 2, 4])),
)


@pytest.mark.parametrize(
    ("ids", "columns", "attributes", "message"),
    [
        (np.array([1, 2, 1]), {}, {}, "id 1 comes twice"),
        (objects("a", "b", "b"), {}, {}, "id 'b' comes twice"),
        (pa.array([1, None, 3]), {}, {}, "candidate 1 is null"),
        (pa.array(["a", "b", None]), {}, {}, "candidate 2 is null"),
        (objects("a", None, "c"), {}, {}, "None is no id"),
        (np.array([1.0, 2.0, 3.0]), {}, {}, "1.0 is no id"),
        (np.array([True, False, True]), {}, {}, "True is no id"),
        *((IDS, {}, {"when": values}, "'when'") for values in ATTRIBUTES_REJECTED),
        *((IDS, {"f": column}, {}, "'f'") for column in FEATURES_REJECTED),
    ],
)
def test_write_store_of_an_unsupported_value_names_it_and_writes_nothing(
    tmp_path: Path, ids: Any, columns: Any, attributes: Any, message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        write_store(tmp_path / "s", ids, columns, attributes)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"size": 4}, "holds 3 candidates, the manifest says 4"),
        ({"id_dtype": "string"}, "string was expected"),
        ({"features": ("movie", "gone")}, "feature:gone"),
        ({"attributes": {"title": "int64"}}, "'title'"),
    ],
)
def test_store_that_contradicts_the_manifest_is_rejected(
    tmp_path: Path, changed: dict[str, Any], problem: str
) -> None:
    written = write_store(tmp_path / "s", IDS, FEATURES, ATTRIBUTES)
    with pytest.raises(FormatError, match=problem):
        CandidateStore(tmp_path / "s", Corpus(file="s", **{**vars(written), **changed}))


@pytest.mark.parametrize(
    "columns",
    [
        {"feature:f": pa.array([1, None, 2])},
        {"feature:f": pa.array([[1], None, [2]], pa.large_list(pa.int64()))},
        {"feature:f": pa.array([True, False, True])},
        {
            "feature:f": pa.array([1, 2, 3]),
            "weights:f": pa.array([1.0, 2.0], pa.float32()).take(pa.array([0, 1, None])),
        },
        {"feature:f": pa.array([1, 2, 3]), "weights:f": pa.array([1.0, 2.0, 3.0])},
        {
            "feature:f": pa.array([[1, 2], [3], []], pa.large_list(pa.int64())),
            "weights:f": pa.array([[1.0], [2.0, 3.0], []], pa.large_list(pa.float32())),
        },
    ],
)
def test_store_with_invalid_features_is_rejected(tmp_path: Path, columns: dict[str, Any]) -> None:
    arrow.write(tmp_path / "s", pa.table({"id": pa.array(IDS), **columns}))
    with pytest.raises(FormatError, match="'f'"):
        CandidateStore(
            tmp_path / "s",
            Corpus(file="s", size=3, id_dtype="int64", features=("f",), attributes={}),
        )


@pytest.mark.parametrize("ids", [np.array([5, 5, 7]), objects("a", "b", "a")])
def test_check_store_rejects_the_same_stores_as_opening(tmp_path: Path, ids: Any) -> None:
    written = write_store(tmp_path / "s", IDS, FEATURES, ATTRIBUTES)
    check_store(tmp_path / "s", Corpus(file="s", **vars(written)))

    arrow.write(tmp_path / "t", pa.table({"id": pa.array(ids)}))
    page = Corpus(
        file="t",
        size=3,
        id_dtype="int64" if ids.dtype == np.int64 else "string",
        features=(),
        attributes={},
    )
    for opened in (check_store, CandidateStore):
        with pytest.raises(FormatError, match=f"id {ids.tolist()[0]!r} comes twice"):
            opened(tmp_path / "t", page)
    with pytest.raises(FormatError, match="manifest says 4"):
        check_store(tmp_path / "t", page.model_copy(update={"size": 4}))
