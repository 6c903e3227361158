"""`rowcast-serve`: reads settings, serves, and ends with the exit code that tells how it went."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import orjson
import uvloop

from runtime.errors import DeviceMissing, LibraryMissing
from runtime.native_output import own_stderr
from runtime.savedmodels import require_gpu, require_library
from service import logs
from service.command_line import command
from service.exits import EXIT_DONE, EXIT_USAGE
from service.process import serve
from service.security.guards import guards_of
from service.settings import ServiceSettings, SettingsError, read_settings


def main() -> None:
    """Runs the command line and exits the process."""
    command(_run)()


def _run(options: dict[str, Any], only_print: bool) -> int:
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
    except (LibraryMissing, DeviceMissing, SettingsError) as problem:
        sys.stderr.write(f"error: {problem}\n")
        return EXIT_USAGE
    logs.configure(settings.log_level, own_stderr())  # whatever native libraries do with stderr meanwhile
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(settings))


def _check_device(settings: ServiceSettings) -> None:
    """Finds out at once whether TensorFlow is there, and sees what it is to run on."""
    if settings.device == "gpu":
        require_gpu()
    elif settings.precision == "bf16":
        require_library("--precision bf16")
