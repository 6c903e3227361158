"""Log lines are JSON on stderr, and no request waits for whoever reads them."""

from __future__ import annotations

import json
import logging as stdlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import pytest

from service.observability import logging
from service.observability.metrics import Metrics


def written(stream: TextIO) -> list[dict[str, Any]]:
    logging.shutdown()
    return [json.loads(line) for line in Path(stream.name).read_text().splitlines()]


def run(program: str, stderr: Any = subprocess.PIPE, exit_code: int = 0) -> list[dict[str, Any]]:
    program = (
        "from service.observability import logging\nlog = "
        "logging.logger('x')\nlogging.configure('info')\n" + program
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, stderr=stderr, text=True)
    assert done.returncode == exit_code, done.stderr
    return [json.loads(line) for line in (done.stderr or "").splitlines()]


def test_event_is_one_json_line_with_its_fields_and_its_client(stream: TextIO) -> None:
    log = logging.logger("service.x")
    token = logging.PRINCIPAL.set("shop")
    log.info("version_available", extra=logging.fields(model="movies", version=3))
    log.debug("below the level")
    logging.PRINCIPAL.reset(token)
    try:
        raise RuntimeError("broken\nin two lines")
    except RuntimeError:
        log.exception("request_failed")
    line, failed = written(stream)
    assert line.pop("time").endswith("+00:00")
    about = {"level": "info", "logger": "rowcast.service.x", "event": "version_available"}
    assert line == {**about, "model": "movies", "version": 3, "principal": "shop"}
    assert "RuntimeError: broken\nin two lines" in failed["traceback"]
    assert "principal" not in failed


def test_library_messages_are_bounded_and_without_bytes_of_clients(stream: TextIO) -> None:
    log = stdlib.getLogger("grpc._cython.cygrpc")
    log.error("Invalid encoding on %s", b"Bearer secret\xff")
    log.error("x" * 1_000_000)
    log.error("%(share)d %%", {"share": 5})
    first, second, third = written(stream)
    assert first["message"] == "Invalid encoding on 14 bytes"
    assert second["message"] == "x" * logging.MESSAGE_CHARS_MAX
    assert third["message"] == "5 %"


def test_lines_of_one_event_beyond_the_rate_are_suppressed_and_counted(
    stream: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.5]
    monkeypatch.setattr(time, "time", lambda: now[0])
    # Records take this clock once another test has imported ray.
    monkeypatch.setattr(time, "time_ns", lambda: int(now[0] * 1e9))
    log = logging.logger("service.x")
    dropped = logging.lines_dropped()
    for number in range(logging.LINES_PER_S_MAX + 40):
        log.info("request_failed", extra=logging.fields(number=number))
    log.warning("not_ready")
    now[0] = 1001.0
    log.info("request_failed", extra=logging.fields(number=-1))
    assert logging.lines_dropped() == dropped
    lines = written(stream)
    assert len(lines) == logging.LINES_PER_S_MAX + 2
    assert [line.get("suppressed") for line in lines[-3:]] == [None, 40, None]
    assert lines[-2]["event"] == "not_ready"


def test_lines_without_a_reader_are_dropped_counted_and_reported(stream: TextIO) -> None:
    read_end, write_end = os.pipe()
    metrics = Metrics()
    with os.fdopen(write_end, "w") as pipe, os.fdopen(read_end) as reader:
        logging.configure("info", pipe)
        for number in range(40 * logging.LINES_PER_S_MAX):
            logging.logger("x").info(f"event_{number % 40}", extra=logging.fields(text="x" * 1000))
        dropped = logging.lines_dropped()
        lines = metrics.render().decode().splitlines()
        written_line = next(
            float(line.split()[1])
            for line in lines
            if line.startswith("rowcast_log_lines_dropped_total ")
        )
        assert 0 < dropped <= written_line <= logging.lines_dropped()
        reported = json.loads(reader.readline()).get("suppressed", 0)
        number = 0
        while reported < dropped:  # by the next line that is written, or by several
            logging.logger("x").info(f"later_{number}")
            reported = reported + json.loads(reader.readline()).get("suppressed", 0)
            number = number + 1
        reader.close()
        logging.shutdown()


LATE = """
import logging as stdlib, threading, warnings

log.info("stopped")
logging.finish()
log.warning("not_ready")
stdlib.getLogger("uvicorn.error").error("a message of uvicorn")
warnings.warn("a warning")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()

class Unraisable:
    def __del__(self):
        raise ValueError("in a destructor")

Unraisable()
raise KeyError("in the main thread")
"""


def test_what_is_reported_behind_the_end_is_json_to_the_last_line() -> None:
    lines = run(LATE, exit_code=1)
    assert [line["event"] for line in lines] == [
        "stopped",
        "not_ready",
        *[logging.LIBRARY_EVENT] * 2,
        *["uncaught_exception"] * 3,
    ]
    reasons = ["ZeroDivisionError", "in a destructor", "in the main thread"]
    for line, reason in zip(lines[-3:], reasons, strict=True):
        assert reason in line["traceback"]


def test_process_without_a_reader_of_stderr_still_ends() -> None:
    read_end, write_end = os.pipe()
    try:
        run(
            "for n in range(5000): log.info(f'e{n}', extra=logging.fields(text='x' * 900))",
            stderr=write_end,
        )
    finally:
        os.close(write_end)
        os.close(read_end)
