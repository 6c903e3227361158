"""Some rows of a corpus, read anew by other readers than those that filled the store; a batch is in memory.

CSV by Python's own reader, TFRecord by TensorFlow's.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Generator, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.corpora.files import CorpusFile
from export.frameworks.loading import load_tensorflow

Positions = NDArray[np.int64]
Rows = Generator[dict[str, Any], None, int]
"""Yields the wanted rows of a file and returns how many it has."""
BATCH_ROWS = 4096


def read_rows(
    files: Sequence[CorpusFile], positions: Positions, columns: Sequence[str], batched_by: str | None
) -> list[dict[str, Any]]:
    """Reads rows of a corpus.

    Args:
      files: of the corpus, in their order.
      positions: [m] int64, ascending.
      columns: the wanted ones.
      batched_by: the feature whose values are one for each candidate of a record; None: a record is a candidate.
    Returns:
      The cells of each by column: text of a CSV file, values of a Parquet file, lists of values of Examples.
    """
    return list(_read(files, positions, columns, batched_by))


def _read(
    files: Sequence[CorpusFile], positions: Positions, columns: Sequence[str], batched_by: str | None
) -> Iterator[dict[str, Any]]:
    first = 0
    for kind, group in groupby(files, key=lambda file: file.format):
        if kind == "tfrecord":
            first += yield from _examples(list(group), positions - first, columns, batched_by)
        else:
            for file in group:
                first += yield from (_csv if kind == "csv" else _parquet)(file, positions - first, columns)


def _csv(file: CorpusFile, positions: Positions, columns: Sequence[str]) -> Rows:
    csv.field_size_limit(1 << 30)
    wanted = set(positions.tolist())
    opened = gzip.open if file.gzip else open
    with opened(file.path, "rt", newline="", encoding="utf-8-sig") as lines:
        reader = csv.reader(lines)
        places = {name: place for place, name in enumerate(next(reader))}
        size = 0
        for cells in reader:
            if not cells:
                continue
            if size in wanted:
                yield {column: cells[places[column]] for column in columns}
            size += 1
    return size


def _parquet(file: CorpusFile, positions: Positions, columns: Sequence[str]) -> Rows:
    from pyarrow import parquet

    first = 0
    with parquet.ParquetFile(file.path, buffer_size=1 << 20, pre_buffer=False) as opened:
        for batch in opened.iter_batches(BATCH_ROWS, columns=list(dict.fromkeys(columns)), use_threads=False):
            here = _within(positions, first, batch.num_rows)
            yield from batch.take(here).to_pylist() if here else ()
            first += batch.num_rows
    return first


def _examples(
    files: Sequence[CorpusFile], positions: Positions, columns: Sequence[str], batched_by: str | None
) -> Rows:
    tf = load_tensorflow()
    named = [str(file.path) for file in files], ["GZIP" if file.gzip else "" for file in files]
    records = tf.data.Dataset.from_tensor_slices(named).flat_map(
        lambda path, compression: tf.data.TFRecordDataset(path, compression_type=compression, buffer_size=1 << 20)
    )
    first = 0
    if batched_by is None:
        for batch in records.batch(BATCH_ROWS):
            here = _within(positions, first, int(batch.shape[0]))
            for record in tf.gather(batch, here).numpy() if here else ():
                yield _held(tf.train.Example.FromString(record), columns)
            first += int(batch.shape[0])
    else:
        for record in records.as_numpy_iterator():
            held = _held(tf.train.Example.FromString(record), [*columns, batched_by])
            count = len(held[batched_by])
            for place in _within(positions, first, count):
                each = {column: len(held[column]) // count for column in columns}
                yield {column: held[column][place * each[column] :][: each[column]] for column in columns}
            first += count
    return first


def _held(example: Any, columns: Sequence[str]) -> dict[str, list[Any]]:
    held: dict[str, list[Any]] = {}
    for column in columns:
        feature = example.features.feature[column]
        kind = feature.WhichOneof("kind")
        values = list(getattr(feature, kind).value) if kind else []
        held[column] = [value.decode() for value in values] if kind == "bytes_list" else values
    return held


def _within(positions: Positions, first: int, count: int) -> list[int]:
    start, stop = np.searchsorted(positions, [first, first + count])
    return list((positions[start:stop] - first).tolist())
