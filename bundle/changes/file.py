"""The changes file of a model: an SQLite database with one row for each state, which any process of
the host reads and writes.

Beside the states of candidates and contexts there are

    streams    the offset behind the last change of a stream, by the training of its vectors
    marks      random numbers, by which copies and bundles know the file again

A mark is set when a process first writes. A file that was restored from an older copy gets one at a
sequence that it had before, so that the states which it has lost are told from those which follow.
"""

from __future__ import annotations

import itertools
import os
import secrets
import sqlite3
import stat
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bundle.changes.states import WHOLE, Key, State
from bundle.errors import (
    BundleError,
    ChangesDamaged,
    ChangesLocked,
    ChangesReplaced,
    ChangesUnavailable,
    CopyDiffers,
    FormatError,
)
from bundle.format.changes_position import ChangesPosition
from bundle.storage import files

FILE_NAME = "changes.sqlite"
"""The file in the directory of a model; no version can have this name."""
SEQUENCE_END = 1 << 62
"""All sequences are smaller."""
_APPLICATION_ID = 0x726F7763
_FORMAT = 1
_PAGE_STATES = 10_000
"""The number of new states that are read at a time."""
_STATEMENT_ROWS = 500
"""The maximum number of states or ids that a statement names."""
_READ_LOCK_S = 10.0
"""The time for which a reader waits while another process recovers the file."""
_PROBLEMS = (sqlite3.Error, OSError, UnicodeDecodeError)
"""Errors of SQLite and of the system. The module of Python cannot decode messages about names that
are damaged.
"""
_SCHEMA = f"""
create table states (
  sequence integer primary key autoincrement,
  kind text not null check (kind in ('candidates', 'contexts', 'streams', 'marks')),
  store text not null,
  id not null,
  attribute text not null,
  number integer,
  version integer not null,
  is_sent integer not null,
  expires_s real,
  time_s real not null,
  content text,
  checksum integer not null,
  unique (kind, store, id, attribute)
);
create index marks on states (sequence) where kind = 'marks';
create table facts (name text primary key, value) without rowid;
pragma application_id = {_APPLICATION_ID};
pragma user_version = {_FORMAT};
"""
_NEW_STATES = """
select states.* from states join (
  select distinct kind, store, id from states
  where sequence > ? and sequence <= ? and +kind in ('candidates', 'contexts')
) using (kind, store, id)
order by sequence
"""
_REPLACED_ATTRIBUTES = """
delete from states where sequence in (
  select part.sequence from states as whole join states as part using (kind, store, id)
  where whole.sequence > ? and whole.attribute = '' and part.attribute <> ''
    and part.sequence < whole.sequence and not coalesce(part.number > whole.number, 0)
)
"""
_ENDED = """
select * from states
where sequence > :after and time_s < :before_s and kind in ('candidates', 'contexts')
  and (content is null or attribute <> '' or expires_s < :before_s)
order by sequence limit :count
"""


class ChangesFile:
    """The file of one model, as one process has it open. One thread at a time uses it.

    Attributes:
      path: The file, behind all links. It need not exist: then there are no states.
      sequence: The sequence of the last state, as far as it was read; 0: there is none.
    """

    def __init__(self, path: Path, model: str, *, only_read: bool = False) -> None:
        """Opens nothing yet.

        Args:
          path: The file.
          model: The name of the model.
          only_read: Whether the file is left as it is, as a backup must be.
        """
        self.path = path.resolve()
        self.sequence = 0
        self._log_path = self.path.with_name(f"{self.path.name}-wal")
        self._model = model
        self._only_reads = only_read
        self._opened: sqlite3.Connection | None = None
        self._inode = 0
        self._log_inode = 0
        """That of SQLite's log, which goes on being written when it was removed; 0: none is yet."""
        self._log_size = 0
        """SQLite writes the log anew from its beginning, and makes it no smaller."""
        self._size = 0
        self._data_version = -1
        self._has_mark = False
        """Whether this process has set a mark."""

    def close(self) -> None:
        """Closes the file, until it is used again."""
        if self._opened is not None:
            self._opened.close()
        self._opened = None
        self._data_version = -1

    def has_news(self) -> bool:
        """Returns whether other processes have written since the last call.

        Raises:
          ChangesDamaged: The file is damaged.
          ChangesReplaced: Another file, or none, is in the place of the one that was opened.
          ChangesUnavailable: It cannot be read now.
          FormatError: It is no changes file, or that of another model or release.
        """
        with self._reading() as connection:
            if connection is None:
                return False
            (data_version,) = connection.execute("pragma data_version").fetchone()
            if data_version == self._data_version:
                return False
            self._read_end(connection)
            self._data_version = data_version
            return True

    def new_states(self, after: int) -> tuple[list[State], int]:
        """Returns all states of each candidate and context that has one behind a sequence: of the
        first ones, if there are many.

        Args:
          after: The sequence.

        Returns:
          The states, ascending, and the sequence up to which these have all new ones.

        Raises:
          BundleError: See `has_news`.
        """
        with self._reading() as connection:
            if connection is None:
                return [], after
            bound = connection.execute(
                "select sequence from states where sequence > ? order by sequence limit 1 offset ?",
                (after, _PAGE_STATES - 1),
            ).fetchone()
            (end,) = bound or (self._read_end(connection),)
            return self._states(connection.execute(_NEW_STATES, (after, end))), end

    def everything(self) -> tuple[ChangesPosition | None, list[State]]:
        """Returns the last state, and the states of all candidates and contexts, ascending; errors
        as of `has_news`.
        """
        with self._reading() as connection:
            if connection is None:
                return None, []
            rows = connection.execute(
                "select * from states where kind in ('candidates', 'contexts') order by sequence"
            )
            return self.position(), self._states(rows)

    def states_of(self, kind: str, store: str, keys: Sequence[Key]) -> dict[Key, dict[str, State]]:
        """Returns the states of those of some candidates or contexts that have any, by attribute;
        errors as of `has_news`.
        """
        by_key: dict[Key, dict[str, State]] = {}
        with self._reading() as connection:
            if connection is None:
                return {}
            for begin in range(0, len(keys), _STATEMENT_ROWS):
                part = keys[begin : begin + _STATEMENT_ROWS]
                places = ", ".join("?" * len(part))
                found = connection.execute(
                    f"select * from states where kind = ? and store = ? and id in ({places})",  # noqa: S608
                    (kind, store, *part),
                )
                for state in self._states(found):
                    by_key.setdefault(state.id, {})[state.attribute] = state
        return by_key

    def offsets(self, stream: str | None = None) -> dict[str, dict[int, int]]:
        """Returns the offset behind the last change of each stream by the training that the vectors
        of the change belong to, 0: behind the last one of all; errors as of `has_news`.

        Args:
          stream: The only stream; None: all of them.
        """
        offsets: dict[str, dict[int, int]] = {}
        with self._reading() as connection:
            if connection is not None:
                found = connection.execute(
                    "select * from states where kind = 'streams' and store = '' "
                    "and (?1 is null or id = ?1)",
                    (stream,),
                )
                for state in self._states(found):
                    by_training = offsets.setdefault(str(state.id), {})
                    by_training[int(state.attribute)] = int(state.content or 0)
        return offsets

    def position(self) -> ChangesPosition | None:
        """Returns the last state; None: there is none; errors as of `has_news`."""
        with self._reading() as connection:
            if connection is None or not self._read_end(connection):
                return None
            mark = _mark_at(connection, self.sequence)
            return ChangesPosition(mark=mark, sequence=self.sequence)

    def has(self, position: ChangesPosition) -> bool:
        """Returns whether a position is one of this file, though perhaps of one that is still to be
        copied; errors as of `has_news`.
        """
        with self._reading() as connection:
            if connection is None:
                return False
            return _mark_at(connection, position.sequence) == position.mark

    def after(
        self, position: ChangesPosition | None, bytes_max: int
    ) -> tuple[list[State], int, int]:
        """Returns the states behind the last one of a copy of the file, those of streams and marks
        too.

        Args:
          position: The last state of the copy; None: it has none.
          bytes_max: The maximum number of characters of their contents together; at least one state
            is returned if there is one.

        Returns:
          The states, ascending; the sequence of the last one of the file; and the largest sequence
          that the file has forgotten: see `lacks`.

        Raises:
          CopyDiffers: The file does not have the states of the copy.
          BundleError: See `has_news`.
        """
        with self._reading() as connection:
            if connection is None:
                if position is not None:
                    raise CopyDiffers(f"{self.path} does not exist, and the copy has states")
                return [], 0, 0
            after = 0
            if position is not None:
                after = position.sequence
                if (
                    after > self._read_end(connection)
                    or _mark_at(connection, after) != position.mark
                ):
                    raise CopyDiffers(
                        f"{self.path} has no state {position}, which the copy has: the copy is of "
                        "another file, or one of them was restored from an older copy"
                    )
            states: list[State] = []
            size = 0
            rows = connection.execute(
                "select * from states where sequence > ? order by sequence", (after,)
            )
            for row in rows:
                (state,) = self._states([row])
                size += len(state.content or "")
                if states and size > bytes_max:
                    break
                states.append(state)
            # The last one may have been forgotten, so that no copy gets to it.
            (end,) = connection.execute("select max(sequence) from states").fetchone()
            return states, end, _forgotten(connection)

    def lacks(self, forgotten: int) -> bool:
        """Returns whether this copy of a file lacks deletions that the file has forgotten since the
        copy was begun; errors as of `has_news`.

        Args:
          forgotten: The largest sequence of a state that the file has forgotten; 0: none was.
        """
        with self._reading() as connection:
            if connection is None or not self._read_end(connection):
                return False
            return max(self.sequence, _forgotten(connection)) < forgotten

    def size_bytes(self) -> int:
        """Returns the size of what the file holds, in bytes; errors as of `has_news`."""
        with self._reading() as connection:
            if connection is None:
                return 0
            pages, free_pages, page_bytes = (
                int(connection.execute(f"pragma {name}").fetchone()[0])
                for name in ("page_count", "freelist_count", "page_size")
            )
            return (pages - free_pages) * page_bytes

    def ended(self, after: int, before_s: float) -> list[State]:
        """Returns the first states that were set before a time and may have no effect any more:
        deletions, candidates that had expired by then, and attributes; errors as of `has_news`.

        Args:
          after: The sequence behind which they are searched.
          before_s: The time, in Unix seconds.
        """
        with self._reading() as connection:
            if connection is None:
                return []
            bounds = {"after": after, "before_s": before_s, "count": _PAGE_STATES}
            return self._states(connection.execute(_ENDED, bounds))

    def back_up(self, target: Path) -> int:
        """Writes a copy of the file as it is now; returns its size, in bytes.

        Args:
          target: The copy, which must not exist.

        Raises:
          ChangesUnavailable: The copy exists or cannot be written, or there are no states.
          BundleError: See `has_news`.
        """
        with self._reading() as connection:
            if connection is None:
                raise ChangesUnavailable(f"{self.path} does not exist; there is nothing to copy")
        try:
            os.close(files.open_private(target, os.O_WRONLY | os.O_EXCL))
        except OSError as problem:
            raise ChangesUnavailable(
                f"{target} cannot be created: {problem.strerror}; the path of a new file was "
                "expected"
            ) from problem
        try:
            connection.execute("vacuum into ?", (str(target),))
        except sqlite3.Error as problem:
            target.unlink()
            raise ChangesUnavailable(f"{target} cannot be written: {problem}") from problem
        files.sync(target)
        return target.stat().st_size

    @contextmanager
    def writing(self, deadline: float) -> Iterator[StateWriter]:
        """Yields what writes states. When this ends without an error, they are on the disk; else
        none of them is in the file.

        Args:
          deadline: The monotonic time until which other processes that write are waited for.

        Raises:
          ChangesLocked: Another process has written until the deadline.
          ChangesUnavailable: The disk is full or broken, or the filesystem has no locks or no
            shared memory.
          BundleError: See `has_news`.
        """
        try:
            connection = self._connection() or self._created()
            wait_ms = min(max(0, int((deadline - time.monotonic()) * 1000)), 2**31 - 1)
            connection.execute(f"pragma busy_timeout = {wait_ms}")
            connection.execute("begin immediate")
        except _PROBLEMS as problem:
            raise self._problem(problem) from problem
        before = self.sequence
        try:
            self._check_place()
            before = self._read_end(connection)
            writer = StateWriter(self, connection, self._has_mark)
            yield writer
            connection.execute("commit")
            self._has_mark = writer.has_mark
        except BaseException as problem:
            self.sequence = before
            # Some errors have rolled back already.
            with suppress(sqlite3.Error):
                connection.execute("rollback")
            if isinstance(problem, _PROBLEMS):
                raise self._problem(problem) from problem
            raise

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """Yields the connection, None: there is no file. What is read in it is of one moment.

        Raises:
          BundleError: See `has_news`.
        """
        try:
            connection = self._connection()
            if connection is None or connection.in_transaction:
                yield connection
                return
            connection.execute("begin")
            try:
                yield connection
            finally:
                connection.execute("end")
        except _PROBLEMS as problem:
            raise self._problem(problem) from problem

    def _connection(self) -> sqlite3.Connection | None:
        """Returns the connection; None: there is no file. Raises the errors of `_reading`."""
        if self._opened is not None:
            self._check_place()
            return self._opened
        try:
            status = self.path.stat()
        except FileNotFoundError:
            if _identity(self._log_path)[1]:
                raise ChangesDamaged(
                    f"{self.path} was removed, and {self._log_path.name} is still there: put the "
                    "file back or restore a backup, without the other files"
                ) from None
            return None
        # A pipe would be waited for without end.
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(
                f"{self.path} is no regular file; the changes of a model were expected"
            )
        if not status.st_size:
            raise ChangesDamaged(f"{self.path} is empty: its content was lost; restore a backup")
        mode = "ro" if self._only_reads or not os.access(self.path, os.W_OK) else "rw"
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?mode={mode}",
            timeout=_READ_LOCK_S,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
        # The volume of temporary files may be small, or there is none to write to.
        connection.execute("pragma temp_store = memory")
        try:
            self._check_content(connection)
            if mode == "rw":
                _begin_wal(connection, self.path)
        except BaseException:
            connection.close()
            raise
        self._opened = connection
        self._inode = status.st_ino
        self._log_inode = 0
        self._log_size = 0
        self._size = status.st_size
        return connection

    def _created(self) -> sqlite3.Connection:
        """Creates the file, unless another process does at this moment; returns the connection."""
        files.make_private_directory(self.path.parent)
        # Aside, so that nobody finds a part of it.
        part = self.path.with_name(f"{self.path.name}.{os.getpid()}-{secrets.token_hex(4)}")
        os.close(files.open_private(part, os.O_RDWR | os.O_EXCL))
        try:
            with closing(sqlite3.connect(part, isolation_level=None)) as connection:
                connection.executescript(_SCHEMA)
                connection.execute("insert into facts values ('model', ?)", (self._model,))
                _begin_wal(connection, part)
            files.sync(part)
            with suppress(FileExistsError):
                os.link(part, self.path)
            files.sync(self.path.parent)
        finally:
            part.unlink()
        connection_or_none = self._connection()
        if connection_or_none is None:
            raise ChangesReplaced(f"{self.path} was removed; restart the service")
        return connection_or_none

    def _check_place(self) -> None:
        """Checks that the file is the one that was opened, and was not cut."""
        with suppress(FileNotFoundError):
            status = self.path.stat()
            log_inode, log_size = _identity(self._log_path)
            if (
                status.st_ino == self._inode
                and status.st_size >= self._size
                and self._log_inode in {0, log_inode}
                and log_size >= self._log_size
            ):
                self._size = status.st_size
                self._log_inode = log_inode
                self._log_size = log_size
                return
        raise ChangesReplaced(
            f"{self.path}, or {self._log_path.name}, was removed, cut or replaced while it was "
            "open; stop the service, restore the file or a backup of it, and start the service "
            "again"
        )

    def _check_content(self, connection: sqlite3.Connection) -> None:
        application_id, form = (
            connection.execute(f"pragma {name}").fetchone()[0]
            for name in ("application_id", "user_version")
        )
        if application_id != _APPLICATION_ID or form != _FORMAT:
            raise FormatError(
                f"{self.path} holds no changes of a model that this release reads (application "
                f"{application_id:#x}, format {form}); format {_FORMAT} was expected"
            )
        # Checksums do not tell which states are missing.
        (problem,) = connection.execute("pragma integrity_check(1)").fetchone()
        if problem != "ok":
            raise ChangesDamaged(f"{self.path} is damaged: {problem}; restore a backup")
        model = _fact(connection, "model")
        if model != self._model:
            raise FormatError(f"{self.path} is of model {model!r}; {self._model!r} was expected")

    def _read_end(self, connection: sqlite3.Connection) -> int:
        """Returns the sequence of the last state; also as `sequence`."""
        found = connection.execute("select seq from sqlite_sequence").fetchone()
        (sequence,) = found or (0,)
        if sequence < self.sequence:
            raise ChangesReplaced(
                f"{self.path} ends at sequence {sequence}, and was read up to {self.sequence}: it "
                "was replaced by an older copy"
            )
        self.sequence = int(sequence)
        return self.sequence

    def _states(self, rows: Iterable[Sequence[Any]]) -> list[State]:
        """Returns the states that are in rows.

        Raises:
          ChangesDamaged: A state differs from its checksum.
        """
        states = []
        for row in rows:
            state = State._make(row[:-1])
            if row[-1] != _checksum(state):
                raise ChangesDamaged(
                    f"{self.path} is damaged: state {state.sequence} differs from its checksum; "
                    "restore a backup"
                )
            states.append(state)
        return states

    def _problem(self, problem: Exception) -> BundleError:
        """Returns the error for one of SQLite or of the system."""
        about = f"{self.path} cannot be read or written: {problem}"
        if isinstance(problem, OSError):
            return ChangesUnavailable(about)
        # Errors that Python itself finds have no code.
        code = getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return ChangesLocked(f"{self.path} is being written by another process; try again")
        if code in {
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_NOLFS,
            sqlite3.SQLITE_NOMEM,
            sqlite3.SQLITE_PERM,
            sqlite3.SQLITE_PROTOCOL,
            sqlite3.SQLITE_READONLY,
        }:
            return ChangesUnavailable(about)
        return ChangesDamaged(f"{self.path} is damaged: {problem}; restore a backup")


class StateWriter:
    """Writes states to a file, all of them or none.

    Attributes:
      has_mark: Whether this process has set a mark.
    """

    def __init__(self, file: ChangesFile, connection: sqlite3.Connection, has_mark: bool) -> None:
        """Takes the file, and its connection, on which a transaction has begun."""
        self.has_mark = has_mark
        self._file = file
        self._connection = connection

    def put(self, states: Iterable[State]) -> int:
        """Writes new states, which get the next sequences in the place of theirs; returns the last
        one.
        """
        if not self.has_mark:
            self.has_mark = True
            self.put([_internal("marks", secrets.token_hex(16), WHOLE, None)])
        return self.copy(
            state._replace(sequence=sequence)
            for sequence, state in enumerate(states, self._file.sequence + 1)
        )

    def put_offset(self, stream: str, trainings: Iterable[int], offset: int) -> int:
        """Writes the offset behind the last change of a stream, by trainings; returns the last
        sequence.
        """
        return self.put(
            _internal("streams", stream, str(training), str(offset)) for training in trainings
        )

    def copy(self, states: Iterable[State], forgotten: int = 0) -> int:
        """Writes states with their sequences, each in the place of what it replaces: a candidate or
        context as a whole replaces its attributes, but for those of a later number. Returns the
        last sequence.

        Args:
          states: The states, ascending.
          forgotten: What the file has forgotten that a copy is begun of: see `ChangesFile.lacks`.
        """
        if forgotten and not self._file.sequence:
            self._note_forgotten(forgotten)
        rows = [(*state, _checksum(state)) for state in states]
        # One statement for each state would take four times as long.
        for begin in range(0, len(rows), _STATEMENT_ROWS):
            part = rows[begin : begin + _STATEMENT_ROWS]
            places = ", ".join([f"({', '.join('?' * len(part[0]))})"] * len(part))
            self._connection.execute(
                f"insert or replace into states values {places}",  # noqa: S608
                [*itertools.chain.from_iterable(part)],
            )
        self._connection.execute(_REPLACED_ATTRIBUTES, (self._file.sequence,))
        if rows:
            self._file.sequence, *_ = rows[-1]
        return self._file.sequence

    def forget(self, items: Iterable[tuple[str, str, Key]]) -> None:
        """Removes all states of some candidates or contexts, by kind, store and id. Copies of the
        file that do not have the last one of them have to begin anew.
        """
        connection = self._connection
        last = _forgotten(connection)
        for item in items:
            removed = connection.execute(
                "delete from states where kind = ? and store = ? and id = ? returning sequence",
                item,
            )
            last = max([last, *(sequence for (sequence,) in removed)])
        self._note_forgotten(last)

    def _note_forgotten(self, sequence: int) -> None:
        self._connection.execute(
            "insert or replace into facts values ('forgotten', ?)", (sequence,)
        )

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Takes back what is written in it if it ends with an error."""
        before = self._file.sequence
        had_mark = self.has_mark
        self._connection.execute("savepoint attempt")
        try:
            yield
        except BaseException:
            self._file.sequence = before
            self.has_mark = had_mark
            self._connection.execute("rollback to attempt")
            raise
        finally:
            with suppress(sqlite3.Error):
                self._connection.execute("release attempt")


def _identity(path: Path) -> tuple[int, int]:
    """Returns the number of a file and its size, in bytes; 0 and 0: there is none."""
    with suppress(FileNotFoundError):
        status = path.stat()
        return status.st_ino, status.st_size
    return 0, 0


def _begin_wal(connection: sqlite3.Connection, path: Path) -> None:
    """Has a file written ahead, and each transaction on the disk when it ends."""
    (mode,) = connection.execute("pragma journal_mode = wal").fetchone()
    if mode != "wal":
        raise ChangesUnavailable(
            f"the filesystem of {path} has no locks or no shared memory, which changes need; "
            "choose a directory on a local disk (changes_dir)"
        )
    connection.execute("pragma synchronous = full")


def _internal(kind: str, name: str, part: str, content: str | None) -> State:
    """Returns a state of a stream or a mark, without its sequence."""
    return State(0, kind, "", name, part, None, 0, False, None, 0.0, content)


def _checksum(state: State) -> int:
    """Returns the checksum of a state, which SQLite does not have; `is_sent` is 0 or 1 there."""
    return zlib.crc32(repr((*state[:7], int(state.is_sent), *state[8:])).encode())


def _mark_at(connection: sqlite3.Connection, sequence: int) -> str:
    """Returns the last mark up to a sequence; "": there is none."""
    found = connection.execute(
        "select id from states where kind = 'marks' and sequence <= ? "
        "order by sequence desc limit 1",
        (sequence,),
    ).fetchone()
    return str(found[0]) if found else ""


def _fact(connection: sqlite3.Connection, name: str) -> object:
    found = connection.execute("select value from facts where name = ?", (name,)).fetchone()
    return found[0] if found else None


def _forgotten(connection: sqlite3.Connection) -> int:
    """Returns the largest sequence of a state that was forgotten; 0: none was."""
    return int(str(_fact(connection, "forgotten") or 0))
