"""The file that tells which ports a service has bound."""

from __future__ import annotations

import os
from pathlib import Path

import orjson


def write_ports(path: Path, http: int, grpc: int, admin: int | None = None) -> None:
    """Writes the bound ports in one rename, so that a waiting reader never sees half of them.

    Raises:
      OSError: the file cannot be written.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    ports = {"http": http, "grpc": grpc, **({} if admin is None else {"admin": admin})}
    try:
        aside.write_bytes(orjson.dumps(ports))
        aside.replace(path)
    except OSError as problem:
        raise OSError(f"--ports-file {path} cannot be written: {problem.strerror or problem}") from problem
