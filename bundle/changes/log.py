"""The change log: an append-only file of checksummed records, which the processes of a host share.

    magic    8 bytes
    record   length (uint32), sequence (uint64), crc32c of the payload (uint32), crc32c of these 16
             bytes (uint32), payload of `length` bytes; little-endian
    ...

Sequences rise. The first record has sequence 0 and says of which model the log is.

One process writes at a time, under a lock that the kernel releases if the process dies. It holds
the lock until what it wrote is on the disk, and readers take the lock, too: nothing is read that a
loss of power could take back. What a writer that died has left behind the last record is cut off by
the next one. A record that is damaged in any other way is an error with its position; `recover`
leaves out what is damaged and keeps the rest.
"""

from __future__ import annotations

import bisect
import fcntl
import os
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import orjson

from bundle.errors import FormatError, LogDamaged, LogsDiffer, LogUnwritable
from bundle.format.checksums import crc32c
from bundle.storage import files

MAGIC = b"rowcastL"
RECORD_BYTES_MAX = 64 << 20
_FORMAT = 2
_FRAME = struct.Struct("<IQI")
_FRAME_CHECKSUM = struct.Struct("<I")
_CHECKED_FRAME = struct.Struct("<IQII")
"""A frame with its checksum."""
_SEQUENCE = struct.Struct("<Q")
_SEQUENCE_OFFSET = 4
"""The position of the sequence in a frame."""
_RECOVERED_GAP = 1_000_000
"""The number by which sequences rise after a recovery: sequences of lost records are never used
again.
"""
_READ_BYTES = 8 << 20
"""The number of bytes that are read at a time."""
_MARK_BYTES = 1 << 20
"""The number of bytes between two offsets that a tail remembers: about as much is read to find a
record.
"""


class Record(NamedTuple):
    """One record.

    Attributes:
      sequence: The sequence number, which rises from record to record.
      payload: The content.
    """

    sequence: int
    payload: bytes


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


class _Frame(NamedTuple):
    """A record as it lies in some bytes.

    Attributes:
      record: The record.
      checksum: The crc32c of its payload, as it is stored.
      is_sound: Whether its checksums match.
      end: The offset behind it.
    """

    record: Record
    checksum: int
    is_sound: bool
    end: int


class ChangeLog:
    """The log of one model, as one process reads and writes it. Safe for any number of threads.

    Attributes:
      path: The file, which need not exist: then there are no records.
      sequence: The sequence of the last record that was read; 0: none was.
      checksum: The crc32c of the payload of that record; 0: none was read.
    """

    def __init__(self, path: Path, model: str) -> None:
        """Opens a log. Nothing is read or created yet.

        Args:
          path: The file.
          model: The name of the model.
        """
        self.path = path
        self.sequence = 0
        self.checksum = 0
        self._model = model
        self._position = 0
        self._header = b""
        self._inode = 0
        self._read_sequence = 0
        self._unreturned: list[Record] = []
        """Records before one that is damaged: they are returned once it is gone."""
        self._lock = threading.RLock()

    @property
    def has_news(self) -> bool:
        """Whether the file has bytes that were not read yet; costs one system call."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return False
        return status.st_size > self._position or status.st_ino != self._inode

    def read(self, bytes_max: int | None = None) -> list[Record]:
        """Returns the records that were appended since the last call.

        Args:
          bytes_max: The maximum size of the payloads together; the next call returns the rest. At
            least one record is returned if there is one. None: all of them are.

        Raises:
          LogDamaged: A record is damaged. Those before it that are new are returned after a
            recovery.
          FormatError: The file is no log, or that of another model.
          OSError: The file cannot be read.
        """
        with self._lock:
            # Without the lock of the file: services call this often, and mostly in vain.
            if not self.has_news:
                return []
            descriptor = _lock_to_read(self.path)
            try:
                return self._read_new(bytes_max)
            finally:
                if descriptor is not None:
                    os.close(descriptor)

    def batches(self) -> Iterator[list[Record]]:
        """Yields the records that were appended since they were read last, about 8 MiB at a time,
        so that a long log is never in memory as a whole; errors as of `read`.
        """
        while True:
            records = self.read(_READ_BYTES)
            if not records:
                return
            yield records

    @contextmanager
    def writing(self) -> Iterator[LogWriter]:
        """Waits until no other process writes, and yields what appends records.

        Raises:
          LogUnwritable: The directory or the lock cannot be written.
        """
        with self._lock:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = _lock(self.path, fcntl.LOCK_EX)
            except OSError as problem:
                raise _unwritable(self.path, problem) from problem
            try:
                yield LogWriter(self)
            finally:
                os.close(descriptor)

    def _read_new(self, bytes_max: int | None = None) -> list[Record]:
        """Returns the records behind the last one that was read. To be called under the lock."""
        try:
            file = self.path.open("rb", buffering=0)
        except FileNotFoundError:
            return []
        records = self._unreturned
        self._unreturned = []
        try:
            self._read_from(file, records, bytes_max)
        except LogDamaged:
            self._unreturned = records
            raise
        return records

    def _read_from(self, file: FileIO, records: list[Record], bytes_max: int | None) -> None:
        """Adds the records behind the last one that was read to a list."""
        size = 0
        with file:
            descriptor = file.fileno()
            inode = os.fstat(descriptor).st_ino
            if inode != self._inode:  # it is new, or was recovered: read from its beginning
                self._inode = inode
                self._position = 0
                self._header = b""
            if not self._position:
                magic = os.pread(descriptor, len(MAGIC), 0)
                _check_magic(self.path, magic)
                if magic != MAGIC:  # its first writer died
                    return
                self._position = len(MAGIC)
            for frame, end in _frames(self.path, descriptor, self._position):
                record = frame.record
                if bytes_max is not None and records and size + len(record.payload) > bytes_max:
                    break
                # The first record is the header, read again after a recovery. It holds the last
                # sequence before that, below which none is used again.
                if not self._header:
                    last = _checked_header(self.path, self._model, record)
                    self.sequence = max(self.sequence, last)
                    self._header = record.payload
                elif record.sequence > self._read_sequence:
                    records.append(record)
                    size += len(record.payload)
                    self._read_sequence = record.sequence
                    self.checksum = frame.checksum
                    self.sequence = max(self.sequence, record.sequence)
                self._position = end


class LogWriter:
    """Appends records to a log, within the `with` statement of `ChangeLog.writing`."""

    def __init__(self, log: ChangeLog) -> None:
        self._log = log

    def read(self) -> list[Record]:
        """Returns what others have appended since the log was read; see `ChangeLog.read`.

        Raises:
          LogUnwritable: The log was removed since it was read.
        """
        log = self._log
        # A new file in its place would begin with sequences that others have read already.
        if log._position and not log.path.exists():
            raise LogUnwritable(
                f"change log {log.path} was removed while it is served; no change was made: put it "
                "back, or restart the service without it"
            )
        if not log.has_news:
            return []
        return log._read_new()

    def append(self, payloads: Sequence[bytes]) -> list[int]:
        """Appends records; when this returns, they are on the disk.

        What others have appended must have been read before.

        Args:
          payloads: The payloads, of at least one byte and at most `RECORD_BYTES_MAX` each.

        Returns:
          The sequence of each record.

        Raises:
          LogUnwritable: The disk is full or broken, and no record was appended.
          ValueError: A payload is empty or too long.
        """
        first = self._log.sequence + 1
        records = [Record(first + number, payload) for number, payload in enumerate(payloads)]
        self.copy(records)
        return [record.sequence for record in records]

    def copy(self, records: Sequence[Record]) -> None:
        """Appends records of another log, which keep their sequences.

        Args:
          records: Records behind all that the log has, by rising sequences; payloads as for
            `append`.

        Raises:
          LogUnwritable, ValueError: See `append`.
        """
        log = self._log
        for _, payload in records:
            if not 1 <= len(payload) <= RECORD_BYTES_MAX:
                raise ValueError(
                    f"a record of {len(payload)} bytes; 1 to {RECORD_BYTES_MAX} were expected"
                )
        content = b""
        header = log._header
        begin = log._position
        if not header:
            header = _header_of(log._model)
            begin = 0
            content = MAGIC + _framed(Record(0, header))
        content += b"".join(map(_framed, records))
        # One write and one sync for all records: the sync is what a change waits for.
        try:
            log._inode = _write_at(log.path, content, begin)
        except OSError as problem:
            raise _unwritable(log.path, problem) from problem
        log._header = header
        log._position = begin + len(content)
        if records:
            log.sequence = log._read_sequence = records[-1].sequence
            log.checksum = crc32c(records[-1].payload)


class LogTail:
    """Reads a log from any sequence on, for services that keep a copy of it. Safe for any number of
    threads.
    """

    def __init__(self, path: Path) -> None:
        """Reads nothing yet; `path`: the file, which need not exist."""
        self._path = path
        self._inode = 0
        self._mark_sequences: list[int] = []
        self._mark_ends: list[int] = []
        """The offsets behind some records, by their sequences."""
        self._lock = threading.Lock()

    def after(self, sequence: int, checksum: int, bytes_max: int) -> list[Record]:
        """Returns the records behind the last one of a copy.

        Args:
          sequence: The sequence of the last record that the copy has; 0: it has none.
          checksum: The crc32c of the payload of that record.
          bytes_max: The maximum size of the payloads together; at least one record is returned if
            there is one.

        Raises:
          LogsDiffer: The log has no such record, so that the copy is of another log.
          LogDamaged, FormatError: The log cannot be read.
          OSError: Likewise.
        """
        with self._lock:
            descriptor = None
            if self._path.exists():
                descriptor = _lock_to_read(self._path)
            try:
                return self._after(sequence, checksum, bytes_max)
            except FileNotFoundError:
                if sequence:
                    raise _unknown_record(self._path, sequence) from None
                return []
            finally:
                if descriptor is not None:
                    os.close(descriptor)

    def _after(self, sequence: int, checksum: int, bytes_max: int) -> list[Record]:
        """Does what `after` describes, under the lock of the log."""
        records: list[Record] = []
        size = 0
        is_known = not sequence
        with self._path.open("rb", buffering=0) as file:
            descriptor = file.fileno()
            magic = os.pread(descriptor, len(MAGIC), 0)
            _check_magic(self._path, magic)
            begin = self._begin(sequence, os.fstat(descriptor).st_ino)
            if magic == MAGIC:
                for frame, end in _frames(self._path, descriptor, begin):
                    record = frame.record
                    self._mark(record.sequence, end)
                    # The same sequence with another checksum is a record of another log.
                    if record.sequence == sequence:
                        is_known = not sequence or frame.checksum == checksum
                    if record.sequence <= sequence:
                        continue
                    if not is_known or (records and size + len(record.payload) > bytes_max):
                        break
                    records.append(record)
                    size += len(record.payload)
        if not is_known:
            raise _unknown_record(self._path, sequence)
        return records

    def _begin(self, sequence: int, inode: int) -> int:
        """Returns an offset at which a record begins that is not behind one with a sequence."""
        # A recovery replaces the file, and with it all offsets.
        if inode != self._inode:
            self._inode = inode
            self._mark_sequences = []
            self._mark_ends = []
        number = bisect.bisect_left(self._mark_sequences, sequence)
        if not number:
            return len(MAGIC)
        return self._mark_ends[number - 1]

    def _mark(self, sequence: int, end: int) -> None:
        """Remembers the offset behind a record, if the last such offset is far before it."""
        last_end = 0
        if self._mark_ends:
            last_end = self._mark_ends[-1]
        if end - last_end >= _MARK_BYTES:
            self._mark_sequences.append(sequence)
            self._mark_ends.append(end)


def framed(records: Sequence[Record]) -> bytes:
    """Returns records as a log holds them."""
    return b"".join(map(_framed, records))


def read_framed(content: bytes) -> list[Record]:
    """Returns the records that `framed` wrote.

    Raises:
      FormatError: The bytes are cut short, or a checksum does not match.
    """
    records = []
    offset = 0
    while offset < len(content):
        frame = _frame_at(content, offset)
        if frame is None or not frame.is_sound:
            raise FormatError(f"{len(content)} bytes of a change log are damaged at {offset}")
        records.append(frame.record)
        offset = frame.end
    return records


def _unknown_record(path: Path, sequence: int) -> LogsDiffer:
    """Returns the error for a copy whose last record the log does not have."""
    return LogsDiffer(
        f"change log {path} has no such record {sequence} as the copy: the copy is of another log, "
        "or has records that this one has lost"
    )


def recover(path: Path, model: str) -> Recovery:
    """Rewrites a log without what is damaged in it. The damaged file is kept beside it.

    Processes that read the log go on behind what they have read.

    Args:
      path: The log.
      model: The model that it is of.

    Raises:
      FormatError: It is no log, or that of another model; nothing was changed.
      OSError: It cannot be read, or the new file cannot be written; nothing was changed.
    """
    with _locked(path, fcntl.LOCK_EX):
        content = path.read_bytes()
        _check_magic(path, content[: len(MAGIC)])
        records, dropped_bytes = _sound_records(content)
        last = 0
        if records and records[0].sequence == 0:
            last = _checked_header(path, model, records.pop(0))
        if not dropped_bytes:
            return Recovery(len(records), 0, (), None)

        lost = []
        sequence = 0
        for record in records:
            if record.sequence > sequence + 1:
                lost.append((sequence + 1, record.sequence - 1))
            sequence = record.sequence
        header = _header_of(model, max(sequence, last) + _RECOVERED_GAP)
        recovered = path.with_name(f"{path.name}.recovered")
        with recovered.open("wb") as file:
            file.write(MAGIC + _framed(Record(0, header)))
            file.writelines(map(_framed, records))
        files.sync(recovered)
        # Linked rather than renamed, so that the log has a file at every moment.
        damaged = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
        os.link(path, damaged)
        recovered.replace(path)
        files.sync(path.parent)
        return Recovery(len(records), dropped_bytes, tuple(lost), damaged)


def _sound_records(content: bytes) -> tuple[list[Record], int]:
    """Returns the sound records of a log with rising sequences, and how many bytes are in none."""
    records: list[Record] = []
    position = len(MAGIC)
    dropped_bytes = 0
    while position < len(content):
        frame = _frame_at(content, position)
        expected = 0
        if records:
            expected = records[-1].sequence + 1
        if frame is not None and frame.is_sound and frame.record.sequence >= expected:
            records.append(frame.record)
            position = frame.end
            continue
        following = _next_sound(content, position + 1, expected)
        dropped_bytes += following - position
        position = following
    return records, dropped_bytes


def _next_sound(content: bytes, position: int, sequence: int) -> int:
    """Returns where the next sound record begins, by its sequence; the end if there is none.

    Args:
      content: The bytes of a log.
      position: Where to begin.
      sequence: The sequence of the record that was expected there; one of the next thousand follows
        it.
    """
    # To search for the bytes of a sequence is faster than to checksum a frame at every offset.
    nearest = len(content)
    for candidate in range(sequence, sequence + 1000):
        pattern = _SEQUENCE.pack(candidate)
        offset = content.find(pattern, position + _SEQUENCE_OFFSET, nearest)
        while offset >= 0:
            begin = offset - _SEQUENCE_OFFSET
            frame = _frame_at(content, begin)
            if frame is not None and frame.is_sound:
                nearest = begin
                break
            offset = content.find(pattern, offset + 1, nearest)
    return nearest


def _frames(path: Path, descriptor: int, position: int) -> Iterator[tuple[_Frame, int]]:
    """Yields the whole records of a log, each with its end in the file.

    Ends before a record that was begun and never finished. Whoever writes holds the lock, so that
    its writer has died.

    Args:
      path: The log, for errors.
      descriptor: The descriptor of the open file.
      position: The position of the first record.

    Raises:
      LogDamaged: A record is damaged, or has no larger sequence than the one before.
    """
    last = -1
    size = os.fstat(descriptor).st_size
    content = b""
    offset = 0
    while True:
        frame = _frame_at(content, offset)
        end_of_content = position - offset + len(content)
        # A record may be longer than what is read at a time: then twice as much is read.
        if frame is None and end_of_content < size:
            more = os.pread(descriptor, max(_READ_BYTES, len(content)), end_of_content)
            content = content[offset:] + more
            offset = 0
            continue
        if frame is None:
            return
        if not frame.is_sound:
            tail = os.pread(descriptor, size - position, position)
            if not tail.strip(b"\0"):  # what a file system that lost power may leave
                return
            raise LogDamaged(path, position, "a checksum does not match")
        if frame.record.sequence <= last:
            raise LogDamaged(
                path, position, f"its sequence is {frame.record.sequence}, after {last}"
            )
        last = frame.record.sequence
        position += frame.end - offset
        offset = frame.end
        yield frame, position


def _frame_at(content: bytes, offset: int) -> _Frame | None:
    """Returns the record that begins at an offset; None: the content ends within it."""
    begin = offset + _CHECKED_FRAME.size
    if begin > len(content):
        return None
    # The frame has a checksum of its own, since a damaged length would lead anywhere.
    length, sequence, checksum, frame_checksum = _CHECKED_FRAME.unpack_from(content, offset)
    if crc32c(content[offset : offset + _FRAME.size]) != frame_checksum:
        return _Frame(Record(sequence, b""), checksum, False, begin)
    end = begin + length
    if end > len(content):
        return None
    payload = content[begin:end]
    return _Frame(Record(sequence, payload), checksum, crc32c(payload) == checksum, end)


def _framed(record: Record) -> bytes:
    sequence, payload = record
    frame = _FRAME.pack(len(payload), sequence, crc32c(payload))
    return frame + _FRAME_CHECKSUM.pack(crc32c(frame)) + payload


def _header_of(model: str, last: int = 0) -> bytes:
    """Returns the first record; further sequences are larger than `last`."""
    return orjson.dumps({"format": _FORMAT, "model": model, "last": last})


def _check_magic(path: Path, magic: bytes) -> None:
    # A writer that died may have left a part, a file system that lost power zeros.
    if not MAGIC.startswith(magic) and magic.strip(b"\0"):
        raise FormatError(
            f"{path} is no change log: it begins with {magic!r}; {MAGIC!r} was expected"
        )


def _checked_header(path: Path, model: str, record: Record) -> int:
    """Returns the sequence that all further ones exceed.

    Raises:
      FormatError: The log is of another model, or of another format.
    """
    try:
        header = orjson.loads(record.payload)
        written_format = header["format"]
        written_model = header["model"]
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
    return last


def _write_at(path: Path, content: bytes, position: int) -> int:
    """Writes to the disk what a file ends with, from a position on; on failure, cuts it there.

    Returns:
      The inode of the file.

    Raises:
      OSError: The disk is full or broken.
    """
    existed = path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(descriptor).st_size > position:  # what a writer that died has left
            os.ftruncate(descriptor, position)
        written_bytes = 0
        while written_bytes < len(content):
            # It may write less than it was given.
            remaining = content[written_bytes:]
            written_bytes += os.pwrite(descriptor, remaining, position + written_bytes)
        os.fdatasync(descriptor)
        if not existed:
            files.sync(path.parent)
        return os.fstat(descriptor).st_ino
    except OSError:
        # Half a record must not become part of the next one.
        os.ftruncate(descriptor, position)
        raise
    finally:
        os.close(descriptor)


def _unwritable(path: Path, problem: OSError) -> LogUnwritable:
    return LogUnwritable(
        f"change log {path} cannot be written: {problem.strerror or problem}; no change was made"
    )


def _lock(path: Path, kind: int) -> int:
    """Waits for the lock of a log; returns a descriptor that holds it until it is closed."""
    descriptor = os.open(
        path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
    )
    try:
        fcntl.flock(descriptor, kind)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _lock_to_read(path: Path) -> int | None:
    """Waits until nobody writes a log; returns a descriptor that holds the lock until it is closed.
    None: there is no lock, and none can be made, as on a file system that is only read.
    """
    lock = path.with_name(f"{path.name}.lock")
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # it was copied without its lock
        try:
            return _lock(path, fcntl.LOCK_SH)
        except OSError:
            return None
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


@contextmanager
def _locked(path: Path, kind: int) -> Iterator[None]:
    descriptor = _lock(path, kind)
    try:
        yield
    finally:
        os.close(descriptor)
