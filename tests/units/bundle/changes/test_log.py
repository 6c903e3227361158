"""The change log: what was acknowledged is there, whatever happens to the file or its writers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundle.changes import log as change_log
from bundle.changes.log import ChangeLog, recover
from bundle.errors import FormatError, LogDamaged, LogUnwritable
from tests.units.bundle.changes import writers
from tests.units.bundle.changes.writers import append

PAYLOADS = [b"first", b"second" * 7, b"\0" * 40]


def written(path: Path, payloads: list[bytes] | None = None) -> bytes:
    """Returns the bytes of a log with some records."""
    log = ChangeLog(path, "movies")
    for payload in PAYLOADS if payloads is None else payloads:
        append(log, payload)
    return path.read_bytes()


def payloads_of(path: Path) -> list[bytes]:
    return [record.payload for record in ChangeLog(path, "movies").read()]


@given(groups=st.lists(st.lists(st.binary(min_size=1, max_size=100), max_size=3), max_size=6))
def test_readers_and_writers_in_any_order_see_every_record_once(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[bytes]]
) -> None:
    path = tmp_path_factory.mktemp("log") / "movies" / "changes.log"
    writers = [ChangeLog(path, "movies") for _ in range(2)]
    reader = ChangeLog(path, "movies")
    seen = []
    for number, group in enumerate(groups):
        append(writers[number % 2], *group)
        seen += reader.read()
    expected = [payload for group in groups for payload in group]
    assert [record.payload for record in seen] == expected
    assert [record.sequence for record in seen] == list(range(1, len(expected) + 1))
    assert reader.read() == []


def test_a_record_torn_at_any_byte_is_cut_off_by_the_next_writer(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.log")
    path = tmp_path / "changes.log"
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        before = payloads_of(path)
        assert before == PAYLOADS[: len(before)]
        append(ChangeLog(path, "movies"), b"next")
        assert payloads_of(path) == [*before, b"next"]


def test_zeros_behind_the_last_record_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "changes.log"
    path.write_bytes(written(path) + b"\0" * 5000)
    assert payloads_of(path) == PAYLOADS
    append(ChangeLog(path, "movies"), b"next")
    assert payloads_of(path) == [*PAYLOADS, b"next"]


def test_whatever_follows_the_last_sound_record_is_examined_once(tmp_path: Path) -> None:
    path = tmp_path / "changes.log"
    content = written(path)
    damaged = bytearray(content)
    damaged[-1] ^= 1
    for whole, following in ((content, b"\0"), (bytes(damaged), b"z")):
        path.write_bytes(whole)
        with path.open("ab") as file:
            for _ in range(64):
                file.write(following * (1 << 20))
        log = ChangeLog(path, "movies")
        with suppress(LogDamaged):
            log.read()
        tracemalloc.start()
        began = time.process_time()
        for _ in range(200):
            with suppress(LogDamaged):
                assert log.read() == []
        # Read 200 times, the 64 MiB would take seconds.
        assert time.process_time() - began < 1
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()
    with pytest.raises(LogDamaged):
        log.read()
    path.write_bytes(content)
    assert [record.payload for record in log.read()] == PAYLOADS


@pytest.mark.parametrize("is_replaced", [False, True])
def test_an_older_copy_in_the_place_of_a_log_is_not_written_behind(
    tmp_path: Path, *, is_replaced: bool
) -> None:
    path = tmp_path / "changes.log"
    log = ChangeLog(path, "movies")
    append(log, b"first")
    older = path.read_bytes()
    append(log, b"second")
    whole = path.read_bytes()
    if is_replaced:
        path.rename(tmp_path / "moved")
    path.write_bytes(older)
    for _ in range(2):
        with pytest.raises(LogUnwritable, match="older copy lies in its place; put the log back"):
            append(log, b"third")
        with pytest.raises(LogUnwritable, match="older copy lies in its place; put the log back"):
            log.read()
    assert path.read_bytes() == older
    path.write_bytes(whole)
    assert append(log, b"third") == [3]
    assert payloads_of(path) == [b"first", b"second", b"third"]


def test_any_flipped_bit_is_rejected_and_recovery_keeps_the_other_records(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.log")
    path = tmp_path / "changes.log"
    for position in range(len(change_log.MAGIC), len(whole)):
        for bit in (1, 128):
            damaged = bytearray(whole)
            damaged[position] ^= bit
            path.write_bytes(damaged)
            with pytest.raises(LogDamaged, match=r"byte [0-9]+ of change log"):
                ChangeLog(path, "movies").read()

            recovery = recover(path, "movies")
            assert recovery.damaged is not None
            assert recovery.damaged.read_bytes() == damaged
            recovery.damaged.unlink()
            payloads = payloads_of(path)
            assert len(payloads) == recovery.records >= len(PAYLOADS) - 1
            assert [payload for payload in PAYLOADS if payload in payloads] == payloads


def test_a_reader_goes_on_behind_what_it_has_read_after_a_recovery(tmp_path: Path) -> None:
    path = tmp_path / "changes.log"
    first = len(written(path, PAYLOADS[:1]))
    reader = ChangeLog(path, "movies")
    assert len(reader.read()) == 1
    for payload in PAYLOADS[1:]:
        append(ChangeLog(path, "movies"), payload)
    content = bytearray(path.read_bytes())
    content[first + 30] ^= 1
    path.write_bytes(content)
    with pytest.raises(LogDamaged, match=f"byte {first} of"):
        reader.read()
    assert recover(path, "movies").lost == ((2, 2),)
    assert [(record.sequence, record.payload) for record in reader.read()] == [(3, PAYLOADS[2])]


def test_records_before_a_damaged_one_are_read_after_the_recovery(tmp_path: Path) -> None:
    path = tmp_path / "changes.log"
    reader = ChangeLog(path, "movies")
    written(path, PAYLOADS[:2])
    before = path.stat().st_size
    append(ChangeLog(path, "movies"), PAYLOADS[2])
    content = bytearray(path.read_bytes())
    content[before + 30] ^= 1
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(LogDamaged, match=f"byte {before} of"):
            reader.read()
    recover(path, "movies")
    assert [record.payload for record in reader.read()] == PAYLOADS[:2]
    assert reader.read() == []


def test_a_long_log_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "_READ_BYTES", 100)
    path = tmp_path / "changes.log"
    payloads = [bytes([number]) * 30 for number in range(20)]
    payloads[7] = b"longer than a part" * 20
    written(path, payloads)
    parts = [[record.payload for record in part] for part in ChangeLog(path, "movies").batches()]
    assert [payload for part in parts for payload in part] == payloads
    assert all(len(part) == 1 or len(b"".join(part)) <= 100 for part in parts)
    assert len(parts) <= 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"something else", "is no change log: it begins with b'somethin'"),
        (None, "is the change log of model 'movies'; that of 'books' was expected"),
    ],
)
def test_files_that_are_no_log_of_the_model_are_rejected(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "changes.log"
    if content is None:
        written(path)
    else:
        path.write_bytes(content)
    log = ChangeLog(path, "books")
    with pytest.raises(FormatError, match=message):
        log.read()
    with pytest.raises(FormatError, match=message):
        recover(path, "books")


def test_payloads_that_a_record_cannot_hold_are_rejected(tmp_path: Path) -> None:
    log = ChangeLog(tmp_path / "changes.log", "movies")
    with pytest.raises(ValueError, match="a record of 0 bytes; 1 to"):
        append(log, b"")


def test_what_a_full_disk_rejects_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "changes.log"
    before = written(path)
    outcome = _in_child(writers.append_with_little_room, path)
    assert "cannot be written: File too large; no change was made" in outcome
    assert path.read_bytes() == before


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = ChangeLog(tmp_path / "file" / "movies" / "changes.log", "movies")
    with pytest.raises(LogUnwritable, match=r"changes\.log cannot be written: Not a directory"):
        append(log, b"first")


def test_nothing_acknowledged_is_lost_or_twice_when_writers_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "changes.log"
    acknowledged = tmp_path / "acknowledged"
    context = _context()
    for number in range(12):
        writer = context.Process(
            target=writers.append_until_killed, args=(path, acknowledged, number)
        )
        second_writer = context.Process(
            target=writers.append_until_killed, args=(path, acknowledged, -number - 1)
        )
        bytes_before = _size(acknowledged)
        writer.start()
        second_writer.start()
        while _size(acknowledged) == bytes_before:
            assert writer.is_alive()
            threading.Event().wait(0.001)
        threading.Event().wait(0.005 * (number % 5))
        os.kill(writer.pid or 0, signal.SIGKILL)
        os.kill(second_writer.pid or 0, signal.SIGKILL)
        writer.join()
        second_writer.join()
    payloads = payloads_of(path)
    lines = acknowledged.read_bytes().splitlines() if acknowledged.exists() else []
    assert len(set(payloads)) == len(payloads)
    assert lines
    assert set(lines) <= set(payloads)


def _size(path: Path) -> int:
    """Returns the size of a file; 0 if there is none yet."""
    if not path.exists():
        return 0
    return path.stat().st_size


def _in_child(function: Any, path: Path) -> str:
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


def test_a_log_that_is_removed_while_it_is_served_is_not_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "changes.log"
    log = ChangeLog(path, "movies")
    append(log, b"first")
    path.rename(tmp_path / "moved.log")
    with pytest.raises(LogUnwritable, match="was removed while it is served; no change was made"):
        append(log, b"second")
    assert not path.exists()
    (tmp_path / "moved.log").rename(path)
    append(log, b"second")
    assert payloads_of(path) == [b"first", b"second"]


def test_sequences_of_records_that_a_recovery_dropped_are_not_used_again(tmp_path: Path) -> None:
    path = tmp_path / "changes.log"
    running = ChangeLog(path, "movies")
    sequences = [append(running, payload)[0] for payload in PAYLOADS]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    recover(path, "movies")
    (next_one,) = append(ChangeLog(path, "movies"), b"next")
    assert next_one > sequences[-1]
    assert [record.payload for record in running.read()] == [b"next"]


def test_a_log_that_was_copied_without_its_lock_is_read(tmp_path: Path) -> None:
    path = tmp_path / "changes.log"
    written(path)
    lock = path.with_name("changes.log.lock")
    lock.unlink()
    assert payloads_of(path) == PAYLOADS
    lock.unlink()
    lock.symlink_to(tmp_path / "no directory" / "lock")  # as where no file can be made
    assert payloads_of(path) == PAYLOADS
