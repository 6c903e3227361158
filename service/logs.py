"""JSON lines on stderr: a constant event name plus fields; never ids, features or vectors of a caller.

Loggers are named `rowcast.` + module. An event is logged as `log.info("version_available", extra=fields(model=name))`.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson

from service.log_stream import LogStream

ROOT_LOGGER = "rowcast"
_FIELDS = "rowcast_fields"
LINES_PER_S_MAX = 100
"""Of one event: whoever makes calls fail as fast as a door takes them shall not fill a disk with that."""
CALLER_NAME: ContextVar[str] = ContextVar("caller_name", default="")
"""Whose call the running task answers, where callers are known; stands in each line that is written meanwhile."""


def logger(module: str) -> logging.Logger:
    """Returns the logger of a module: `rowcast.` + its name."""
    return logging.getLogger(f"{ROOT_LOGGER}.{module}")


def fields(**values: Any) -> dict[str, Any]:
    """Returns `values` in the shape that `extra=` of a logging call takes."""
    return {_FIELDS: values}


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, event, the event's fields and, of a bug, its traceback."""

    def __init__(self, always: Mapping[str, Any] | None = None) -> None:
        """Makes a formatter; `always`: fields of every line."""
        super().__init__()
        self._always = always or {}

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line of one record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **self._always,
            **getattr(record, _FIELDS, {}),
        }
        caller = CALLER_NAME.get()
        if caller:
            line["caller"] = caller
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class Sparing(logging.Filter):
    """Lets so many lines of an event through each second; the next that comes through tells how many did not."""

    def __init__(self) -> None:
        """Begins with none."""
        super().__init__()
        self._second = 0
        self._counts: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Tells whether a record is written."""
        second, event = int(record.created), record.msg
        if second != self._second:
            self._second = second
            self._counts.clear()
        self._counts[event] += 1
        if self._counts[event] > LINES_PER_S_MAX:
            self._left_out[event] += 1
            return False
        left_out = self._left_out.pop(event, 0)
        if left_out:
            setattr(record, _FIELDS, {**getattr(record, _FIELDS, {}), "left_out": left_out})
        return True


def set_level(level: str) -> None:
    """Sets the least severity of the service's events that is logged."""
    logging.getLogger(ROOT_LOGGER).setLevel(level.upper())


def configure(level: str, stream: TextIO | LogStream | None = None, **always: Any) -> None:
    """Sends the service's events, and the warnings of the libraries below it, to `stream` (stderr) as JSON lines.

    Args:
      level: least severity.
      stream: where to; None: stderr.
      always: fields that every line has.
    """
    lines: logging.StreamHandler[Any] = logging.StreamHandler(stream or sys.stderr)
    lines.setFormatter(JsonLines(always))
    lines.addFilter(Sparing())
    root = logging.getLogger()
    root.handlers = [lines]
    root.setLevel(logging.WARNING)
    set_level(level)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # what it warns of are callers, whom the doors tell of
    logging.captureWarnings(capture=True)


def lines_lost() -> int:
    """Returns how many lines this process could not write."""
    streams = [each.stream for each in logging.getLogger().handlers if isinstance(each, logging.StreamHandler)]
    return sum(each.lost for each in streams if isinstance(each, LogStream))
