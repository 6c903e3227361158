"""The run directory of a service: what its processes tell each other, as files.

The supervisor imports this module, so that it must stay light.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.config import ServiceSettings

RUN_DIRECTORY = "ROWCAST_RUN_DIRECTORY"
GRPC_PORT = "ROWCAST_BOUND_GRPC_PORT"
ADMIN_PORT = "ROWCAST_BOUND_ADMIN_PORT"
REPLACEMENT = "ROWCAST_REPLACEMENT"
"""Set for workers that are started while others serve, or in place of one."""
_SETTINGS = "settings.json"
_EXIT_CODE = "exit-code"


@dataclass(frozen=True)
class Heartbeat:
    """What a worker's event loop last reported.

    Attributes:
      problem: Why requests should not be sent to the worker; "": they should.
      written_ns: When the worker wrote it, in nanoseconds.
    """

    problem: str
    written_ns: int


def run_directory() -> Path:
    """Returns the private directory of the running service."""
    return Path(os.environ[RUN_DIRECTORY])


def write_settings_file(directory: Path, settings: ServiceSettings) -> None:
    """Writes the settings for the supervisor and the workers."""
    (directory / _SETTINGS).write_text(settings.model_dump_json())


def read_settings_values(directory: Path) -> dict[str, Any]:
    """Returns the settings by name, as JSON values."""
    values: dict[str, Any] = json.loads((directory / _SETTINGS).read_bytes())
    return values


def read_settings_file(directory: Path) -> ServiceSettings:
    """Returns the settings that the service was started with."""
    from service.config import ServiceSettings

    return ServiceSettings(**read_settings_values(directory))


def write_exit_code(directory: Path, code: int) -> bool:
    """Records the exit code of the service; the first one counts. Returns whether this is it."""
    try:
        with (directory / _EXIT_CODE).open("x") as file:
            file.write(str(code))
    except FileExistsError:
        return False
    return True


def read_exit_code(directory: Path, default: int) -> int:
    """Returns the recorded exit code."""
    file = directory / _EXIT_CODE
    return int(file.read_text()) if file.exists() else default


def write_heartbeat(directory: Path, problem: str) -> None:
    """Reports that the event loop of this process runs, and whether it is ready.

    Args:
      directory: The run directory.
      problem: See Heartbeat.

    Raises:
      OSError: The directory cannot be written.
    """
    staged = directory / f".heartbeat-{os.getpid()}"
    staged.write_text(json.dumps(problem))
    staged.replace(_heartbeat_file(directory, os.getpid()))


def read_heartbeat(directory: Path, pid: int) -> Heartbeat | None:
    """Returns the last heartbeat of a worker; None: it has not started yet."""
    file = _heartbeat_file(directory, pid)
    try:
        written_ns = file.stat().st_mtime_ns
        return Heartbeat(json.loads(file.read_bytes()), written_ns)
    except FileNotFoundError:
        return None


def forget_heartbeats(directory: Path, running: set[int]) -> None:
    """Removes the heartbeats of processes that have ended."""
    for file in directory.glob("heartbeat-*.json"):
        if int(file.stem.removeprefix("heartbeat-")) not in running:
            file.unlink(missing_ok=True)


def _heartbeat_file(directory: Path, pid: int) -> Path:
    return directory / f"heartbeat-{pid}.json"
