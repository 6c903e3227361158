"""Changed rows of tables in a change log, which is mapped: as a service writes and reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bundle.changes.log import ChangeLog, LogWriter
from bundle.changes.records import Change, Head, decode_runs, encode
from bundle.tables.changed_rows import ChangedRows
from bundle.tables.stored_rows import StoredRows, stored_rows, vectors_of

Vectors = NDArray[np.float32]


def rounded(vectors: Vectors, dtype: str) -> Vectors:
    """Returns vectors as they are read after a table has stored them."""
    return vectors_of(stored_rows(vectors, dtype).take(), dtype, vectors.shape[1])


def row_change(
    rows: Any, stored: StoredRows, columns: Mapping[str, Any] | None = None, stream: str = ""
) -> Change:
    """Returns a change of rows of the table `users`; `columns`: keys or sequences."""
    head = Head(kind="rows", action="upsert", target="users", version=1, stream=stream)
    arrays = {name: pa.array(values, pa.int64()) for name, values in (columns or {}).items()}
    batch = pa.record_batch({"id": pa.array(rows, pa.int64()), **arrays})
    return Change(head, batch, rows=stored)


class RowLog:
    """A log that gets changes of rows, which are read before they are committed."""

    def __init__(self, log: ChangeLog, writer: LogWriter) -> None:
        self._log = log
        self._writer = writer

    def append(self, change: Change) -> Change:
        """Appends a change; returns it as it lies in the log."""
        record = self._writer.append(encode(change))
        (run,) = decode_runs([record], self._log.mapped)
        return run.joined

    def with_rows(self, before: ChangedRows, rows: Any, vectors: Vectors) -> ChangedRows:
        """Returns a state in which rows have other vectors, which a table holds."""
        change = self.append(row_change(rows, stored_rows(vectors, before.dtype)))
        assert change.rows is not None
        return before.with_rows(change.ids, change.rows)


@contextmanager
def row_log(path: Path) -> Iterator[RowLog]:
    """Writes a log."""
    log = ChangeLog(path, "movies")
    with log.writing() as writer:
        yield RowLog(log, writer)
