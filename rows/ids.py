"""Ids of a column of a file, or of the lines of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.shown_values import similar_file
from bundle.storage.regular_files import check_regular
from rows.batches import column_types, count_rows, read_batches
from rows.cells import cells_of, joined_values
from rows.errors import FileRejected
from rows.files import SourceFile

FILE_BYTES_MAX = 256 << 20
"""The largest size of a file of ids; a sample of them proves as much."""
IDS_MAX = 5_000_000
"""The largest number of rows of a Parquet file, whose size says little: it is compressed."""


def read_ids(
    files: Sequence[SourceFile],
    column: str | None,
    names: Sequence[str],
    separator: str | None = None,
) -> NDArray[Any]:
    """Reads the ids of files whole.

    Args:
      files: The files.
      column: The column of the ids: single values, or lists of them; None: the first of `names`
        that is a column, else the only column.
      names: The names that the column may have.
      separator: The separator of the ids of a CSV cell; None: a cell is one id.

    Returns:
      [n] int64, or objects holding str if an id is no integer: 007 is a code.

    Raises:
      FileRejected: A file is missing, unreadable, too large, or lacks the column.
      ValueRejected: A value is no id, or a row has none.
    """
    ids: list[NDArray[Any]] = [np.empty(0, np.int64)]
    for file in files:
        _check_size(file)
        name = _column_of(file, column, names)
        for rows in read_batches(file, [name]):
            cells = cells_of(rows, name, separator)
            cells.reject(cells.array.is_null(), "is no id, which was expected in every row")
            ids.append(cells.flat()[0].ids(integers_only=False))
    return joined_values(ids)


def _check_size(file: SourceFile) -> None:
    try:
        check_regular(file.path)
        size_bytes = file.path.stat().st_size
    except OSError as problem:
        reason = problem.strerror or problem
        raise FileRejected(
            f"{file.path} cannot be read: {reason}{similar_file(file.path)}"
        ) from problem
    if size_bytes > FILE_BYTES_MAX:
        raise FileRejected(
            f"{file.path} has more than {FILE_BYTES_MAX} bytes; give a sample of the ids"
        )
    if (count_rows(file) or 0) > IDS_MAX:
        raise FileRejected(f"{file.path} has more than {IDS_MAX} rows; give a sample of them")


def _column_of(file: SourceFile, column: str | None, names: Sequence[str]) -> str:
    existing = list(column_types(file))
    if column is None:
        candidates = [name for name in names if name in existing]
        # A file of one column holds the ids, whatever the name of the column is.
        if len(existing) == 1:
            candidates += existing
        column = next(iter(candidates), None)
    if column is None or column not in existing:
        expected = " or ".join(map(repr, names))
        if column is not None:
            expected = repr(column)
        listed = ", ".join(existing) or "no rows"
        raise FileRejected(f"{file.path} has no column {expected}; it has {listed}")
    return column
