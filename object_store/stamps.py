"""Stamps of files: they differ if the bytes do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

_TAGS = ("generation", "ETag", "etag", "mtime", "LastModified", "last_modified", "created")
"""The fields of a store's report on a file that change with its bytes, the surest first."""
_TIMES = ("LastModified", "mtime", "updated", "last_modified", "created")
"""The names by which stores report the time of a file's last change."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Differs if the bytes of a file do: size, and the store's generation, ETag or time."""

    bytes: int
    tag: str


def local_stamp(status: os.stat_result) -> Stamp:
    """Returns the stamp of a file of this machine."""
    return Stamp(status.st_size, f"mtime_ns={status.st_mtime_ns} ino={status.st_ino}")


def remote_stamp(info: Mapping[str, Any]) -> Stamp:
    """Returns the stamp of a file, from what its store reports of it."""
    tag = ""
    for name in _TAGS:
        if info.get(name) is not None:
            tag = f"{name}={_plain(info[name])}"
            break
    if "ino" in info:  # a directory of this machine
        tag += f" ino={info['ino']}"
    return Stamp(int(info.get("size") or 0), tag)


def modified_s(info: Mapping[str, Any]) -> float | None:
    """Returns when a file was written last, by the store's clock in seconds since 1970; None: the
    store does not report it.
    """
    for name in _TIMES:
        value = info.get(name)
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            value = value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None


def _plain(value: Any) -> Any:
    """Returns a tag whose text does not depend on how the store's library represents it."""
    # A library may report one and the same time as a datetime and as a number.
    if isinstance(value, datetime):
        return value.timestamp()
    return value
