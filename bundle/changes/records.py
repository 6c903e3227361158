"""A change of a model's data, and how the change log stores it: a stream of Arrow IPC.

Columns by kind and action:

    rows upsert             id, vector
    candidates upsert       id, feature:*, weights:*, attribute:*, vector:<index>
    candidates delete       id
    candidates attributes   id, attribute:*
    contexts                as candidates, without vectors
    candidates absorb       id, of no candidates: `segments` stand for the changes up to a sequence

Beside them, `sequence` (int64) where the sender numbers what it sends, and `expires_s` (float64,
Unix seconds, null: never) of candidates that expire. Columns of features and attributes are those
of a store (`bundle/stores`), vectors fixed-size lists of float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from bundle.errors import FormatError
from bundle.format.fields import Count, Crc32c, Name, Positive, StrictModel
from bundle.storage import arrow

Kind = Literal["rows", "candidates", "contexts"]
Action = Literal["upsert", "delete", "attributes"]
"""What clients ask for."""

ID = "id"
VECTOR = "vector"
SEQUENCE = "sequence"
EXPIRES = "expires_s"
_METADATA = b"rowcast"


class SegmentName(StrictModel):
    """Names a segment.

    Attributes:
      name: Of its directory.
      checksum: Of its manifest.
    """

    name: Name
    checksum: Crc32c


class Absorption(StrictModel):
    """Says which segments hold changed candidates of a corpus from a record of the log on.

    Attributes:
      fingerprint: Of the version, the crc32c of its manifest: its tower gave the vectors.
      sequence: Of the last change that the segments contain.
      segments: In the order of their positions. All but the last were named before, or the last
        one, too, if none was added.
    """

    fingerprint: Crc32c
    sequence: Count
    segments: tuple[SegmentName, ...]


class Head(StrictModel):
    """What a change is, beside its columns.

    Attributes:
      kind: What is changed.
      action: What is done to it.
      target: The name of the table, the corpus or the context store.
      version: The version of the model for which the change was checked, and whose vectors it has.
      time_s: When it was accepted, in Unix seconds.
      feature: Of rows: the feature by whose rule ids become rows; "": the ids are rows.
      embedded: The indexes whose vectors the version's candidate tower has computed; those of other
        indexes were sent.
      stream: The name of the stream that the change was read from; "": none.
      offset: The position in that stream, behind which reading goes on.
      absorption: Of an absorption alone.
    """

    kind: Kind
    action: Action | Literal["absorb"]
    target: Name
    version: Positive
    time_s: float
    feature: str = ""
    embedded: tuple[Name, ...] = ()
    stream: str = Field(default="", max_length=256)
    offset: Count = 0
    absorption: Absorption | None = None


@dataclass(frozen=True, eq=False)
class Change:
    """One change: all of it is applied, or nothing.

    Attributes:
      head: What it is.
      columns: A `pyarrow.RecordBatch`.
    """

    head: Head
    columns: Any

    @property
    def size(self) -> int:
        """How many rows, candidates or contexts are changed."""
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

    def vectors(self, name: str = VECTOR) -> NDArray[np.float32] | None:
        """Returns the vectors of a column, [m, dim] float32; None: there is no such column."""
        if name not in self.columns.schema.names:
            return None
        stored = self.columns.column(name)
        flat: NDArray[np.float32] = arrow.values(stored.flatten())
        return flat.reshape(len(stored), stored.type.list_size)

    def only(self, kept: NDArray[np.bool_]) -> Change:
        """Returns a change of some of the ids alone, by a mask."""
        import pyarrow as pa

        return Change(self.head, self.columns.filter(pa.array(kept)))


def absorption_change(corpus: str, version: int, time_s: float, absorption: Absorption) -> Change:
    """Returns what the log stores of an absorption.

    Args:
      corpus: The name of the corpus.
      version: The version whose vectors the segments have.
      time_s: Unix seconds.
      absorption: The segments.
    """
    import pyarrow as pa

    head = Head(
        kind="candidates",
        action="absorb",
        target=corpus,
        version=version,
        time_s=time_s,
        absorption=absorption,
    )
    return Change(head, pa.record_batch({ID: pa.array([], pa.int64())}))


def runs_of_upserts(changes: Iterable[tuple[int, Change]]) -> Iterator[list[tuple[int, Change]]]:
    """Yields changes with their sequences in parts that follow each other: upserts that `joined`
    makes one of, or a single change of another kind.
    """
    run: list[tuple[int, Change]] = []
    for sequence, change in changes:
        if run and not _is_alike(run[-1][1], change):
            yield run
            run = []
        run.append((sequence, change))
    if run:
        yield run


def joined(changes: Sequence[Change]) -> Change:
    """Returns one upsert that does what several do, one after the other.

    Args:
      changes: One or more, of a run of upserts.
    """
    import pyarrow as pa

    if len(changes) == 1:
        return changes[0]
    table = pa.Table.from_batches([change.columns for change in changes])
    numbers = table[ID].combine_chunks().dictionary_encode().indices.to_numpy()
    # Of each id the last state, in the order of these.
    _, from_end = np.unique(numbers[::-1], return_index=True)
    last = np.sort(numbers.size - 1 - from_end)
    (columns,) = table.take(pa.array(last)).combine_chunks().to_batches()
    return Change(changes[-1].head, columns)


def _is_alike(before: Change, change: Change) -> bool:
    """Returns whether two changes that follow each other are of one run."""
    first = before.head
    second = change.head
    if first.action != "upsert" or second.action != "upsert" or first.kind == "rows":
        return False
    if (first.kind, first.target, first.version) != (second.kind, second.target, second.version):
        return False
    is_alike: bool = before.columns.schema.equals(change.columns.schema)
    return is_alike and first.embedded == second.embedded


def expiring_ids(changes: Iterable[Change]) -> set[int | str]:
    """Returns the ids of candidates that some of the changes give an expiry."""
    ids: set[int | str] = set()
    for change in changes:
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
    import pyarrow as pa

    metadata = {_METADATA: change.head.model_dump_json(exclude_defaults=True).encode()}
    columns = change.columns.replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, columns.schema) as writer:
        writer.write_batch(columns)
    return bytes(sink.getvalue().to_pybytes())


def decode(payload: bytes) -> Change:
    """Returns the change that `encode` wrote.

    Raises:
      FormatError: The bytes are no change of this format.
    """
    with _reading() as pa:
        columns = pa.ipc.open_stream(payload).read_next_batch()
        head = _head_of(columns.schema)
    return Change(head, columns.replace_schema_metadata(None))


def decode_head(payload: bytes) -> Head:
    """Returns the head of the change that `encode` wrote, without reading its columns.

    Raises:
      FormatError: The bytes are no change of this format.
    """
    with _reading() as pa:
        return _head_of(pa.ipc.open_stream(payload).schema)


def _head_of(schema: Any) -> Head:
    return Head.model_validate_json(schema.metadata[_METADATA])


@contextmanager
def _reading() -> Iterator[Any]:
    """Yields `pyarrow`; raises FormatError for what it finds wrong with a record."""
    import pyarrow as pa

    try:
        yield pa
    except (pa.ArrowException, KeyError, TypeError, StopIteration, ValidationError) as problem:
        raise FormatError(
            f"a record of the change log holds no change that this release reads: {problem}"
        ) from problem
