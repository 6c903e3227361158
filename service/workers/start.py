"""Starts a service: this process becomes its supervisor."""

from __future__ import annotations

import os
import sys

from service.config import ServiceSettings
from service.observability import logging
from service.resources import raise_open_files_limit
from service.security.exposure import warn_of_exposed_secrets, warn_of_open_endpoints

_OTHER_FILES = 1024
"""Open files of a process beside its connections: bundles while they are mapped, pipes, logs. Of a
lower limit than twice as many, half."""
_TRANSPORTS = 2
"""HTTP and gRPC, which each have connections."""
_BODIES_DIVISOR = 4
"""The bodies of requests and responses of all processes may occupy the memory divided by this."""


def fitted(settings: ServiceSettings, open_files: int, memory: int) -> ServiceSettings:
    """Returns settings whose defaults fit this process. What a user has set stays.

    Args:
      settings: The settings.
      open_files: The number of files that a process may open.
      memory: The memory that all processes share, in bytes.
    """
    other_files = min(_OTHER_FILES, open_files // 2)
    # uvicorn counts the connection that it accepts: a limit of 1 would reject every request.
    connections = max(2, (open_files - other_files) // _TRANSPORTS)
    body_bytes = memory // _BODIES_DIVISOR // settings.workers
    # Below the size of one body, the largest request that is allowed could never be served.
    largest_body_bytes = max(settings.max_request_bytes, settings.max_response_bytes)
    inflight_bytes = max(largest_body_bytes, body_bytes)
    defaults = {
        "max_connections": min(settings.max_connections, connections),
        "max_inflight_bytes": min(settings.max_inflight_bytes, inflight_bytes),
    }
    return settings.model_copy(
        update={
            name: value for name, value in defaults.items() if name not in settings.model_fields_set
        }
    )


def start(settings: ServiceSettings, program: str) -> None:
    """Replaces this process, which has loaded the settings' libraries, by the supervisor.

    The process keeps its number, which systemd and containers watch. The supervisor reads the
    settings from a file in memory, which it inherits.

    Args:
      settings: The settings.
      program: The name of the module that runs the supervisor.

    Raises:
      OSError: This Python cannot be run again.
    """
    raise_open_files_limit()
    # Flags of 0, without MFD_CLOEXEC: the supervisor inherits the descriptor.
    file = os.memfd_create("rowcast-settings", 0)
    os.write(file, settings.model_dump_json().encode())
    os.lseek(file, 0, os.SEEK_SET)

    # The supervisor has no settings class, so that the warnings are due before it.
    warn_of_open_endpoints(settings)
    warn_of_exposed_secrets(settings)
    # What waits in the log's thread would be lost with this program. Not `shutdown`: if the program
    # cannot be replaced, the caller logs why.
    logging.finish()
    arguments = [sys.executable, "-P", "-m", program, str(file)]
    try:
        os.execv(sys.executable, arguments)  # noqa: S606 - the same interpreter
    except OSError as problem:
        raise OSError(f"{sys.executable} cannot be run: {problem.strerror}") from problem
