"""A corpus in any format, cut into any files and read in any batches, is stored as a client would
send its values; and what is read of single rows again are the cells of its files.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bundle.format.manifest import IDENTITY, DenseFeature, EmbeddedFeature, Feature
from export.corpora.candidates import notes_of_lengths
from export.corpora.files import locate_corpus
from export.errors import UsageError
from export.recipe.schema import CorpusSection
from export.verify.source_rows import read_again
from tests.bundles.tfrecords import example, write_as_tensorflow
from tests.id_graphs import bucket_ids, cast_ids, hash_ids
from tests.units.export.corpora.written import contents, write

Row = dict[str, Any]
Rows = Sequence[Row]


def embedded(kind: str, ids: Any = None, **more: Any) -> EmbeddedFeature:
    entry = {"kind": kind, "table": "t", "role": "candidate", "ids": ids or IDENTITY}
    if kind == "bag":
        entry["combiner"] = "sum"
    if kind == "sequence":
        entry["length"] = 4
    return EmbeddedFeature.model_validate(entry | more)


FEATURES: dict[str, Feature] = {
    "item": embedded("single"),
    "decade": embedded("single", bucket_ids((1990.0, 2000.0)), default=1.0),
    "hour": embedded("single", cast_ids("float32", "int64", "Floor"), default=1.0),
    "word": embedded("single", hash_ids(10, "string")),
    "studio": embedded("single", hash_ids(10), default="none"),
    "tags": embedded("bag", hash_ids(10), default=None),
    "cast": embedded("sequence"),
    "year": DenseFeature(kind="dense", role="candidate", default=1.0),
    "rated": DenseFeature(kind="dense", role="candidate", dtype="int64", default=7),
    "place": DenseFeature(kind="dense", role="candidate", shape=(2,)),
}
COLUMNS = {
    "item": "id",
    "word": "id",
    "decade": "year",
    "hour": "year",
    "studio": "studio",
    "tags": "tags",
    "cast": "cast",
    "year": "year",
    "rated": "rated",
    "place": "place",
}
ATTRIBUTES = ("title", "tags", "year", "rated")
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="|\r\n\0"), min_size=1, max_size=6)
# An integer, or a number that looks like one, would be an integer in CSV.
WORDS = TEXTS.map(lambda text: f"w{text}")
YEARS = st.integers(0, 400).map(lambda number: 1900.5 + number)
SHORT = st.integers(-(1 << 40), 1 << 40)


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, max_size=1)


ROW = st.fixed_dictionaries(
    {
        "title": WORDS.map(lambda text: [text]),
        "studio": optional(WORDS),
        "tags": st.lists(WORDS, max_size=3),
        "cast": st.lists(SHORT, max_size=4),
        "year": optional(YEARS),
        "rated": optional(SHORT),
        "place": st.tuples(YEARS, YEARS).map(list),
    }
)
SCALARS = ("id", "title", "studio", "year", "rated")
LISTS = ("tags", "place", "cast")


@st.composite
def corpora(draw: st.DrawFn) -> list[Row]:
    """Draws rows; each column has a value somewhere, which gives it a type."""
    ids = draw(st.sets(SHORT, min_size=2, max_size=12))
    rows = [{"id": [key], **draw(ROW)} for key in ids]
    rows[0] |= {"studio": ["w"], "tags": ["w"], "cast": [1], "year": [1990.5], "rated": [1]}
    return rows


def _parquet(rows: Rows, path: Path) -> None:
    single = {
        name: [row[name][0] if row[name] else None for row in rows]
        for name in SCALARS
        if name in rows[0]
    }
    lists = {name: [row[name] for row in rows] for name in LISTS if name in rows[0]}
    types = {"id": pa.int64(), "rated": pa.int64(), "year": pa.float64()}
    types |= {"tags": pa.list_(pa.string()), "cast": pa.list_(pa.int64())}
    columns = {
        name: pa.array(values, types.get(name)) for name, values in {**single, **lists}.items()
    }
    for name in ("title", "studio"):
        columns[name] = columns[name].cast(pa.string()).dictionary_encode()
    pq.write_table(pa.table(columns), path, row_group_size=3)


def _jsonl(rows: Rows, path: Path) -> None:
    lines = []
    for row in rows:
        # As many programs write it: without what is null.
        cells = {name: row[name][0] for name in SCALARS if row.get(name)}
        lines.append(json.dumps(cells | {name: row[name] for name in LISTS if name in row}) + "\n")
    _write_text("".join(lines), path)


def _csv(rows: Rows, path: Path) -> None:
    names = [name for name in (*SCALARS, *LISTS) if name in rows[0]]
    lines = [",".join(names)]
    for row in rows:
        cells = ["|".join(map(str, row[name])) for name in names]
        lines.append(",".join('"' + cell.replace('"', '""') + '"' for cell in cells))
    _write_text("\n".join(lines) + "\n", path)


def _write_text(text: str, path: Path) -> None:
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def _tfrecord(rows: Rows, path: Path) -> None:
    """Writes one Example for each row."""
    write_as_tensorflow(path, [example(row).SerializeToString() for row in rows])


WRITERS: dict[str, Callable[[Rows, Path], None]] = {
    "parquet": _parquet,
    "csv": _csv,
    "jsonl": _jsonl,
    "tfrecord": _tfrecord,
}
KINDS = ("parquet", "csv", "csv.gz", "jsonl", "jsonl.gz", "tfrecord", "tfrecord.gz")


def packed(rows: Rows) -> Row:
    """Returns the rows as one record that holds all of them."""
    return {name: [value for row in rows for value in row[name]] for name in rows[0]}


def expected(rows: Rows) -> dict[str, Any]:
    def first(name: str) -> list[Any]:
        return [row[name][0] if row[name] else None for row in rows]

    stored = {f"feature {name}": [row[column] for row in rows] for name, column in COLUMNS.items()}
    stored["feature word"] = [[str(row["id"][0])] for row in rows]
    attributes = {name: first(name) for name in ("title", "year", "rated")}
    return {"ids": first("id"), "tags": [row["tags"] for row in rows], **attributes, **stored}


def section(**changes: Any) -> CorpusSection:
    entry = {"file": "parts", "id": "id", "features": COLUMNS, "attributes": ATTRIBUTES}
    return CorpusSection(**(entry | changes))


@pytest.mark.parametrize("kind", [*KINDS, "prebatched"])
@settings(max_examples=settings().max_examples // 12, phases=[Phase.generate])
@given(rows=corpora(), data=st.data())
def test_corpus_of_any_format_holds_what_a_client_would_send(
    kind: str, rows: list[Row], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("corpus")
    (directory / "parts").mkdir()
    (directory / "parts/_SUCCESS").write_text("")
    size = data.draw(st.integers(1, len(rows)))
    is_packed = kind == "prebatched"
    if is_packed:
        # All rows have as many values as the others.
        full = {"studio": ["w"], "tags": ["a", "b"], "cast": [1, 2], "year": [1990.5], "rated": [1]}
        rows = [row | full for row in rows]
    suffix = "tfrecord" if is_packed else kind
    for number, start in enumerate(range(0, len(rows), size)):
        members = rows[start : start + size]
        path = directory / f"parts/part-{number:02}.{suffix}"
        WRITERS[suffix.removesuffix(".gz")]([packed(members)] if is_packed else members, path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rows.batches._READ_BYTES", data.draw(st.sampled_from([1 << 10, 1 << 20])))
        patch.setattr("rows.tfrecords.BATCH_ROWS", data.draw(st.sampled_from([1, 3, 1000])))
        part = section(prebatched=is_packed)
        assert contents(directory, part, FEATURES) == expected(rows)

        wanted = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))
        files = locate_corpus(directory, "items", part)
        read = read_again(files, part, np.array(wanted), ["id", "title"])
    for row, cells in zip(wanted, read, strict=True):
        as_lists = {
            name: value if isinstance(value, list) else [value] for name, value in cells.items()
        }
        assert [str(as_lists["id"][0]), *as_lists["title"]] == [
            str(rows[row]["id"][0]),
            *rows[row]["title"],
        ]


def read_columns(directory: Path, columns: dict[str, Any], **part: Any) -> dict[str, Any]:
    pq.write_table(pa.table(columns), directory / "a.parquet")
    return contents(directory, CorpusSection(file="a.parquet", id="id", **part), FEATURES)


def test_columns_of_other_types_than_a_feature_become_what_it_takes(tmp_path: Path) -> None:
    columns = {
        "id": pa.array([5, 6], pa.uint32()),
        "tags": pa.array([["a", "b"], None]),
        "cast": pa.array([[1], [2, 3]], pa.large_list(pa.int32())),
        "place": pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)),
        "year": pa.array([(1 << 53) + 1, 1 << 62]),
        "rated": pa.array([None, 4], pa.int8()),
    }
    features = {name: name for name in columns if name != "id"}
    assert read_columns(tmp_path, columns, features=features) == {
        "ids": [5, 6],
        "feature tags": [["a", "b"], []],
        "feature cast": [[1], [2, 3]],
        "feature place": [[1, 2], [3, 4]],
        "feature year": [[float(1 << 53)], [float(1 << 62)]],
        "feature rated": [[], [4]],
    }
    assert read_columns(tmp_path, {"id": ["12", "tt02"]}) == {"ids": ["12", "tt02"]}


@pytest.mark.parametrize("read_bytes", [24, 1 << 20])
@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1", "", "-7"], [1, None, -7]),
        (["1", "2.5", ""], [1.0, 2.5, None]),
        (["1", "9223372036854775808"], [1.0, 9223372036854775808.0]),
        (["1", "2e3", ".5"], [1.0, 2000.0, 0.5]),
        (["1", "x", "2.5"], ["1", "x", "2.5"]),
        (["01", "2"], [1.0, 2.0]),
        (["", ""], [None, None]),
    ],
)
def test_attribute_of_csv_has_the_narrowest_type_that_holds_all_of_its_cells(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cells: list[str],
    values: list[Any],
    read_bytes: int,
) -> None:
    monkeypatch.setattr("rows.batches._READ_BYTES", read_bytes)
    rows = "".join(f"{row},{cell}\n" for row, cell in enumerate(cells))
    (tmp_path / "a.csv").write_text("id,note\n" + rows)
    part = CorpusSection(file="a.csv", id="id", attributes=("note",))
    stored = contents(tmp_path, part, {})["note"]
    assert [(type(value), value) for value in stored] == [(type(value), value) for value in values]


def test_lists_are_padded_cut_or_left_to_the_default_as_stated(tmp_path: Path) -> None:
    lengths = {"values": 3, "pad": 9, "pad_side": "start", "keep": "last"}
    features: dict[str, Feature] = {
        "newest": embedded("sequence", length=3, input_length=lengths),
        "either": embedded("sequence", length=2, input_length={"values": 2}, default=[7, 8]),
    }
    rows = ["1,1|2|3,3|4", "2,1|2|3|4,", "3,5,1|2", "4,,", "5,4|3|2|1,"]
    (tmp_path / "a.csv").write_text("\n".join(["id,newest,either", *rows]))
    part = CorpusSection(file="a.csv", id="id", features={"newest": "newest", "either": "either"})
    stored = contents(tmp_path, part, features)
    assert stored["feature newest"] == [[1, 2, 3], [2, 3, 4], [9, 9, 5], [9, 9, 9], [3, 2, 1]]
    assert stored["feature either"] == [[3, 4], [7, 8], [1, 2], [7, 8], [7, 8]]
    corpus = write(tmp_path / "counted", part, features, tmp_path)
    assert (corpus.cut, corpus.padded) == ({"newest": 2}, {"newest": 2})
    assert len(notes_of_lengths("corpora.movies", corpus)) == 2


@pytest.mark.parametrize(
    ("changes", "files"),
    [
        (
            {"file": "a/part-*", "format": "csv"},
            [("part-0", "csv", False), ("part-1", "csv", False)],
        ),
        (
            {"file": ("b.tfrecords", "b.csv.gz")},
            [("b.tfrecords", "tfrecord", False), ("b.csv.gz", "csv", True)],
        ),
        (
            {"file": "**/part-1", "format": "tfrecord", "compression": "gzip"},
            [("part-1", "tfrecord", True)],
        ),
        ({"file": "b.csv.gz", "compression": "none"}, [("b.csv.gz", "csv", False)]),
        ({"file": "c[1].csv"}, [("c[1].csv", "csv", False)]),
        ({"file": "gone-*.csv"}, "gone-*.csv"),
        ({"file": "empty"}, "empty"),
        ({"file": ("c[1].csv", "c*.csv")}, "twice"),
        ({"file": "data"}, "corpora.items.format"),
        ({"file": "b.csv.gz", "prebatched": True}, "corpora.items.prebatched"),
        ({"file": "a.parquet", "compression": "gzip"}, "compresses by itself"),
    ],
)
def test_files_of_a_corpus_are_found_by_paths_patterns_and_formats(
    tmp_path: Path, changes: Row, files: str | list[tuple[str, str, bool]]
) -> None:
    (tmp_path / "empty").mkdir()
    names = ("a/part-1", "a/part-0", "b.csv.gz", "b.tfrecords", "c[1].csv", "data", "a.parquet")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    if isinstance(files, str):
        with pytest.raises(UsageError) as rejection:
            locate_corpus(tmp_path, "items", section(**changes))
        assert files in str(rejection.value)
        return
    located = locate_corpus(tmp_path, "items", section(**changes))
    assert [(file.path.name, file.format, file.gzip) for file in located] == files
