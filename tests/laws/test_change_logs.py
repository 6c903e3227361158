"""A change log has what was acknowledged, whatever happens to its file or its writers."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundle.changes import log as change_log
from bundle.changes.log import ChangeLog, recover
from bundle.changes.records import Change, Head, decode, decode_runs, encode
from bundle.errors import FormatError, LogDamaged, LogsDiffer, LogUnwritable
from bundle.format.log_position import LogPosition
from bundle.storage.frames import Record
from tests.units.bundle.changes import writers
from tests.units.bundle.changes.writers import append

PAYLOADS = [b"first", b"second" * 7, b"\0" * 40]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log with some records."""
    log = ChangeLog(tmp_path / "changes.log", "movies")
    for payload in PAYLOADS:
        append(log, payload)
    return tmp_path / "changes.log"


def position_of(log: ChangeLog, record: Record) -> LogPosition:
    return LogPosition(log=log.identity, sequence=record.sequence, checksum=record.checksum)


def payloads_of(path: Path) -> list[bytes]:
    return [record.payload for record in ChangeLog(path, "movies").read()]


@given(
    groups=st.lists(st.lists(st.binary(min_size=1, max_size=100), max_size=3), max_size=6),
    part=st.sampled_from([50, 1 << 20]),
)
def test_readers_and_writers_in_any_order_see_every_record_once(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[bytes]], part: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "movies" / "changes.log"
    writers = [ChangeLog(path, "movies") for _ in range(2)]
    reader = ChangeLog(path, "movies")
    copy = ChangeLog(path.with_name("copy"), "movies")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(change_log, "_READ_BYTES", part)
        patch.setattr(change_log, "_MARK_BYTES", part)
        seen = []
        for number, group in enumerate(groups):
            append(writers[number % 2], *group)
            seen += reader.read()
        parts = [*ChangeLog(path, "movies").batches()]
        for source in (*writers, reader):
            source.read()
            with copy.writing() as writer:
                writer.read()
                while records := source.after(copy.position, part):
                    writer.copy(records)
                    writer.commit()
    expected = [payload for group in groups for payload in group]
    assert [record.payload for record in seen] == expected
    assert [record.sequence for record in seen] == list(range(1, len(expected) + 1))
    assert reader.read() == []
    assert [record for records in parts for record in records] == seen
    assert payloads_of(copy.path) == expected


def test_a_record_torn_at_any_byte_is_cut_off_by_the_next_writer(path: Path) -> None:
    whole = path.read_bytes()
    zeros = whole + b"\0" * 5000
    for content in (*(whole[:size] for size in range(len(whole) + 1)), zeros):
        path.write_bytes(content)
        before = payloads_of(path)
        assert before == PAYLOADS[: len(before)]
        append(ChangeLog(path, "movies"), b"next")
        assert payloads_of(path) == [*before, b"next"]


def test_any_flipped_bit_is_rejected_and_recovery_keeps_the_other_records(path: Path) -> None:
    whole = path.read_bytes()
    for position in range(len(change_log.MAGIC), len(whole), 3):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        running = ChangeLog(path, "movies")
        for _ in range(2):
            with pytest.raises(LogDamaged, match=r"byte [0-9]+ of change log"):
                running.read()
        recovery = recover(path, "movies")
        assert recovery.damaged is not None
        assert recovery.damaged.read_bytes() == damaged
        recovery.damaged.unlink()
        records = running.read()
        payloads = [record.payload for record in records]
        assert payloads_of(path) == payloads
        assert len(payloads) == recovery.records >= len(PAYLOADS) - 1
        assert [payload for payload in PAYLOADS if payload in payloads] == payloads
        (sequence,) = append(ChangeLog(path, "movies"), b"next")
        assert sequence > len(PAYLOADS), "sequences of dropped records are not used again"
        assert [record.payload for record in running.read()] == [b"next"]


@pytest.mark.parametrize("part", [64, 192, 8 << 20])
def test_recovery_keeps_records_behind_missing_sequences(
    path: Path, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As compactions and recoveries leave them."""
    log = ChangeLog(path, "movies")
    log.read()
    damaged_at = path.stat().st_size + 30
    with log.writing() as writer:
        writer.append(b"damaged" * 40)
        writer.copy([Record(5_000_001, b"after"), Record(2**62 + 1, b"last")])
        writer.commit()
    whole = path.read_bytes()
    monkeypatch.setattr(change_log, "_READ_BYTES", part)
    for positions in ([damaged_at], [damaged_at, len(change_log.MAGIC) + 50]):
        damaged = bytearray(whole)
        for position in positions:
            damaged[position] ^= 1
        path.write_bytes(damaged)
        recovery = recover(path, "movies")
        assert payloads_of(path) == [*PAYLOADS, b"after", b"last"]
        # Nothing was between the last two: a compaction may have left out what they lack.
        assert recovery.lost == ((4, 5_000_000),)


def test_copies_go_on_behind_records_that_were_left_out_and_others_are_rejected(path: Path) -> None:
    log = ChangeLog(path, "movies")
    all_records = log.read()
    reader = ChangeLog(path, "movies")
    reader.read()
    # The second file remembers what the first one has left out.
    for records in (all_records, all_records[-1:]):
        with log.writing() as writer:
            writer.read()
            with writer.rewrite() as rewrite:
                writer.begin(rewrite, [(record.sequence, record.checksum) for record in records])
                rewrite.append(records[-1])
                writer.replace(rewrite)
            assert writer.read() == []
        for record in all_records[:-1]:
            position = position_of(log, record)
            (rest,) = log.after(position, 1 << 20)
            assert (rest.sequence, rest.payload) == (len(PAYLOADS), PAYLOADS[-1])
            for difference in ({"checksum": record.checksum ^ 1}, {"log": 32 * "0"}):
                with pytest.raises(LogsDiffer):
                    log.after(position.model_copy(update=difference), 1 << 20)
    assert append(log, b"next") == [len(PAYLOADS) + 1]
    assert [record.payload for record in reader.read()] == [b"next"]
    assert payloads_of(path) == [PAYLOADS[-1], b"next"]
    assert not path.with_name("changes.log.new").exists()


def test_copies_go_on_while_a_file_in_the_place_of_the_log_is_read(path: Path) -> None:
    log = ChangeLog(path, "movies")
    log.read()
    with log.writing() as writer:
        records = [Record(len(PAYLOADS) + 1 + number, bytes(100)) for number in range(20_000)]
        copied = writer.copy(records)
        writer.commit()
        reader = ChangeLog(path, "movies")
        reader.read()
        with writer.rewrite() as rewrite:
            writer.begin(rewrite, [])
            for record in copied:
                rewrite.append(record)
            writer.replace(rewrite)
        writer.read()
    position = position_of(log, copied[-1])
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(reader.read)
        while not reading.done():
            assert reader.after(position, 1 << 20) == []
            time.sleep(0.001)
    assert reading.result() == []
    assert reader.after(position, 1 << 20) == []


def test_a_log_keeps_its_identity_until_its_first_record_is_damaged(
    path: Path, tmp_path: Path
) -> None:
    log = ChangeLog(path, "movies")
    records = log.read()
    positions = [position_of(log, record) for record in records]
    with log.writing() as writer:
        writer.read()
        with writer.rewrite() as rewrite:
            writer.begin(rewrite, [(record.sequence, record.checksum) for record in records])
            rewrite.append(records[-1])
            writer.replace(rewrite)
        writer.read()
    append(log, b"damaged" * 40, b"last")
    assert log.position is not None
    positions.append(log.position)
    assert all(map(log.has_record, positions))

    copy = ChangeLog(tmp_path / "copy" / "changes.log", "movies")
    with copy.writing() as writer:
        writer.copy(log.after(None, 1 << 20))
        writer.commit()
    assert copy.position == log.position
    assert log.after(copy.position, 1 << 20) == []
    # Though it never had those that were compacted before.
    assert all(map(copy.has_record, positions))

    begin = path.read_bytes().index(b"damaged")
    for position in (begin, len(change_log.MAGIC) + 60):
        damaged = bytearray(path.read_bytes())
        damaged[position] ^= 1
        path.write_bytes(damaged)
        recover(path, "movies")
        log.read()
        # Of one whose first record is lost, nobody knows which log it is.
        is_known = position == begin
        assert [log.has_record(position) for position in positions] == len(positions) * [is_known]
    fresh = ChangeLog(tmp_path / "fresh" / "changes.log", "movies")
    append(fresh, *PAYLOADS)
    assert not any(map(fresh.has_record, positions))


def test_a_log_restored_from_an_older_copy_lacks_the_records_that_it_has_lost(path: Path) -> None:
    older = path.read_bytes()
    log = ChangeLog(path, "movies")
    append(log, b"lost", b"lost, too")
    lost = log.position
    assert lost is not None
    path.write_bytes(older)
    restored = ChangeLog(path, "movies")
    restored.read()
    for payload in (b"new", b"another", b"last"):
        assert not restored.has_record(lost)
        with pytest.raises(LogsDiffer):
            restored.after(lost, 1 << 20)
        append(restored, payload)
    assert restored.identity == log.identity


@pytest.mark.parametrize("change", ["overwritten", "replaced", "removed"])
def test_a_log_that_is_changed_beside_its_writer_is_not_written(path: Path, change: str) -> None:
    log = ChangeLog(path, "movies")
    log.read()
    whole = path.read_bytes()
    if change != "overwritten":
        path.rename(path.with_name("moved"))
    if change != "removed":
        path.write_bytes(whole[: len(whole) // 2])
    for _ in range(2):
        with pytest.raises(LogUnwritable, match=r"was removed|older copy"):
            append(log, b"next")
    if change == "removed":
        assert not path.exists()
        path.with_name("moved").rename(path)
    else:
        assert path.read_bytes() == whole[: len(whole) // 2]
        path.write_bytes(whole)
    assert append(log, b"next") == [len(PAYLOADS) + 1]


@pytest.mark.parametrize(
    ("content", "model", "words"),
    [(b"something else", "movies", "no change log"), (None, "books", "'movies'.*'books'")],
)
def test_a_file_that_is_no_log_of_the_model_is_rejected(
    path: Path, content: bytes | None, model: str, words: str
) -> None:
    if content is not None:
        path.write_bytes(content)
    for opened in (ChangeLog(path, model).read, lambda: recover(path, model)):
        with pytest.raises(FormatError, match=words):
            opened()


def test_what_cannot_be_written_leaves_the_log_as_it_was(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(ValueError, match="0 bytes"):
        append(ChangeLog(path, "movies"), b"")
    assert "no change was made" in _in_child(writers.append_with_little_room, path)
    assert path.read_bytes() == before
    with pytest.raises(LogUnwritable, match="Not a directory"):
        append(ChangeLog(path / "movies" / "changes.log", "movies"), b"first")


def test_a_lock_that_a_full_disk_does_not_take_is_free_once_there_is_room(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ChangeLog(path, "movies")

    def fail(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", fail)
        with pytest.raises(LogUnwritable, match="No space left on device; no change was made"):
            append(log, b"next")
    assert payloads_of(path) == PAYLOADS
    with log.writing(deadline=0.0) as writer:
        writer.read()
        writer.append(b"next")
        writer.commit()
    assert payloads_of(path) == [*PAYLOADS, b"next"]


def test_a_log_is_read_where_its_lock_is_gone_and_cannot_be_made(path: Path) -> None:
    lock = path.with_name("changes.log.lock")
    lock.unlink()
    lock.symlink_to(path.parent / "no directory" / "lock")
    assert payloads_of(path) == PAYLOADS


def test_nothing_acknowledged_is_lost_or_twice_when_writers_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "changes.log"
    acknowledged = tmp_path / "acknowledged"
    acknowledged.touch()
    context = _context()
    for number in range(8):
        processes = [
            context.Process(target=writers.append_until_killed, args=(path, acknowledged, name))
            for name in (number, -number - 1)
        ]
        bytes_before = acknowledged.stat().st_size
        for process in processes:
            process.start()
        while acknowledged.stat().st_size == bytes_before:
            assert processes[0].is_alive()
            threading.Event().wait(0.001)
        threading.Event().wait(0.005 * (number % 5))
        for process in processes:
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
    payloads = payloads_of(path)
    assert len(set(payloads)) == len(payloads)
    assert set(acknowledged.read_bytes().splitlines()) <= set(payloads)


def _in_child(function: Callable[[Path], str], path: Path) -> str:
    """Returns what a function returns in a process of its own."""
    ours, theirs = _context().Pipe()
    process = _context().Process(target=writers.send, args=(theirs, function, path))
    process.start()
    outcome: str = ours.recv()
    process.join()
    return outcome


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.units.bundle.changes.writers"])
    return context


def upsert(prices: dict[int, int], offset: int = 0, target: str = "movies") -> Change:
    """Returns a change of the prices of candidates."""
    head = Head(kind="candidates", action="upsert", target=target, version=3, stream="prices")
    ids = pa.array([*prices], pa.int64())
    columns = {"id": ids, "attribute:price": pa.array([*prices.values()], pa.int64())}
    return Change(head, pa.record_batch(columns), 12.5, offset)


PAYLOAD = encode(upsert({7: 100}))
PREFIX = struct.Struct("<dQII")
HEAD_BYTES, SCHEMA_BYTES = struct.unpack_from("<II", PAYLOAD, 16)
COLUMNS_BEGIN = PREFIX.size + HEAD_BYTES + SCHEMA_BYTES


def prefixed(head_bytes: int = HEAD_BYTES, schema_bytes: int = SCHEMA_BYTES) -> bytes:
    return PREFIX.pack(0.0, 0, head_bytes, schema_bytes) + PAYLOAD[PREFIX.size :]


@pytest.mark.parametrize(
    "payload",
    [
        *(PAYLOAD[:size] for size in (10, PREFIX.size + 5, COLUMNS_BEGIN, len(PAYLOAD) - 40)),
        pytest.param(PAYLOAD + PAYLOAD[COLUMNS_BEGIN:], id="with two batches"),
        prefixed(head_bytes=1 << 31),
        prefixed(schema_bytes=1 << 31),
        prefixed(head_bytes=HEAD_BYTES - 8),
        PAYLOAD.replace(b'"upsert"', b'"update"'),
        PAYLOAD.replace(b'"version":3', b'"version":0'),
        PAYLOAD.replace(b'"candidates"', b'"rows"      '),
        b"\xff" * 200,
        b"\0" * 200,
    ],
)
def test_a_payload_that_holds_no_change_is_rejected_alone_and_among_others(payload: bytes) -> None:
    with pytest.raises(FormatError, match="no change"):
        decode(payload)
    records = [Record(1, PAYLOAD), Record(2, payload), Record(3, PAYLOAD)]
    with pytest.raises(FormatError, match="no change"):
        [run.changes for run in decode_runs(records)]
