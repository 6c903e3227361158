"""What `rowcast-serve` does once its command line is read: settings, checks, one process or several, exit codes."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import orjson

from runtime.errors import DeviceMissing, LibraryMissing
from runtime.native_output import own_stderr
from service import logs
from service.control.listener import admin_tokens
from service.cores import usable_cores
from service.exits import EXIT_DONE, EXIT_USAGE
from service.log_stream import LogStream
from service.recordings.recording import check_recordings
from service.security.guards import guards_of
from service.settings import ServiceSettings, SettingsError, read_settings
from service.sockets import raise_files_limit
from service.threads import set_threads
from service.workers.parent import Parent
from service.workers.place import Place

log = logs.logger(__name__)
_NAMES = 20_000
"""More than the 11 500 that are free of CPython 3.11's 43 690 places once all is imported."""


def run(options: dict[str, Any], only_print: bool) -> int:
    """Serves until a signal; returns the exit code.

    Args:
      options: of the command line, by the name of their setting; None: not given.
      only_print: whether to print the settings instead.
    """
    try:
        settings = read_settings(options)
    except SettingsError as problem:
        sys.stderr.write(f"error: {problem}\n")
        return EXIT_USAGE
    if only_print:
        sys.stdout.write(orjson.dumps(settings.model_dump(mode="json"), option=orjson.OPT_INDENT_2).decode() + "\n")
        return EXIT_DONE
    try:
        _check_device(settings)
        guards_of(settings)
        admin_tokens(settings)
        check_recordings(settings)
    except (LibraryMissing, DeviceMissing, SettingsError) as problem:
        sys.stderr.write(f"error: {problem}\n")
        return EXIT_USAGE
    lines = LogStream(own_stderr())  # whatever native libraries do with stderr meanwhile
    logs.configure(settings.log_level, lines)
    chosen = set_threads(settings.workers, settings.threads)
    log.info("threads", extra=logs.fields(cores=usable_cores(), workers=settings.workers, **asdict(chosen)))
    raise_files_limit()
    serve = _server()
    if settings.workers == 1:
        return serve(settings, None)

    def work(place: Place) -> int:
        logs.configure(settings.log_level, lines, worker=place.index)
        return serve(settings, place)

    try:
        return Parent(settings, work).run()
    except OSError as problem:
        log.error("cannot_start", extra=logs.fields(problem=str(problem)))
        return EXIT_USAGE


def _server() -> Callable[[ServiceSettings, Place | None], int]:
    """Imports all that serves; of several workers once, by their parent: they share the pages, and start in no time."""
    gc.disable()
    import uvloop

    from service.process import serve

    _lay_out_names()
    gc.freeze()  # what is there now stays: no collection looks through it again, or writes to pages that are shared
    gc.enable()

    def run_loop(settings: ServiceSettings, place: Place | None) -> int:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(settings, place))

    return run_loop


def _lay_out_names() -> None:
    """Has the interpreter's table of names grow now, once for all workers, which share its pages.

    Versions bring names that come and go. They used the table's places up, a third of which was left, after some
    eighty versions; it is then laid out anew, with 2 MB, and in each worker for itself. From this size on it stays.
    """
    names = [sys.intern(f"name {number}") for number in range(_NAMES)]
    del names


def _check_device(settings: ServiceSettings) -> None:
    """Finds out at once whether TensorFlow is there, and sees what it is to run on."""
    if settings.device == "cpu" and settings.precision != "bf16":
        return
    from runtime.savedmodels import require_gpu, require_library

    if settings.device == "gpu":
        require_gpu()
    else:
        require_library("--precision bf16")
