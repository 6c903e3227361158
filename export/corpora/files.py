"""Where a corpus lies and how its files are read, a batch of rows at a time: CSV, Parquet and TFRecord."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from export.corpora import tfrecords
from export.errors import NotConvertible, UsageError
from export.recipe.schema import CorpusPart

Format = Literal["csv", "parquet", "tfrecord"]

_BATCH_ROWS = 65_536
_READ_BYTES = 1 << 20
_SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".parquet": "parquet",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
}


@dataclass(frozen=True)
class CorpusFile:
    """One file of a corpus."""

    path: Path
    format: Format
    gzip: bool


@dataclass(frozen=True)
class Origin:
    """Names the values of one batch of one column in messages.

    Attributes:
      told: corpus and file.
      column: their column; "" names all of a row.
      unit: what the file counts: row, record, or candidate (of a record that holds several).
      first: rows of the file above the batch.
      records: [n] the record of each candidate, where a record holds several.
    """

    told: str
    column: str
    unit: str
    first: int
    records: NDArray[np.int64] | None

    def __str__(self) -> str:
        return f"{self.told}, column {self.column!r}" if self.column else self.told

    def at(self, row: int) -> str:
        """Returns the place of a value, by its row in the batch."""
        record = "" if self.records is None else f", record {self.records[row] + 1}"
        return f"{self}, {self.unit} {self.first + row + 1}{record}"


@dataclass(frozen=True)
class RowBatch:
    """Some rows of a file.

    Attributes:
      columns: a `pyarrow.Array` by column. CSV: strings; TFRecord: a large_list for each candidate.
      file: it comes from.
      origin: of the rows.
      size: how many.
    """

    columns: dict[str, Any]
    file: CorpusFile
    origin: Origin
    size: int


def locate_corpus(folder: Path, name: str, part: CorpusPart, room: str = "candidates") -> list[CorpusFile]:
    """Finds the files of a corpus, in the order of their candidates: that of their names.

    Args:
      folder: of the recipe.
      name: of the corpus.
      part: what the recipe says of it; a file, a directory of part files, a pattern, or several of these.
      room: where the recipe says it: `candidates` or `contexts`.
    Raises:
      UsageError: there is none, or a file's format cannot be told.
    """
    key = f"{room}.{name}"
    named = (part.file,) if isinstance(part.file, str) else part.file
    paths = [path for each in named for path in _matching(folder, each, name, key)]
    if len(set(paths)) < len(paths):
        twice = next(path for place, path in enumerate(paths) if path in paths[:place])
        raise UsageError(f"{key}.file names {twice} twice")
    return [_known(path, name, part, key) for path in paths]


def read_batches(file: CorpusFile, name: str, part: CorpusPart, columns: Sequence[str]) -> Iterator[RowBatch]:
    """Reads columns of one file; a batch is in memory.

    Raises:
      UsageError: the file is missing, unreadable or damaged, or lacks a column.
      NotConvertible: a record is no Example, or its features do not fit.
    """
    told = f"corpus {name!r}, {file.path.name}"
    if file.format == "tfrecord":
        yield from _read_examples(file, told, part, columns)
        return
    first = 0
    for batch in (_read_csv if file.format == "csv" else _read_parquet)(file, told, columns):
        held = {column: batch.column(column) for column in columns}
        yield RowBatch(held, file, Origin(told, "", "row", first, None), batch.num_rows)
        first += batch.num_rows


def _matching(folder: Path, named: str, name: str, key: str) -> list[Path]:
    path = folder / named
    if path.is_dir():
        parts = sorted(each for each in path.iterdir() if each.is_file() and each.name[0] not in "._")
        if not parts:
            raise UsageError(f"{key}.file: directory {path} holds no files")
        return parts
    if path.exists() or not glob.has_magic(named):
        if not path.is_file():
            raise UsageError(f"corpus {name!r}: file {path} does not exist")
        return [path]
    found = sorted(Path(each) for each in glob.glob(str(path), recursive=True) if Path(each).is_file())
    if not found:
        raise UsageError(f"{key}.file: no file matches {path}")
    return found


def _known(path: Path, name: str, part: CorpusPart, key: str) -> CorpusFile:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    zipped = suffixes[-1:] == [".gz"]
    kind = part.format or _SUFFIXES.get("".join((suffixes[:-1] if zipped else suffixes)[-1:]))
    if kind is None:
        raise UsageError(
            f"corpus {name!r}: {path.name} is neither a .csv nor a .parquet file nor a .tfrecord; set {key}.format"
        )
    if part.prebatched and kind != "tfrecord":
        raise UsageError(f"{key}.prebatched is of TFRecord files; {path.name} is {kind}")
    gzip = part.compression == "gzip" or (part.compression is None and zipped)
    if gzip and kind == "parquet":
        raise UsageError(f"{key}.compression: {path.name} is Parquet, which compresses by itself")
    return CorpusFile(path, kind, gzip)


def _check_columns(found: Sequence[str], wanted: Sequence[str], told: str) -> None:
    for column in wanted:
        if list(found).count(column) != 1:
            times = "no" if column not in found else f"{list(found).count(column)} times a"
            raise UsageError(f"{told} has {times} column {column!r}; it has {', '.join(found)}")


def _read_csv(file: CorpusFile, told: str, columns: Sequence[str]) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import csv

    parse = csv.ParseOptions(newlines_in_values=True)
    # As text: what a column holds is known only when all of it was seen.
    convert = csv.ConvertOptions(
        include_columns=list(columns), column_types=dict.fromkeys(columns, pa.string()), strings_can_be_null=False
    )

    def opened(**options: Any) -> Any:
        stream = pa.input_stream(str(file.path), compression="gzip" if file.gzip else None)
        return csv.open_csv(stream, csv.ReadOptions(block_size=_READ_BYTES), parse, **options)

    try:
        with opened() as header:
            found = header.schema.names
        _check_columns(found, columns, told)
        with opened(convert_options=convert) as reader:
            yield from reader
    except FileNotFoundError as problem:
        raise UsageError(f"{told} does not exist") from problem
    except pa.ArrowInvalid as problem:
        if "Empty CSV file" in str(problem):
            raise NotConvertible(f"{told} holds no candidates, not even a header") from problem
        raise UsageError(f"{told} is no readable CSV file: {problem}") from problem
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"{told} cannot be read: {problem}") from problem


def _read_parquet(file: CorpusFile, told: str, columns: Sequence[str]) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        # Without a buffer a whole column of a row group would be read at a time.
        with parquet.ParquetFile(file.path, buffer_size=_READ_BYTES, pre_buffer=False) as opened:
            _check_columns(opened.schema_arrow.names, columns, told)
            yield from opened.iter_batches(_BATCH_ROWS, columns=list(columns), use_threads=False)
    except FileNotFoundError as problem:
        raise UsageError(f"{told} does not exist") from problem
    except (pa.ArrowException, OSError) as problem:
        raise UsageError(f"{told} is no readable Parquet file: {problem}") from problem


def _read_examples(file: CorpusFile, told: str, part: CorpusPart, columns: Sequence[str]) -> Iterator[RowBatch]:
    batched_by = part.id if part.prebatched else None
    unit, first = "candidate" if part.prebatched else "record", 0
    for examples in tfrecords.read_examples(file.path, file.gzip, columns, batched_by, told):
        size = len(examples.records)
        records = np.array(examples.records) if part.prebatched else None
        yield RowBatch(examples.columns(), file, Origin(told, "", unit, first, records), size)
        first += size
