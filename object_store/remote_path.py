"""Files that a URL names, in whatever store fsspec reaches: `s3://`, `gs://`, `memory://` and
others.

Access is configured by the environment alone: fsspec's own variables (`FSSPEC_S3_ENDPOINT_URL`) and
those of the store's library (`AWS_ACCESS_KEY_ID`, `GOOGLE_APPLICATION_CREDENTIALS`). A URL that
holds credentials is rejected, so none is ever logged, journaled or sent to another process.

Every request is repeated while the store throttles or its connections are lost: see `patience.py`.
"""

from __future__ import annotations

import base64
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from object_store.patience import patiently
from object_store.stamps import Stamp, modified_s, remote_stamp

FLAT_STORES = ("s3", "s3a", "gs", "gcs", "abfs", "az", "memory")
"""Stores without directories. Making a directory there would make a bucket of a misspelled name."""
_S3 = ("s3", "s3a")


@dataclass(frozen=True, slots=True, order=True)
class RemotePath:
    """A file or directory in a store, named by its URL; never an open connection.

    Every method raises OSError where the store denies it or cannot be reached; its `filename` is
    the URL.
    """

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, path: str) -> RemotePath:
        return RemotePath(f"{self.url.rstrip('/')}/{path}")

    @property
    def name(self) -> str:
        """The last part of the URL."""
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
        """Returns the path called `name` in the same directory."""
        return self.parent / name

    def is_file(self) -> bool:
        """Returns whether it is a file."""
        return self._kind() == "file"

    def is_dir(self) -> bool:
        """Returns whether it is a directory: something lies under it."""
        return self._kind() == "directory"

    def stamp(self) -> Stamp:
        """Returns the stamp of a file."""
        return remote_stamp(self._call(lambda store, path: store.info(path)))

    def modified_s(self) -> float | None:
        """Returns when a file was written last, by the store's clock in seconds since 1970; None:
        the store does not report it.
        """
        return modified_s(self._call(lambda store, path: store.info(path)))

    def size_and_time(self) -> tuple[int, float | None]:
        """Returns the size of a file, and the time of `modified_s`, by one request."""
        info = self._call(lambda store, path: store.info(path))
        return remote_stamp(info).bytes, modified_s(info)

    def crc32c(self) -> int | None:
        """Returns the crc32c that the store has computed of a file; None: It reports none."""
        checksum = self._call(lambda store, path: store.info(path)).get("crc32c")
        if not isinstance(checksum, str):
            return None
        return int.from_bytes(base64.b64decode(checksum))

    @property
    def verifies_uploads(self) -> bool:
        """Whether the store compares each request's body with a checksum before it stores it."""
        return self._protocol in _S3

    def listing(self) -> dict[str, Stamp]:
        """Returns the names in a directory with their stamps; {} if there is no such directory."""
        return {name: remote_stamp(info) for name, info in self._infos().items()}

    def times(self) -> dict[str, float | None]:
        """Returns the names in a directory with the times of `modified_s`."""
        return {name: modified_s(info) for name, info in self._infos().items()}

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
        """Writes a small file in one piece; it appears whole, or not at all.

        Args:
          data: The bytes of the file.
          new: Whether an existing file is an error, FileExistsError, instead of being replaced.
            Some stores check this before they write, not atomically.
        """

        def put(store: Any, path: str) -> None:
            self._make_parent(store, path)
            if new:
                store.pipe_file(path, data, mode="create")
                return
            if self._protocol in FLAT_STORES:
                store.pipe_file(path, data, mode="overwrite")
                return
            # Other stores show a file while it is written: it gets its name once it is whole.
            temporary = f"{path}.part-{secrets.token_hex(8)}"
            store.pipe_file(temporary, data)
            store.mv(temporary, path)

        self._call(put)

    def remove(self) -> None:
        """Removes a file; one that is not there is no error."""
        with suppress(FileNotFoundError):
            self._call(lambda store, path: store.rm_file(path))

    def _infos(self) -> dict[str, Any]:
        """Returns what the store reports of each file and directory in a directory, by name."""
        try:
            infos = self._call(lambda store, path: store.ls(path, detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        info_by_name = {}
        for info in infos:
            _, _, name = str(info["name"]).rstrip("/").rpartition("/")
            if name:
                info_by_name[name] = info
        return info_by_name

    def _make_parent(self, store: Any, path: str) -> None:
        if self._protocol not in FLAT_STORES:
            store.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _kind(self) -> str:
        # The stores' own isfile and isdir return False where they could not find out.
        try:
            return str(self._call(lambda store, path: store.info(path))["type"])
        except (FileNotFoundError, NotADirectoryError):
            return ""

    @property
    def _protocol(self) -> str:
        return self.url.partition("://")[0]

    def _call(self, operation: Callable[[Any, str], Any]) -> Any:
        """Runs an operation on the store and the path in it, without fsspec's listing cache: others
        may write.
        """

        def request() -> Any:
            from fsspec.core import url_to_fs  # tens of milliseconds

            # gcsfs logs whole stacks of what it raises.
            logging.getLogger("gcsfs").addHandler(logging.NullHandler())
            return operation(*url_to_fs(self.url, use_listings_cache=False))

        return patiently(self.url, request)
