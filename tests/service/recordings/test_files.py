"""Recorded calls on disk: bounded, private, read as far as they are whole."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from service.recordings.files import Recorded, RecordingFile, read_newest

BYTES_MAX = 4096


def call(number: int, size: int = 100) -> Recorded:
    return Recorded("rank", number % 2 == 0, bytes([number % 256]) * size, float(number))


def written(directory: Path, calls: list[Recorded], process: str = "0") -> None:
    file = RecordingFile(directory, process, BYTES_MAX)
    for each in calls:
        file.append(each)
    file.close()


def test_calls_are_read_back_the_newest_first(tmp_path: Path) -> None:
    calls = [call(number) for number in range(5)]
    written(tmp_path, calls)
    assert read_newest(tmp_path, 3, BYTES_MAX) == calls[:1:-1]


def test_recordings_stay_within_their_size_and_keep_the_newest(tmp_path: Path) -> None:
    calls = [call(number) for number in range(200)]
    written(tmp_path, calls)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= BYTES_MAX
    found = read_newest(tmp_path, 1000, BYTES_MAX)
    assert len(found) >= BYTES_MAX // 2 // 150
    assert found == calls[: -len(found) - 1 : -1]


def test_call_that_is_larger_than_its_file_may_be_is_left_out(tmp_path: Path) -> None:
    written(tmp_path, [call(1), call(2, BYTES_MAX), call(3)])
    assert [each.at for each in read_newest(tmp_path, 10, BYTES_MAX)] == [3.0, 1.0]


def test_recordings_of_a_process_before_are_kept_once(tmp_path: Path) -> None:
    for number in range(3):
        written(tmp_path, [call(number)])
    assert [each.at for each in read_newest(tmp_path, 10, BYTES_MAX)] == [2.0, 1.0]


def test_recordings_of_several_processes_are_read_together(tmp_path: Path) -> None:
    written(tmp_path, [call(1), call(3)], "0")
    written(tmp_path, [call(2), call(4)], "1")
    assert [each.at for each in read_newest(tmp_path, 3, BYTES_MAX)] == [4.0, 3.0, 2.0]


def test_nobody_else_reads_them(tmp_path: Path) -> None:
    place = tmp_path / "movies"
    written(place, [call(1)])
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()] == [0o600]


@pytest.mark.parametrize(("at", "left"), [(0, 0), (3, 0), (17, 0), (120, 1), (250, 2)])
def test_what_follows_a_damaged_call_is_not_read(tmp_path: Path, at: int, left: int) -> None:
    written(tmp_path, [call(number) for number in range(3)])
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[at] ^= 0xFF
    file.write_bytes(data)
    assert len(read_newest(tmp_path, 10, BYTES_MAX)) == left


def test_call_that_is_cut_short_is_not_read(tmp_path: Path) -> None:
    written(tmp_path, [call(1), call(2)])
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert [each.at for each in read_newest(tmp_path, 10, BYTES_MAX)] == [1.0]


def test_directory_that_is_not_there_holds_no_calls(tmp_path: Path) -> None:
    assert read_newest(tmp_path / "nowhere", 10, BYTES_MAX) == []
