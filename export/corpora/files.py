"""Where a corpus lies and how its files are read, a batch of rows at a time: CSV, Parquet and
TFRecord.

`pyarrow.dataset` is not used: it takes the compression of a CSV file from its name alone, whatever
`compression` says, reads batches ahead of the one in memory, and knows no TFRecords.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv, parquet

from export.corpora import tfrecords
from export.errors import NotConvertible, UsageError
from export.recipe.schema import CorpusSection

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
class Rows:
    """Some rows of a file.

    Attributes:
      format: The format of the file.
      columns: A `pyarrow.Array` by column. CSV: strings; TFRecord: a large_list for each candidate.
      where: names corpus and file in messages.
      first: Rows of the file above these.
      records: [n] the record of each candidate, where a record holds several.
    """

    format: Format
    columns: Mapping[str, Any]
    where: str
    first: int
    records: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def unit(self) -> str:
        """What the file counts."""
        if self.records is not None:
            return "candidate"
        return "record" if self.format == "tfrecord" else "row"

    def at(self, column: str, row: int) -> str:
        """Returns the place of a value in words, by its row here."""
        record = "" if self.records is None else f", record {self.records[row] + 1}"
        return f"{self.where}, column {column!r}, {self.unit} {self.first + row + 1}{record}"


def locate_corpus(
    folder: Path, name: str, part: CorpusSection, section: str = "corpora"
) -> list[CorpusFile]:
    """Finds the files of a corpus, in the order of their candidates: that of their names.

    Args:
      folder: The folder of the recipe.
      name: The name of the corpus.
      part: The corpus in the recipe: a file, a directory of part files, a pattern, or several of
        these.
      section: The section of the recipe that has it: `corpora` or `contexts`.
    Raises:
      UsageError: There is none, or a file's format is unknown.
    """
    key = f"{section}.{name}"
    named = (part.file,) if isinstance(part.file, str) else part.file
    paths = [path for pattern in named for path in matching_files(folder, pattern, f"{key}.file")]
    if len(set(paths)) < len(paths):
        twice = next(path for index, path in enumerate(paths) if path in paths[:index])
        raise UsageError(f"{key}.file names {twice} twice")
    return [_known(path, part, key) for path in paths]


def matching_files(folder: Path, named: str, key: str) -> list[Path]:
    """Returns the files that a path names: one file, those of a directory, or those that match a
    pattern, in the order of their names.

    Args:
      folder: The folder that the path is relative to.
      named: The path.
      key: The key of the recipe, for messages.

    Raises:
      UsageError: There is none.
    """
    path = folder / named
    if path.is_file():
        return [path]
    inside = (
        [child for child in path.iterdir() if child.name[0] not in "._"] if path.is_dir() else []
    )
    matching = (folder / match for match in glob.glob(named, root_dir=folder, recursive=True))
    files = sorted(file for file in (inside if path.is_dir() else matching) if file.is_file())
    if not files:
        raise UsageError(
            f"{key}: {path} does not exist, or is a directory or pattern without files"
        )
    return files


def read_batches(
    file: CorpusFile, name: str, part: CorpusSection, columns: Sequence[str]
) -> Iterator[Rows]:
    """Reads columns of one file of corpus `name`; a batch is in memory.

    Raises:
      UsageError: The file is missing, unreadable or damaged, or lacks a column.
      NotConvertible: A record is no Example, or its features do not fit.
    """
    where = f"corpus {name!r}, {file.path.name}"
    first = 0
    if file.format == "tfrecord":
        batched_by = part.id if part.prebatched else None
        for examples in tfrecords.read_examples(file.path, file.gzip, columns, batched_by, where):
            records = np.array(examples.records) if part.prebatched else None
            yield Rows("tfrecord", examples.columns(), where, first, records)
            first += len(examples.records)
        return
    try:
        for batch in (_read_csv if file.format == "csv" else _read_parquet)(file, where, columns):
            if batch.num_rows:
                yield Rows(
                    file.format, {column: batch.column(column) for column in columns}, where, first
                )
            first += batch.num_rows
    except FileNotFoundError as problem:
        raise UsageError(f"{where} does not exist") from problem
    except (pa.ArrowException, OSError, UnicodeDecodeError) as problem:
        if "Empty CSV file" in str(problem):
            raise NotConvertible(f"{where} holds no candidates, not even a header") from problem
        kind = "CSV" if file.format == "csv" else "Parquet"
        raise UsageError(f"{where} is no readable {kind} file: {problem}") from problem


def read_rows(
    files: Sequence[CorpusFile],
    name: str,
    part: CorpusSection,
    positions: NDArray[np.int64],
    columns: Sequence[str],
) -> list[dict[str, Any]]:
    """Reads rows of a corpus by their positions, [m] ascending; the cells by column are as the
    files have them.
    """
    selected: list[dict[str, Any]] = []
    first = 0
    for file in files:
        for rows in read_batches(file, name, part, list(dict.fromkeys(columns))):
            here = positions[(positions >= first) & (positions < first + len(rows))] - first
            cells = [array.take(pa.array(here)).to_pylist() for array in rows.columns.values()]
            selected += [
                dict(zip(rows.columns, values, strict=True)) for values in zip(*cells, strict=True)
            ]
            first += len(rows)
    return selected


def _known(path: Path, part: CorpusSection, key: str) -> CorpusFile:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    zipped = suffixes[-1:] == [".gz"]
    kind = part.format or _SUFFIXES.get("".join((suffixes[:-1] if zipped else suffixes)[-1:]))
    if kind is None:
        raise UsageError(
            f"{key}: {path.name} is neither a .csv nor a .parquet file nor a .tfrecord; set "
            f"{key}.format"
        )
    if part.prebatched and kind != "tfrecord":
        raise UsageError(f"{key}.prebatched is of TFRecord files; {path.name} is {kind}")
    gzip = part.compression == "gzip" or (part.compression is None and zipped)
    if gzip and kind == "parquet":
        raise UsageError(f"{key}.compression: {path.name} is Parquet, which compresses by itself")
    return CorpusFile(path, kind, gzip)


def _check_columns(columns: Sequence[str], wanted: Sequence[str], where: str) -> None:
    for column in wanted:
        if columns.count(column) != 1:
            times = "no" if column not in columns else f"{columns.count(column)} times a"
            raise UsageError(f"{where} has {times} column {column!r}; it has {', '.join(columns)}")


def _read_csv(file: CorpusFile, where: str, columns: Sequence[str]) -> Iterator[Any]:
    def opened(**options: Any) -> Any:
        stream = pa.input_stream(str(file.path), compression="gzip" if file.gzip else None)
        parsed = csv.ParseOptions(newlines_in_values=True)
        return csv.open_csv(
            stream, csv.ReadOptions(block_size=_READ_BYTES), parsed, csv.ConvertOptions(**options)
        )

    with opened() as header:
        _check_columns(header.schema.names, columns, where)
    # As text: what a column holds is known only when all of it was seen.
    texts = dict.fromkeys(columns, pa.string())
    with opened(include_columns=columns, column_types=texts, strings_can_be_null=False) as reader:
        yield from reader


def _read_parquet(file: CorpusFile, where: str, columns: Sequence[str]) -> Iterator[Any]:
    # Without a buffer a whole column of a row group would be read at a time.
    with parquet.ParquetFile(file.path, buffer_size=_READ_BYTES, pre_buffer=False) as opened:
        _check_columns(opened.schema_arrow.names, columns, where)
        yield from opened.iter_batches(_BATCH_ROWS, columns=list(columns), use_threads=False)
