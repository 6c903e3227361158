"""The files of changed rows of one model, beside its log: each has most of the changed rows of a
table of a version, and all processes map it.

The rows in a file are those of the log to the bit, so that no process need agree with others on
when it reads rows of the file in place of its own memory.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from bundle.errors import FormatError
from bundle.format.manifest import Table
from bundle.tables.changed_rows import ChangedRows
from bundle.tables.row_file import RowFile, write_row_file
from service.changes.locks import alone

MEMORY_BYTES = 16 << 20
"""Maximum size of the vectors of one table that a process holds in memory: 65,536 rows of 64
values. A row of a file is read in 0.1 microseconds, too, so that less would save nothing but
memory.
"""
_WRITTEN_SHARE = 8
"""A file is written anew once the changed rows in memory exceed its size divided by this. A larger
divisor saves memory, and each changed row costs the writing of more rows of the file.
"""


class RowFiles:
    """Writes and maps the files of changed rows of one model. For one thread."""

    def __init__(self, log: Path) -> None:
        """Begins without files.

        Args:
          log: The change log, beside which the files lie.
        """
        self._log = log
        self._opened: dict[Path, RowFile] = {}

    def path(self, version: int, table: str) -> Path:
        """Returns the path of the file of a table in a version."""
        return self._log.with_name(f"{self._log.name}.rows-{version}-{table}")

    def newer(self, version: int, name: str, table: Table, changed: ChangedRows) -> RowFile | None:
        """Returns the file of a table, verified and mapped.

        Args:
          version: The number of the version.
          name: The name of the table.
          table: The manifest entry of the table.
          changed: The changed rows of the table.

        Returns:
          None: there is no file but that of `changed`.

        Raises:
          FormatError: The file is of another table, or no file of rows.
          DigestMismatch: The file is damaged.
          OSError: The file cannot be read.
        """
        # Files are replaced by renames: another inode is another file.
        path = self.path(version, name)
        try:
            inode = path.stat().st_ino
        except FileNotFoundError:
            self._opened.pop(path, None)
            return None
        if changed.file is not None and changed.file.inode == inode:
            return None
        file = self._opened.get(path)
        if file is None or file.inode != inode:
            file = RowFile(path)
            header = file.header
            expected = (name, table.dtype, table.dim)
            if (header.table, header.dtype, header.dim) != expected:
                raise FormatError(f"file {path.name!r} does not have rows of table {name!r}")
            self._opened[path] = file
        return file

    def write(self, version: int, name: str, table: Table, changed: ChangedRows) -> bool:
        """Writes a file of all changed rows of a table.

        Args:
          version: The number of the version.
          name: The name of the table.
          table: The manifest entry of the table.
          changed: The changed rows of the table.

        Returns:
          Whether it was written: False while another process writes it.

        Raises:
          OSError: The disk is full or broken, or the directory cannot be written.
        """
        path = self.path(version, name)
        with alone(path.with_name(f"{path.name}.lock")) as lock:
            if lock is None:
                return False
            # Left by a process that died: only the process that has the lock writes.
            for unfinished in path.parent.glob(f".{path.name}-*"):
                unfinished.unlink()
            write_row_file(path, name, table.dtype, changed.rows, table.dim, changed.vectors_of)
            return True

    def remove_others(self, versions: Collection[int]) -> None:
        """Removes the files of versions that are older than all that are served. A process that
        maps such a file keeps what it has mapped.

        Args:
          versions: The numbers of the versions that are served.
        """
        # Newer versions may be those that another worker has loaded, and this one has not yet.
        prefix = f"{self._log.name}.rows-"
        for path in self._log.parent.glob(f"{prefix}*"):
            number = path.name.removeprefix(prefix).partition("-")[0]
            if number.isdecimal() and versions and int(number) < min(versions):
                path.unlink(missing_ok=True)
                self._opened.pop(path, None)


def is_due(changed: ChangedRows) -> bool:
    """Returns whether a file should have the changed rows that are in memory."""
    file_bytes = 0
    if changed.file is not None:
        file_bytes = changed.file.bytes
    return changed.memory_bytes > max(MEMORY_BYTES, file_bytes // _WRITTEN_SHARE)
