"""Candidate stores as they lie in a bundle. With `position_history`, this is the only module that
turns an id into an index position and back.

One Arrow IPC file with the columns that `columns` describes. The position of a candidate in its
indexes is its row in this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError, FormatError, UnknownCandidate
from bundle.format.manifest import Corpus
from bundle.storage import arrow
from bundle.stores.columns import ColumnBatch, Positions, StoredColumns, check_feature
from bundle.stores.writer import find_repeated
from bundle.tables.vocabularies import index_keys


class MappedColumns(StoredColumns):
    """The columns of a store that is trusted. They are mapped, and nothing of them is copied to
    memory.

    Attributes:
      release: A function that drops the pages that were read from memory.
    """

    def __init__(self, path: Path, corpus: Corpus) -> None:
        """Opens a store that this program wrote.

        Raises:
          DigestMismatch: The file is missing.
          FormatError: It is no Arrow IPC file, or not what the manifest says.
        """
        table, self.release = arrow.open_trusted(path)
        super().__init__(
            _checked_batches(table, path, corpus), corpus.features, [*corpus.attributes]
        )

    def id_slices(self) -> Iterator[Any]:
        """Yields all ids as `pyarrow.Array`s of bounded size, dropping their pages from memory."""
        for batch in self.batches:
            yield batch.arrays["id"]
            self.release()


class CandidateStore(StoredColumns):
    """A corpus' candidates by id and by position. Safe for any number of threads."""

    def __init__(self, path: Path, corpus: Corpus) -> None:
        """Opens a store, checks all of it and compares it with the manifest.

        Raises:
          DigestMismatch: The file is missing.
          FormatError: It is no sound Arrow IPC file, or not what the manifest says.
        """
        table = arrow.open_mapped(path)
        super().__init__(
            _checked_batches(table, path, corpus), corpus.features, [*corpus.attributes]
        )
        self._keys = index_keys(table["id"])
        self._integers: NDArray[np.int64] | None = None
        if corpus.id_dtype == "int64":
            self._integers = arrow.values(table["id"])

    def ids(self, positions: Positions) -> NDArray[Any]:
        """See `StoredColumns.ids`."""
        if self._integers is None:
            return super().ids(positions)
        # Ten times as fast as pyarrow's.
        return self._integers.take(self._checked(positions))

    def positions(self, ids: NDArray[Any], field: str = "ids") -> Positions:
        """Returns [m] int64 positions of ids, -1 where the store does not hold one.

        Args:
          ids: [m] int64, or [m] object holding str.
          field: What the ids are called where they were sent, for the error.

        Raises:
          UnknownCandidate: A value is no id of this store's kind.
        """
        try:
            return self._keys.positions("id", ids)
        except FeatureError as error:
            raise UnknownCandidate(field, error.value, error.expected, error.predicate) from error


def check_store(path: Path, corpus: Corpus) -> None:
    """Checks all of a store as `CandidateStore` does, without an index of its ids: in 16 bytes of
    memory a candidate.

    Raises:
      DigestMismatch: The file is missing.
      FormatError: It is no sound Arrow IPC file, or not what the manifest says, or an id comes
        twice.
    """
    # Checks the buffers; the second opening can drop the pages that it has read.
    arrow.open_mapped(path)
    columns = MappedColumns(path, corpus)
    repeated = find_repeated(columns.id_slices, columns.size)
    if repeated is not None:
        repeated_id = columns.ids(np.array(repeated)).tolist()[0]
        raise FormatError(f"id {repeated_id!r} comes twice; ids must be distinct")


def _checked_batches(table: Any, path: Path, corpus: Corpus) -> list[ColumnBatch]:
    """Returns the columns of a `pyarrow.Table` that was read from a file.

    Raises:
      FormatError: It is not what the manifest says.
    """
    import pyarrow as pa

    where = f"file {path.name!r}"
    if table.num_rows != corpus.size:
        raise FormatError(
            f"{where} holds {table.num_rows} candidates, the manifest says {corpus.size}"
        )
    keys = arrow.column(table, "id", where)
    if keys.null_count or arrow.kind_of(keys.type) != corpus.id_dtype:
        raise FormatError(
            f"{where} has ids of {keys.type} with {keys.null_count} nulls; {corpus.id_dtype} was "
            "expected"
        )
    for name in corpus.features:
        check_feature(table, name, where)
    for name, kind in corpus.attributes.items():
        stored = arrow.column(table, f"attribute:{name}", where)
        if arrow.kind_of(stored.type) != kind:
            raise FormatError(f"{where} has attribute {name!r} of {stored.type}, not {kind}")
    batches = []
    record_batches = table.to_batches()
    # A store without candidates still has columns, whose types others read.
    if not record_batches:
        record_batches = [pa.RecordBatch.from_pylist([], schema=table.schema)]
    for record_batch in record_batches:
        arrays = dict(zip(table.column_names, record_batch.columns, strict=True))
        batches.append(ColumnBatch.of_arrays(arrays, corpus.features))
    return batches
