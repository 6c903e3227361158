"""Log lines are JSON on stderr, and no request waits for whoever reads them."""

from __future__ import annotations

import io
import json
import logging as stdlib
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.observability import logging
from service.observability.metrics import Metrics


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = stdlib.getLogger()
    handlers, level = root.handlers, root.level
    lines = io.StringIO()
    logging.configure("info", lines)
    yield lines
    logging.shutdown()
    root.handlers = handlers
    root.setLevel(level)
    stdlib.getLogger(logging.ROOT_LOGGER).setLevel(stdlib.NOTSET)


def written(stream: io.StringIO) -> list[dict[str, Any]]:
    logging.shutdown()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def run(program: str, stderr: Any = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    program = "from service.observability import logging\nlog = logging.logger('x')\n" + program
    return subprocess.run([sys.executable, "-c", program], check=True, stderr=stderr, text=True, timeout=60)


def test_event_is_one_json_line_with_its_fields(stream: io.StringIO) -> None:
    logging.logger("service.x").info("version_available", extra=logging.fields(model="movies", version=3))
    (line,) = written(stream)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "rowcast.service.x",
        "event": "version_available",
        "model": "movies",
        "version": 3,
    }


def test_configure_again_replaces_stream_level_and_fields(stream: io.StringIO) -> None:
    log, other = logging.logger("x"), io.StringIO()
    log.debug("detail")
    logging.configure("debug", other, worker=2)
    log.debug("detail")
    assert [(line["event"], line["worker"]) for line in written(other)] == [("detail", 2)]
    assert stream.getvalue() == ""


def test_event_of_an_authenticated_caller_names_it(stream: io.StringIO) -> None:
    token = logging.PRINCIPAL.set("shop")
    logging.logger("x").info("request_failed")
    logging.PRINCIPAL.reset(token)
    logging.logger("x").info("request_failed")
    assert [line.get("principal") for line in written(stream)] == ["shop", None]


def test_exception_carries_its_traceback_in_the_same_line(stream: io.StringIO) -> None:
    try:
        raise RuntimeError("broken\nin two lines")
    except RuntimeError:
        logging.logger("x").exception("request_failed")
    (line,) = written(stream)
    assert "RuntimeError: broken\nin two lines" in line["traceback"]


def test_library_warnings_are_lines_of_the_log(stream: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("outdated", DeprecationWarning, stacklevel=1)
    stdlib.getLogger("uvicorn.error").warning("100%% of %s", "it")
    stdlib.getLogger("uvicorn.error").info("started")
    first, second = written(stream)
    assert "outdated" in first["event"]
    assert second["event"] == "100% of it"


def test_lines_of_one_event_beyond_the_rate_are_suppressed_and_counted(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.5]
    monkeypatch.setattr(time, "time", lambda: now[0])
    log = logging.logger("service.x")
    for number in range(logging.LINES_PER_S_MAX + 40):
        log.info("request_failed", extra=logging.fields(number=number))
    log.warning("not_ready")
    now[0] = 1001.0
    log.info("request_failed", extra=logging.fields(number=-1))
    log.info("request_failed", extra=logging.fields(number=-2))
    lines = written(stream)
    assert [line["event"] for line in lines].count("not_ready") == 1
    assert len(lines) == logging.LINES_PER_S_MAX + 3
    assert [(line["number"], line.get("suppressed")) for line in lines[-2:]] == [(-1, 40), (-2, None)]


def test_lines_that_nobody_reads_are_dropped_and_counted_and_reported(stream: io.StringIO) -> None:
    read_end, write_end = os.pipe()
    metrics = Metrics()
    with os.fdopen(write_end, "w") as pipe, os.fdopen(read_end) as reader:
        logging.configure("info", pipe)
        for number in range(40 * logging.LINES_PER_S_MAX):
            logging.logger("x").info(f"event_{number % 40}", extra=logging.fields(text="x" * 1000))
        dropped = logging.lines_dropped()
        assert dropped > 0
        assert f"rowcast_log_lines_dropped_total {dropped}.0" in metrics.render().decode()
        events = []
        while "log_lines_dropped" not in events:
            events.append(json.loads(reader.readline())["event"])
            logging.logger("x").info(f"later_{len(events)}")
        reader.close()
        logging.shutdown()


@pytest.mark.parametrize("how", ["gone", "full"])
def test_lines_of_a_reader_that_is_gone_and_of_a_full_disk_are_counted(stream: io.StringIO, how: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as gone, Path("/dev/full").open("w") as full:
        file = gone if how == "gone" else full
        logging.configure("info", file)
        logging.logger("x").info("one")
        logging.logger("x").info("two")
        handler = stdlib.getLogger().handlers[0]
        assert isinstance(handler, logging.LogHandler)
        logging.shutdown()
        assert handler.dropped == 2


def test_lines_are_written_while_native_libraries_are_silenced() -> None:
    program = (
        "import os\nfrom runtime.native_output import silenced\nlogging.configure('info')\n"
        "with silenced():\n    os.write(2, b'chatter')\n    log.info('one')\n    logging.shutdown()\n"
    )
    assert [json.loads(line)["event"] for line in run(program).stderr.splitlines()] == ["one"]


def test_lines_before_the_end_of_the_process_are_written() -> None:
    last = "for number in range(50): log.info('crashed', extra=logging.fields(number=number))\n"
    assert len(run(f"logging.configure('info')\n{last}").stderr.splitlines()) == 50
    ended = run(f"import os\nlogging.configure('info')\n{last}logging.shutdown()\nos._exit(0)")
    assert len(ended.stderr.splitlines()) == 50


def test_process_whose_stderr_nobody_reads_ends_all_the_same() -> None:
    read_end, write_end = os.pipe()
    program = "logging.configure('info')\nfor n in range(5000): log.info(f'e{n}', extra=logging.fields(text='x' * 900))"
    try:
        assert run(program, stderr=write_end).returncode == 0
    finally:
        os.close(write_end)
        os.close(read_end)
