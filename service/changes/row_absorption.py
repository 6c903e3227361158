"""Moves changed rows from the memory of this process into the files that all processes map."""

from __future__ import annotations

from bundle.errors import BundleError
from bundle.tables.changed_rows import ChangedRows
from bundle.tables.row_file import RowFile
from service.changes.applied_log import AppliedLog
from service.changes.changed_tables import RowCounts
from service.changes.changed_version import ChangedVersion
from service.changes.row_files import RowFiles, is_due


class RowAbsorption:
    """Moves the changed rows of one model into files. For one thread at a time. It holds the lock
    of the log only while a version changes over to a file.
    """

    def __init__(self, log: AppliedLog) -> None:
        """Begins without files.

        Args:
          log: The log, beside which the files are.
        """
        self._log = log
        self._files = RowFiles(log.path)

    @property
    def counts(self) -> dict[str, RowCounts]:
        """The numbers of changed rows of each table, over all versions. The caller holds the
        state of the log.
        """
        counts: dict[str, RowCounts] = {}
        for version in self._log.versions:
            for table, further in version.tables.row_counts.items():
                memory, file = counts.get(table, RowCounts(0, 0))
                counts[table] = RowCounts(memory + further.memory, file + further.file)
        return counts

    def absorb(self) -> None:
        """Moves changed rows into files, for tables with many changed rows in memory. Changes go on
        meanwhile.

        Raises:
          BundleError: A file is damaged. The rows stay in memory.
          OSError: A file cannot be read or written. The rows stay in memory.
        """
        for version in list(self._log.versions):
            for table in list(version.tables.rows):
                self._absorb_table(version, table)

    def _absorb_table(self, version: ChangedVersion, name: str) -> None:
        """Reads changed rows of a table from a file: the file of another process, or a new one."""
        changed = version.tables.of(name)
        if not is_due(changed):
            return
        number = version.loaded.version
        table = version.loaded.manifest.tables[name]
        # Another process may have written a file of most of these rows already.
        problem: BundleError | None = None
        try:
            file = self._files.newer(number, name, table, changed)
            if file is not None and self._read_from(version, name, changed, file):
                return
        except BundleError as error:
            problem = error
        # There is no file, or it is damaged, or it does not serve these rows: it is written anew.
        if self._files.write(number, name, table, changed):
            self._files.remove_others([served.loaded.version for served in self._log.versions])
            file = self._files.newer(number, name, table, changed)
            if file is not None:
                self._read_from(version, name, changed, file)
        # The rows are in memory, and the file is replaced, but the damage is reported.
        if problem is not None:
            raise problem

    def _read_from(
        self, version: ChangedVersion, table: str, changed: ChangedRows, file: RowFile
    ) -> bool:
        """Reads changed rows from a file; returns whether they are not in memory any more."""
        # A process reads a file only if it has changed all of its rows itself: one with a row that
        # is not changed here, or not yet, would serve a state that the log does not have.
        if not changed.contains(file.rows).all():
            return False
        # The comparison takes long, and needs no lock; the exchange under the lock is short.
        exchange = changed.exchange(file)
        with self._log.held():
            if version not in self._log.versions or not version.exchange_file(table, exchange):
                return False
            self._log.publish()
            return not is_due(version.tables.of(table))
