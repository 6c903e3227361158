"""What an OCDBT store holds, by its B+tree: every key, and its value or where it lies. No value is read.

Source: tensorstore 0.1.86, kvstore/ocdbt (format of the manifest and of nodes, as `tensorstore.ocdbt.dump` tells them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_NODES_MAX = 1_000_000
_CACHE_BYTES = 64 << 20
"""Of nodes, each of which is decoded anew for every value else."""


class StoredPlace(NamedTuple):
    """Where a key's value ends: a file in the store's directory."""

    file: str
    end: int


StoredValue = bytes | StoredPlace
"""A small value lies in the tree itself."""


def stored_values(tensorstore: Any, directory: Path) -> dict[str, StoredValue]:
    """Returns the value of every key, or where it lies.

    Raises:
      ValueError: (tensorstore's) the manifest or a node is missing or damaged, or nodes lie in one another.
    """
    base = tensorstore.KvStore.open({"driver": "file", "path": f"{directory.absolute()}/"}).result()
    versions = tensorstore.ocdbt.dump(base).result()["versions"]
    root = versions[-1]["root"].get("location") if versions else None
    waiting = [(root, b"")] if root else []
    values: dict[str, StoredValue] = {}
    for read, (location, prefix) in enumerate(waiting):  # grows while it is walked
        if read > _NODES_MAX:
            raise ValueError(f"more than {_NODES_MAX} nodes")
        for entry in tensorstore.ocdbt.dump(base, location).result()["entries"]:
            if "location" in entry:
                waiting.append((entry["location"], prefix + entry["subtree_common_prefix"]))
                continue
            key = (prefix + entry["key"]).decode()
            values[key] = _place(entry) if "indirect_value" in entry else entry["inline_value"]
    return values


def stored_reader(tensorstore: Any, base: dict[str, Any], stored: Mapping[str, StoredValue]) -> Callable[[str], bytes]:
    """Returns what reads a value by its key, b"" if there is none; of the store over the files at `base`."""
    context = tensorstore.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}, context=context).result()

    def read(key: str) -> bytes:
        value = stored.get(key, b"")
        if isinstance(value, bytes):
            return value
        data: bytes = store.read(key).result().value
        return data

    return read


def file_problems(directory: Path, values: Iterable[StoredValue]) -> Iterator[str]:
    """Yields what is wrong with the data files: they are gone or cut short."""
    ends: dict[str, int] = {}
    for value in values:
        if not isinstance(value, bytes):
            ends[value.file] = max(ends.get(value.file, 0), value.end)
    for file, end in ends.items():
        path = directory / file
        if not path.is_file():
            yield f"data file {path} is missing; copy all files of the checkpoint"
        elif path.stat().st_size < end:
            yield f"data file {path} has {path.stat().st_size} bytes of {end}: it was cut short; copy it anew"


def _place(entry: dict[str, Any]) -> StoredPlace:
    """Returns where a value ends that lies elsewhere, told as `value:<directory>:<file>:<offset>:<bytes>`."""
    _, directory, file, offset, count = entry["indirect_value"].rsplit(":", 4)
    return StoredPlace(directory + file, int(offset) + int(count))
