"""Starts a service: this process becomes its supervisor."""

from __future__ import annotations

import os
import resource
import sys

from service.config import ServiceSettings
from service.observability import logging
from service.security.exposure import warn_of_exposed_secrets, warn_of_open_endpoints

_OPEN_FILES = 1 << 16


def start(settings: ServiceSettings) -> None:
    """Replaces this process, which has loaded the settings' libraries, by the supervisor.

    The process keeps its number, which systemd and containers watch. The supervisor reads the
    settings from a file in memory, which it inherits.
    """
    _raise_open_files_limit()
    values = os.memfd_create("rowcast-settings", 0)  # the supervisor inherits it
    os.write(values, settings.model_dump_json().encode())
    os.lseek(values, 0, os.SEEK_SET)
    warn_of_open_endpoints(settings)
    warn_of_exposed_secrets(settings)
    logging.shutdown()
    program = [sys.executable, "-P", "-m", "service.workers.supervisor", str(values)]
    os.execv(sys.executable, program)  # noqa: S606 - the same interpreter


def _raise_open_files_limit() -> None:
    """Raises the soft limit on open files towards the hard one: many systems begin with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
