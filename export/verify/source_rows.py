"""Rows of a corpus, read again as they lie in its files: by pyarrow, json and TensorFlow directly,
without the reader that the export uses.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv, parquet

from export.errors import UsageError
from export.graphs.loading import tf
from export.recipe.schema import CorpusSection
from rows.files import SourceFile

SourceRow = dict[str, Any]
"""The cells of a row by column. CSV: texts; TFRecord: lists."""


def read_again(
    files: Sequence[SourceFile],
    section: CorpusSection,
    positions: NDArray[np.int64],
    columns: Sequence[str],
) -> list[SourceRow]:
    """Reads some rows of a corpus.

    Args:
      files: The files of the corpus.
      section: The section of the recipe for the corpus.
      positions: [m] positions of the rows in all files, ascending.
      columns: The columns to read.

    Raises:
      UsageError: A file cannot be read any more.
    """
    selected: list[SourceRow] = []
    first = 0
    for file in files:
        try:
            for batch in _batches(file, section, columns):
                is_here = (positions >= first) & (positions < first + len(batch))
                indices = (positions[is_here] - first).tolist()
                selected += _cells_of(batch, indices, columns)
                first += len(batch)
        except (
            pa.ArrowException,
            tf.errors.OpError,
            OSError,
            EOFError,
            KeyError,
            ValueError,
            zlib.error,
        ) as problem:
            raise UsageError(f"{file.path.name} cannot be read again: {problem}") from problem
    return selected


def _batches(file: SourceFile, section: CorpusSection, columns: Sequence[str]) -> Iterator[Any]:
    """Yields the rows of a file in parts: those of Arrow, lines of JSON, or Examples as rows."""
    match file.format:
        case "csv":
            yield from _csv_batches(file, columns)
        case "parquet":
            with parquet.ParquetFile(file.path, buffer_size=1 << 20, pre_buffer=False) as opened:
                # An iterator over all groups of rows holds all that it has read.
                for group in range(opened.num_row_groups):
                    yield from opened.iter_batches(65_536, [group], columns, use_threads=False)
        case "tfrecord":
            compression = ""
            if file.gzip:
                compression = "GZIP"
            for record in tf.data.TFRecordDataset(str(file.path), compression).as_numpy_iterator():
                yield _rows_of_example(record, section, columns)
        case _:
            open_file: Callable[..., Any] = open
            if file.gzip:
                open_file = gzip.open
            with open_file(file.path, "rb") as lines:
                for line in lines:
                    if line.strip():
                        yield [line]


def _csv_batches(file: SourceFile, columns: Sequence[str]) -> Iterator[Any]:
    compression = None
    if file.gzip:
        compression = "gzip"
    stream = pa.input_stream(str(file.path), compression=compression)
    options = csv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns, pa.string()),
        strings_can_be_null=False,
    )
    lines = csv.ParseOptions(newlines_in_values=True)
    with csv.open_csv(stream, parse_options=lines, convert_options=options) as reader:
        yield from reader


def _rows_of_example(
    record: bytes, section: CorpusSection, columns: Sequence[str]
) -> list[SourceRow]:
    """Returns the row of a record, or the rows of one that holds many, whose features are lists of
    equal parts.
    """
    features = tf.train.Example.FromString(record).features.feature
    cells: dict[str, list[Any]] = {}
    for name in columns:
        kind = features[name].WhichOneof("kind")
        cells[name] = []
        if kind:
            cells[name] = [*getattr(features[name], kind).value]
        if kind == "bytes_list":
            cells[name] = [value.decode() for value in cells[name]]
    if not section.prebatched:
        return [cells]
    size = len(cells[section.id])
    rows = []
    for row in range(size):
        parts = {}
        for name, values in cells.items():
            count = len(values) // size
            parts[name] = values[row * count : (row + 1) * count]
        rows.append(parts)
    return rows


def _cells_of(batch: Any, indices: Sequence[int], columns: Sequence[str]) -> list[SourceRow]:
    """Returns rows of a batch, by their positions in it."""
    if isinstance(batch, pa.RecordBatch):
        return [*batch.select(list(columns)).take(pa.array(indices, pa.int64())).to_pylist()]
    rows = [batch[index] for index in indices]
    if rows and isinstance(rows[0], bytes):
        parsed = [json.loads(line) for line in rows]
        return [{name: row.get(name) for name in columns} for row in parsed]
    return rows
