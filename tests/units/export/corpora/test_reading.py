from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bundle.format.manifest import (
    CrossedIds,
    CrossKey,
    DenseFeature,
    EmbeddedFeature,
    Feature,
    IdentityIds,
)
from export.corpora import files
from export.corpora.candidates import notes_of_lengths
from export.errors import NotConvertible, UsageError
from export.recipe.schema import CorpusSection
from tests.bundles.tfrecords import masked, record
from tests.id_graphs import bucket_ids, cast_ids, hash_ids
from tests.units.export.corpora.example_files import write_examples
from tests.units.export.corpora.written import contents, write


def _embedded(kind: str, ids: Any = None, **more: Any) -> EmbeddedFeature:
    of_kind: dict[str, Any] = {"bag": {"combiner": "sum"}, "sequence": {"length": 4}}
    arguments = of_kind.get(kind, {}) | more
    return EmbeddedFeature.model_validate(
        {
            "kind": kind,
            "table": "movies",
            "role": "candidate",
            "ids": ids or IdentityIds(),
            **arguments,
        }
    )


_KEYS = (
    CrossKey(dtype="string", role="candidate"),
    CrossKey(dtype="int64", role="candidate"),
    CrossKey(dtype="float32", role="candidate", ids=bucket_ids((0.5, 1.5))),
)
FEATURES: dict[str, Feature] = {
    "movie": _embedded("single"),
    "studio": _embedded("single", hash_ids(10)),
    "genres": _embedded("bag", hash_ids(10)),
    "cast": _embedded("sequence"),
    "trio": _embedded("sequence", length=3, input_length={"values": 3}),
    "padded": _embedded("sequence", length=3, input_length={"values": 3, "pad": 9}),
    "newest": _embedded(
        "sequence",
        length=3,
        input_length={"values": 3, "pad": 9, "pad_side": "start", "keep": "last"},
    ),
    "either": _embedded("sequence", length=2, input_length={"values": 2}, default=[7, 8]),
    "decade": _embedded("single", bucket_ids((1990.0, 2000.0))),
    "hour": _embedded("single", cast_ids("float32", "int64", "Floor")),
    "word": _embedded("single", hash_ids(10, "string")),
    "code": _embedded("single", cast_ids("int64", "int32")),
    "year": DenseFeature(kind="dense", role="candidate"),
    "words": DenseFeature(kind="dense", role="candidate", take="padded", shape=(2,)),
    "rated": DenseFeature(kind="dense", role="candidate", dtype="int64", default=7),
    "label": DenseFeature(kind="dense", role="candidate", dtype="string"),
    "place": DenseFeature(kind="dense", role="candidate", shape=(2,)),
    "span": DenseFeature(kind="dense", role="candidate", shape=(2,), default=[0.0, 1.0]),
    "shelf*size": EmbeddedFeature(
        kind="bag",
        table="movies",
        role="candidate",
        inputs=("shelf", "size", "weight"),
        ids=CrossedIds(keys=_KEYS, buckets=10),
        combiner="sum",
    ),
}


PREBATCHED = {"prebatched": True}
Written = dict[str, Any]


def _read(tmp_path: Path, **part: Any) -> Written:
    return contents(tmp_path, CorpusSection(**({"id": "id"} | part)), FEATURES, "movies")


def _read_text(tmp_path: Path, text: str, **part: Any) -> Written:
    (tmp_path / "movies.csv").write_text(text)
    return _read(tmp_path, file="movies.csv", **part)


def _read_columns(tmp_path: Path, columns: dict[str, Any], **part: Any) -> Written:
    pq.write_table(pa.table(columns), tmp_path / "movies.parquet")
    return _read(tmp_path, file="movies.parquet", **part)


CSV = """id,title,genres,cast,year,rated,place
12,"Heat, the film",a|b;drama,7;8;9,1995,3,0.5;1
3,"Two
lines",,,1987.5,,2;-3e2
"""


def test_corpus_csv_becomes_the_columns_that_a_client_would_send(tmp_path: Path) -> None:
    named = {name: name for name in ("genres", "cast", "year", "rated", "place")}
    attributes = ("title", "genres", "year", "rated")
    features = {"movie": "id", "decade": "year", **named}
    assert _read_text(
        tmp_path, CSV, features=features, attributes=attributes, list_separator=";"
    ) == {
        "ids": [12, 3],
        "title": ["Heat, the film", "Two\nlines"],
        "genres": [["a|b", "drama"], []],
        "year": [1995, 1987.5],
        "rated": [3, None],
        "feature movie": [[12], [3]],
        "feature decade": [[1995], [1987.5]],
        "feature genres": [["a|b", "drama"], []],
        "feature cast": [[7, 8, 9], []],
        "feature year": [[1995], [1987.5]],
        "feature rated": [[3], []],
        "feature place": [[0.5, 1], [2, -300]],
    }


def test_corpus_ids_that_the_model_casts_are_what_it_casts_them_from(tmp_path: Path) -> None:
    text = "id,hour,code\n1,0.5,7\n2,23,-8\n"
    written = _read_text(tmp_path, text, features={"hour": "hour", "code": "code"})
    assert written["feature hour"] == [[0.5], [23]]
    assert written["feature code"] == [[7], [-8]]
    with pytest.raises(NotConvertible, match=r"row 1: '0\.5' is no integer"):
        _read_text(tmp_path, text, features={"code": "hour"})


def test_corpus_integers_are_texts_where_the_model_takes_texts(tmp_path: Path) -> None:
    written = _read_columns(tmp_path, {"id": [1, 2]}, features={"word": "id"})
    assert written["feature word"] == [["1"], ["2"]]


def test_corpus_list_that_the_model_pads_may_be_shorter(tmp_path: Path) -> None:
    text = "id,words\n1,0.5|1\n2,\n3,2\n"
    written = _read_text(tmp_path, text, features={"words": "words"})
    assert written["feature words"] == [[0.5, 1], [], [2]]


def test_corpus_integers_beyond_those_that_floats_hold_become_the_nearest(tmp_path: Path) -> None:
    columns = {"id": [1, 2], "year": [(1 << 53) + 1, 1 << 62]}
    written = _read_columns(tmp_path, columns, features={"year": "year"})
    assert written["feature year"] == [[float(1 << 53)], [float(1 << 62)]]


def test_corpus_list_that_is_empty_is_left_to_the_default(tmp_path: Path) -> None:
    written = _read_text(tmp_path, "id,span\n1,1|2\n2,\n", features={"span": "span"})
    assert written["feature span"] == [[1, 2], []]


def test_corpus_csv_type_of_a_column_follows_from_all_its_cells(tmp_path: Path) -> None:
    # pyarrow's own reader would take the kinds of the first block, and then fail.
    rows = "".join(f"{row},{row if row < 199_999 else 'x9'}\n" for row in range(200_000))
    content = _read_text(
        tmp_path, "id,studio\n" + rows, features={"studio": "studio"}, attributes=("studio",)
    )
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


@pytest.mark.parametrize(
    ("key", "cells", "problem"),
    [
        ("id", ["1", '""'], "row 2 is null"),
        ("id", ["1", "2", "1"], "id 1 stands in row 1 of movies.csv and row 3 of movies.csv"),
        ("id", ["1", "2.5"], "row 2: '2.5' is a float"),
        (
            "id",
            ["1", "2", "x"],
            "row 3: 'x' is text, the ids above are integers; if all are text, write the corpus",
        ),
        ("id", ["x", "2"], "row 2: '2' is an integer, the ids above are text"),
        ("id", ["1", "9223372036854775808"], "row 2: '9223372036854775808' is beyond int64"),
        ("id", ["1", "-9223372036854775809"], "row 2: '-9223372036854775809' is beyond int64"),
        ("label", pa.array([4, 5]), "row 1: '4' is int64; a string was expected"),
        ("label", pa.array(["a", None]), "row 2 is empty, and its feature has no default"),
        ("rated", pa.array(["3", "x"]), "row 2: 'x' is no integer, which was expected"),
        ("rated", pa.array([3.0, 4.0]), "row 1: '3.0' is double; an integer was expected"),
        ("id", pa.array([1.0, 2.0]), "row 1: '1.0' is a float"),
        ("id", pa.array([True, False]), "holds bool; ids are integers or strings"),
        ("movie", ["5", "x"], "row 2: 'x' is no integer"),
        ("movie", ["5", ""], "row 2 is empty, and its feature has no default"),
        ("genres", ["a", "b||c"], "row 2: '' is an empty id"),
        ("year", ["1990", "nan"], "row 2: 'nan' is no finite number"),
        ("year", ["1990", "1e39"], "row 2: '1e39' is no finite float32"),
        ("place", ["1|2", "1"], "row 2 has 1 values; a feature of shape (2,) takes 2"),
        ("place", ["1|2", ""], "row 2 has 0 values; a feature of shape (2,) takes 2"),
        ("words", ["1|2", "1|2|3"], "row 2 has 3 values; a feature of shape (2,) takes 2 at most"),
        (
            "trio",
            ["1|2|3", "1|2"],
            "row 2 has 2 values; 3 were expected by input 'trio'; write lists of that length, or "
            "state what pads or cuts others as inputs.trio.pad and inputs.trio.keep",
        ),
        ("trio", ["1|2|3", ""], "row 2 has 0 values; 3 were expected"),
        ("trio", pa.array([[1, 2, 3], None]), "row 2 has 0 values; 3 were expected"),
        ("trio", ["1|2|3|4", "1|2|3"], "row 1 has 4 values; 3 were expected"),
        ("padded", ["1|2", "1|2|3|4"], "row 2 has 4 values; at most 3 were expected"),
        ("either", ["", "1"], "row 2 has 1 values; 2 were expected"),
        ("span", ["1|2", "", "1"], "row 3 has 1 values; a feature of shape (2,) takes 2"),
        (
            "movie",
            pa.array([1.0, 2.0]),
            "row 1: '1.0' is double; an id, integer or string, was expected",
        ),
        ("studio", pa.array([True, False]), "is bool; an id"),
        ("genres", pa.array(["a", "b"]), "holds string; a list per candidate was expected"),
        (
            "genres",
            pa.array([["a"], ["b", None]]),
            "row 2 is null; an id, integer or string, was expected",
        ),
        ("year", pa.array([True, False]), "row 1: 'True' is bool; a number was expected"),
    ],
)
def test_wrong_value_names_file_row_and_column(
    tmp_path: Path, key: str, cells: Any, problem: str
) -> None:
    part: dict[str, Any] = {"id": "c"} if key == "id" else {"features": {key: "c"}}
    read: Callable[..., Written]
    content: Any
    if isinstance(cells, list):
        read = _read_text
        content = "id,c\n" + "".join(f"{row},{cell}\n" for row, cell in enumerate(cells))
    else:
        read = _read_columns
        content = {"id": list(range(len(cells))), "c": cells}

    with pytest.raises(NotConvertible) as rejection:
        read(tmp_path, content, **part)

    assert problem in str(rejection.value)
    assert str(rejection.value).startswith("corpora.movies.")
    assert f"{key}: " in str(rejection.value)
    assert "column 'c'" in str(rejection.value)


def test_numbers_of_a_bag_are_bags_of_one_and_nulls_are_empty(tmp_path: Path) -> None:
    columns = {"id": pa.array([1, 2, 3]), "genres": pa.array([5, None, 7], pa.int64())}
    assert _read_columns(tmp_path, columns, features={"genres": "genres"})["feature genres"] == [
        [5],
        [],
        [7],
    ]


def test_inputs_of_a_cross_are_read_by_the_types_of_its_keys(tmp_path: Path) -> None:
    columns = {
        "id": pa.array([1, 2]),
        "shelf": pa.array([["a", "7"], ["b"]]),
        "size": pa.array([5, 6]),
        "weight": pa.array([0.25, 2.0]),
    }
    assert _read_columns(
        tmp_path, columns, features={name: name for name in columns if name != "id"}
    ) == {
        "ids": [1, 2],
        "feature shelf": [["a", "7"], ["b"]],
        "feature size": [[5], [6]],
        "feature weight": [[0.25], [2.0]],
    }


HUGE = (1 << 62).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("content", "part", "problem"),
    [
        ("", {}, "a.csv holds no candidates"),
        ("id\n", {}, "a.csv holds no candidates"),
        ({"id": pa.array([], pa.int64())}, {}, "a.parquet holds no candidates"),
        ("movieId\n1\n", {}, "a.csv has no column 'id'; it has movieId"),
        ("id,id\n1,2\n", {}, "has 2 columns 'id'"),
        (
            "id\n1\n",
            {"features": {"film": "id"}},
            "the model has no feature 'film'; it has movie, studio",
        ),
        ("id,a\n1,2\n3\n", {"attributes": ("a",)}, "no readable CSV file"),
        ("id\n1\n", {"format": "parquet"}, "no readable Parquet file"),
        (
            ({"id": [1, 2]}, {"id": [2]}),
            {},
            "id 2 stands in row 2 of a.parquet and row 1 of b.parquet",
        ),
        (
            ({"id": [1]}, {"id": ["3"]}),
            {},
            "b.parquet, column 'id' holds string, the ids above are integers",
        ),
        (
            ({"id": [1], "x": [1]}, {"id": [2], "x": ["one"]}),
            {"attributes": ("x",)},
            "corpora.movies: b.parquet: attribute x holds large_string after int64",
        ),
        (
            [{"id": [1]}, {"id": [2, 3]}],
            {},
            "column 'id', record 2: '[2, 3]' holds several values; one was expected; if records "
            "hold many candidates, set prebatched = true",
        ),
        ([{"id": [1]}] * 2, {}, "id 1 stands in record 1 of a.tfrecord and record 2 of a.tfrecord"),
        (
            [{"id": [1], "y": [0.5]}],
            {"features": {"place": "y"}},
            "record 1 has 1 values; a feature of",
        ),
        (
            [{"id": [1, 2], "y": ["a", ""]}],
            PREBATCHED | {"features": {"studio": "y"}},
            "candidate 2, record 1",
        ),
        (
            [{"id": [1]}],
            {"features": {"rated": "y"}},
            "no record of a.tfrecord has a value in column 'y'",
        ),
        (
            [{"id": [1]}, {"id": [0.5]}],
            {},
            "record 2, column 'id' is a float list, the records above",
        ),
        ([{"id": ["a"]}, {"id": [b"\xff"]}], {}, r"record 2, column 'id': b'\xff' is no UTF-8"),
        (
            [{"id": [1, 2], "y": [1]}],
            PREBATCHED | {"attributes": ("y",)},
            "'y' has 1 values for 2 candidates",
        ),
        ([{"id": [1]}, {}], PREBATCHED, "record 2 has no values in column 'id', the id"),
        ([{"id": [1]}, b"\xff\xff\xff"], {}, "record 2 is no tf.train.Example"),
        (b"\x01\x02", {}, "record 1 is cut short in its length"),
        (record(b"") * 2 + record(b"abc")[:-5], {}, "record 3 is cut short; copy the file again"),
        (record(b"abc")[:-1], {}, "record 1 is cut short; copy the file again"),
        (
            record(b"")[:8] + bytes(8),
            {},
            "record 1 is no TFRecord: its length differs from its checksum",
        ),
        (record(b"a")[:-1] + b"\x00", {}, "record 1 differs from its checksum"),
        (gzip.compress(record(b""), mtime=0), {}, "set compression = 'gzip'"),
        (HUGE + masked(HUGE), {}, f"claims {1 << 62} bytes; at most"),
        (
            gzip.compress(record(b"") * 90, mtime=0)[:-20],
            {"compression": "gzip"},
            "a.tfrecord cannot be read",
        ),
        (record(b""), {"compression": "gzip"}, "is it compressed at all"),
    ],
)
def test_corpus_files_that_are_damaged_or_do_not_fit_are_rejected(
    tmp_path: Path, content: Any, part: dict[str, Any], problem: str
) -> None:
    if isinstance(content, str):
        (tmp_path / "a.csv").write_text(content)
    elif isinstance(content, list):
        write_examples(tmp_path / "a.tfrecord", content)
    elif isinstance(content, bytes):
        (tmp_path / "a.tfrecord").write_bytes(content)
    else:
        for name, columns in zip(
            "ab", content if isinstance(content, tuple) else [content], strict=False
        ):
            pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")

    with pytest.raises((NotConvertible, UsageError)) as rejection:
        _read(tmp_path, file="*.*", **part)

    assert problem in str(rejection.value)


def test_several_values_of_a_candidate_in_a_batched_record_have_no_other_cure(
    tmp_path: Path,
) -> None:
    write_examples(tmp_path / "a.tfrecord", [{"id": [1, 2], "y": [3, 4, 5, 6]}])
    with pytest.raises(NotConvertible, match=r"holds several values; one was expected$"):
        _read(tmp_path, file="a.tfrecord", prebatched=True, features={"rated": "y"})


def test_corpus_id_that_stands_twice_is_found_in_any_batch_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_READ_BYTES", 64)
    rows = [f"{row:06}".lstrip("0") for row in range(1000, 1100)]
    assert _read_text(tmp_path, "id\n" + "\n".join(rows) + "\n")["ids"] == [*range(1000, 1100)]
    rows[89] = rows[2]
    with pytest.raises(NotConvertible) as rejection:
        _read_text(tmp_path, "id\n" + "\n".join(rows) + "\n")
    assert str(rejection.value) == (
        "corpora.movies.id: column 'id': id 1002 stands in row 3 of movies.csv and row 90 of "
        "movies.csv; ids must be distinct"
    )


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1", "", "-7"], [1, None, -7]),
        (["1", "2.5", ""], [1.0, 2.5, None]),
        (["1", "9223372036854775808", "2"], [1.0, 9223372036854775808.0, 2.0]),
        (["1", "2e3", ".5"], [1.0, 2000.0, 0.5]),
        (["1", "x", "2.5"], ["1", "x", "2.5"]),
        (["01", "2", "3"], [1.0, 2.0, 3.0]),
        (["", "", ""], [None, None, None]),
    ],
)
@pytest.mark.parametrize("read_bytes", [24, 1 << 20])
def test_corpus_attribute_has_the_narrowest_type_that_holds_all_of_its_text(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cells: list[str],
    values: list[Any],
    read_bytes: int,
) -> None:
    monkeypatch.setattr(files, "_READ_BYTES", read_bytes)
    rows = "".join(f"{row},{cell}\n" for row, cell in enumerate(cells))
    written = _read_text(tmp_path, "id,note\n" + rows, attributes=("note",))
    assert written["note"] == values
    assert [type(value) for value in written["note"]] == [type(value) for value in values]


def test_corpus_file_that_is_gone_is_told(tmp_path: Path) -> None:
    part = CorpusSection(file="movies.csv", id="id")
    for kind in ("csv", "parquet", "tfrecord"):
        gone = files.CorpusFile(tmp_path / f"movies.{kind}", kind, False)
        with pytest.raises(UsageError) as rejection:
            list(files.read_batches(gone, "corpora.movies", part, {"id": "corpora.movies.id"}))
        assert str(rejection.value) == f"corpora.movies: movies.{kind} does not exist"


def test_lists_of_a_corpus_are_padded_and_cut_as_stated_and_counted(tmp_path: Path) -> None:
    lists = ["1|2|3", "1|2|3|4", "5", "", "4|3|2|1"]
    rows = [f"{row},{text}" for row, text in enumerate(lists)]
    (tmp_path / "movies.csv").write_text("\n".join(["id,list", *rows]))
    part = CorpusSection(file="movies.csv", id="id", features={"newest": "list"})
    actual = contents(tmp_path, part, FEATURES)
    assert actual["feature newest"] == [[1, 2, 3], [2, 3, 4], [9, 9, 5], [9, 9, 9], [3, 2, 1]]

    corpus = write(tmp_path / "counted", part, FEATURES, tmp_path)
    assert (corpus.cut, corpus.padded) == ({"newest": 2}, {"newest": 2})
    assert notes_of_lengths("corpora.movies", corpus) == [
        "corpora.movies: 2 of 5 lists of input 'newest' were cut",
        "corpora.movies: 2 of 5 lists of input 'newest' were padded",
    ]


def test_empty_lists_of_a_corpus_take_the_default_of_their_input(tmp_path: Path) -> None:
    (tmp_path / "movies.csv").write_text("id,list\n1,3|4\n2,\n")
    part = CorpusSection(file="movies.csv", id="id", features={"either": "list"})
    assert contents(tmp_path, part, FEATURES)["feature either"] == [[3, 4], [7, 8]]
