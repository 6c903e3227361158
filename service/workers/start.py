"""Starts a service: this process becomes its supervisor."""

from __future__ import annotations

import os
import sys

from service.config import ServiceSettings
from service.observability import logging
from service.resources import raise_open_files_limit
from service.security.exposure import warn_of_exposed_secrets, warn_of_open_endpoints

_OTHER_FILES = 1024
"""Open files of a process beside its connections: bundles while they are mapped, pipes, logs."""
_TRANSPORTS = 2
_BODIES_SHARE = 4
"""What part of the memory bodies and responses may have in all processes: one in so many."""


def fitted(settings: ServiceSettings, open_files: int, memory: int) -> ServiceSettings:
    """Returns settings whose defaults fit this process. What a user has set stays.

    Args:
      settings: The settings.
      open_files: How many files a process may open.
      memory: The memory that all processes share, in bytes.
    """
    connections = max(1, (open_files - _OTHER_FILES) // _TRANSPORTS)
    body_bytes = memory // _BODIES_SHARE // settings.workers
    least_bytes = max(settings.max_request_bytes, settings.max_response_bytes)
    defaults = {
        "max_connections": min(settings.max_connections, connections),
        "max_inflight_bytes": min(settings.max_inflight_bytes, max(least_bytes, body_bytes)),
    }
    return settings.model_copy(
        update={
            name: value for name, value in defaults.items() if name not in settings.model_fields_set
        }
    )


def start(settings: ServiceSettings) -> None:
    """Replaces this process, which has loaded the settings' libraries, by the supervisor.

    The process keeps its number, which systemd and containers watch. The supervisor reads the
    settings from a file in memory, which it inherits.
    """
    raise_open_files_limit()
    values = os.memfd_create("rowcast-settings", 0)  # the supervisor inherits it
    os.write(values, settings.model_dump_json().encode())
    os.lseek(values, 0, os.SEEK_SET)
    warn_of_open_endpoints(settings)
    warn_of_exposed_secrets(settings)
    logging.shutdown()
    program = [sys.executable, "-P", "-m", "service.workers.supervisor", str(values)]
    os.execv(sys.executable, program)  # noqa: S606 - the same interpreter
