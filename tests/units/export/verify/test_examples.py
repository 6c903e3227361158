from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bundle.format import manifest
from export.errors import UsageError
from export.front_end.specs import ModelSpec, TableFacts
from export.verify.examples import read_examples
from export.verify.synthetic_examples import make_examples
from tests.id_graphs import bucket_ids, cast_ids, hash_ids, vocabulary_ids
from tests.units.export.traced_features import dense, embedded

EMBEDDED = manifest.EmbeddedFeature
MODEL = ModelSpec(
    tables={
        "users": TableFacts("users", "users", 10, 2),
        "movies": TableFacts("movies", "movies", 1 << 40, 2),
    },
    features={
        "user": embedded("user", "users"),
        "seen": embedded(
            "seen", "movies", kind="bag", encoding="ragged", combiner="mean", weights="seen_weights"
        ),
        "recent": embedded("recent", "movies", kind="sequence", encoding="ragged", length=3),
        "pair": embedded("pair", "users", kind="sequence", length=2),
        "age": dense("age", "float32", ()),
        "grid": dense("grid", "float32", (2, 2)),
    },
    towers={},
)
PAGES: dict[str, manifest.Feature] = {
    "user": EMBEDDED(
        kind="single",
        table="users",
        role="context",
        ids=vocabulary_ids("names", first_row=7),
    ),
    "seen": EMBEDDED(kind="bag", table="movies", role="context", combiner="mean", weighted=True),
    "recent": EMBEDDED(
        kind="sequence",
        table="movies",
        role="context",
        length=3,
        ids=hash_ids(5),
        default=[],
    ),
    "pair": EMBEDDED(
        kind="sequence",
        table="users",
        role="context",
        length=2,
        input_length=manifest.InputLength(values=2),
        ids=bucket_ids((1.0, 2.0)),
    ),
    "age": manifest.DenseFeature(kind="dense", role="context", default=1.0),
    "grid": manifest.DenseFeature(kind="dense", role="context", shape=(2, 2)),
}
KEYS = {"names": np.array(["ann", "bob", "cid", "dot", "eve"], object)}
ROW: dict[str, Any] = {
    "user": "ann",
    "seen": [5, 6],
    "seen_weights": [0.5, 2.0],
    "pair": [0.5, 1.5],
    "grid": [[1, 2], [3, 4]],
}


def write_lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_read_examples_become_columns(suffix: str, tmp_path: Path) -> None:
    second = ROW | {"user": "bob", "seen": [], "seen_weights": [], "pair": [1.0, 9.0]}
    path = tmp_path / f"e.{suffix}"
    if suffix == "jsonl":
        write_lines(path, ROW, second, ROW)
    else:
        pq.write_table(pa.Table.from_pylist([ROW, second, ROW]), path)
    read = read_examples(path, MODEL, PAGES, 2)
    assert read.n == 2
    assert read.columns["user"].values.tolist() == ["ann", "bob"]
    assert read.columns["user"].offsets is None
    seen = read.columns["seen"]
    assert seen.offsets is not None
    assert seen.weights is not None
    assert (seen.values.tolist(), seen.offsets.tolist(), seen.weights.tolist()) == (
        [5, 6],
        [0, 2, 2],
        [0.5, 2.0],
    )
    assert read.columns["grid"].values.tolist() == [1, 2, 3, 4, 1, 2, 3, 4]
    assert "age" not in read.columns
    assert "recent" not in read.columns


def test_read_examples_whose_bags_are_all_empty_have_no_values(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "e.jsonl", ROW | {"seen": [], "seen_weights": []})
    seen = read_examples(path, MODEL, PAGES, 1).columns["seen"]
    assert seen.offsets is not None
    assert seen.weights is not None
    assert (seen.values.size, seen.weights.size, seen.offsets.tolist()) == (0, 0, [0, 0])


SEEN = [ROW | {"click": click, "score": score} for click, score in ((0, 0.5), (1, 2), (0, -1.5))]


def test_read_labels_and_recorded_outputs_are_columns_of_the_file(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "e.jsonl", *SEEN)
    read = read_examples(path, MODEL, PAGES, 9, {"head": "click"}, {"ranking.head": "score"})
    assert set(read.columns) == {"user", "seen", "pair", "grid"}
    assert read.labels["head"].tolist() == [0, 1, 0]
    assert read.labels["head"].dtype == np.int64
    assert read.recorded["ranking.head"].tolist() == [0.5, 2, -1.5]
    assert read.recorded["ranking.head"].dtype == np.float64


@pytest.mark.parametrize(
    ("key", "column", "message"),
    [
        ("labels", "bought", r"verify\.labels: .*e\.jsonl has no column 'bought'; it has user, "),
        (
            "labels",
            "score",
            r"verify\.labels: column 'score' of .* holds 0\.5; 0 or 1 was expected",
        ),
        ("labels", "user", r"verify\.labels: column 'user' of .* holds 'ann'; 0 or 1"),
        ("expected", "bought", r"verify\.expected: .*e\.jsonl has no column 'bought'; it has user"),
        ("expected", "user", r"verify\.expected: column 'user' of .* holds no numbers: .*'ann'"),
        ("expected", "far", r"verify\.expected: column 'far' of .* holds inf in row 1;"),
    ],
)
def test_read_labels_and_recorded_outputs_that_cannot_be_such_are_named(
    tmp_path: Path, key: str, column: str, message: str
) -> None:
    path = write_lines(tmp_path / "e.jsonl", *[example | {"far": float("inf")} for example in SEEN])
    named = {"labels": {}, "expected": {}, key: {"head": column}}
    with pytest.raises(UsageError, match=message):
        read_examples(path, MODEL, PAGES, 9, named["labels"], named["expected"])


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("e.jsonl", '{"user": "ann"}', "has no 'seen', which has no default; it has \\['user'\\]"),
        ("e.jsonl", "[1]", "example 1 is no JSON object"),
        ("e.jsonl", "{", "cannot be read"),
        (
            "e.jsonl",
            f"{json.dumps(ROW)}\n\n{{'user': 1}}",
            "cannot be read: line 3 is no JSON: .* at column 2; each example is one line",
        ),
        ("e.jsonl", "", "holds no example"),
        ("e.jsonl", "{}", "holds no example"),
        (
            "e.jsonl",
            json.dumps(ROW | {"user": None}),
            "does not fit: strings, booleans or nulls among numbers",
        ),
        (
            "e.jsonl",
            json.dumps(ROW) + "\n" + json.dumps(ROW | {"age": 3}),
            "'age' is left out in 1 of 2 examples",
        ),
        (
            "e.jsonl",
            json.dumps(ROW) + "\n" + json.dumps(ROW | {"pair": [0.5]}),
            "row 2 of .*e.jsonl, column 'pair' has 1 values; 2 were expected; write lists of that "
            "length, or state what pads or cuts others as inputs.pair.pad and inputs.pair.keep",
        ),
        ("e.parquet", "no parquet", "e.parquet cannot be read"),
        ("e.parquet", None, "e.parquet does not exist"),
    ],
)
def test_read_examples_of_an_invalid_file_names_the_problem(
    file: str, text: str | None, message: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / file).write_text(text)
    with pytest.raises(UsageError, match=message):
        read_examples(tmp_path / file, MODEL, PAGES, 9)


@pytest.mark.parametrize(("rounding", "rounded"), [("Ceil", np.ceil), ("Floor", np.floor)])
def test_make_examples_of_ids_that_are_rounded_become_rows_of_the_table(
    rounding: Any, rounded: np.ufunc
) -> None:
    model = ModelSpec(
        tables={"hours": TableFacts("hours", "hours", 3, 2)},
        features={"hour": embedded("hour", "hours", ids_dtype="float32")},
        towers={},
    )
    ids = cast_ids("float32", "int64", rounding)
    entry = EMBEDDED(kind="single", table="hours", role="context", ids=ids)
    hours = make_examples(model, {"hour": entry}, {}, 60).columns["hour"].values
    assert not np.array_equal(hours, np.round(hours))  # rounding makes a difference
    assert set(rounded(hours)) == {0, 1, 2}
