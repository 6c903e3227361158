"""JSON lines on stderr: a constant event name plus fields; never a client's ids, features or
vectors.

Loggers are named `rowcast.` + module. An event is logged as
`log.info("version_available", extra=fields(model=name))`. A thread of its own writes the lines, so
that no request waits for a slow reader of stderr. Reports of libraries and of Python itself, such
as warnings and exceptions that nobody caught, are lines as well.
"""

from __future__ import annotations

import io
import logging
import os
import queue
import select
import sys
import threading
from collections import Counter
from collections.abc import Hashable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

import orjson

ROOT_LOGGER = "rowcast"
LINES_PER_S_MAX = 100
"""Maximum number of lines of one event per second: clients whose requests fail quickly must not
fill a disk.
"""
LIMITED_LINES_PER_S_MAX = 10
"""Maximum number of lines per second of one event whose lines are limited by a key. Each key has at
most one line per second.
"""
QUEUE_SIZE_MAX = 2000
"""Maximum number of lines that wait for the thread that writes; further lines are dropped."""
MESSAGE_CHARS_MAX = 2000
"""Maximum length of a library's message, which can repeat what a client sent."""
PRINCIPAL: ContextVar[str] = ContextVar("principal", default="")
"""Name of the authenticated client whose request the running task handles; a field of every line
that is logged meanwhile.
"""
LIBRARY_EVENT = "library_message"
"""The event of lines that a library logs; its text is the field `message`."""
_FIELDS = "rowcast_fields"
_LIMITED_BY = "rowcast_limited_by"
_UNLIMITED = "rowcast_unlimited"


def logger(module: str) -> logging.Logger:
    """Returns the logger of a module: `rowcast.` + its name in the tree."""
    # In a wheel, the module's name begins with that of the package, which is the same.
    return logging.getLogger(f"{ROOT_LOGGER}.{module.removeprefix(f'{ROOT_LOGGER}.')}")


def fields(**values: Any) -> dict[str, Any]:
    """Returns `values` in the shape that `extra=` of a logging call takes."""
    return {_FIELDS: values}


def limited(extra: dict[str, Any], *key: Hashable) -> dict[str, Any]:
    """Limits the lines of an event: one line per second is written for each key.

    Args:
      extra: The result of `fields`.
      key: The values by which lines are limited.
    """
    return {**extra, _LIMITED_BY: key}


def unlimited(extra: dict[str, Any]) -> dict[str, Any]:
    """Exempts a line from the limits of its event, such as a line of the access log.

    Such lines may fill half of the queue, so that other lines find room.

    Args:
      extra: The result of `fields`.
    """
    return {**extra, _UNLIMITED: True}


class JsonLines(logging.Formatter):
    """Formats a line as a JSON object: time, level, logger, event, the event's fields and, for an
    exception, its traceback.
    """

    def __init__(self, common_fields: Mapping[str, Any]) -> None:
        """Creates a formatter; every line has the common fields."""
        super().__init__()
        self._common_fields = common_fields

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line without its end."""
        event: dict[str, Any] = {"event": record.getMessage()}
        if not _is_ours(record):
            event = {"event": LIBRARY_EVENT, "message": _library_message(record)}
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **event,
            **self._common_fields,
            **getattr(record, _FIELDS, {}),
        }
        if principal := PRINCIPAL.get():
            line["principal"] = principal
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _library_message(record: logging.LogRecord) -> str:
    """Returns the message of a library, without bytes that a client sent, such as metadata of
    gRPC.
    """
    message = str(record.msg)
    if isinstance(record.args, tuple) and record.args:
        arguments = [
            f"{len(argument)} bytes" if isinstance(argument, bytes) else argument
            for argument in record.args
        ]
        message %= tuple(arguments)
    elif record.args:
        message = record.getMessage()
    return message[:MESSAGE_CHARS_MAX]


def _is_relevant(record: logging.LogRecord) -> bool:
    """Returns whether a record is worth a line."""
    if not record.exc_info or not record.name.startswith("grpc"):
        return True
    # gRPC logs two tracebacks per call if a client's metadata are no UTF-8, and then reads them as
    # Latin-1; and one if a client leaves while its response is sent. By name: not every process
    # that logs loads gRPC.
    return type(record.exc_info[1]).__name__ not in {"UnicodeDecodeError", "ExecuteBatchError"}


class LogHandler(logging.Handler):
    """Formats a line where it is logged and queues it for the thread that writes.

    A line is suppressed if there is no room, or if the limit of its event was reached in the same
    second; the next line counts them.

    Attributes:
      latest: The newest line of each event of the service that is a warning or an error.
    """

    def __init__(self, stream: TextIO, common_fields: Mapping[str, Any]) -> None:
        """Starts the thread."""
        super().__init__()
        self.setFormatter(JsonLines(common_fields))
        self.addFilter(_is_relevant)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._file = _open_unbuffered(stream)
        self._thread = threading.Thread(target=self._write_lines, name="rowcast-log", daemon=True)
        self._second = self._rejected = self._unwritten = self._suppressed = 0
        self._counts: Counter[tuple[Hashable, ...]] = Counter()
        self._is_finished = False
        self.latest: dict[str, str] = {}
        self._thread.start()

    @property
    def dropped(self) -> int:
        """The number of lines that could not be written."""
        return self._rejected + self._unwritten

    def emit(self, record: logging.LogRecord) -> None:
        """Queues a line or drops it; never waits."""
        is_unlimited = hasattr(record, _UNLIMITED)
        size_max = QUEUE_SIZE_MAX // 2 if is_unlimited else QUEUE_SIZE_MAX
        is_full = self._lines.qsize() >= size_max
        if is_full or (not is_unlimited and self._reaches_limit(record)):
            # A line beyond its limit is left out on purpose, and does not count as dropped.
            self._rejected += is_full
            self._suppressed += 1
            return

        # The next line says how many were left out before it.
        if self._suppressed:
            record_fields = {**getattr(record, _FIELDS, {}), "suppressed": self._suppressed}
            setattr(record, _FIELDS, record_fields)
            self._suppressed = 0
        try:
            line = self.format(record)
            if self._is_finished:
                self._write_if_possible(line)
            else:
                self._lines.put(line)
            if record.levelno >= logging.WARNING and _is_ours(record):
                self.latest[str(record.msg)] = line
        except Exception:  # noqa: BLE001 - as the handlers of the standard library do
            self.handleError(record)

    def _reaches_limit(self, record: logging.LogRecord) -> bool:
        """Counts a line of an event; returns whether the limit of this second is reached."""
        second = int(record.created)
        if second != self._second:
            self._second = second
            self._counts.clear()
        event = str(record.msg)
        key = getattr(record, _LIMITED_BY, None)
        if key is None:
            self._counts[event,] += 1
            return self._counts[event,] > LINES_PER_S_MAX
        self._counts[event, key] += 1
        if self._counts[event, key] > 1:
            return True
        self._counts[event, "keys"] += 1
        return self._counts[event, "keys"] > LIMITED_LINES_PER_S_MAX

    def finish(self, timeout_s: float = 1.0) -> None:
        """Writes the queued lines and ends the thread; gives up after a time, as stderr may block
        for good. From now on, a line is written where it is logged, if stderr takes it at once.
        """
        self._lines.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return
        self._is_finished = True
        # Lines that were logged after the end of the queue was set.
        while not self._lines.empty():
            if line := self._lines.get():
                self._write_if_possible(line)

    def close(self, timeout_s: float = 1.0) -> None:
        """Finishes, and writes nothing from now on."""
        super().close()
        self.finish(timeout_s)
        if self._is_finished:
            self._file.close()

    def _write_lines(self) -> None:
        for line in iter(self._lines.get, None):
            self._write(line)

    def _write_if_possible(self, line: str) -> None:
        if self._file.closed:
            self._unwritten += 1
            return
        poll = select.poll()
        poll.register(self._file, select.POLLOUT)
        if poll.poll(0):
            self._write(line)
        else:
            self._unwritten += 1

    def _write(self, line: str) -> None:
        try:
            self._file.write(f"{line}\n".encode())
        except OSError:
            # Nobody reads the lines any more, or the disk is full.
            self._unwritten += 1


class ExceptionHooks:
    """Reports exceptions that nobody caught as lines of the log."""

    def __init__(self) -> None:
        """Replaces Python's hooks."""
        self._hooks_before = (sys.excepthook, threading.excepthook, sys.unraisablehook)
        sys.excepthook = _log_uncaught
        threading.excepthook = lambda raised: _log_uncaught(
            raised.exc_type, raised.exc_value, raised.exc_traceback
        )
        sys.unraisablehook = lambda raised: _log_uncaught(
            raised.exc_type, raised.exc_value, raised.exc_traceback
        )

    def remove(self) -> None:
        """Restores the hooks that were in effect before."""
        sys.excepthook, threading.excepthook, sys.unraisablehook = self._hooks_before


_hooks: ExceptionHooks | None = None


def _log_uncaught(
    kind: type[BaseException], problem: BaseException | None, traceback: TracebackType | None
) -> None:
    # A thread that ends by `sys.exit` has no problem.
    if issubclass(kind, SystemExit):
        return
    if problem is None:
        problem = kind()
    logger(__name__).critical("uncaught_exception", exc_info=(kind, problem, traceback))


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.startswith(ROOT_LOGGER)


def configure(level: str, stream: TextIO | None = None, **common_fields: Any) -> None:
    """Sends the service's events, and the warnings of libraries, to a stream as JSON lines; may be
    called again.

    Queued lines are written when the interpreter exits; call `shutdown` before `os._exit`.

    Args:
      level: The minimum severity of the service's events.
      stream: A stream of a file or pipe; None: the current target of stderr, also while
        `runtime.native_output` silences stderr.
      common_fields: The fields that every line has.
    """
    global _hooks  # noqa: PLW0603 - Python has one set of hooks, too
    shutdown()
    root = logging.getLogger()
    root.handlers = [LogHandler(stream or sys.stderr, common_fields)]
    root.setLevel(logging.WARNING)
    set_level(level)
    logging.captureWarnings(capture=True)
    _hooks = ExceptionHooks()


def set_level(level: str) -> None:
    """Sets the minimum severity of the service's events."""
    logging.getLogger(ROOT_LOGGER).setLevel(level.upper())


def finish(timeout_s: float = 1.0) -> None:
    """Writes the queued lines of a process that ends and may still log; waits no longer than
    `timeout_s`.
    """
    for handler in _handlers():
        handler.finish(timeout_s)


def shutdown(timeout_s: float = 1.0) -> None:
    """Writes the queued lines and stops logging; waits no longer than `timeout_s`."""
    global _hooks  # noqa: PLW0603
    if _hooks is not None:
        _hooks.remove()
        _hooks = None
    for handler in _handlers():
        logging.getLogger().removeHandler(handler)
        handler.close(timeout_s)
    logging.captureWarnings(capture=False)


def latest_problems() -> list[dict[str, Any]]:
    """Returns the newest line of each of the service's events that is a warning or an error, since
    `configure`.
    """
    lines: list[str] = []
    for handler in _handlers():
        # A copy: another thread may log meanwhile.
        lines += list(handler.latest.values())
    return [orjson.loads(line) for line in lines]


def lines_dropped() -> int:
    """Returns the number of lines that could not be written since `configure`."""
    return sum(handler.dropped for handler in _handlers())


def _handlers() -> list[LogHandler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, LogHandler)]


def _open_unbuffered(stream: TextIO) -> io.FileIO:
    """Returns a file of the same stream without a buffer."""
    # A buffer has a lock, and Python crashes at its exit if a thread that writes holds the lock.
    descriptor = os.dup(stream.fileno())
    os.set_blocking(descriptor, True)
    return io.FileIO(descriptor, "w")
