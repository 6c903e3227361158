"""Locations: a path on this machine, or a URL of a store."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeAlias

from bundle.storage.regular_files import open_regular
from object_store.remote_path import FLAT_STORES, RemotePath
from object_store.stamps import Stamp, local_stamp

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://(.*)", re.DOTALL)

Location: TypeAlias = Path | RemotePath
"""A local path, or one in a store."""


def is_url(text: str) -> bool:
    """Returns whether a text is a URL and no path of this machine."""
    return "://" in text and _URL.fullmatch(text) is not None


def location_of(text: str | Path, base: Path = Path()) -> Location:
    """Returns the location that a text names: a URL's, or a path's that is relative to `base`.

    `file://` is this machine: such a URL names a path.

    Raises:
      ValueError: The URL holds credentials or is chained, names no bucket, or has a scheme that no
        store has.
    """
    url = _URL.fullmatch(str(text))
    if url is None:
        return base / text
    protocol = url[1].lower()
    path = url[2]
    # Messages do not repeat the URL: they are logged, and it may contain a password.
    if "@" in path.partition("/")[0] or "?" in path:
        raise ValueError(
            f"a URL {protocol}://... holds credentials or a query; give only the place, and "
            "credentials in the environment (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, "
            "FSSPEC_...)"
        )
    if "::" in path:
        raise ValueError(
            f"a URL {protocol}://... is chained by '::'; one place in one store was expected"
        )
    if protocol == "file":
        return Path(path)
    from fsspec.registry import known_implementations, registry  # tens of milliseconds

    if protocol not in known_implementations and protocol not in registry:
        raise ValueError(
            f"URL {text} has the scheme {protocol!r}, which is not known; s3, gs and file are"
        )
    if protocol in FLAT_STORES and not path.strip("/"):
        raise ValueError(f"URL {text} names no bucket; {protocol}://BUCKET/PATH was expected")
    return RemotePath(f"{protocol}://{path.rstrip('/')}")


def children(directory: Location) -> list[Location]:
    """Returns what a directory holds, in the order of the names."""
    return sorted(directory.iterdir(), key=str)


def read_range(location: Location, first: int, count: int) -> bytes:
    """Returns `count` bytes of a file from byte `first`; fewer at the end of the file."""
    if isinstance(location, RemotePath):
        return location.read(first, min(count, stamp_of(location).bytes - first))
    with open_regular(location) as stream:
        stream.seek(first)
        # At most those that there are: Python allocates the number of bytes to read.
        return stream.read(min(count, max(0, os.fstat(stream.fileno()).st_size - first)))


def stamp_of(location: Location) -> Stamp:
    """Returns the stamp of a file; raises OSError if there is none."""
    if isinstance(location, RemotePath):
        return location.stamp()
    return local_stamp(location.stat())
