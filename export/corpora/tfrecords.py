"""TFRecord files of tf.train.Example, read without TensorFlow: every checksum is verified, a batch is in memory.

A record is its length (uint64), the masked crc32c of the length, its bytes, and their masked crc32c, little-endian.
Source: TensorFlow 2.20, core/lib/io/record_reader.cc, core/lib/hash/crc32c.h (Mask), core/example/feature.proto.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from export.errors import NotConvertible, UsageError

RECORD_BYTES_MAX = 256 << 20
BATCH_BYTES = 2 << 20
"""Bytes of records whose values are in memory at a time, unless one record is larger."""
BATCH_CANDIDATES = 8_192

_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_PIECE_BYTES = 1 << 20
_LISTS = {"int64_list": "int64", "float_list": "float", "bytes_list": "bytes"}


@dataclass(frozen=True)
class Examples:
    """Candidates of some records.

    Attributes:
      columns: by feature, a list of values for each candidate: `pyarrow.LargeListArray` of int64, float or strings, or
        of nulls where no record holds the feature.
      records: [n] the record of each candidate, counted from 0 in its file.
    """

    columns: dict[str, Any]
    records: NDArray[np.int64]


def read_examples(
    path: Path, compressed: bool, names: Sequence[str], batched_by: str | None, where: str
) -> Iterator[Examples]:
    """Reads features of a file of Examples.

    Args:
      path: of the file.
      compressed: with GZIP, as a whole.
      names: the features wanted; those of a record that lacks one are empty lists.
      batched_by: None: a record is a candidate. Else a record holds as many candidates as this feature has values, and
        every other feature equally many values for each of them, one after another.
      where: names the file in messages.
    Raises:
      UsageError: the file cannot be read, is cut short, or a record differs from its checksum.
      NotConvertible: a record is no Example or its features do not fit; names record and column.
    """
    message = example_type()
    batch = _Batch(names, where)
    for number, record in enumerate(_records(path, compressed, where)):
        try:
            held = message.FromString(record).features.feature
        except Exception as problem:  # protobuf's DecodeError; its class depends on the implementation
            raise NotConvertible(f"{where}, record {number + 1} is no tf.train.Example: {problem}") from problem
        batch.append(number, held, batched_by)
        batch.bytes += len(record)
        if batch.bytes >= BATCH_BYTES or len(batch.records) >= BATCH_CANDIDATES:
            yield batch.examples()
            batch = _Batch(names, where)
    if batch.records:
        yield batch.examples()


@dataclass
class _Gathered:
    """Values of one feature: their kind once one was seen, the values, and how many each candidate has."""

    kind: str = ""
    values: Any = ()
    lengths: array[int] = field(default_factory=lambda: array("q"))


class _Batch:
    def __init__(self, names: Sequence[str], where: str) -> None:
        self.records = array("q")
        self.bytes = 0
        self._features = {name: _Gathered() for name in names}
        self._where = where

    def append(self, number: int, held: Any, batched_by: str | None) -> None:
        candidates = 1 if batched_by is None else self._count(number, held, batched_by)
        self.records.extend([number] * candidates)
        for name, gathered in self._features.items():
            feature = held.get(name)
            kind = feature.WhichOneof("kind") if feature is not None else None
            if kind is None:
                gathered.lengths.extend([0] * candidates)
                continue
            values = getattr(feature, kind).value
            each, left = divmod(len(values), candidates)
            if left:
                raise NotConvertible(
                    f"{self._where}, record {number + 1}, column {name!r} has {len(values)} values for {candidates} "
                    "candidates; equally many each were expected"
                )
            gathered.lengths.extend([each] * candidates)
            if gathered.kind != kind and each:
                self._begin(gathered, kind, name, number)
            if each:
                gathered.values.extend(values)

    def examples(self) -> Examples:
        import pyarrow as pa

        columns = {}
        for name, gathered in self._features.items():
            ends = np.zeros(len(self.records) + 1, np.int64)
            np.cumsum(np.frombuffer(gathered.lengths, np.int64), out=ends[1:])
            columns[name] = pa.LargeListArray.from_arrays(pa.array(ends), self._flat(name, gathered, ends))
        return Examples(columns, np.array(self.records, np.int64))

    def _count(self, number: int, held: Any, batched_by: str) -> int:
        feature = held.get(batched_by)
        kind = feature.WhichOneof("kind") if feature is not None else None
        count = len(getattr(feature, kind).value) if kind else 0
        if not count:
            raise NotConvertible(f"{self._where}, record {number + 1} has no values in column {batched_by!r}, the id")
        return count

    def _begin(self, gathered: _Gathered, kind: str, name: str, number: int) -> None:
        if gathered.kind:
            raise NotConvertible(
                f"{self._where}, record {number + 1}, column {name!r} is a {_LISTS[kind]} list, the records above hold "
                f"{_LISTS[gathered.kind]} lists"
            )
        gathered.kind = kind
        gathered.values = [] if kind == "bytes_list" else array("q" if kind == "int64_list" else "f")

    def _flat(self, name: str, gathered: _Gathered, ends: NDArray[np.int64]) -> Any:
        import pyarrow as pa

        if not gathered.kind:
            return pa.nulls(0)
        if gathered.kind != "bytes_list":
            return pa.array(np.array(gathered.values))
        try:
            return pa.array(gathered.values, pa.large_binary()).cast(pa.large_string())
        except pa.ArrowInvalid as problem:
            place = next(place for place, value in enumerate(gathered.values) if not _is_text(value))
            record = self.records[int(np.searchsorted(ends, place, side="right")) - 1]
            raise NotConvertible(
                f"{self._where}, record {record + 1}, column {name!r}: {gathered.values[place][:40]!r} is no UTF-8"
            ) from problem


def _records(path: Path, compressed: bool, where: str) -> Iterator[bytes]:
    try:
        size = None if compressed else path.stat().st_size
        with gzip.open(path, "rb") if compressed else path.open("rb", buffering=_PIECE_BYTES) as file:
            number = 0
            while header := file.read(_HEADER.size):
                number += 1
                yield _record(file, header, size, f"{where}, record {number}")
    except FileNotFoundError as problem:
        raise UsageError(f"{where} does not exist") from problem
    except (OSError, EOFError, zlib.error) as problem:
        cure = "; is it compressed at all?" if compressed else ""
        raise UsageError(f"{where} cannot be read: {problem}{cure}") from problem


def _record(file: BinaryIO | gzip.GzipFile, header: bytes, size: int | None, where: str) -> bytes:
    if len(header) < _HEADER.size:
        raise UsageError(f"{where} is cut short in its length; copy the file again")
    length, crc = _HEADER.unpack(header)
    if _masked(header[:8]) != crc:
        first = "; if the file is compressed, say compression = 'gzip'" if header[:2] == b"\x1f\x8b" else ""
        raise UsageError(f"{where} is no TFRecord: its length differs from its checksum{first}")
    if length > RECORD_BYTES_MAX:
        raise UsageError(f"{where} claims {length} bytes; at most {RECORD_BYTES_MAX} are taken")
    if size is not None and length > size - file.tell():
        raise UsageError(f"{where} claims {length} bytes, the file has {size - file.tell()} left; copy it again")
    data = _read(file, length)
    tail = file.read(_CRC.size)
    if len(data) < length or len(tail) < _CRC.size:
        raise UsageError(f"{where} is cut short; copy the file again")
    if _masked(data) != _CRC.unpack(tail)[0]:
        raise UsageError(f"{where} differs from its checksum; copy the file again")
    return data


def _read(file: BinaryIO | gzip.GzipFile, length: int) -> bytes:
    # In pieces: what a length claims is allocated only as far as bytes come.
    if length <= _PIECE_BYTES:
        return file.read(length)
    pieces = bytearray()
    while len(pieces) < length and (piece := file.read(min(_PIECE_BYTES, length - len(pieces)))):
        pieces += piece
    return bytes(pieces)


def _masked(data: bytes) -> int:
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


@cache
def example_type() -> Any:
    """Returns the class of tf.train.Example, in a pool of its own: TensorFlow has the other."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="records", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, str | None]) -> Any:
        added = file.message_type.add(name=name)
        for field_name, label, kind, type_name in fields:
            added.field.add(name=field_name, number=len(added.field) + 1, label=label, type=kind, type_name=type_name)
        return added

    one, many = kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED
    message("BytesList", ("value", many, kinds.TYPE_BYTES, None))
    message("FloatList", ("value", many, kinds.TYPE_FLOAT, None))
    message("Int64List", ("value", many, kinds.TYPE_INT64, None))
    lists = [(name, one, kinds.TYPE_MESSAGE, f".records.{kind}") for name, kind in _MESSAGES.items()]
    feature = message("Feature", *lists)
    feature.oneof_decl.add(name="kind")
    for each in feature.field:
        each.oneof_index = 0
    features = message("Features", ("feature", many, kinds.TYPE_MESSAGE, ".records.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=one, type=kinds.TYPE_STRING)
    entry.field.add(name="value", number=2, label=one, type=kinds.TYPE_MESSAGE, type_name=".records.Feature")
    message("Example", ("features", one, kinds.TYPE_MESSAGE, ".records.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("records.Example"))


_MESSAGES = {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"}
