"""The errors of files that a user names. Each names the file, and the row and column where it can.

RowsError
├── FileRejected     a file that is missing, damaged, of an unknown format, or lacks a column
└── ValueRejected    a row or a value that does not fit what reads it
"""

from __future__ import annotations


class RowsError(Exception):
    """A file, or what it holds, cannot be taken.

    Attributes:
      column: The column at fault; "": none in particular.
    """

    def __init__(self, message: str, column: str = "") -> None:
        super().__init__(message)
        self.column = column


class FileRejected(RowsError):
    """A file is missing, damaged or of an unknown format, or lacks a column."""


class ValueRejected(RowsError):
    """A row or a value does not fit what reads it."""
