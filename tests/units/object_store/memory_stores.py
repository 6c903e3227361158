"""Object stores in memory: `counted://` counts requests, `troubled://` fails as a store does."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from bundle.format.objects import (
    OBJECT_BYTES,
    OBJECTS,
    POOL,
    ObjectMap,
    StoredFile,
    pool_path,
)
from object_store.remote_path import RemotePath


class CountedStore(MemoryFileSystem):  # type: ignore[misc]
    """Counts requests and the bytes that they returned, by the NAME of the URL."""

    protocol = "counted"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    requests: ClassVar[Counter[str]] = Counter()
    bytes_read: ClassVar[Counter[str]] = Counter()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("counted://", "memory://")))

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        data = bytes(super().cat_file(path, start, end, **options))
        name = path.split("/")[1]
        self.requests[name] += 1
        self.bytes_read[name] += len(data)
        return data


fsspec.register_implementation("counted", CountedStore, clobber=True)


class SleepingClock:
    """A clock that advances only when something sleeps, so that no test waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed_s = 0.0
        monkeypatch.setattr(time, "sleep", self._sleep)
        monkeypatch.setattr(time, "monotonic", lambda: self.passed_s)

    def _sleep(self, seconds: float) -> None:
        self.passed_s += seconds


def uploaded(directory: Path, to: RemotePath) -> RemotePath:
    """Copies a directory's files into a store; returns `to`."""
    for file in sorted(directory.rglob("*")):
        if file.is_file():
            (to / file.relative_to(directory).as_posix()).write(file.read_bytes())
    return to


class TroubledStore(MemoryFileSystem):  # type: ignore[misc]
    """Fails as a store does that throttles, or whose connections are lost, and lists late.

    Attributes:
      failures: What the next requests raise, in order.
      watched: Directory of this machine whose files are counted whenever an object is written.
      seen: The counts.
      lists: Whether a directory's listing shows what is in it.
      flips: Whether reads that do not begin at the first byte return wrong bytes.
      reads: How many there were.
    """

    protocol = "troubled"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    failures: ClassVar[list[Exception]] = []
    watched: ClassVar[Path | None] = None
    seen: ClassVar[list[int]] = []
    lists: ClassVar[bool] = True
    flips: ClassVar[bool] = False
    reads: ClassVar[int] = 0

    @classmethod
    def reset(cls) -> None:
        cls.flips = False
        cls.reads = 0
        cls.failures.clear()
        cls.seen.clear()
        cls.watched = None
        cls.lists = True

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("troubled://", "memory://")))

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self._fail()
        return super().ls(path, detail=detail, **options) if self.lists else []

    def info(self, path: str, **options: Any) -> Any:
        self._fail()
        return super().info(path, **options)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> Any:
        self._fail()
        TroubledStore.reads += 1
        data = super().cat_file(path, start, end, **options)
        return bytes(255 - byte for byte in data) if self.flips and start else data

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> Any:
        if self.watched is not None and POOL in path:
            self.seen.append(sum(1 for _ in self.watched.rglob("*.bin")))
        self._fail()
        return super().pipe_file(path, value, mode=mode, **options)


fsspec.register_implementation("troubled", TroubledStore, clobber=True)


def published_as_objects(bundle: Path, to: RemotePath) -> RemotePath:
    """Copies a bundle's files into a store as an exporter publishes them."""
    files = {}
    for path, content in _contents(bundle).items():
        blocks = [
            content[first : first + OBJECT_BYTES] for first in range(0, len(content), OBJECT_BYTES)
        ]
        names = [hashlib.sha256(block).hexdigest() for block in blocks]
        for name, block in zip(names, blocks, strict=True):
            (to.parent / pool_path(name)).write(block)
        files[path] = StoredFile(bytes=len(content), objects=tuple(names))
    objects = ObjectMap(model=bundle.parent.name, version=int(bundle.name), files=files)
    (to / OBJECTS).write(objects.dump())
    return to


def _contents(bundle: Path) -> dict[str, bytes]:
    """Returns the content of each file of a bundle."""
    return {
        file.relative_to(bundle).as_posix(): file.read_bytes()
        for file in sorted(bundle.rglob("*"))
        if file.is_file()
    }
