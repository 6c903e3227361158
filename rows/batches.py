"""Rows of a file, a batch at a time: CSV, JSON lines, lines of text, Parquet and TFRecord.

Rows are counted as a reader counts them: row 1 of a CSV file is the line after the header.

`pyarrow.dataset` is not used: it takes the compression of a CSV file from its name alone, reads
batches ahead of the one in memory, and knows no TFRecords. `pyarrow.json` turns texts that look
like dates into dates.
"""

from __future__ import annotations

import bisect
import json
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv, parquet

from bundle.shown_values import shown, similar_file, similar_name
from bundle.storage.regular_files import check_regular
from rows import tfrecords
from rows.errors import FileRejected, ValueRejected
from rows.files import SourceFile
from rows.text_files import opened_text

BATCH_ROWS = 65_536
"""The maximum number of rows of a batch, where nothing states another one."""
_READ_BYTES = 1 << 20
"""The number of bytes of CSV, JSON lines and text that a batch is read from."""
_COLUMNS_MAX = 10_000
"""The maximum number of columns of JSON lines, whose every row may have others."""
_KINDS = {"csv": "CSV", "jsonl": "JSON lines", "lines": "text", "parquet": "Parquet"}


@dataclass(frozen=True)
class Rows:
    """Some rows of a file.

    Attributes:
      file: The file.
      columns: A `pyarrow.Array` by column. CSV and text: strings; TFRecord: a large_list for each
        row.
      size: The number of rows.
      first: The number of rows of the file above these.
      records: [n] int64, the record of each row, where a record holds several; else None.
    """

    file: SourceFile
    columns: Mapping[str, Any]
    size: int
    first: int
    records: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self.size

    def slice(self, first: int, size: int) -> Rows:
        """Returns at most `size` of the rows, from row `first` of these on."""
        records = None
        if self.records is not None:
            records = self.records[first : first + size]
        columns = {name: array.slice(first, size) for name, array in self.columns.items()}
        size = min(size, self.size - first)
        return Rows(self.file, columns, size, self.first + first, records)

    @property
    def unit(self) -> str:
        """The noun for a row of the file."""
        if self.records is not None:
            return "candidate"
        if self.file.format == "tfrecord":
            return "record"
        return "row"

    def within(self, column: str) -> str:
        """Returns the file and the column, in words."""
        if self.file.format == "lines":
            return self.file.path.name
        return f"{self.file.path.name}, column {column!r}"

    def at(self, column: str, row: int) -> str:
        """Returns where a value stands in the file, in words, by its row here."""
        text = f"{self.within(column)}, {self.unit} {self.first + row + 1}"
        if self.records is not None:
            text += f", record {self.records[row] + 1}"
        return text


def read_batches(
    file: SourceFile,
    columns: Collection[str] | None = None,
    *,
    batched_by: str | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[Rows]:
    """Reads columns of a file; one batch is in memory at a time.

    Args:
      file: The file.
      columns: The columns to read; None: all. A row of JSON lines or of TFRecords need not have
        them; see `check_columns`.
      batched_by: Of TFRecords, the feature by whose values the rows of a record are counted; None:
        a record is a row. See `rows.tfrecords`.
      batch_rows: The maximum number of rows of a batch; batches of CSV and text may have more. Rows
        behind a batch are not read before it was used.

    Raises:
      FileRejected: The file is missing, unreadable or damaged, or lacks a column.
      ValueRejected: A row is no JSON object, a record no Example, or its values do not fit those of
        other rows.
    """
    first = 0
    if file.format == "tfrecord":
        for examples in tfrecords.read_examples(file, columns, batched_by, batch_rows):
            records = None
            if batched_by is not None:
                records = np.array(examples.records)
            size = len(examples.records)
            yield Rows(file, examples.columns(), size, first, records)
            first += size
        return
    with _read_errors(file):
        for arrays in _read_arrays(file, columns, batch_rows):
            size = len(next(iter(arrays.values()), ()))
            if size:
                yield Rows(file, arrays, size, first)
            first += size


@contextmanager
def _read_errors(file: SourceFile) -> Iterator[None]:
    """Raises the errors of libraries as those of a file."""
    try:
        yield
    except FileNotFoundError as problem:
        raise FileRejected(f"{file.path.name} does not exist{similar_file(file.path)}") from problem
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError, zlib.error) as problem:
        raise FileRejected(
            f"{file.path.name} is no readable {_KINDS[file.format]} file: {problem}"
        ) from problem


def _read_arrays(
    file: SourceFile, columns: Collection[str] | None, batch_rows: int
) -> Iterator[dict[str, Any]]:
    """Yields the columns of a file that is no TFRecord file, a batch at a time."""
    match file.format:
        case "csv":
            return _read_csv(file, columns)
        case "jsonl":
            return _read_json_lines(file, columns, batch_rows)
        case "lines":
            return _read_lines(file)
    return _read_parquet(file, columns, batch_rows)


def column_types(file: SourceFile) -> dict[str, Any]:
    """Returns the `pyarrow.DataType` of each column, of TFRecords and JSON lines those of the first
    rows; {} if these have no rows.

    Raises:
      FileRejected, ValueRejected: As `read_batches`.
    """
    if file.format == "parquet":
        with _read_errors(file):
            check_regular(file.path)
            schema = parquet.read_schema(file.path)
            return dict(zip(schema.names, schema.types, strict=True))
    if file.format == "csv":
        with _read_errors(file):
            return dict.fromkeys(_csv_header(file), pa.string())
    for rows in read_batches(file):
        return {name: array.type for name, array in rows.columns.items()}
    return {}


def check_columns(files: Sequence[SourceFile], columns: Collection[str]) -> None:
    """Checks that files have columns: each file, but JSON lines together, because a row leaves out
    what is null. Files without rows that do not state their columns have any.

    Raises:
      FileRejected: A file is missing, unreadable or damaged, or lacks a column.
      ValueRejected: As `read_batches`.
    """
    wanted = set(columns)
    existing: dict[str, None] = {}
    is_empty = True
    for file in files:
        if file.format != "jsonl":
            types = column_types(file)
            if types:
                _checked_columns(file, list(types), columns)
            continue
        with _read_errors(file):
            for row, _ in _json_rows(file):
                is_empty = False
                existing |= dict.fromkeys(row)
                if existing.keys() >= wanted:
                    return
    if not is_empty:
        _checked_columns(files[0], list(existing), columns)


def count_rows(file: SourceFile) -> int | None:
    """Returns the number of rows of a file; None if it is known only once the file was read.

    Raises:
      FileRejected: The file is missing or unreadable.
    """
    if file.format != "parquet":
        return None
    with _read_errors(file):
        return int(parquet.read_metadata(file.path).num_rows)


def _checked_columns(
    file: SourceFile, existing: Sequence[str], columns: Collection[str] | None
) -> list[str]:
    """Returns the columns to read.

    Raises:
      FileRejected: The file lacks one of them, or has several of its name.
    """
    counts = Counter(existing)
    names = list(existing)
    if columns is not None:
        names = list(columns)
    for name in names:
        count = counts[name]
        if count == 1:
            continue
        problem = f"has no column {name!r}{similar_name(name, existing)}"
        if count > 1:
            problem = f"has {count} columns {name!r}"
        raise FileRejected(f"{file.path.name} {problem}; it has {', '.join(existing)}", name)
    return names


def _open_csv(stream: Any, **options: Any) -> Any:
    return csv.open_csv(
        stream,
        csv.ReadOptions(block_size=_READ_BYTES),
        # A text in quotes may have several lines.
        csv.ParseOptions(newlines_in_values=True),
        csv.ConvertOptions(**options),
    )


def _csv_header(file: SourceFile) -> list[str]:
    """Returns the columns of a CSV file; [] if it is empty."""
    try:
        with _opened(file) as stream, _open_csv(stream) as header:
            return list(header.schema.names)
    except pa.ArrowInvalid as problem:
        # pyarrow has no class of its own for this error.
        if "Empty CSV file" not in str(problem):
            raise
        return []


def _read_csv(file: SourceFile, columns: Collection[str] | None) -> Iterator[dict[str, Any]]:
    header = _csv_header(file)
    if not header:
        return
    names = _checked_columns(file, header, columns)
    # As text: what a column holds is known only when all of it was seen.
    texts = dict.fromkeys(names, pa.string())
    options = {"include_columns": names, "column_types": texts, "strings_can_be_null": False}
    with _opened(file) as stream, _open_csv(stream, **options) as reader:
        for batch in reader:
            yield {name: batch.column(name) for name in names}


def _read_parquet(
    file: SourceFile, columns: Collection[str] | None, batch_rows: int
) -> Iterator[dict[str, Any]]:
    check_regular(file.path)
    # Without a buffer a whole column of a row group would be read at a time.
    with parquet.ParquetFile(file.path, buffer_size=_READ_BYTES, pre_buffer=False) as opened:
        names = _checked_columns(file, opened.schema_arrow.names, columns)
        # One row group at a time: an iterator over all of them holds all that it has read.
        for group in range(opened.num_row_groups):
            for batch in opened.iter_batches(batch_rows, [group], names, use_threads=False):
                yield {name: batch.column(name) for name in names}


def _opened(file: SourceFile) -> Any:
    """Returns the lines of a file, as bytes. Only "\\n" ends a line: a text may hold others."""
    check_regular(file.path)
    return opened_text(file.path, compressed=file.gzip)


def _read_lines(file: SourceFile) -> Iterator[dict[str, Any]]:
    with _opened(file) as lines:
        while block := lines.readlines(_READ_BYTES):
            texts = [line.removesuffix(b"\n").removesuffix(b"\r").decode() for line in block]
            yield {"": pa.array(texts, pa.large_string())}


def _read_json_lines(
    file: SourceFile, columns: Collection[str] | None, batch_rows: int
) -> Iterator[dict[str, Any]]:
    """Reads a file with a JSON object in each line. What an object lacks is null, because many
    programs leave nulls out. Without `columns`, a batch has those of all rows up to its end.
    """
    names = dict.fromkeys(columns or ())
    rows: list[dict[str, Any]] = []
    first = 0
    size_bytes = 0
    for row, row_bytes in _json_rows(file):
        if columns is None:
            names |= dict.fromkeys(row)
            if len(names) > _COLUMNS_MAX:
                raise ValueRejected(
                    f"{file.path.name}, row {first + len(rows) + 1}: the rows to here have more "
                    f"than {_COLUMNS_MAX} different columns; rows with the same ones were expected"
                )
        rows.append(row)
        size_bytes += row_bytes
        if size_bytes >= _READ_BYTES or len(rows) == batch_rows:
            yield _json_arrays(file, names, rows, first)
            first += len(rows)
            rows = []
            size_bytes = 0
    if rows:
        yield _json_arrays(file, names, rows, first)


def _json_rows(file: SourceFile) -> Iterator[tuple[dict[str, Any], int]]:
    """Yields the object of each line that is not blank, and the size of the line."""
    with _opened(file) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _json_object(file, number, line), len(line)


def _json_object(file: SourceFile, number: int, line: bytes) -> dict[str, Any]:
    where = f"{file.path.name}, line {number}"
    try:
        row = json.loads(line)
    except RecursionError as problem:
        raise ValueRejected(f"{where} is nested too deeply") from problem
    except ValueError as problem:
        reason = str(problem)
        if isinstance(problem, json.JSONDecodeError):
            reason = f"{problem.msg} at column {problem.colno}"
        raise ValueRejected(f"{where} is no JSON: {reason}; each row is one line") from problem
    if not isinstance(row, dict):
        raise ValueRejected(f"{where} is no JSON object, which was expected")
    return row


def _json_arrays(
    file: SourceFile, names: Collection[str], rows: Sequence[Mapping[str, Any]], first: int
) -> dict[str, Any]:
    arrays = {}
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            arrays[name] = pa.array(values)
        except (pa.ArrowException, OverflowError) as problem:
            # Arrow does not say which value it is: the last of the shortest head that fails.
            row = bisect.bisect_left(range(1, len(values)), True, key=lambda n: _fails(values[:n]))
            raise ValueRejected(
                f"{file.path.name}, column {name!r}, row {first + row + 1}: {shown(values[row])} "
                "is beyond int64, or of another type than the values above; one type was expected",
                name,
            ) from problem
    return arrays


def _fails(values: Sequence[Any]) -> bool:
    try:
        pa.array(values)
    except (pa.ArrowException, OverflowError):
        return True
    return False
