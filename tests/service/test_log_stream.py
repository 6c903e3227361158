"""Lines of the log where nobody reads them."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.log_stream import LogStream

LINE = '{"event":"call_failed"}\n'


class Reader:
    """The other end, which reads when it is told to; of a pipe, or of a socket as systemd gives its services."""

    def __init__(self, kind: str) -> None:
        if kind == "socket":
            ends = socket.socketpair()
            self.read_end, write_end = (end.detach() for end in ends)
        else:
            self.read_end, write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self.stream = os.fdopen(write_end, "w")

    def read(self) -> list[str]:
        found = b""
        try:
            while more := os.read(self.read_end, 1 << 16):
                found += more
        except BlockingIOError:
            pass
        return found.decode().splitlines()


@pytest.fixture(params=["pipe", "pipe of another user", "socket"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    if request.param == "pipe of another user":  # which cannot be opened anew
        monkeypatch.setattr(os, "O_NOCTTY", os.O_DIRECTORY)
    made = Reader(request.param)
    yield made
    os.close(made.read_end)
    made.stream.close()


def test_lines_that_nobody_reads_are_lost_whole_and_counted_and_told_with_the_next(reader: Reader) -> None:
    lines, written = LogStream(reader.stream), 0
    while lines.lost < 3:
        lines.write(LINE)
        written += 1
    assert os.get_blocking(reader.stream.fileno())  # as it was, for whoever has it beside
    found = reader.read()
    lines.write(LINE)
    found += reader.read()
    told = [json.loads(line) for line in found]
    assert [each["event"] for each in told] == ["call_failed"] * (written - 3) + ["log_lines_lost", "call_failed"]
    assert told[-2]["lines"] == lines.lost == 3
    lines.close()


def test_line_that_found_room_in_part_ends_before_another_begins(reader: Reader) -> None:
    lines = LogStream(reader.stream)
    long = json.dumps({"event": "crashed", "traceback": "x" * 400_000}) + "\n"
    lines.write(long)
    found = ""
    for _ in range(20):
        lines.write(LINE)
        found += "\n".join(reader.read())
    assert found.startswith(long.strip())
    assert lines.lost > 0
    lines.close()


def test_lines_of_a_reader_that_has_gone_and_of_a_full_disk_are_counted() -> None:
    gone = Reader("pipe")
    os.close(gone.read_end)
    with gone.stream, Path("/dev/full").open("w") as full:
        for stream in (gone.stream, full):
            lines = LogStream(stream)
            lines.write(LINE)
            lines.write(LINE)
            assert lines.lost == 2
            lines.close()
