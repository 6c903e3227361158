"""A change of a model's data, and how the change log stores it.

    time         when the change was accepted, Unix seconds (float64)
    offset       behind the change in the stream that it was read from (uint64)
    head         length (uint32)
    schema       length (uint32)
    head         JSON, filled up with spaces to a multiple of 8 bytes
    schema       message of Arrow IPC
    columns      message of Arrow IPC: a record batch

All is little-endian. Changes that differ in ids and values alone have the same bytes from the first
length to the end of the schema, so that many of them are decoded at once.

Columns by kind and action:

    candidates upsert       id, feature:*, weights:*, attribute:*, vector:<index>
    candidates delete       id
    candidates attributes   id, attribute:*
    contexts                as candidates, without vectors

Beside them, `sequence` (int64) where the sender numbers what it sends, and `expires_s` (float64,
Unix seconds, null: never) of candidates that expire. Columns of features and attributes are those
of a store (`bundle/stores`), vectors fixed-size lists of float32.

An upsert has `later` where changes of attributes with larger sequences came before it: the values
that they set, as the JSON object of a text; null: there are none. A version that the upsert does
not fit gives them to the candidate that counts in its place.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from bundle.errors import FormatError
from bundle.format.fields import Name, Positive, StrictModel
from bundle.storage import arrow
from bundle.storage.frames import Record

Kind = Literal["candidates", "contexts"]
Action = Literal["upsert", "delete", "attributes"]
"""The actions that clients request."""

STREAM_CHARACTERS_MAX = 256
"""Maximum number of characters of the name of a stream."""
ID = "id"
SEQUENCE = "sequence"
VECTOR = "vector"
EXPIRES = "expires_s"
LATER = "later"
_PREFIX = struct.Struct("<dQII")
_LENGTHS = struct.Struct("<II")
"""The end of the prefix."""
_ALIGNMENT = 8
"""The alignment of messages of Arrow IPC, in bytes."""
_END_OF_STREAM = struct.pack("<iI", -1, 0)
"""The end of a stream of Arrow IPC."""


class Head(StrictModel):
    """What a change is, beside its columns.

    Attributes:
      kind: The kind of data that is changed.
      action: The action on the data.
      target: The name of the corpus or the context store.
      version: The version of the model for which the change was checked, and whose vectors it has.
      embedded: The indexes whose vectors the version's candidate tower has computed; those of other
        indexes were sent.
      stream: The name of the stream that the change was read from; "": none.
    """

    kind: Kind
    action: Action
    target: Name
    version: Positive
    embedded: tuple[Name, ...] = ()
    stream: str = Field(default="", max_length=STREAM_CHARACTERS_MAX)

    def sent_indexes(self, schema: Any) -> set[str]:
        """Returns the indexes whose vectors were sent, and not computed by a tower.

        Args:
          schema: The `pyarrow.Schema` of the columns.
        """
        prefix = vector_column("")
        indexes = {name.removeprefix(prefix) for name in schema.names if name.startswith(prefix)}
        return indexes.difference(self.embedded)

    def training(self, schema: Any) -> int:
        """Returns the version that vectors belong to; 0: a change has none that were sent.

        Args:
          schema: The `pyarrow.Schema` of the columns.
        """
        if self.kind == "candidates" and self.sent_indexes(schema):
            return self.version
        return 0


@dataclass(frozen=True, eq=False)
class Change:
    """One change: all of it is applied, or nothing.

    Attributes:
      head: The description of the change.
      columns: The ids and values, a `pyarrow.RecordBatch`.
      time_s: The time when it was accepted, in Unix seconds.
      offset: The position in its stream, behind which reading goes on.
    """

    head: Head
    columns: Any
    time_s: float = 0.0
    offset: int = 0

    @property
    def size(self) -> int:
        """The number of candidates or contexts that are changed."""
        return int(self.columns.num_rows)

    @property
    def ids(self) -> NDArray[Any]:
        """The ids, [m] int64 or [m] object holding str."""
        return arrow.values(self.columns.column(ID))

    def numbers(self, name: str) -> NDArray[Any] | None:
        """Returns the numbers of a column such as `sequence`, [m]; None: there is no such column.
        Of floats, null is NaN.
        """
        if name not in self.columns.schema.names:
            return None
        numbers: NDArray[Any] = self.columns.column(name).to_numpy(zero_copy_only=False)
        return numbers

    def vectors(self, name: str) -> NDArray[np.float32] | None:
        """Returns the vectors of a column, [m, dim] float32; None: there is no such column."""
        if name not in self.columns.schema.names:
            return None
        stored = self.columns.column(name)
        flat: NDArray[np.float32] = arrow.values(stored.flatten())
        return flat.reshape(len(stored), stored.type.list_size)

    @property
    def store_columns(self) -> Any:
        """The columns of an upsert that a store holds, a `pyarrow.RecordBatch`."""
        names = [
            name
            for name in self.columns.schema.names
            if name not in {SEQUENCE, EXPIRES, LATER} and not name.startswith(VECTOR)
        ]
        return self.columns.select(names)

    @property
    def later_attributes(self) -> dict[int | str, dict[str, Any]]:
        """The values of attributes that changes with larger sequences had set before an upsert, by
        id.
        """
        if LATER not in self.columns.schema.names:
            return {}
        texts = self.columns.column(LATER).to_pylist()
        return {
            key: json.loads(text)
            for key, text in zip(self.ids.tolist(), texts, strict=True)
            if text is not None
        }

    @property
    def sent_indexes(self) -> set[str]:
        """The indexes whose vectors of the candidates were sent; see `Head.sent_indexes`."""
        return self.head.sent_indexes(self.columns.schema)

    def with_columns(self, columns: Any) -> Change:
        """Returns the change with other columns, a `pyarrow.RecordBatch`."""
        return replace(self, columns=columns)

    def only(self, mask: NDArray[np.bool_]) -> Change:
        """Returns a change of some of the ids alone, by a mask, [m]."""
        import pyarrow as pa

        return replace(self, columns=self.columns.filter(pa.array(mask)))


def left_out_ids(changes: Iterable[Change]) -> set[int | str]:
    """Returns the ids of candidates of which no bundle contains the changes, since some of the
    changes give them an expiry or vectors: a bundle knows no expiry, and has vectors of its own.
    """
    ids: set[int | str] = set()
    for change in changes:
        if change.sent_indexes:
            ids.update(change.ids.tolist())
        expires_s = change.numbers(EXPIRES)
        if expires_s is not None:
            ids.update(change.ids[~np.isnan(expires_s)].tolist())
    return ids


def vector_column(index: str) -> str:
    """Returns the name of the column that holds the vectors of an index."""
    return f"{VECTOR}:{index}"


def vector_array(vectors: NDArray[np.float32]) -> Any:
    """Returns [m, dim] vectors as an Arrow array."""
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])


def encode(change: Change) -> bytes:
    """Returns the bytes of a change, for the log."""
    head = change.head.model_dump_json(exclude_defaults=True).encode()
    # JSON may end with spaces, which keep the columns aligned for Arrow.
    head += b" " * (-len(head) % _ALIGNMENT)
    schema = change.columns.schema.serialize().to_pybytes()
    columns = change.columns.serialize().to_pybytes()
    prefix = _PREFIX.pack(change.time_s, change.offset, len(head), len(schema))
    return b"".join([prefix, head, schema, columns])


def decode(payload: bytes) -> Change:
    """Returns the change that `encode` wrote.

    Raises:
      FormatError: The bytes are no change of this format.
    """
    (run,) = decode_runs([Record(0, payload)])
    ((_, change),) = run.changes
    return change


class Run:
    """Changes that follow each other in a log, and differ in ids and values alone.

    Attributes:
      head: The head of each change.
      sequences: The sequences of the changes, ascending.
    """

    def __init__(self, alike: _Alike, first: int, records: Sequence[Record]) -> None:
        """Takes some of the changes that are alike.

        Args:
          alike: All such changes, which are decoded together.
          first: The position of the run's first change among them.
          records: The records of the run.
        """
        self.head = alike.head
        self.sequences = [record.sequence for record in records]
        self._alike = alike
        self._first = first
        self._records = records

    @property
    def schema(self) -> Any:
        """The `pyarrow.Schema` of the columns."""
        return self._alike.schema

    @property
    def offset(self) -> int:
        """The offset in the stream behind the last change; 0: the changes are of none."""
        return _offset(self._records[-1].payload)

    @property
    def changes(self) -> list[tuple[int, Change]]:
        """The changes one by one, with their sequences.

        Raises:
          FormatError: The columns of a change cannot be read.
        """
        return [
            (sequence, self._joined(number, number + 1))
            for number, sequence in enumerate(self.sequences)
        ]

    @property
    def joined(self) -> Change:
        """One change with the columns of all of them, one behind the other, and the time of the
        last one: ids may repeat.

        Raises:
          FormatError: The columns of a change cannot be read.
        """
        return replace(self._joined(0, len(self.sequences)), offset=self.offset)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of ids of each change."""
        return self._alike.sizes[self._first : self._first + len(self.sequences)]

    def behind(self, sequence: int) -> Run | None:
        """Returns the changes of the run that are behind a sequence; None: there are none."""
        first = bisect_right(self.sequences, sequence)
        return self.part(first, len(self.sequences))

    def up_to(self, sequence: int) -> Run | None:
        """Returns the changes of the run up to a sequence; None: there are none."""
        return self.part(0, bisect_right(self.sequences, sequence))

    def part(self, begin: int, end: int) -> Run | None:
        """Returns the changes from one number to another; None: there are none."""
        if begin == end:
            return None
        if end - begin == len(self.sequences):
            return self
        return Run(self._alike, self._first + begin, self._records[begin:end])

    def _joined(self, begin: int, end: int) -> Change:
        time_s, offset, _, _ = _PREFIX.unpack_from(self._records[end - 1].payload)
        columns = self._alike.joined(self._first + begin, self._first + end)
        return Change(self.head, columns, time_s, offset)


def decode_runs(records: Sequence[Record]) -> list[Run]:
    """Returns the changes of records of a log, in their order. Columns are decoded when they are
    first needed.

    Args:
      records: The records.

    Raises:
      FormatError: The payload of a record is no change of this format.
    """
    # Changes of one kind alternate with others in a log, but share one reader.
    by_description: dict[bytes, _Alike] = {}
    runs = []
    for description, group in groupby(records, lambda record: _description(record.payload)):
        alike = by_description.get(description)
        if alike is None:
            alike = by_description[description] = _Alike(description)
        run_records = list(group)
        runs.append(Run(alike, len(alike.records), run_records))
        alike.records += run_records
    return runs


class _Alike:
    """Changes that differ in ids and values alone, though others may lie between them.

    Attributes:
      head: The head of each change.
      records: The changes.
    """

    def __init__(self, description: bytes) -> None:
        """Begins without changes.

        Args:
          description: The bytes that they share, as `_description` returns them.

        Raises:
          FormatError: It does not describe changes of this format.
        """
        head_bytes, schema_bytes = _LENGTHS.unpack_from(description)
        schema_begin = _LENGTHS.size + head_bytes
        self.records: list[Record] = []
        self._schema = description[schema_begin:]
        self._columns_begin = _PREFIX.size + head_bytes + schema_bytes
        with _reading():
            if len(self._schema) != schema_bytes:
                raise ValueError("it is cut short")
            self.head = _head(description[_LENGTHS.size : schema_begin])

    @cached_property
    def schema(self) -> Any:
        """The `pyarrow.Schema` of the columns."""
        with _reading() as pa:
            return pa.ipc.read_schema(pa.py_buffer(self._schema))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of ids of each change; errors as of `joined`."""
        return np.array([batch.num_rows for batch in self._batches], np.int64)

    def joined(self, begin: int, end: int) -> Any:
        """Returns the columns of some changes, one behind the other, a `pyarrow.RecordBatch`.

        Args:
          begin: The number of the first change.
          end: The number behind that of the last one.

        Raises:
          FormatError: They cannot be read.
        """
        import pyarrow as pa

        batches = self._batches[begin:end]
        if len(batches) == 1:
            return batches[0]
        table = pa.Table.from_batches(batches)
        columns = [column.combine_chunks() for column in table.combine_chunks().columns]
        return pa.RecordBatch.from_arrays(columns, schema=table.schema)

    @cached_property
    def _batches(self) -> list[Any]:
        """The columns of each change, a `pyarrow.RecordBatch`."""
        with _reading() as pa:
            # One reader of many batches takes a tenth of the time that a reader of each takes.
            columns = [record.payload[self._columns_begin :] for record in self.records]
            stream = b"".join([self._schema, *columns, _END_OF_STREAM])
            batches = list(pa.ipc.open_stream(stream))
            if len(batches) != len(columns):
                raise ValueError(f"{len(columns)} records hold {len(batches)} batches")
        return batches


# Changes repeat a few heads, so that each is validated once.
@lru_cache(1024)
def _head(content: bytes) -> Head:
    return Head.model_validate_json(content)


def _description(payload: bytes) -> bytes:
    """Returns the lengths, the head and the schema of a payload."""
    if len(payload) < _PREFIX.size:
        raise FormatError(
            f"a record of the change log has {len(payload)} bytes, which hold no change that this "
            "release reads"
        )
    _, _, head_bytes, schema_bytes = _PREFIX.unpack_from(payload)
    return payload[_PREFIX.size - _LENGTHS.size : _PREFIX.size + head_bytes + schema_bytes]


def _offset(payload: bytes) -> int:
    _, offset, _, _ = _PREFIX.unpack_from(payload)
    return int(offset)


@contextmanager
def _reading() -> Iterator[Any]:
    """Yields `pyarrow`; raises FormatError for what it finds wrong with a record."""
    import pyarrow as pa

    try:
        yield pa
    except (
        pa.ArrowException,
        struct.error,
        ArithmeticError,
        OSError,
        KeyError,
        TypeError,
        ValueError,
    ) as problem:
        raise FormatError(
            f"a record of the change log holds no change that this release reads: {problem}"
        ) from problem
