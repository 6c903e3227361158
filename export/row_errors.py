"""Errors of the user's files, as those of an export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from export.errors import ExportError, UsageError
from rows.errors import RowsError, ValueRejected


@contextmanager
def row_errors(
    key: str,
    keys_of_columns: Mapping[str, str] = MappingProxyType({}),
    misfit: type[ExportError] = UsageError,
) -> Iterator[None]:
    """Raises the errors of files as those of an export, behind the key of the recipe.

    Args:
      key: The key of the recipe, or the option, that names the files.
      keys_of_columns: The key that names a column, by column.
      misfit: The error of a row or a value that does not fit; that of a file is a UsageError.
    """
    try:
        yield
    except RowsError as problem:
        kind: type[ExportError] = UsageError
        if isinstance(problem, ValueRejected):
            kind = misfit
        raise kind(f"{keys_of_columns.get(problem.column, key)}: {problem}") from problem
