from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bundle.format.manifest import (
    BucketIds,
    CrossedIds,
    CrossKey,
    DenseFeature,
    EmbeddedFeature,
    Feature,
    HashIds,
    IdentityIds,
)
from export.errors import NotConvertible, UsageError
from export.recipe.schema import CorpusPart
from tests.export.corpora.written import held


def _embedded(kind: str, ids: Any = None) -> EmbeddedFeature:
    how: Any = {"bag": {"combiner": "sum"}, "sequence": {"length": 4}}.get(kind, {})
    return EmbeddedFeature.model_validate(
        {"kind": kind, "table": "movies", "role": "candidate", "ids": ids or IdentityIds(), **how}
    )


_KEYS = (
    CrossKey(dtype="string", role="candidate"),
    CrossKey(dtype="int64", role="candidate"),
    CrossKey(dtype="int64", role="candidate", boundaries=(0.5, 1.5)),
)
FEATURES: dict[str, Feature] = {
    "movie": _embedded("single"),
    "studio": _embedded("single", HashIds(buckets=10)),
    "genres": _embedded("bag", HashIds(buckets=10)),
    "cast": _embedded("sequence"),
    "decade": _embedded("single", BucketIds(boundaries=(1990.0, 2000.0))),
    "year": DenseFeature(kind="dense", role="candidate"),
    "rated": DenseFeature(kind="dense", role="candidate", dtype="int64", default=7),
    "place": DenseFeature(kind="dense", role="candidate", shape=(2,)),
    "shelf*size": EmbeddedFeature(
        kind="bag",
        table="movies",
        role="candidate",
        inputs=("shelf", "size", "weight"),
        ids=CrossedIds(keys=_KEYS, buckets=10),
        combiner="sum",
    ),
}


Written = dict[str, Any]


def _read(tmp_path: Path, **part: Any) -> Written:
    return held(tmp_path, CorpusPart(**({"id": "id"} | part)), FEATURES, "movies")


def _read_text(tmp_path: Path, text: str, **part: Any) -> Written:
    (tmp_path / "movies.csv").write_text(text)
    return _read(tmp_path, file="movies.csv", **part)


def _read_columns(tmp_path: Path, columns: dict[str, Any], **part: Any) -> Written:
    pq.write_table(pa.table(columns), tmp_path / "movies.parquet")
    return _read(tmp_path, file="movies.parquet", **part)


CSV = """id,title,genres,cast,year,rated,place
12,"Heat, the film",crime|drama,7|8|9,1995,3,0.5|1
3,"Two
lines",,,1987.5,,2|-3e2
"""


def test_corpus_csv_becomes_what_a_caller_would_send(tmp_path: Path) -> None:
    named = {name: name for name in ("genres", "cast", "year", "rated", "place")}
    attributes = ("title", "genres", "year", "rated")
    assert _read_text(tmp_path, CSV, features={"movie": "id", "decade": "year", **named}, attributes=attributes) == {
        "ids": [12, 3],
        "title": ["Heat, the film", "Two\nlines"],
        "genres": [["crime", "drama"], []],
        "year": [1995, 1987.5],
        "rated": [3, None],
        "feature movie": [[12], [3]],
        "feature decade": [[1995], [1987.5]],
        "feature genres": [["crime", "drama"], []],
        "feature cast": [[7, 8, 9], []],
        "feature year": [[1995], [1987.5]],
        "feature rated": [[3], []],
        "feature place": [[0.5, 1], [2, -300]],
    }


def test_corpus_csv_separator_is_the_recipes(tmp_path: Path) -> None:
    part = {"features": {"genres": "genres"}, "attributes": ("genres",), "list_separator": ";"}
    content = _read_text(tmp_path, "id,genres\n1,a|b;c\n", **part)
    assert content["feature genres"] == content["genres"] == [["a|b", "c"]]


def test_corpus_csv_kinds_are_told_by_the_whole_column_not_its_start(tmp_path: Path) -> None:
    # pyarrow's own reader would take the kinds of the first block, and then fail.
    rows = "".join(f"{row},{row if row < 199_999 else 'x9'}\n" for row in range(200_000))
    content = _read_text(tmp_path, "id,studio\n" + rows, features={"studio": "studio"}, attributes=("studio",))
    assert (content["feature studio"][0], content["feature studio"][-1]) == (["0"], ["x9"])
    assert content["studio"][-1] == "x9"


def test_corpus_string_ids_stay_strings(tmp_path: Path) -> None:
    assert _read_text(tmp_path, "id\ntt01\ntt02\n") == {"ids": ["tt01", "tt02"]}
    assert _read_columns(tmp_path, {"id": ["12", "tt02"]}) == {"ids": ["12", "tt02"]}


def test_corpus_parquet_takes_lists_and_dictionaries(tmp_path: Path) -> None:
    columns = {
        "id": pa.array([5, 6], pa.uint32()),
        "genres": pa.array([["a", "b"], None]),
        "cast": pa.array([[1], [2, 3]], pa.large_list(pa.int32())),
        "place": pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)),
        "studio": pa.array(["x", "y"]).dictionary_encode(),
        "rated": pa.array([None, 4], pa.int8()),
        "kind": pa.array(["film", "series"]),
    }
    features = {name: name for name in ("genres", "cast", "place", "studio", "rated")}
    assert _read_columns(tmp_path, columns, features=features, attributes=("kind", "genres")) == {
        "ids": [5, 6],
        "kind": ["film", "series"],
        "genres": [["a", "b"], None],
        "feature genres": [["a", "b"], []],
        "feature cast": [[1], [2, 3]],
        "feature place": [[1, 2], [3, 4]],
        "feature studio": [["x"], ["y"]],
        "feature rated": [[], [4]],
    }


@pytest.mark.parametrize("text", ["id\n", ""])
def test_corpus_without_candidates_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(NotConvertible, match=r"'movies'.*holds no candidates"):
        _read_text(tmp_path, text)
    with pytest.raises(NotConvertible, match=r"'movies'.*holds no candidates"):
        _read_columns(tmp_path, {"id": pa.array([], pa.int64())})


@pytest.mark.parametrize(
    ("key", "cells", "problem"),
    [
        ("id", ["1", '""'], "row 2 is null"),
        ("id", ["1", "2", "1"], "id 1 stands in row 1 of movies.csv and row 3 of movies.csv"),
        ("id", ["1", "2.5"], "row 2: '2.5' is a float"),
        ("id", ["1", "2", "x"], "row 3: 'x' is text, the ids above are integers; if all are text, write the corpus"),
        ("id", ["x", "2"], "row 2: '2' is an integer, the ids above are text"),
        ("id", ["1", "9223372036854775808"], "row 2: '9223372036854775808' is beyond int64"),
        ("id", pa.array([1.0, 2.0]), "row 1: '1.0' is a float"),
        ("id", pa.array([True, False]), "holds bool; ids are integers or strings"),
        ("id", pa.array([1, 1 << 63], pa.uint64()), "row 2: '9223372036854775808' is beyond int64"),
        ("movie", ["5", "x"], "row 2: 'x' is no integer"),
        ("movie", ["5", ""], "row 2 is empty, and its feature has no default"),
        ("movie", ["9223372036854775808", "1"], "row 1: '9223372036854775808' is beyond int64"),
        ("genres", ["a", "b||c"], "row 2: '' is an empty id"),
        ("cast", ["1|2", "3|x"], "row 2: 'x' is no integer"),
        ("decade", ["1990", "old"], "row 2: 'old' is no finite number"),
        ("year", ["1990", "nan"], "row 2: 'nan' is no finite number"),
        ("year", ["1990", "1e39"], "row 2: '1e39' is no finite float32"),
        ("place", ["1|2", "1"], "row 2 has 1 values; a feature of shape (2,) takes 2"),
        ("movie", pa.array([1.0, 2.0]), "row 1: '1.0' is double; an id, integer or string, was expected"),
        ("studio", pa.array([True, False]), "is bool; an id"),
        ("genres", pa.array(["a", "b"]), "holds string; a list per candidate was expected"),
        ("genres", pa.array([["a"], ["b", None]]), "row 2 is null; an id, integer or string, was expected"),
        ("year", pa.array([1.0, float("inf")]), "row 2: 'inf' is no finite float32"),
        ("year", pa.array([True, False]), "row 1: 'True' is bool; a number was expected"),
    ],
)
def test_wrong_value_names_file_row_and_column(tmp_path: Path, key: str, cells: Any, problem: str) -> None:
    part: dict[str, Any] = {"id": "c"} if key == "id" else {"features": {key: "c"}}
    read: Callable[..., Written]
    content: Any
    if isinstance(cells, list):
        read, content = _read_text, "id,c\n" + "".join(f"{row},{cell}\n" for row, cell in enumerate(cells))
    else:
        read, content = _read_columns, {"id": list(range(len(cells))), "c": cells}

    with pytest.raises(NotConvertible) as refusal:
        read(tmp_path, content, **part)

    assert problem in str(refusal.value)
    assert "corpus 'movies'" in str(refusal.value)
    assert "column 'c'" in str(refusal.value)


@pytest.mark.parametrize(
    ("data", "part", "problem"),
    [
        (b"movieId\n1\n", {}, "movies.csv has no column 'id'; it has movieId"),
        (b"id,id\n1,2\n", {}, "2 times a column 'id'"),
        (b"id\n1\n", {"features": {"movie": "m"}}, "no column 'm'"),
        (b"id\n1\n", {"features": {"film": "id"}}, "the model has no feature 'film'; it has movie, studio"),
        (b"id,a\n1,2\n3\n", {"attributes": ("a",)}, "no readable CSV file"),
        (b"id\n1\n", {"format": "parquet"}, "no readable Parquet file"),
    ],
)
def test_file_that_does_not_match_the_recipe_is_a_usage_error(
    tmp_path: Path, data: bytes, part: dict[str, Any], problem: str
) -> None:
    (tmp_path / "movies.csv").write_bytes(data)

    with pytest.raises(UsageError) as refusal:
        _read(tmp_path, file="movies.csv", **part)

    assert problem in str(refusal.value)


def test_numbers_of_a_bag_are_bags_of_one_and_nulls_are_empty(tmp_path: Path) -> None:
    columns = {"id": pa.array([1, 2, 3]), "genres": pa.array([5, None, 7], pa.int64())}
    assert _read_columns(tmp_path, columns, features={"genres": "genres"})["feature genres"] == [[5], [], [7]]


def test_inputs_of_a_cross_are_read_each_as_its_key_says(tmp_path: Path) -> None:
    columns = {
        "id": pa.array([1, 2]),
        "shelf": pa.array([["a", "7"], ["b"]]),
        "size": pa.array([5, 6]),
        "weight": pa.array([0.25, 2.0]),
    }
    assert _read_columns(tmp_path, columns, features={name: name for name in columns if name != "id"}) == {
        "ids": [1, 2],
        "feature shelf": [["a", "7"], ["b"]],
        "feature size": [[5], [6]],
        "feature weight": [[0.25], [2.0]],
    }
