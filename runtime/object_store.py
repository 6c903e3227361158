"""Files that a URL names, in whatever store fsspec reaches: `s3://`, `gs://`, `memory://` and others.

Access is configured by the environment alone: fsspec's own variables (`FSSPEC_S3_ENDPOINT_URL`) and those of the
store's library (`AWS_ACCESS_KEY_ID`, `GOOGLE_APPLICATION_CREDENTIALS`). A URL that holds credentials is rejected, so
none is ever logged, journaled or sent to another process. The store's library retries lost connections.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://(.*)", re.DOTALL)
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
_TAGS = ("generation", "ETag", "etag", "mtime", "LastModified", "last_modified", "created")
"""What a store reports of a file that changes with its bytes, the surest first."""
_FLAT = ("s3", "s3a", "gs", "gcs", "abfs", "az", "memory")
"""Stores without directories. Making one there would make a bucket out of a misspelled name."""
_PART_BYTES = 16 << 20
_PARTS_AT_A_TIME = 4


@dataclass(frozen=True, slots=True)
class Stamp:
    """Differs if the bytes of a file do: size, and the store's generation, ETag or time."""

    bytes: int
    tag: str


@dataclass(frozen=True, slots=True, order=True)
class RemotePath:
    """A file or directory in a store, named by its URL; never an open connection.

    Every method raises OSError where the store denies it or cannot be reached; its `filename` is the URL.
    """

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, path: str) -> RemotePath:
        return RemotePath(f"{self.url.rstrip('/')}/{path}")

    @property
    def name(self) -> str:
        """The last part."""
        return self.url.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The end of the name, from its last dot."""
        return PurePosixPath(self.name).suffix

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return PurePosixPath(self.name).stem

    @property
    def parent(self) -> RemotePath:
        """The directory that holds it."""
        return RemotePath(self.url.rpartition("/")[0])

    def with_name(self, name: str) -> RemotePath:
        """Returns what is called `name` beside it."""
        return self.parent / name

    def is_file(self) -> bool:
        """Returns whether it is a file."""
        return self._kind() == "file"

    def is_dir(self) -> bool:
        """Returns whether it is a directory: something lies under it."""
        return self._kind() == "directory"

    def stamp(self) -> Stamp:
        """Returns the stamp of a file."""
        return _stamp(self._call(lambda store, path: store.info(path)))

    def modified(self) -> Any:
        """Returns when a file was written last, comparable with other times of the same store."""
        return self._call(lambda store, path: store.modified(path))

    def listing(self) -> dict[str, Stamp]:
        """Returns the names in a directory with their stamps; {} if there is no such directory."""
        try:
            found = self._call(lambda store, path: store.ls(path, detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        named = {str(each["name"]).rstrip("/").rpartition("/")[2]: each for each in found}
        return {name: _stamp(each) for name, each in named.items() if name}

    def iterdir(self) -> Iterator[RemotePath]:
        """Returns what lies in a directory."""
        return (self / name for name in self.listing())

    def read(self, offset: int, count: int) -> bytes:
        """Returns `count` bytes from `offset`; fewer at the end of the file."""
        if not count:  # no range of HTTP is empty
            return b""
        return bytes(
            self._call(lambda store, path: store.cat_file(path, start=offset, end=offset + count))
        )

    def write(self, data: bytes, *, new: bool = False) -> None:
        """Writes a small file in one piece.

        Args:
          data: its bytes.
          new: do not replace one: FileExistsError. Some stores check this before they write, not atomically.
        """

        def put(store: Any, path: str) -> None:
            self._make_parent(store, path)
            store.pipe_file(path, data, mode="create" if new else "overwrite")

        self._call(put)

    def upload(self, source: Path, *, new: bool = False) -> None:
        """Writes a file from a local one, in parallel parts where the store takes parts.

        Args:
          source: the local file.
          new: FileExistsError instead of replacing one, where the store supports that.
        """
        # Bounds the memory that an upload holds; other stores send one part at a time.
        options: dict[str, Any] = {}
        if self._protocol in ("s3", "s3a"):
            options = {"chunksize": _PART_BYTES, "max_concurrency": _PARTS_AT_A_TIME}
            options["mode"] = "create" if new else "overwrite"

        def put(store: Any, path: str) -> None:
            self._make_parent(store, path)
            store.put_file(str(source), path, **options)

        self._call(put)

    def vouched(self, source: Path) -> bool:
        """Returns whether the store's own checksum proves that it holds the bytes of a local file.

        False proves nothing: the store may have none, or one that is made in another way.
        Source: the ETag of a multipart upload is the md5 of its parts' md5s, then `-` and their number (S3 user guide).
        """
        info = self._call(lambda store, path: store.info(path))
        if info.get("md5Hash"):
            return bool(
                info["md5Hash"] == base64.b64encode(_md5(source, source.stat().st_size)[0]).decode()
            )
        etag = str(info.get("ETag", "")).strip('"')
        if not re.fullmatch(r"[0-9a-f]{32}(-\d+)?", etag):
            return False
        if "-" not in etag:
            return etag == _md5(source, source.stat().st_size)[0].hex()
        parts = _md5(source, _PART_BYTES)
        return (
            etag
            == f"{hashlib.md5(b''.join(parts), usedforsecurity=False).hexdigest()}-{len(parts)}"
        )

    def remove(self) -> None:
        """Removes a file; one that is not there is no error."""
        with suppress(FileNotFoundError):
            self._call(lambda store, path: store.rm_file(path))

    def _make_parent(self, store: Any, path: str) -> None:
        if self._protocol not in _FLAT:
            store.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _kind(self) -> str:
        # Not the stores' own isfile and isdir, which return False where they could not find out.
        try:
            return str(self._call(lambda store, path: store.info(path))["type"])
        except (FileNotFoundError, NotADirectoryError):
            return ""

    @property
    def _protocol(self) -> str:
        return self.url.partition("://")[0]

    def _call(self, operation: Callable[[Any, str], Any]) -> Any:
        """Runs an operation on the store and the path in it, without fsspec's listing cache: others may write."""
        with _as_os_errors(self.url):
            from fsspec.core import url_to_fs  # tens of milliseconds

            logging.getLogger("gcsfs").addHandler(
                logging.NullHandler()
            )  # logs whole stacks of what it raises
            return operation(*url_to_fs(self.url, use_listings_cache=False))


Place: TypeAlias = Path | RemotePath
"""A local path, or one in a store."""


def local_stamp(status: os.stat_result) -> Stamp:
    """Returns the stamp of a file of this machine."""
    return Stamp(status.st_size, f"mtime_ns={status.st_mtime_ns} ino={status.st_ino}")


def is_url(text: str) -> bool:
    """Returns whether a text is a URL and no path of this machine."""
    return "://" in text and _URL.fullmatch(text) is not None


def located(text: str | Path, base: Path = Path()) -> Place:
    """Returns the place that a text names: a URL's, or a path's that is relative to `base`.

    `file://` is this machine: such a URL names a path.

    Raises:
      ValueError: a URL that holds credentials or is chained, names no bucket, or has a scheme that no store has.
    """
    found = _URL.fullmatch(str(text))
    if found is None:
        return base / text
    protocol, path = found[1].lower(), found[2]
    if "@" in path.partition("/")[0] or "?" in path:
        raise ValueError(
            f"a URL {protocol}://... holds credentials or a query; give only the place, and credentials in the "
            "environment (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, FSSPEC_...)"
        )
    if "::" in path:
        raise ValueError(
            f"a URL {protocol}://... is chained by '::'; one place in one store was expected"
        )
    if protocol == "file":
        return Path(path)
    from fsspec.registry import known_implementations, registry

    if protocol not in known_implementations and protocol not in registry:
        raise ValueError(
            f"URL {text} has the scheme {protocol!r}, which is not known; s3, gs and file are"
        )
    if protocol in _FLAT and not path.strip("/"):
        raise ValueError(f"URL {text} names no bucket; {protocol}://BUCKET/PATH was expected")
    return RemotePath(f"{protocol}://{path.rstrip('/')}")


def _stamp(info: Mapping[str, Any]) -> Stamp:
    tags = [f"{name}={_plain(info[name])}" for name in _TAGS if info.get(name) is not None]
    inode = f" ino={info['ino']}" if "ino" in info else ""
    return Stamp(int(info.get("size") or 0), (tags[0] if tags else "") + inode)


def _plain(value: Any) -> Any:
    return (
        value.timestamp() if isinstance(value, datetime) else value
    )  # a store may report a time in both ways


def _md5(path: Path, part_bytes: int) -> list[bytes]:
    """Returns the md5 of each part of a file; of one empty part if it is empty."""
    sums: list[bytes] = []
    left = path.stat().st_size
    with path.open("rb") as file:
        while left or not sums:
            part, size = hashlib.md5(usedforsecurity=False), min(left, part_bytes)
            left -= size
            while size:
                data = file.read(min(size, 4 << 20))
                if not data:
                    raise OSError(errno.EIO, "it became shorter while it was read", str(path))
                part.update(data)
                size -= len(data)
            sums.append(part.digest())
    return sums


@contextmanager
def _as_os_errors(url: str) -> Iterator[None]:
    """Turns whatever a store's library raises into an OSError that has a number, a sentence and the URL."""
    try:
        yield
    except ImportError as problem:
        extra = _EXTRAS.get(url.partition("://")[0])
        cure = f"; install rowcast[{extra}]" if extra else ""
        raise OSError(
            errno.EPROTONOSUPPORT, f"{str(problem).splitlines()[0]}{cure}", url
        ) from problem
    except OSError as problem:
        number = problem.errno or _NUMBERS.get(type(problem), errno.EIO)
        text = problem.strerror or (
            os.strerror(number) if number != errno.EIO else str(problem) or "it failed"
        )
        raise OSError(number, text, url) from problem  # of the class that the number means
    except Exception as problem:  # libraries of stores raise what they like
        kind, text = type(problem).__name__, " ".join(str(problem).split())[:300]
        cure = "; the environment gives them (AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS, ...)"
        raise OSError(
            errno.EIO, f"{kind}: {text}{cure if 'Credentials' in kind else ''}", url
        ) from problem


_NUMBERS: dict[type[OSError], int] = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    PermissionError: errno.EACCES,
    IsADirectoryError: errno.EISDIR,
    NotADirectoryError: errno.ENOTDIR,
}
