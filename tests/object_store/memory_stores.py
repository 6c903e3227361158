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

from bundle.format.objects import OBJECTS, ObjectMap, StoredFile
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
            (to / file.relative_to(directory).as_posix()).upload(file)
    return to


class TroubledStore(MemoryFileSystem):  # type: ignore[misc]
    """Fails as a store does that throttles, or whose connections are lost, and lists late.

    Attributes:
      failures: What the next requests raise, in order.
      watched: Directory of this machine whose files are counted whenever a file is put.
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
        self._fail()
        return super().pipe_file(path, value, mode=mode, **options)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> Any:
        if self.watched is not None:
            self.seen.append(sum(1 for _ in self.watched.rglob("*.bin")))
        if self.failures:
            super().pipe_file(rpath + ".half", Path(lpath).read_bytes()[:100])
        self._fail()
        return super().put_file(lpath, rpath, **options)


fsspec.register_implementation("troubled", TroubledStore, clobber=True)


def published_as_objects(bundle: Path, to: RemotePath) -> RemotePath:
    """Copies a bundle's files into a store as an exporter publishes them."""
    files = {}
    for file in sorted(path for path in bundle.rglob("*") if path.is_file()):
        stored = StoredFile(
            sha256=hashlib.sha256(file.read_bytes()).hexdigest(), bytes=file.stat().st_size
        )
        (to / stored.path).upload(file)
        files[file.relative_to(bundle).as_posix()] = stored
    objects = ObjectMap(model=bundle.parent.name, version=int(bundle.name), files=files)
    (to / OBJECTS).write(objects.dump())
    return to
