"""Cells of a corpus that no feature takes, and files that are damaged or do not fit: what the
message names.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bundle.format.manifest import DenseFeature, EmbeddedFeature, Feature, JointInput
from export.errors import NotConvertible, UsageError
from export.recipe.schema import CorpusSection
from tests.bundles.tfrecords import masked, record
from tests.id_graphs import cast_ids, crossed_ids, hash_ids
from tests.units.export.corpora.test_files import FEATURES as TAKEN
from tests.units.export.corpora.test_files import WRITERS, embedded
from tests.units.export.corpora.written import contents

FEATURES: dict[str, Feature] = TAKEN | {
    "code": embedded("single", cast_ids("int64", "int32")),
    "name": embedded("single", hash_ids(10)),
    "trio": embedded("sequence", length=3, input_length={"values": 3}),
    "padded": embedded("sequence", length=3, input_length={"values": 3, "pad": 9}),
    "either": embedded("sequence", length=2, input_length={"values": 2}, default=[7, 8]),
    "label": DenseFeature(kind="dense", role="candidate", dtype="string"),
    "number": DenseFeature(kind="dense", role="candidate"),
    "words": DenseFeature(kind="dense", role="candidate", take="padded", shape=(2,)),
    "span": DenseFeature(kind="dense", role="candidate", shape=(2,), default=[0.0, 1.0]),
}


@pytest.mark.parametrize(
    ("key", "cells", "words"),
    [
        ("id", ["1", '""'], ("row 2", "null")),
        ("id", ["1", "2", "1"], ("id 1", "row 1 of a.csv and row 3")),
        ("id", ["1", "2.5"], ("row 2", "'2.5'")),
        ("id", ["1", "2", "x"], ("row 3", "'x'")),
        ("id", ["1", "9223372036854775808"], ("row 2", "beyond int64")),
        ("id", pa.array([1.0, 2.0]), ("row 1", "float")),
        ("id", pa.array([True, False]), ("bool",)),
        ("item", ["5", "x"], ("row 2", "'x'")),
        ("item", ["5", ""], ("row 2", "no default")),
        ("code", ["5", "0.5"], ("row 2", "'0.5'")),
        ("tags", ["a", "b||c"], ("row 2", "empty id")),
        ("tags", pa.array(["a", "b|c"]), ("row 2", "'b|c'", "a list")),
        ("tags", pa.array([["a"], ["b", None]]), ("row 2", "null")),
        ("number", ["1990", "nan"], ("row 2", "'nan'")),
        ("number", ["1990", "1e39"], ("row 2", "float32")),
        ("rated", pa.array(["3", "x"]), ("row 2", "'x'")),
        ("rated", pa.array([3.0, 4.0]), ("row 1", "integer")),
        ("label", pa.array([4, 5]), ("row 1", "string")),
        ("label", pa.array(["a", None]), ("row 2", "no default")),
        ("place", ["1|2", "1"], ("row 2", "1 values")),
        ("words", ["1|2", "1|2|3"], ("row 2", "2 at most")),
        ("trio", ["1|2|3", "1|2"], ("row 2", "inputs.trio.pad")),
        ("trio", pa.array([[1, 2, 3], None]), ("row 2", "0 values")),
        ("trio", ["1|2|3|4", "1|2|3"], ("row 1", "4 values")),
        ("padded", ["1|2", "1|2|3|4"], ("row 2", "at most 3")),
        ("either", ["", "1"], ("row 2", "1 values")),
    ],
)
def test_wrong_cell_is_named_with_its_key_column_and_row(
    tmp_path: Path, key: str, cells: Any, words: tuple[str, ...]
) -> None:
    part: dict[str, Any] = {"id": "c"} if key == "id" else {"id": "id", "features": {key: "c"}}
    if isinstance(cells, list):
        lines = "".join(f"{row},{cell}\n" for row, cell in enumerate(cells))
        (tmp_path / "a.csv").write_text("id,c\n" + lines)
    else:
        table = pa.table({"id": list(range(len(cells))), "c": cells})
        pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(NotConvertible) as rejection:
        contents(tmp_path, CorpusSection(file="a.*", **part), FEATURES, "movies")
    message = str(rejection.value)
    subject = "corpora.movies.id: " if key == "id" else f"corpora.movies.features.{key}: "
    assert message.startswith(subject)
    assert all(part in message for part in (*words, "column 'c'")), message


HUGE = (1 << 62).to_bytes(8, "little")
PACKED = {"prebatched": True}


@pytest.mark.parametrize(
    ("content", "part", "words"),
    [
        ("", {}, ("a.csv", "no candidates")),
        ("movieId\n1\n", {}, ("'id'", "movieId")),
        ("id,id\n1,2\n", {}, ("2 columns 'id'",)),
        ("id\n1\n", {"features": {"film": "id"}}, ("'film'",)),
        ("id,a\n1,2\n3\n", {"attributes": ("a",)}, ("no readable CSV",)),
        ("id\n1\n", {"format": "parquet"}, ("no readable Parquet",)),
        (
            '{"id": 1, "age": 2}\n{"id": 2}',
            {"attributes": ("agee",)},
            ("'agee'", "'age'?", "id, age"),
        ),
        ('{"id": 1}\n{}', {}, ("'id'", "row 2")),
        (({"id": [1, 2]}, {"id": [2]}), {}, ("row 2 of a.parquet and row 1 of b.parquet",)),
        (({"id": [1]}, {"id": ["3"]}), {}, ("b.parquet", "string")),
        (
            ({"id": [1], "x": [1]}, {"id": [2], "x": ["one"]}),
            {"attributes": ("x",)},
            ("b.parquet", "attribute x"),
        ),
        ([{"id": [1]}, {"id": [2, 3]}], {}, ("record 2", "prebatched = true")),
        (
            [{"id": [1, 2], "y": ["a", ""]}],
            PACKED | {"features": {"name": "y"}},
            ("candidate 2, record 1",),
        ),
        ([{"id": [1, 2], "y": [3, 4, 5, 6]}], PACKED | {"features": {"rated": "y"}}, ("several",)),
        ([{"id": [1]}], {"features": {"rated": "y"}}, ("a.tfrecord", "'y'")),
        ([{"id": ["a"]}, {"id": [b"\xff"]}], {}, ("record 2", "UTF-8")),
        ([{"id": [1, 2], "y": [1]}], PACKED | {"attributes": ("y",)}, ("1 values for 2",)),
        ([{"id": [1]}, {}], PACKED, ("record 2", "'id'")),
        (record(b"\xff\xff\xff"), {}, ("record 1", "tf.train.Example")),
        (record(b"") * 2 + record(b"abc")[:-5], {}, ("record 3", "cut short")),
        (record(b"a")[:-1] + b"\x00", {}, ("record 1", "checksum")),
        (gzip.compress(record(b""), mtime=0), {}, ("compression = 'gzip'",)),
        (HUGE + masked(HUGE), {}, (str(1 << 62), "at most")),
        (
            gzip.compress(record(b"") * 90, mtime=0)[:-20],
            {"compression": "gzip"},
            ("cannot be read",),
        ),
        (record(b""), {"compression": "gzip"}, ("compressed at all",)),
    ],
)
def test_damaged_or_unfit_file_is_named(
    tmp_path: Path, content: Any, part: dict[str, Any], words: tuple[str, ...]
) -> None:
    if isinstance(content, str):
        suffix = "jsonl" if content.startswith("{") else "csv"
        (tmp_path / f"a.{suffix}").write_text(content)
    elif isinstance(content, list):
        WRITERS["tfrecord"](content, tmp_path / "a.tfrecord")
    elif isinstance(content, bytes):
        (tmp_path / "a.tfrecord").write_bytes(content)
    else:
        tables = content if isinstance(content, tuple) else (content,)
        for name, columns in zip("ab", tables, strict=False):
            pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    with pytest.raises((NotConvertible, UsageError)) as rejection:
        contents(tmp_path, CorpusSection(**({"file": "*.*", "id": "id"} | part)), FEATURES)
    assert all(part in str(rejection.value) for part in words), rejection.value


def test_more_candidates_than_positions_have_bits_for_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export.corpora.candidates.CANDIDATES_MAX", 3)
    part = CorpusSection(file="a.csv", id="id")
    (tmp_path / "a.csv").write_text("id\n1\n2\n3\n")
    assert contents(tmp_path, part, {})["ids"] == [1, 2, 3]
    (tmp_path / "a.csv").write_text("id\n1\n2\n3\n4\n")
    with pytest.raises(NotConvertible, match="4 candidates"):
        contents(tmp_path, part, {})


def test_crossed_inputs_are_read_by_their_types(tmp_path: Path) -> None:
    cross = EmbeddedFeature(
        kind="bag",
        table="t",
        role="candidate",
        inputs=("shelf", "size"),
        joint=(JointInput(role="candidate"),) * 2,
        ids=crossed_ids(("string", "int64"), 10),
        combiner="sum",
    )
    columns = {"id": [1, 2], "shelf": pa.array([["a", "7"], ["b"]]), "size": [5, 6]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    part = CorpusSection(file="a.parquet", id="id", features={"shelf": "shelf", "size": "size"})
    assert contents(tmp_path, part, {"shelf*size": cross}) == {
        "ids": [1, 2],
        "feature shelf": [["a", "7"], ["b"]],
        "feature size": [[5], [6]],
    }
