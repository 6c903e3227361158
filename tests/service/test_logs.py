"""Log lines are JSON, with a constant event and its fields."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Iterator

import pytest

from service import logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    lines = io.StringIO()
    logs.configure("info", lines)
    yield lines
    logging.captureWarnings(capture=False)
    root.handlers = handlers
    root.setLevel(level)
    logging.getLogger(logs.ROOT_LOGGER).setLevel(logging.NOTSET)


def test_event_is_one_json_line_with_its_fields(stream: io.StringIO) -> None:
    logs.logger("service.x").info("version_available", extra=logs.fields(model="movies", version=3))
    page = json.loads(stream.getvalue())
    assert page.pop("time").endswith("+00:00")
    assert page == {
        "level": "info",
        "logger": "rowcast.service.x",
        "event": "version_available",
        "model": "movies",
        "version": 3,
    }


def test_event_below_the_level_is_left_out(stream: io.StringIO) -> None:
    logs.logger("x").debug("detail")
    assert stream.getvalue() == ""


def test_failure_carries_its_traceback_in_the_same_line(stream: io.StringIO) -> None:
    try:
        raise RuntimeError("broken\nin two lines")
    except RuntimeError:
        logs.logger("x").exception("call_failed")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    assert "RuntimeError: broken\nin two lines" in json.loads(lines[0])["traceback"]


def test_lines_of_one_event_beyond_their_rate_are_left_out_and_counted(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.5]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(time, "time_ns", lambda: int(now[0] * 1e9))  # what Ray has records take, once it was imported
    log = logs.logger("service.x")
    for number in range(logs.LINES_PER_S_MAX + 40):
        log.info("call_failed", extra=logs.fields(number=number))
    log.warning("not_ready")
    now[0] = 1001.0
    log.info("call_failed", extra=logs.fields(number=-1))
    log.info("call_failed", extra=logs.fields(number=-2))
    pages = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [page["event"] for page in pages].count("not_ready") == 1
    assert len(pages) == logs.LINES_PER_S_MAX + 3
    assert [page.get("left_out") for page in pages[-2:]] == [40, None]
    assert [page["number"] for page in pages[-2:]] == [-1, -2]
