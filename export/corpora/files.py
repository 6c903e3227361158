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

from bundle.storage.regular_files import check_regular
from export.corpora import tfrecords
from export.errors import NotConvertible, UsageError
from export.recipe.schema import CorpusSection
from export.report_text import similar_name

Format = Literal["csv", "parquet", "tfrecord"]

_BATCH_ROWS = 65_536
"""The number of rows of a Parquet file that are in memory at a time."""
_READ_BYTES = 1 << 20
"""The number of bytes that are read at a time."""
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
      where: The key of the corpus and the file, as messages name them.
      keys: The key of the recipe that names each column.
      first: The number of rows of the file above these.
      records: [n] int64, the record of each candidate, where a record holds several; else None.
    """

    format: Format
    columns: Mapping[str, Any]
    where: str
    keys: Mapping[str, str]
    first: int
    records: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def unit(self) -> str:
        """The noun for a row of the file."""
        if self.records is not None:
            return "candidate"
        if self.format == "tfrecord":
            return "record"
        return "row"

    def within(self, column: str) -> str:
        """Returns the key that names a column, the file and the column, in words."""
        _, _, file = self.where.partition(": ")
        return f"{self.keys[column]}: {file}, column {column!r}"

    def at(self, column: str, row: int) -> str:
        """Returns where a value stands in the file, in words, by its row here."""
        text = f"{self.within(column)}, {self.unit} {self.first + row + 1}"
        if self.records is not None:
            text += f", record {self.records[row] + 1}"
        return text


def locate_corpus(
    folder: Path, name: str, section: CorpusSection, group: str = "corpora"
) -> list[CorpusFile]:
    """Finds the files of a corpus, in the order of their candidates: that of their names.

    Args:
      folder: The folder of the recipe.
      name: The name of the corpus.
      section: The section of the corpus: a file, a directory of part files, a pattern, or several
        of these.
      group: The key of the recipe that holds the section: `corpora`, `contexts` or `lists`.

    Raises:
      UsageError: There is no file, or the format of a file is unknown.
    """
    key = f"{group}.{name}"
    patterns = section.file
    if isinstance(patterns, str):
        patterns = (patterns,)
    paths: list[Path] = []
    for pattern in patterns:
        for path in matching_files(folder, pattern, f"{key}.file"):
            # Its candidates would stand in the corpus twice.
            if path in paths:
                raise UsageError(f"{key}.file names {path} twice")
            paths.append(path)
    return [_corpus_file(path, section, key) for path in paths]


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
    # Before patterns: the name of a file may have characters that a pattern has.
    if path.is_file():
        return [path]
    if path.is_dir():
        # Names such as _SUCCESS and .crc belong to the program that wrote the others.
        matches = [file for file in path.iterdir() if file.name[0] not in "._"]
    else:
        matches = [folder / match for match in glob.glob(named, root_dir=folder, recursive=True)]
    files = sorted(match for match in matches if match.is_file())
    if not files:
        raise UsageError(
            f"{key}: {path} does not exist, or is a directory or pattern without files"
        )
    return files


def read_batches(
    file: CorpusFile, key: str, section: CorpusSection, columns: Mapping[str, str]
) -> Iterator[Rows]:
    """Reads columns of one file of a corpus; one batch is in memory at a time.

    Args:
      file: The file.
      key: The key of the corpus in the recipe, such as `corpora.movies`.
      section: The section of the corpus.
      columns: The key of the recipe that names each column.

    Raises:
      UsageError: The file is missing, unreadable or damaged, or lacks a column.
      NotConvertible: A record is no Example, or its features do not fit.
    """
    where = f"{key}: {file.path.name}"
    first = 0
    if file.format == "tfrecord":
        batched_by = section.id if section.prebatched else None
        for examples in tfrecords.read_examples(
            file.path, file.gzip, list(columns), batched_by, where
        ):
            records = None
            if section.prebatched:
                records = np.array(examples.records)
            yield Rows("tfrecord", examples.columns(), where, columns, first, records)
            first += len(examples.records)
        return
    if file.format == "csv":
        kind = "CSV"
        read = _read_csv
    else:
        kind = "Parquet"
        read = _read_parquet
    try:
        for batch in read(file, columns):
            if batch.num_rows:
                arrays = {column: batch.column(column) for column in columns}
                yield Rows(file.format, arrays, where, columns, first)
            first += batch.num_rows
    except FileNotFoundError as problem:
        raise UsageError(f"{where} does not exist") from problem
    except (pa.ArrowException, OSError, UnicodeDecodeError) as problem:
        # pyarrow has no class of its own for this error.
        if "Empty CSV file" in str(problem):
            raise NotConvertible(f"{where} holds no candidates, not even a header") from problem
        raise UsageError(f"{where} is no readable {kind} file: {problem}") from problem


def read_rows(
    files: Sequence[CorpusFile],
    key: str,
    section: CorpusSection,
    positions: NDArray[np.int64],
    columns: Sequence[str],
) -> list[dict[str, Any]]:
    """Reads rows of a corpus by their positions, [m] ascending; the cells by column are as the
    files have them.
    """
    selected: list[dict[str, Any]] = []
    first = 0
    for file in files:
        for rows in read_batches(file, key, section, dict.fromkeys(columns, key)):
            is_here = (positions >= first) & (positions < first + len(rows))
            indices = pa.array(positions[is_here] - first)
            cells = [array.take(indices).to_pylist() for array in rows.columns.values()]
            selected += [
                dict(zip(rows.columns, values, strict=True)) for values in zip(*cells, strict=True)
            ]
            first += len(rows)
    return selected


def _corpus_file(path: Path, section: CorpusSection, key: str) -> CorpusFile:
    """Returns a file with its format and compression: as the recipe states them, else by its
    name.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    is_gzip = suffixes[-1:] == [".gz"]
    if is_gzip:
        suffixes.pop()
    kind = section.format
    if kind is None and suffixes:
        kind = _SUFFIXES.get(suffixes[-1])
    if kind is None:
        raise UsageError(
            f"{key}: {path.name} is neither a .csv nor a .parquet file nor a .tfrecord; set "
            f"{key}.format"
        )
    if section.prebatched and kind != "tfrecord":
        raise UsageError(f"{key}.prebatched is of TFRecord files; {path.name} is {kind}")
    gzip = is_gzip
    if section.compression is not None:
        gzip = section.compression == "gzip"
    if gzip and kind == "parquet":
        raise UsageError(f"{key}.compression: {path.name} is Parquet, which compresses by itself")
    return CorpusFile(path, kind, gzip)


def _check_columns(file: CorpusFile, columns: Sequence[str], read: Mapping[str, str]) -> None:
    """Rejects a file that lacks a column which is read, or has several of its name."""
    for column, key in read.items():
        count = columns.count(column)
        if count == 1:
            continue
        problem = f"has no column {column!r}{similar_name(column, columns)}"
        if count > 1:
            problem = f"has {count} columns {column!r}"
        raise UsageError(f"{key}: {file.path.name} {problem}; it has {', '.join(columns)}")


def _read_csv(file: CorpusFile, columns: Mapping[str, str]) -> Iterator[Any]:
    check_regular(file.path)

    def opened(**options: Any) -> Any:
        stream = pa.input_stream(str(file.path), compression="gzip" if file.gzip else None)
        return csv.open_csv(
            stream,
            csv.ReadOptions(block_size=_READ_BYTES),
            # A text in quotes may have several lines.
            csv.ParseOptions(newlines_in_values=True),
            csv.ConvertOptions(**options),
        )

    with opened() as header:
        _check_columns(file, header.schema.names, columns)
    # As text: what a column holds is known only when all of it was seen.
    texts = dict.fromkeys(columns, pa.string())
    with opened(
        include_columns=list(columns), column_types=texts, strings_can_be_null=False
    ) as reader:
        yield from reader


def _read_parquet(file: CorpusFile, columns: Mapping[str, str]) -> Iterator[Any]:
    check_regular(file.path)
    # Without a buffer a whole column of a row group would be read at a time.
    with parquet.ParquetFile(file.path, buffer_size=_READ_BYTES, pre_buffer=False) as opened:
        _check_columns(file, opened.schema_arrow.names, columns)
        yield from opened.iter_batches(_BATCH_ROWS, columns=list(columns), use_threads=False)
