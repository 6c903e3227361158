"""TFRecord files, read without TensorFlow: every checksum is verified, a batch of
`tf.train.Example` is in memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from bundle.errors import RecordDamaged
from bundle.shown_values import similar_file
from bundle.storage.tfrecords import READ_ERRORS, read_records
from bundle.tables.offsets import offsets_of
from rows.errors import FileRejected, ValueRejected
from rows.files import SourceFile
from tensors.errors import NoRequest
from tensors.examples import feature_values
from tensors.records import read_example

BATCH_BYTES = 2 << 20
"""Bytes of records whose values are in memory at a time, unless one record is larger."""
BATCH_ROWS = 8_192
"""The maximum number of rows in a batch, unless one record holds more."""
_TYPE_CODES = {"int64": "q", "float": "f", "bytes": ""}
"""The type code of the `array` that values of each kind are gathered in; "": a list of strings."""


class Examples:
    """The rows of some records.

    Attributes:
      records: The record of each row, counted from 0 in its file.
      bytes: The size of the records in bytes.
    """

    def __init__(
        self, file: SourceFile, names: Collection[str] | None, batched_by: str | None
    ) -> None:
        """Begins a batch; see `read_examples`."""
        self.records = array("q")
        self.bytes = 0
        self._file = file
        self._names = names
        self._batched_by = batched_by
        self._kinds: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        self._lengths = {name: array("q") for name in names or ()}

    def append(self, number: int, record: bytes) -> None:
        """Adds the rows of a record.

        Raises:
          ValueRejected: It is no Example or its features do not fit; names record and column.
        """
        where = f"{self._file.path.name}, record {number + 1}"
        try:
            features = read_example(record).features.feature
        except NoRequest as problem:
            raise ValueRejected(f"{where} {problem}") from problem
        # The features of a record that holds many rows are lists of equal parts.
        count = 1
        if self._batched_by is not None:
            count = len(feature_values(features.get(self._batched_by))[1])
            if not count:
                raise ValueRejected(
                    f"{where} has no values in column {self._batched_by!r}, the id",
                    self._batched_by,
                )
        if self._names is None:
            for name in features:
                # The records above lack it, so their lists are empty.
                self._lengths.setdefault(name, array("q", bytes(8 * len(self.records))))
        self.bytes += len(record)
        self.records.extend([number] * count)
        for name, lengths in self._lengths.items():
            kind, values = feature_values(features.get(name))
            values_per_row, remainder = divmod(len(values), count)
            if remainder:
                raise ValueRejected(
                    f"{where}, column {name!r} has {len(values)} values for {count} candidates; "
                    "equally many each were expected",
                    name,
                )
            lengths.extend([values_per_row] * count)
            # An empty list has no kind that could differ from that of other records.
            if values_per_row:
                self._extend(name, kind, values, f"{where}, column {name!r}")

    def columns(self) -> dict[str, Any]:
        """Returns a list of values for each row, by feature: `pyarrow.LargeListArray` of int64,
        float or strings.

        Its values are nulls where no record of the batch holds the feature.
        """
        columns = {}
        for name, lengths in self._lengths.items():
            values = self._values.get(name, [])
            if isinstance(values, array):
                flat = pa.array(np.array(values))
            elif values:
                flat = pa.array(values, pa.large_string())
            else:
                flat = pa.array(values, pa.null())
            columns[name] = pa.LargeListArray.from_arrays(pa.array(offsets_of(lengths)), flat)
        return columns

    def _extend(self, name: str, kind: str, values: Any, where: str) -> None:
        if name not in self._kinds:
            self._kinds[name] = kind
            self._values[name] = []
            # An `array` takes 4 or 8 bytes for a number, and a list of Python several times that.
            if _TYPE_CODES[kind]:
                self._values[name] = array(_TYPE_CODES[kind])
        if self._kinds[name] != kind:
            raise ValueRejected(
                f"{where} is a {kind} list, the records above hold {self._kinds[name]} lists", name
            )
        try:
            if kind == "bytes":
                values = [value.decode() for value in values]
        except UnicodeDecodeError as problem:
            raise ValueRejected(f"{where}: {problem.object[:40]!r} is no UTF-8", name) from problem
        self._values[name].extend(values)


def read_examples(
    file: SourceFile, names: Collection[str] | None, batched_by: str | None, batch_rows: int
) -> Iterator[Examples]:
    """Reads features of a file of Examples.

    Args:
      file: The file.
      names: The features to read; None: all. A record that lacks one has an empty list.
      batched_by: The feature by whose values the rows of a record are counted. Every other feature
        has equally many values for each row, one after another. None: a record is a row.
      batch_rows: The maximum number of rows in a batch, unless one record holds more.

    Raises:
      FileRejected: The file cannot be read, is cut short, or a record differs from its checksum.
      ValueRejected: A record is no Example or its features do not fit; names record and column.
    """
    batch_rows = min(batch_rows, BATCH_ROWS)
    examples = Examples(file, names, batched_by)
    for number, record in enumerate(read_file(file)):
        examples.append(number, record)
        if examples.bytes >= BATCH_BYTES or len(examples.records) >= batch_rows:
            yield examples
            examples = Examples(file, names, batched_by)
    if examples.records:
        yield examples


def read_file(file: SourceFile) -> Iterator[bytes]:
    """Yields the records of a file.

    Raises:
      FileRejected: The file cannot be read, is cut short, or a record differs from its checksum.
    """
    name = file.path.name
    try:
        yield from read_records(file.path, compressed=file.gzip)
    except RecordDamaged as problem:
        remedy = ""
        if problem.is_gzip:
            remedy = "; if the file is compressed, set compression = 'gzip'"
        raise FileRejected(f"{name}, {problem}{remedy}") from problem
    except FileNotFoundError as problem:
        raise FileRejected(f"{name} does not exist{similar_file(file.path)}") from problem
    except READ_ERRORS as problem:
        remedy = ""
        if file.gzip:
            remedy = "; is it compressed at all?"
        raise FileRejected(f"{name} cannot be read: {problem}{remedy}") from problem
