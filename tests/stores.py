"""A store for tests: fsspec's memory file system that counts what it is asked for. `counted://NAME/...`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from runtime.object_store import RemotePath


class CountedStore(MemoryFileSystem):  # type: ignore[misc]
    """Counts requests and the bytes that they moved, by the first part of the path."""

    protocol = "counted"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    asked: ClassVar[Counter[str]] = Counter()
    moved: ClassVar[Counter[str]] = Counter()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("counted://", "memory://")))

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        data = bytes(super().cat_file(path, start, end, **options))
        self.asked[path.split("/")[1]] += 1
        self.moved[path.split("/")[1]] += len(data)
        return data


fsspec.register_implementation("counted", CountedStore, clobber=True)


def uploaded(directory: Path, to: RemotePath) -> RemotePath:
    """Copies a directory's files into a store."""
    for file in sorted(directory.rglob("*")):
        if file.is_file():
            (to / file.relative_to(directory).as_posix()).upload(file)
    return to
