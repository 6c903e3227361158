"""The change log: an append-only file of checksummed records, which the processes of a host share.

    magic    8 bytes
    record   as of `bundle/storage/frames.py`
    ...

Sequences rise. The first record has sequence 0. It says of which model the log is, and its
identity: a random number, which stays when the log is copied or compacted.

One process writes. It holds the lock of the log (`log_lock.py`), and publishes up to where the log
is on the disk: others read no further, and nothing that a loss of power could take back. What a
writer that died has left behind the last record is cut off by the next one. A record that is
damaged in any other way is an error with its position; `recover` leaves out what is damaged and
keeps the rest.

A file with fewer records may take the place of a log (`LogRewrite`): those that are left keep their
sequences, and the last one is left. Processes that read the log read the new file from its
beginning. Copies of the log go on behind their last record: the header of the new file has the
checksums that records of the old one had.
"""

from __future__ import annotations

import bisect
import math
import mmap
import os
import secrets
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from io import FileIO
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from bundle.changes.log_lock import LogEnd, LogLock, Writer, attempts
from bundle.errors import (
    BundleError,
    FormatError,
    LogDamaged,
    LogLocked,
    LogsDiffer,
    LogUnsynced,
    LogUnwritable,
)
from bundle.format.log_position import LogPosition
from bundle.storage import files
from bundle.storage.frames import (
    ALIGNMENT,
    FRAME_BYTES,
    FRAME_FIELDS,
    RECORD_BYTES_MAX,
    Record,
    Unsound,
    filler_bytes,
    laid_out,
    record_at,
    sound_record,
)

MAGIC = b"rowcastL"
_FORMAT = 4
_RECOVERED_GAP = 1_000_000
"""The number by which sequences rise after a recovery: sequences of lost records are never used
again.
"""
_READ_BYTES = 8 << 20
"""The number of bytes that are read at a time."""
_BLOCK_BYTES = 64 << 10
"""The number of bytes that are compared with zeros at a time."""
_UNREAD = LogEnd(-1, 0)
"""An end that is never published."""
_UNKNOWN = LogEnd(0, 0)
"""The end while another file takes the place of the log."""
_CHECKSUMS = np.dtype([("sequence", "<u8"), ("checksum", "<u4")])
CHECKSUMS_MAX = 100_000
"""The number of former records whose checksums a header has, 12 bytes each: a copy that is behind
by more cannot go on.
"""
_MARK_BYTES = 1 << 20
"""The number of bytes between two offsets that a log remembers: about as much is read to find a
record.
"""
_BEGIN = (-1, len(MAGIC))
"""The mark before all records."""


class _Header(NamedTuple):
    """What the first record of a log says.

    Attributes:
      identity: The identity of the log, 32 hexadecimal digits.
      last: The sequence that all further ones exceed.
    """

    identity: str
    last: int


class Recovery(NamedTuple):
    """What `recover` did.

    Attributes:
      records: The number of changes in the log now.
      dropped_bytes: The number of bytes that were left out.
      lost: The sequences of the records that were left out, as ranges of the first and the last;
        sequences behind the last sound record are not known.
      damaged: The path of the damaged file now; None: nothing was damaged.
    """

    records: int
    dropped_bytes: int
    lost: tuple[tuple[int, int], ...]
    damaged: Path | None


class _State(NamedTuple):
    """Shows whether a file was written or replaced.

    Attributes:
      inode: Its inode.
      size: Its size, in bytes.
      modified_ns: The time when it was modified.
    """

    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> _State:
        """Returns the state of a file by its status."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class _Span(NamedTuple):
    """Where a record lies in a file.

    Attributes:
      sequence: Its sequence.
      begin: The offset of its first byte.
      end: The offset behind it.
    """

    sequence: int
    begin: int
    end: int


class ChangeLog:
    """The log of one model, as one process reads and writes it. One thread at a time uses it, but
    for `has_news`, `end`, `after` and the lock.

    Attributes:
      path: The file, which need not exist: then there are no records.
      lock: The lock of the file.
      identity: The identity of the log, 32 hexadecimal digits; "": it has no records yet.
      sequence: The sequence of the last record that was read; 0: none was.
      checksum: The crc32c of the payload of that record; 0: none was read.
      end: How far the file was read.
      file_count: The number of files that were read: there is another one once the file was
        replaced.
    """

    def __init__(self, path: Path, model: str) -> None:
        """Opens a log. Nothing is read or created yet.

        Args:
          path: The file.
          model: The name of the model.
        """
        self.path = path
        self.lock = LogLock(path.with_name(f"{path.name}.lock"))
        self.identity = ""
        self.sequence = 0
        self.checksum = 0
        self.end = LogEnd(0, 0)
        self.file_count = 0
        self._file_inode = 0
        self._closer: weakref.finalize[..., ChangeLog] | None = None
        """Closes the file that was read or written last."""
        self._model = model
        self._header = b""
        self._read_sequence = 0
        self._file_sequence = 0
        """The largest sequence that the file has, as far as it was read."""
        self._marks = [_BEGIN]
        """The sequences of some records, and the offsets behind them."""
        self._unreturned: list[Record] = []
        """Records before one that is damaged: they are returned once it is gone."""
        self._seen: LogEnd | None = _UNREAD
        """The published end when all up to it had been read; None: nothing was published then."""
        self._problem: BundleError | None = None
        """What was wrong with the file up to that end."""

    @property
    def has_news(self) -> bool:
        """Whether there may be records that were not read yet, or cannot be read on."""
        return self._problem is not None or self.lock.published() != self._seen

    @property
    def position(self) -> LogPosition | None:
        """The last record that was read; None: the log has no records yet."""
        if not self.identity:
            return None
        return LogPosition(log=self.identity, sequence=self.sequence, checksum=self.checksum)

    def read(self, bytes_max: int | None = None, deadline: float = math.inf) -> list[Record]:
        """Returns the records that were appended since the last call.

        Args:
          bytes_max: The maximum size of the payloads together; the next call returns the rest. At
            least one record is returned if there is one. None: all of them are.
          deadline: The monotonic time until which a writer that begins is waited for.

        Raises:
          LogDamaged: A record is damaged. Those before it that are new are returned after a
            recovery.
          LogUnwritable: An older copy lies in the place of the log.
          LogLocked: Another process has begun to write, and not published an end by the deadline.
          FormatError: The file is no log, or that of another model.
          OSError: The file cannot be read.
        """
        if not self.has_news:
            return []
        published: LogEnd | None = None
        for _ in attempts(deadline):
            with self.lock.free() as is_free:
                published = self.lock.published()
                if self._problem is not None and published == self._seen:
                    # A large file is not read again and again in vain.
                    raise self._problem.with_traceback(None)
                if is_free or published is None:
                    return self._read_new(published, None, bytes_max)
                if not published.inode:  # the writer has not read it yet
                    continue
                state = _state_of(self.path)
                if state is not None and state.inode == published.inode:
                    return self._read_new(published, published, bytes_max)
        if published is not None and published.inode:
            raise _older_copy(self.path)
        raise LogLocked(
            f"change log {self.path} is being opened by {self.lock.holders()}; try again"
        )

    def batches(self, deadline: float = math.inf) -> Iterator[list[Record]]:
        """Yields the records that were appended since they were read last, about 8 MiB at a time,
        so that a long log is never in memory as a whole; errors as of `read`.
        """
        while True:
            records = self.read(_READ_BYTES, deadline)
            if not records:
                return
            yield records

    def begin_to_write(self, writer: Writer) -> LogWriter | None:
        """Makes this process the writer, until it releases the log; returns what appends records,
        or None: another process is the writer.

        Args:
          writer: How other processes of the host reach this one.

        Raises:
          LogUnwritable: The directory or the lock cannot be written.
        """
        try:
            files.make_private_directory(self.path.parent)
            if self.lock.acquire(writer):
                # What a writer that died has not finished may have gigabytes.
                with suppress(OSError):
                    _rewritten(self.path).unlink()
                return LogWriter(self)
        except OSError as problem:
            raise _unwritable(self.path, problem) from problem
        return None

    @contextmanager
    def writing(self, deadline: float = math.inf) -> Iterator[LogWriter]:
        """Makes this process the writer for a while, and yields what appends records.

        Args:
          deadline: The monotonic time until which another writer is waited for.

        Raises:
          LogLocked: Another process was the writer until the deadline.
          LogUnwritable: See `begin_to_write`.
        """
        for _ in attempts(deadline):
            writer = self.begin_to_write(Writer(os.getpid()))
            if writer is not None:
                with closing(writer):
                    yield writer
                return
        raise LogLocked(f"change log {self.path} is written by {self.lock.holders()}; try again")

    def reread(self, begin: int = len(MAGIC)) -> Iterator[list[Record]]:
        """Yields the records up to the last one that was read once more, about 8 MiB at a time. It
        needs no lock: they are on the disk, and are never changed.

        Args:
          begin: The end of the record before the first one.

        Raises:
          LogDamaged: A record is damaged.
          FormatError: The file is no log.
          OSError: The file cannot be read.
        """
        if not self._read_sequence:
            return
        records: list[Record] = []
        size = 0
        with self.path.open("rb", buffering=0) as file:
            for record in _read_records(self.path, file.fileno(), begin, self.end):
                # In a file that a recovery has put in the place of the log, others may follow.
                if record.sequence > self._read_sequence:
                    break
                # The first one is the header.
                if record.sequence:
                    records.append(record)
                    size += len(record.payload)
                if size >= _READ_BYTES:
                    yield records
                    records = []
                    size = 0
                if record.sequence == self._read_sequence:
                    break
        if records:
            yield records

    def has_record(self, position: LogPosition) -> bool:
        """Returns whether the log has a record, up to `end`, or had it before it was compacted.

        Raises:
          LogDamaged, FormatError: The log cannot be read.
          OSError: Likewise.
        """
        if position.sequence > self.sequence:
            return False
        try:
            file = self.path.open("rb", buffering=0)
        except FileNotFoundError:
            return False
        with file:
            # Another file is in its place, and this process has not read it yet.
            if os.fstat(file.fileno()).st_ino != self.end.inode:
                return False
            return self._has_record(file.fileno(), self.end, self._marks, position)

    def after(self, position: LogPosition | None, bytes_max: int) -> list[Record]:
        """Returns the records behind the last one of a copy of the log, up to `end`. Any thread may
        call it, and it needs no lock.

        Args:
          position: The last record that the copy has; None: it has none, and the first one that is
            returned has sequence 0.
          bytes_max: The maximum size of the payloads together, without the one that has sequence 0;
            at least one further record is returned if there is one.

        Raises:
          LogsDiffer: The log has no such record and had none, so that the copy is of another log.
          LogDamaged, FormatError: The log cannot be read.
          OSError: Likewise.
        """
        end = self.end
        marks = self._marks
        try:
            file = self.path.open("rb", buffering=0)
        except FileNotFoundError:
            if position is not None:
                raise self._unknown_record(position) from None
            return []
        with file:
            descriptor = file.fileno()
            # Another file is in its place, and this process has not read it yet.
            if os.fstat(descriptor).st_ino != end.inode:
                return []
            sequence, begin = _BEGIN
            if position is not None:
                sequence = position.sequence
                if not self._has_record(descriptor, end, marks, position):
                    raise self._unknown_record(position)
                _, begin = _mark_before(marks, sequence)
            further = (
                record
                for record in _read_records(self.path, descriptor, begin, end)
                if record.sequence > sequence
            )
            records = _first_part(further, bytes_max)
        # A log that was only begun.
        if records and not records[-1].sequence:
            return []
        return records

    def _has_record(
        self,
        descriptor: int,
        end: LogEnd,
        marks: Sequence[tuple[int, int]],
        position: LogPosition,
    ) -> bool:
        """Returns whether the log has a record, or had it before it was compacted."""
        if position.log != self.identity:
            return False
        if not position.sequence:
            return True
        _, begin = _mark_before(marks, position.sequence)
        for record in _read_records(self.path, descriptor, begin, end):
            if record.sequence == position.sequence and record.checksum == position.checksum:
                return True
            if record.sequence >= position.sequence:
                break
        # The same sequence with another checksum is a record of another log, or a former one.
        former = np.array((position.sequence, position.checksum), _CHECKSUMS)
        for header in islice(_read_records(self.path, descriptor, len(MAGIC)), 1):
            return bool((_checksums_of(header.payload) == former).any())
        return False

    def _unknown_record(self, position: LogPosition) -> LogsDiffer:
        """Returns the error for a copy whose last record the log does not have."""
        return LogsDiffer(
            f"change log {self.path} has no such record {position.sequence} as the copy: the "
            "copy is of another log, has records that this one has lost, or is too far behind one "
            "that was compacted"
        )

    def _hold(self, descriptor: int, inode: int) -> None:
        """Counts the file that is read or written now, if it is another one than before, and keeps
        it open: no file in its place gets its inode.
        """
        if self._file_inode == inode:
            return
        self.file_count += 1
        self._file_inode = inode
        if self._closer is not None:
            self._closer()
        self._closer = weakref.finalize(self, os.close, os.dup(descriptor))

    def _read_new(
        self, published: LogEnd | None, end: LogEnd | None, bytes_max: int | None = None
    ) -> list[Record]:
        """Returns the records behind the last one that was read.

        Args:
          published: The end that is published.
          end: The end up to which records are read; None: that of the file, which nobody writes.
          bytes_max: See `read`.
        """
        try:
            file = self.path.open("rb", buffering=0)
        except FileNotFoundError:
            self._seen = published
            return []
        records = self._unreturned
        self._unreturned = []
        with file:
            state = _State.of(os.fstat(file.fileno()))
            self._problem = None
            try:
                is_whole = self._read_from(file, state, records, end, bytes_max)
            except BundleError as problem:
                self._unreturned = records
                self._problem = problem
                self._seen = published
                raise
        if is_whole:
            self._seen = published
        return records

    def _read_from(
        self,
        file: FileIO,
        state: _State,
        records: list[Record],
        end: LogEnd | None,
        bytes_max: int | None,
    ) -> bool:
        """Adds the records behind the last one that was read to a list; returns whether these are
        all.
        """
        size = 0
        descriptor = file.fileno()
        self._hold(descriptor, state.inode)
        position = self.end.position
        marks = self._marks
        if state.inode != self.end.inode:  # it is new, or was replaced: read from its beginning
            position = 0
            marks = [_BEGIN]
            self._header = b""
            self._file_sequence = 0
        if state.size < position:
            raise _older_copy(self.path)
        if not position:
            magic = os.pread(descriptor, len(MAGIC), 0)
            _check_magic(self.path, magic)
            if magic != MAGIC:  # its first writer died
                return True
            position = len(MAGIC)
        is_whole = True
        try:
            for record in _read_records(self.path, descriptor, position, end):
                payload_bytes = len(record.payload)
                if bytes_max is not None and records and size + payload_bytes > bytes_max:
                    is_whole = False
                    break
                # The first record is the header, read again after a recovery. It holds the last
                # sequence before that, below which none is used again.
                if not self._header:
                    header = _checked_header(self.path, self._model, record)
                    self.identity = header.identity
                    self._file_sequence = header.last
                    self._header = record.payload
                elif record.sequence > self._read_sequence:
                    records.append(record)
                    size += payload_bytes
                    self._read_sequence = record.sequence
                    self.checksum = record.checksum
                self._file_sequence = max(self._file_sequence, record.sequence)
                _mark(marks, record)
                position = record.end
        finally:
            self.sequence = max(self.sequence, self._file_sequence)
            # `after` takes no lock: to it, a file in the place of the log is there once it is read.
            self._marks = marks
            self.end = LogEnd(state.inode, position)
        # A recovery never gives a log fewer sequences than it had.
        if is_whole and self._file_sequence < self._read_sequence:
            self.end = LogEnd(0, 0)
            raise _older_copy(self.path)
        return is_whole


class LogWriter:
    """Appends records to a log. While it is there, no other process writes the log.

    A record is in the file once it is appended, and part of the log once it is committed.
    """

    def __init__(self, log: ChangeLog) -> None:
        """Appends nothing yet; `log`: the log."""
        self._log = log
        self._descriptor = -1
        """The file, while records are appended that are not committed; else negative."""
        self._is_in_directory = False
        """Whether a loss of power keeps the file in its place: that the directory is on the disk.
        """
        self._header = b""
        """The first record, if it is one of these."""
        self._identity = ""
        """The identity that it gives the log."""
        self._appended: list[Record] = []

    @property
    def end(self) -> int:
        """The offset behind the last record that was appended."""
        if self._appended:
            return self._appended[-1].end
        return self._committed_end

    def close(self) -> None:
        """Lets another process become the writer; cuts off what is not committed."""
        self.roll_back()
        self._log.lock.release()

    def read(self) -> list[Record]:
        """Returns what others have appended before this process became the writer, to be called
        before the first record is appended to a file; errors as of `ChangeLog.read`.
        """
        log = self._log
        if log.end.position and not log.path.exists():
            raise _removed(log.path)
        records = log._read_new(log.lock.published(), None)
        self._publish(log.end)
        return records

    def rewrite(self) -> LogRewrite:
        """Begins a file that `replace` puts in the place of the log.

        Raises:
          LogUnwritable: The file cannot be created.
        """
        try:
            return LogRewrite(self._log.path, self._log.lock)
        except OSError as problem:
            raise _unwritable(self._log.path, problem) from problem

    def begin(self, rewrite: LogRewrite, former: Iterable[tuple[int, int]]) -> None:
        """Writes what a file begins with that takes the place of the log.

        Args:
          rewrite: The file.
          former: The sequences and checksums of the last records that the log has, ascending.

        Raises:
          OSError: The disk is full or broken.
        """
        log = self._log
        checksums = np.concatenate([_checksums_of(log._header), np.array([*former], _CHECKSUMS)])
        former_checksums = np.unique(checksums)[-CHECKSUMS_MAX:]
        rewrite.begin(log._model, log.identity, log.sequence, former_checksums)

    def replace(self, rewrite: LogRewrite) -> None:
        """Puts a file that has the last record of the log in its place; `read` has to follow, and
        `sync_directory`.

        Raises:
          LogUnwritable: The disk is full or broken, or another file lies in the place of the log
            or its lock; the log is as it was.
        """
        try:
            self._check_place()
            rewrite.replace()
        except OSError as problem:
            raise _unwritable(self._log.path, problem) from problem
        self._is_in_directory = False

    def sync_directory(self) -> None:
        """Has a loss of power keep the file that is in the place of the log. Without this, `commit`
        does.

        Raises:
          LogUnsynced: The disk is broken.
        """
        _sync_directory(self._log.path)
        self._is_in_directory = True

    def end_behind(self, payload: bytes) -> int:
        """Returns the offset behind a record that would be appended now."""
        _, records = laid_out([Record(0, payload)], self.end)
        return records[0].end

    def append(self, payload: bytes) -> Record:
        """Appends a record, which `commit` makes part of the log.

        Args:
          payload: The payload, of at least one byte and at most `RECORD_BYTES_MAX`.

        Returns:
          The record, with its sequence and its offset.

        Raises:
          LogUnwritable: The disk is full or broken, or another file lies in the place of the log
            or its lock; the record was not appended.
          ValueError: The payload is empty or too long.
        """
        last = self._log.sequence
        if self._appended:
            last = self._appended[-1].sequence
        (record,) = self.copy([Record(last + 1, payload)])
        return record

    def copy(self, records: Sequence[Record]) -> list[Record]:
        """Appends records of the log that this one is a copy of, as `append` does. They keep their
        sequences.

        Args:
          records: Records behind all that the log has, by rising sequences. A log without records
            takes its identity from the one with sequence 0, or else a new one.

        Returns:
          The records with their offsets in this log, but for the one with sequence 0.

        Raises:
          FormatError: The record with sequence 0 is that of another model, or of another format.
        """
        log = self._log
        first = None
        if records and not records[0].sequence:
            first, *records = records
        if not records:
            return []
        for record in records:
            size = len(record.payload)
            if not 1 <= size <= RECORD_BYTES_MAX:
                raise ValueError(f"a record of {size} bytes; 1 to {RECORD_BYTES_MAX} were expected")
        header = b""
        parts = []
        begin = self.end
        if not log._header and not self._header:
            self._identity = _new_identity()
            checksums = b""
            if first is not None:
                self._identity = _checked_header(log.path, log._model, first).identity
                checksums = _checksums_of(first.payload).tobytes()
            header = _header_of(log._model, self._identity, checksums=checksums)
            header_parts, (placed,) = laid_out([Record(0, header)], len(MAGIC))
            parts = [MAGIC, *header_parts]
            begin = placed.end
        further_parts, copied = laid_out(records, begin)
        # One write for all records.
        content = b"".join(parts + further_parts)
        try:
            self._write(content)
        except OSError as problem:
            raise _unwritable(log.path, problem) from problem
        self._header = self._header or header
        self._appended += copied
        return copied

    def withdraw(self, record: Record) -> None:
        """Cuts off the record that was appended last, and is not committed."""
        self._appended.remove(record)
        if not self._appended:
            self.roll_back()
            return
        os.ftruncate(self._descriptor, self.end)

    def roll_back(self) -> None:
        """Cuts off all records that are not committed."""
        if self._descriptor < 0:
            return
        # What a broken disk does not cut off, the next write does.
        with suppress(OSError):
            os.ftruncate(self._descriptor, self._committed_end)
        self._end_batch()

    def commit(self) -> None:
        """Writes to the disk what was appended: when this returns, it is part of the log.

        Raises:
          LogUnwritable: The disk is broken, and no record was appended.
        """
        if not self._appended:
            return
        log = self._log
        # One sync for all records: it is what a change waits for.
        try:
            os.fdatasync(self._descriptor)
            # A file that the disk may lose would take the record with it.
            if not self._is_in_directory:
                files.sync(log.path.parent)
        except OSError as problem:
            self.roll_back()
            raise _unwritable(log.path, problem) from problem
        self._is_in_directory = True
        last = self._appended[-1]
        if not log._header:
            log._header = self._header
            log.identity = self._identity
        log.end = LogEnd(os.fstat(self._descriptor).st_ino, last.end)
        log.sequence = log._read_sequence = log._file_sequence = last.sequence
        log.checksum = last.checksum
        _mark(log._marks, last)
        self._end_batch()
        self._publish(log.end)

    @property
    def _committed_end(self) -> int:
        """The offset behind the last record that is part of the log; 0: it has none."""
        if not self._log._header:  # its first writer may have left a part
            return 0
        return self._log.end.position

    def _write(self, content: bytes) -> None:
        """Writes behind what was appended; on failure, cuts the file there.

        Raises:
          LogUnwritable: See `append`.
          OSError: The disk is full or broken.
        """
        log = self._log
        if self._descriptor < 0:
            self._check_place()
            self._descriptor = files.open_private(log.path, os.O_RDWR)
            # What a writer that died has left.
            if os.fstat(self._descriptor).st_size > self.end:
                os.ftruncate(self._descriptor, self.end)
        try:
            written_bytes = 0
            while written_bytes < len(content):
                # It may write less than it was given.
                remaining = content[written_bytes:]
                written_bytes += os.pwrite(self._descriptor, remaining, self.end + written_bytes)
            log._hold(self._descriptor, os.fstat(self._descriptor).st_ino)
        except OSError:
            # Half a record must not become part of the next one.
            os.ftruncate(self._descriptor, self.end)
            raise

    def _end_batch(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1
        self._appended = []
        self._header = b""

    def _publish(self, end: LogEnd) -> None:
        self._log.lock.publish(end)
        self._log._seen = end

    def _check_place(self) -> None:
        """Checks that the log and its lock are the files that this process has.

        Raises:
          LogUnwritable: They are not.
          OSError: They cannot be read.
        """
        log = self._log
        if not log.lock.is_in_place:
            raise LogUnwritable(
                f"{log.lock.path} was removed or replaced, so that another process may write the "
                f"change log {log.path}; no change was made: restart the service"
            )
        state = _state_of(log.path)
        if state is None:
            # A new file in its place would begin with sequences that others have read already.
            if log.end.position:
                raise _removed(log.path)
            return
        if log.end.inode and (state.inode != log.end.inode or state.size < log.end.position):
            raise _older_copy(log.path)


class LogRewrite:
    """A file beside a log, which takes its place. It is removed if it does not. The writer of the
    log writes it.
    """

    def __init__(self, log: Path, lock: LogLock) -> None:
        """Creates the file.

        Args:
          log: The log.
          lock: The lock of the log, which this process holds.

        Raises:
          OSError: The file cannot be created.
        """
        self._log = log
        self._lock = lock
        self._path = _rewritten(log)
        self._path.unlink(missing_ok=True)
        self._file = os.fdopen(files.open_private(self._path, os.O_WRONLY), "wb")

    def __enter__(self) -> LogRewrite:
        return self

    def __exit__(self, *_: object) -> None:
        inode = os.fstat(self._file.fileno()).st_ino
        with suppress(OSError):
            self._file.close()
        # The next writer may have begun such a file, too.
        state = _state_of(self._path)
        if state is not None and state.inode == inode:
            self._path.unlink()

    def begin(self, model: str, identity: str, last: int, checksums: NDArray[np.void]) -> None:
        """Writes what the file begins with.

        Args:
          model: The model that the log is of.
          identity: The identity of the log.
          last: The sequence that all further ones exceed.
          checksums: [n], sequences and checksums of records that copies of the log may have.

        Raises:
          OSError: The disk is full or broken.
        """
        self._file.write(MAGIC)
        self.append(Record(0, _header_of(model, identity, last, checksums.tobytes())))

    def append(self, record: Record) -> None:
        """Appends a record, which keeps its sequence; errors as of `begin`."""
        parts, _ = laid_out([record], self._file.tell())
        self._file.writelines(parts)

    def sync(self) -> None:
        """Writes the file to the disk; errors as of `begin`."""
        self._file.flush()
        files.sync(self._path)

    def replace(self) -> None:
        """Puts the file in the place of the log. Until the directory is synced, a loss of power may
        bring back the one before.

        Raises:
          OSError: The disk is full or broken; the log is as it was.
        """
        self.sync()
        status = os.fstat(self._file.fileno())
        end = self._lock.published() or _UNKNOWN
        # Until the new end is published, others wait as for a writer that begins.
        self._lock.publish(_UNKNOWN)
        try:
            self._path.replace(self._log)
            end = LogEnd(status.st_ino, status.st_size)
        finally:
            self._lock.publish(end)


def _mark(marks: list[tuple[int, int]], record: Record) -> None:
    """Remembers the offset behind a record, if the last such offset is far before it."""
    _, last_end = marks[-1]
    if record.end - last_end >= _MARK_BYTES:
        marks.append((record.sequence, record.end))


def _mark_before(marks: Sequence[tuple[int, int]], sequence: int) -> tuple[int, int]:
    """Returns the last mark before a record, whose sequence is 0 at least: the record lies not far
    behind its offset.
    """
    return marks[bisect.bisect_left(marks, (sequence,)) - 1]


def recover(path: Path, model: str, deadline: float = math.inf) -> Recovery:
    """Rewrites a log without what is damaged in it. The damaged file is kept beside it.

    Processes that read the log go on behind what they have read. If the first record is damaged,
    the log has a new identity: no copy goes on, and no bundle contains its changes.

    Args:
      path: The log.
      model: The model that it is of.
      deadline: The monotonic time until which the lock of the log is waited for.

    Raises:
      LogLocked: Another process has held the lock until the deadline; nothing was changed.
      FormatError: It is no log, or that of another model; nothing was changed.
      LogUnsynced: It was recovered, and a loss of power may bring back the damaged file.
      OSError: It cannot be read, or the new file cannot be written; nothing was changed.
    """
    log = ChangeLog(path, model)
    with log.writing(deadline), ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        content: bytes | mmap.mmap = b""
        # A map, since a log may be larger than the memory; there is none of an empty file.
        if os.fstat(file.fileno()).st_size:
            content = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        _check_magic(path, content[: len(MAGIC)])
        spans, dropped_bytes = _sound_spans(content)
        lost = _lost_sequences(spans)
        identity = _new_identity()
        last = 0
        checksums = np.empty(0, _CHECKSUMS)
        if spans and spans[0].sequence == 0:
            old_header = _record_of(content, spans.pop(0))
            identity, last = _checked_header(path, model, old_header)
            checksums = _checksums_of(old_header.payload)
        if not dropped_bytes:
            return Recovery(len(spans), 0, (), None)

        rewrite = stack.enter_context(LogRewrite(path, log.lock))
        if spans:
            last = max(last, spans[-1].sequence)
        rewrite.begin(model, identity, last + _RECOVERED_GAP, checksums)
        for span in spans:
            rewrite.append(_record_of(content, span))
        # Linked rather than renamed, so that the log has a file at every moment.
        damaged = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
        os.link(path, damaged)
        rewrite.replace()
        _sync_directory(path)
        return Recovery(len(spans), dropped_bytes, lost, damaged)


def _sound_spans(content: bytes | mmap.mmap) -> tuple[list[_Span], int]:
    """Returns the sound records of a log with rising sequences, and how many bytes are in none."""
    spans: list[_Span] = []
    position = len(MAGIC)
    dropped_bytes = 0
    while position < len(content):
        record = sound_record(content, position)
        expected = 0
        if spans:
            expected = spans[-1].sequence + 1
        if record is not None and record.sequence >= expected:
            spans.append(_Span(record.sequence, position, record.end))
            position = record.end
            continue
        following = _next_sound(content, position + 1, expected)
        dropped_bytes += following - position
        position = following
    return spans, dropped_bytes


def _lost_sequences(spans: list[_Span]) -> tuple[tuple[int, int], ...]:
    """Returns the sequences that records between the sound ones may have had, as ranges."""
    start = _Span(0, 0, len(MAGIC))
    # What adjacent records lack was left out by a compaction, or skipped by a recovery.
    return tuple(
        (before.sequence + 1, span.sequence - 1)
        for before, span in pairwise([start, *spans])
        if before.end < span.begin and before.sequence + 1 < span.sequence
    )


def _next_sound(content: bytes | mmap.mmap, position: int, sequence: int) -> int:
    """Returns where the next sound record begins; the end if there is none.

    Args:
      content: The bytes of a log.
      position: Where to begin.
      sequence: The smallest sequence that the record may have: compacted and recovered logs lack
        any number of them.
    """
    end = len(content)
    first = position + filler_bytes(position)
    for part in range(first, end - FRAME_BYTES + 1, _READ_BYTES):
        # Only what may be a frame is checksummed, which is one place in many.
        count = (min(_READ_BYTES, end - part) - FRAME_BYTES) // ALIGNMENT + 1
        frames: NDArray[np.void] = np.ndarray(count, FRAME_FIELDS, content, part, ALIGNMENT)
        is_frame = frames["sequence"] >= sequence
        is_frame &= (frames["length"] > 0) & (frames["length"] <= RECORD_BYTES_MAX)
        for number in is_frame.nonzero()[0].tolist():
            begin: int = part + number * ALIGNMENT
            if sound_record(content, begin) is not None:
                return begin
    return end


def _read_records(
    path: Path, descriptor: int, position: int, log_end: LogEnd | None = None
) -> Iterator[Record]:
    """Yields the whole records of a log.

    Ends before a record that was begun and never finished. Whoever writes holds the lock, so that
    its writer has died.

    Args:
      path: The log, for errors.
      descriptor: The descriptor of the open file.
      position: The end of the record before the first one.
      log_end: The end of the records to yield, where the lock is not held, and others may write
        behind it; None: the end of the file. So it is of another file, too, after a recovery.

    Raises:
      LogDamaged: A record is damaged, or has no larger sequence than the one before.
    """
    last = -1
    status = os.fstat(descriptor)
    size = status.st_size
    if log_end is not None and log_end.inode == status.st_ino:
        size = min(size, log_end.position)
    # A part of the file from a multiple of the alignment on.
    content = b""
    base = position - position % ALIGNMENT
    while True:
        try:
            record = record_at(content, position - base, base)
        except Unsound:
            # What a file system that lost power may leave.
            if _is_zero(descriptor, position, size):
                return
            raise LogDamaged(path, position, "a checksum does not match") from None
        if record is None:
            content_end = base + len(content)
            # A record may be longer than what is read at a time: then twice as much is read.
            more_bytes = min(max(_READ_BYTES, len(content)), size - content_end)
            more = os.pread(descriptor, more_bytes, content_end)
            if not more:
                return
            used_bytes = position - position % ALIGNMENT - base
            content = content[used_bytes:] + more
            base += used_bytes
            continue
        if record.sequence <= last:
            raise LogDamaged(path, position, f"its sequence is {record.sequence}, after {last}")
        last = record.sequence
        position = record.end
        yield record


def _first_part(records: Iterable[Record], bytes_max: int) -> list[Record]:
    """Returns the first records, up to a size of their payloads together; at least one beside the
    one with sequence 0, which alone is nothing to go on from and does not count.
    """
    part = []
    size = 0
    for record in records:
        if size and size + len(record.payload) > bytes_max:
            break
        part.append(record)
        if record.sequence:
            size += len(record.payload)
    return part


def _is_zero(descriptor: int, position: int, end: int) -> bool:
    """Returns whether a part of a file holds nothing but zeros."""
    # Up to the first other byte: behind a damaged record, there may be gigabytes.
    while position < end:
        block = os.pread(descriptor, min(_BLOCK_BYTES, end - position), position)
        if block.strip(b"\0"):
            return False
        if not block:
            break
        position += len(block)
    return True


def _record_of(content: bytes | mmap.mmap, span: _Span) -> Record:
    """Returns a record that was found sound."""
    record = record_at(content, span.begin)
    assert record is not None  # noqa: S101 - it is whole
    return record


def _new_identity() -> str:
    return secrets.token_hex(16)


def _header_of(model: str, identity: str, last: int = 0, checksums: bytes = b"") -> bytes:
    """Returns the first record: JSON and, behind a line feed, checksums of former records. Further
    sequences are larger than `last`.
    """
    facts = orjson.dumps({"format": _FORMAT, "model": model, "identity": identity, "last": last})
    return facts + b"\n" + checksums


def _checksums_of(header: bytes) -> NDArray[np.void]:
    """Returns the checksums of former records that a header has, [n]."""
    _, _, checksums = header.partition(b"\n")
    return np.frombuffer(checksums, _CHECKSUMS)


def _check_magic(path: Path, magic: bytes) -> None:
    # A writer that died may have left a part, a file system that lost power zeros.
    if not MAGIC.startswith(magic) and magic.strip(b"\0"):
        raise FormatError(
            f"{path} is no change log: it begins with {magic!r}; {MAGIC!r} was expected"
        )


def _checked_header(path: Path, model: str, record: Record) -> _Header:
    """Returns what the first record says.

    Raises:
      FormatError: The log is of another model, or of another format.
    """
    try:
        header = orjson.loads(record.payload.partition(b"\n")[0])
        written_format = header["format"]
        written_model = header["model"]
        # Earlier formats have none.
        identity = str(header.get("identity", ""))
        last = int(header["last"])
    except (ValueError, KeyError, TypeError) as problem:
        raise FormatError(
            f"{path} is no change log: its first record is {record.payload[:80]!r}"
        ) from problem
    if written_format != _FORMAT:
        raise FormatError(
            f"{path} has format {written_format!r}; {_FORMAT} was expected: another release of "
            "rowcast wrote it"
        )
    if written_model != model:
        raise FormatError(
            f"{path} is the change log of model {written_model!r}; that of {model!r} was expected"
        )
    return _Header(identity, last)


def _sync_directory(path: Path) -> None:
    """Has a loss of power keep the file that is in the place of a log.

    Raises:
      LogUnsynced: The disk is broken.
    """
    try:
        files.sync(path.parent)
    except OSError as problem:
        raise LogUnsynced(
            f"{path.parent} cannot be written to the disk: {problem.strerror or problem}; a loss "
            "of power may bring back the file that was there before"
        ) from problem


def _unwritable(path: Path, problem: OSError) -> LogUnwritable:
    return LogUnwritable(
        f"change log {path} cannot be written: {problem.strerror or problem}; no change was made"
    )


def _removed(path: Path) -> LogUnwritable:
    return LogUnwritable(
        f"change log {path} was removed while it is served; no change was made: put it back, or "
        "restart the service without it"
    )


def _older_copy(path: Path) -> LogUnwritable:
    return LogUnwritable(
        f"change log {path} lacks records that were read from it before: an older copy lies in its "
        "place; put the log back, or restart the service to go on from the copy"
    )


def _state_of(path: Path) -> _State | None:
    """Returns the state of a file; None: there is none."""
    try:
        return _State.of(path.stat())
    except FileNotFoundError:
        return None


def _rewritten(path: Path) -> Path:
    """Returns where a file is written that is to take the place of a log."""
    return path.with_name(f"{path.name}.new")
