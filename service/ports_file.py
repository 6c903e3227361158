"""The file that tells which ports a service has bound."""

from __future__ import annotations

import os
from pathlib import Path

import orjson


def write_ports(path: Path, http: int, grpc: int) -> None:
    """Writes the bound ports in one rename, so that a waiting reader never sees half of them.

    Raises:
      OSError: the file cannot be written.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(orjson.dumps({"http": http, "grpc": grpc}))
    aside.replace(path)
