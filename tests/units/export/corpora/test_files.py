from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bundle.format.manifest import DenseFeature, EmbeddedFeature, Feature
from export.corpora import files as corpus_files
from export.corpora.files import locate_corpus, read_rows
from export.errors import UsageError
from export.recipe.schema import CorpusSection
from tests.id_graphs import hash_ids
from tests.units.export.corpora.example_files import write_examples
from tests.units.export.corpora.written import contents

FEATURES: dict[str, Feature] = {
    "item": EmbeddedFeature(kind="single", table="t", role="candidate"),
    "tags": EmbeddedFeature(
        kind="bag",
        table="t",
        role="candidate",
        combiner="sum",
        ids=hash_ids(10),
        default=None,
    ),
    "studio": EmbeddedFeature(
        kind="single", table="t", role="candidate", ids=hash_ids(10), default="none"
    ),
    "year": DenseFeature(kind="dense", role="candidate", default=1.0),
    "place": DenseFeature(kind="dense", role="candidate", shape=(2,)),
}
COLUMNS = {"item": "id", "tags": "tags", "studio": "studio", "year": "year", "place": "place"}
ATTRIBUTES = ("title", "tags", "year")
ROWS: list[dict[str, Any]] = [
    {
        "id": [50 - row],
        "tags": [f"t{row}", "x"] if row != 7 else ["y", "z"],
        "studio": [] if row == 3 else [f"s{row % 4}"],
        "year": [] if row in (2, 5) else [1990.0 + row / 2],
        "place": [row + 0.25, -1.0],
        "title": [f"Zoë {row}"],
    }
    for row in range(12)
]


def _part(**changes: Any) -> CorpusSection:
    return CorpusSection(
        **({"file": "parts", "id": "id", "features": COLUMNS, "attributes": ATTRIBUTES} | changes)
    )


def _parquet(rows: list[dict[str, Any]], path: Path) -> None:
    single = {
        name: [row[name][0] if row[name] else None for row in rows]
        for name in ("id", "studio", "year", "title")
    }
    lists = {name: [row[name] for row in rows] for name in ("tags", "place")}
    pq.write_table(pa.table(single | lists), path, row_group_size=3)


def _csv(rows: list[dict[str, Any]], path: Path, zipped: bool = False) -> None:
    names = ("title", "id", "tags", "studio", "year", "place")
    lines = [",".join(names)]
    lines += [",".join("|".join(map(str, row[name])) for name in names) for row in rows]
    data = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(data) if zipped else data)


WRITERS: dict[str, Callable[..., Any]] = {
    "parquet": _parquet,
    "csv": _csv,
    "tfrecord": lambda rows, path, zipped=False: write_examples(path, rows, zipped),
}


def _packed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: [value for row in rows for value in row[name]] for name in ROWS[0]}


def _expected() -> dict[str, Any]:
    return {
        "ids": [row["id"][0] for row in ROWS],
        "title": [row["title"][0] for row in ROWS],
        "tags": [row["tags"] for row in ROWS],
        "year": [row["year"][0] if row["year"] else None for row in ROWS],
        "feature item": [row["id"] for row in ROWS],
        **{
            f"feature {name}": [row[name] for row in ROWS]
            for name in ("tags", "studio", "year", "place")
        },
    }


@pytest.mark.parametrize("kind", ["parquet", "csv", "csv.gz", "tfrecord", "tfrecord.gz"])
def test_write_store_of_part_files_holds_all_in_the_order_of_names(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "_SUCCESS").write_text("")
    for number, first in enumerate(range(0, len(ROWS), 5)):
        name = kind.removesuffix(".gz")
        zipped = [True] if kind.endswith(".gz") else []
        WRITERS[name](ROWS[first : first + 5], tmp_path / f"parts/part-{number}.{kind}", *zipped)

    assert contents(tmp_path, _part(), FEATURES) == _expected()


def test_write_store_of_prebatched_records_holds_each(tmp_path: Path) -> None:
    full = [row for position, row in enumerate(ROWS) if position not in (2, 3, 5)]
    write_examples(
        tmp_path / "b.tfrecord", [_packed(full[:4]), _packed(full[4:5]), _packed(full[5:])]
    )

    actual = contents(tmp_path, _part(file="b.tfrecord", prebatched=True), FEATURES)

    full_rows = [position for position in range(len(ROWS)) if position not in (2, 3, 5)]
    assert actual == {
        key: [values[position] for position in full_rows] for key, values in _expected().items()
    }


@pytest.mark.parametrize("kind", ["parquet", "csv", "tfrecord", "prebatched"])
def test_read_rows_of_several_files_gives_the_cells_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(corpus_files, "_BATCH_ROWS", 2)  # some hold no wanted row
    rows = [row | {"studio": ["s"], "year": [1.5]} for row in ROWS]
    suffix = kind.replace("prebatched", "tfrecord")
    (tmp_path / "parts").mkdir()
    for number, members in enumerate((rows[:5], rows[5:])):
        packed = [_packed(members[:2]), _packed(members[2:])] if kind == "prebatched" else members
        WRITERS[suffix](packed, tmp_path / f"parts/{number}.{suffix}")
    part = _part(prebatched=kind == "prebatched")

    actual = read_rows(
        locate_corpus(tmp_path, "items", part),
        "items",
        part,
        np.array([0, 4, 5, 11]),
        ["id", "title"],
    )

    cells = [(50 - row, f"Zoë {row}") for row in (0, 4, 5, 11)]
    expected = {"csv": [(str(item), title) for item, title in cells], "parquet": cells}
    assert [tuple(row.values()) for row in actual] == expected.get(
        suffix, [([item], [title]) for item, title in cells]
    )


def test_locate_corpus_takes_patterns_lists_and_stated_formats(tmp_path: Path) -> None:
    for name in ("a/part-1", "a/part-0", "b.csv.gz", "b.tfrecords", "c[1].csv", "d/e/f/part-2"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")

    def files_of(**changes: Any) -> list[tuple[str, str, bool]]:
        located = locate_corpus(tmp_path, "items", _part(**changes))
        return [(file.path.name, file.format, file.gzip) for file in located]

    assert files_of(file="a/part-*", format="csv") == [
        ("part-0", "csv", False),
        ("part-1", "csv", False),
    ]
    assert files_of(file=("b.tfrecords", "b.csv.gz")) == [
        ("b.tfrecords", "tfrecord", False),
        ("b.csv.gz", "csv", True),
    ]
    assert files_of(file="**/part-1", format="tfrecord", compression="gzip") == [
        ("part-1", "tfrecord", True)
    ]
    assert [name for name, *_ in files_of(file="**/part-*", format="csv")] == [
        "part-0",
        "part-1",
        "part-2",
    ]
    assert files_of(file="b.csv.gz", compression="none") == [("b.csv.gz", "csv", False)]
    assert files_of(file="c[1].csv") == [("c[1].csv", "csv", False)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"file": "gone.csv"}, "corpora.items.file: "),
        (
            {"file": "gone-*.csv"},
            "gone-*.csv does not exist, or is a directory or pattern without files",
        ),
        ({"file": "empty"}, "empty does not exist, or is a directory"),
        ({"file": ("a.csv", "*.csv")}, "a.csv twice"),
        (
            {"file": "data"},
            "data is neither a .csv nor a .parquet file nor a .tfrecord; set corpora.items.format",
        ),
        (
            {"file": "a.csv", "prebatched": True},
            "corpora.items.prebatched is of TFRecord files; a.csv is csv",
        ),
        (
            {"file": "a.parquet", "compression": "gzip"},
            "a.parquet is Parquet, which compresses by itself",
        ),
    ],
)
def test_locate_corpus_of_an_invalid_entry_is_a_usage_error(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("a.csv", "data", "a.parquet"):
        (tmp_path / name).write_text("x")

    with pytest.raises(UsageError) as rejection:
        locate_corpus(tmp_path, "items", _part(**changes))

    assert message in str(rejection.value)
