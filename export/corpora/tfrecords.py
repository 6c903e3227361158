"""TFRecord files of tf.train.Example, read without TensorFlow: every checksum is verified, a batch
is in memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bundle.errors import RecordDamaged
from bundle.storage.tfrecords import READ_ERRORS, read_records
from export.errors import NotConvertible, UsageError
from tensors.errors import NoRequest
from tensors.examples import feature_values
from tensors.records import read_example

BATCH_BYTES = 2 << 20
"""Bytes of records whose values are in memory at a time, unless one record is larger."""
BATCH_CANDIDATES = 8_192
"""The maximum number of candidates in a batch, unless one record holds more."""
_TYPE_CODES = {"int64": "q", "float": "f", "bytes": ""}
"""The type code of the `array` that values of each kind are gathered in; "": a list of strings."""


class Examples:
    """Candidates of some records.

    Attributes:
      records: The record of each candidate, counted from 0 in its file.
      bytes: The size of the records in bytes.
    """

    def __init__(self, names: Sequence[str], batched_by: str | None, where: str) -> None:
        """Begins a batch; see `read_examples`."""
        self.records = array("q")
        self.bytes = 0
        self._batched_by = batched_by
        self._where = where
        self._kinds = dict.fromkeys(names, "")
        self._values: dict[str, Any] = dict.fromkeys(names, ())
        self._lengths = {name: array("q") for name in names}

    def append(self, number: int, record: bytes) -> None:
        """Adds the candidates of a record.

        Raises:
          NotConvertible: It is no Example or its features do not fit; names record and column.
        """
        where = f"{self._where}, record {number + 1}"
        try:
            features = read_example(record).features.feature
        except NoRequest as problem:
            raise NotConvertible(f"{where} {problem}") from problem
        # The features of a record that holds many candidates are lists of equal parts.
        count = 1
        if self._batched_by is not None:
            count = len(feature_values(features.get(self._batched_by))[1])
            if not count:
                raise NotConvertible(
                    f"{where} has no values in column {self._batched_by!r}, the id"
                )
        self.bytes += len(record)
        self.records.extend([number] * count)
        for name, lengths in self._lengths.items():
            kind, values = feature_values(features.get(name))
            values_per_candidate, remainder = divmod(len(values), count)
            if remainder:
                raise NotConvertible(
                    f"{where}, column {name!r} has {len(values)} values for {count} candidates; "
                    "equally many each were expected"
                )
            lengths.extend([values_per_candidate] * count)
            # An empty list has no kind that could differ from that of other records.
            if values_per_candidate:
                self._extend(name, kind, values, f"{where}, column {name!r}")

    def columns(self) -> dict[str, Any]:
        """Returns a list of values for each candidate, by feature: `pyarrow.LargeListArray` of
        int64, float or strings.

        Its values are nulls where no record of the batch holds the feature.
        """
        columns = {}
        for name, values in self._values.items():
            offsets = np.concatenate([[0], np.cumsum(self._lengths[name], dtype=np.int64)])
            if isinstance(values, array):
                flat = pa.array(np.array(values))
            elif values:
                flat = pa.array(values, pa.large_string())
            else:
                flat = pa.array(values, pa.null())
            columns[name] = pa.LargeListArray.from_arrays(pa.array(offsets), flat)
        return columns

    def _extend(self, name: str, kind: str, values: Any, where: str) -> None:
        if not self._kinds[name]:
            self._kinds[name] = kind
            self._values[name] = []
            # An `array` takes 4 or 8 bytes for a number, and a list of Python several times that.
            if _TYPE_CODES[kind]:
                self._values[name] = array(_TYPE_CODES[kind])
        if self._kinds[name] != kind:
            raise NotConvertible(
                f"{where} is a {kind} list, the records above hold {self._kinds[name]} lists"
            )
        try:
            if kind == "bytes":
                values = [value.decode() for value in values]
        except UnicodeDecodeError as problem:
            raise NotConvertible(f"{where}: {problem.object[:40]!r} is no UTF-8") from problem
        self._values[name].extend(values)


def read_examples(
    path: Path, compressed: bool, names: Sequence[str], batched_by: str | None, where: str
) -> Iterator[Examples]:
    """Reads features of a file of Examples.

    Args:
      path: The path of the file.
      compressed: Whether the whole file is compressed with GZIP.
      names: The features to read. A record that lacks one has an empty list.
      batched_by: The feature by whose values the candidates of a record are counted. Every other
        feature has equally many values for each candidate, one after another. None: a record is a
        candidate.
      where: The file, as messages name it.
    Raises:
      UsageError: The file cannot be read, is cut short, or a record differs from its checksum.
      NotConvertible: A record is no Example or its features do not fit; names record and column.
    """
    examples = Examples(names, batched_by, where)
    for number, record in enumerate(read_file(path, compressed, where)):
        examples.append(number, record)
        if examples.bytes >= BATCH_BYTES or len(examples.records) >= BATCH_CANDIDATES:
            yield examples
            examples = Examples(names, batched_by, where)
    if examples.records:
        yield examples


def read_file(path: Path, compressed: bool, where: str) -> Iterator[bytes]:
    """Yields the records of a file.

    Args:
      path: The path of the file.
      compressed: Whether the whole file is compressed with GZIP.
      where: The file, as messages name it.

    Raises:
      UsageError: The file cannot be read, is cut short, or a record differs from its checksum.
    """
    try:
        yield from read_records(path, compressed=compressed)
    except RecordDamaged as problem:
        remedy = ""
        if problem.is_gzip:
            remedy = "; if the file is compressed, set compression = 'gzip'"
        raise UsageError(f"{where}, {problem}{remedy}") from problem
    except FileNotFoundError as problem:
        raise UsageError(f"{where} does not exist") from problem
    except READ_ERRORS as problem:
        remedy = ""
        if compressed:
            remedy = "; is it compressed at all?"
        raise UsageError(f"{where} cannot be read: {problem}{remedy}") from problem
