"""Recorded requests on disk: bounded, private, read as far as they are whole."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from service.config import ServiceSettings
from service.observability.metrics import Metrics
from service.request_log.record import (
    RecordedRequest,
    RequestLog,
    RequestWriter,
    read_newest,
)

FILE_BYTES = 2048
FILES_MAX = 2


def request(number: int, size: int = 100) -> RecordedRequest:
    return RecordedRequest("rank", number % 2 == 0, bytes([number % 256]) * size, float(number))


def write(directory: Path, requests: list[RecordedRequest], files_max: int = FILES_MAX) -> None:
    writer = RequestWriter(directory, FILE_BYTES, files_max)
    for request in requests:
        writer.append(request)
    writer.close()


def settings_of(root: Path, **options: Any) -> ServiceSettings:
    return ServiceSettings(root=root, record_rate=options.pop("record_rate", 1.0), **options)


def outcomes(metrics: Metrics) -> dict[str, float]:
    """Recorded requests by outcome."""
    samples = re.findall(
        r'rowcast_recorded_requests_total\{outcome="(\w+)"\} (\S+)', metrics.render().decode()
    )
    return {outcome: float(count) for outcome, count in samples}


def test_requests_are_private_and_read_back_the_newest_first_within_their_bound(
    tmp_path: Path,
) -> None:
    requests = [request(number) for number in range(200)]
    requests.insert(197, request(197, FILE_BYTES))  # larger than a file: left out
    directory = tmp_path / "m"
    write(directory, requests)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    assert sum(path.stat().st_size for path in directory.iterdir()) <= FILE_BYTES * FILES_MAX
    recorded = read_newest(directory, 1000)
    assert len(recorded) > FILE_BYTES // 250
    del requests[197]
    assert recorded == requests[: -len(recorded) - 1 : -1]
    assert read_newest(directory, 3) == recorded[:3]
    assert read_newest(directory / "nowhere", 3) == []


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"\xff\n", b"[]\n", b'{"at": 1}\n', b'{"body": 7}\n', b'{"x": 1, "body": ""}\n'],
)
def test_damaged_lines_are_skipped(tmp_path: Path, damage: bytes) -> None:
    write(tmp_path, [request(number) for number in range(3)])
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage + path.read_bytes()[:-1])  # the last line was cut short, by its end
    assert len(read_newest(tmp_path, 10)) == (2 if damage == b"{" else 3)
    path.write_bytes(path.read_bytes()[:-9] + damage)
    assert len(read_newest(tmp_path, 10)) in {1, 2}


def test_offer_with_an_unwritable_directory_reports_once_and_goes_on(
    tmp_path: Path, caplog: Any
) -> None:
    metrics = Metrics()
    (tmp_path / "m").write_text("no directory")
    log = RequestLog(settings_of(tmp_path, record_dir=tmp_path), metrics)
    for _ in range(3):
        log.offer("m", "rank", protobuf=False, body=b"{}")
    log.offer("n", "rank", protobuf=False, body=b"{}")
    log.close()
    assert [record.message for record in caplog.records] == ["request_log_unwritable"]
    assert len(read_newest(tmp_path / "n", 10)) == 1
    assert outcomes(metrics) == {"written": 1, "dropped": 0, "failed": 3}


def test_disk_that_hangs_holds_up_neither_requests_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_end, write_end = os.pipe()
    monkeypatch.setattr(os, "write", lambda *_: os.read(read_end, 1))
    metrics = Metrics()
    log = RequestLog(settings_of(tmp_path), metrics)
    for _ in range(200):
        log.offer("m", "rank", protobuf=False, body=b"{}")
    log.close(timeout_s=0.01)
    assert outcomes(metrics)["dropped"] > 100
    monkeypatch.undo()
    os.write(write_end, bytes(200))
    log.close()
    os.close(write_end)
    os.close(read_end)
