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


class StoredValue(NamedTuple):
    """A key's value.

    Attributes:
      data: the value itself, if it is small; else b"".
      file: that holds it, in the store's directory; "" for a small one.
      end: where it ends in the file.
    """

    data: bytes
    file: str
    end: int


_NOTHING = StoredValue(b"", "", 0)


def walk_store(tensorstore: Any, directory: Path) -> Iterator[tuple[str, StoredValue]]:
    """Yields every key with its value.

    Raises:
      ValueError: (tensorstore's) the manifest or a node is missing or damaged, or nodes lie in one another.
    """
    base = tensorstore.KvStore.open({"driver": "file", "path": f"{directory.absolute()}/"}).result()
    versions = tensorstore.ocdbt.dump(base).result()["versions"]
    root = versions[-1]["root"].get("location") if versions else None
    waiting, read = [(root, b"")] if root else [], 0
    while waiting:
        node, prefix = waiting.pop()
        read += 1
        if read > _NODES_MAX:
            raise ValueError(f"more than {_NODES_MAX} nodes")
        entries = tensorstore.ocdbt.dump(base, node).result()["entries"]
        for entry in entries:
            if "location" in entry:
                waiting.append((entry["location"], prefix + entry["subtree_common_prefix"]))
            else:
                yield (prefix + entry["key"]).decode(), _value(entry)


def stored_reader(tensorstore: Any, base: dict[str, Any], stored: Mapping[str, StoredValue]) -> Callable[[str], bytes]:
    """Returns what reads a value by its key, b"" if there is none; of the store over the files at `base`."""
    context = tensorstore.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}, context=context).result()

    def read(key: str) -> bytes:
        value = stored.get(key, _NOTHING)
        data: bytes = store.read(key).result().value if value.file else value.data
        return data

    return read


def file_problems(directory: Path, values: Iterable[StoredValue]) -> Iterator[str]:
    """Yields what is wrong with the data files: they are gone or cut short."""
    ends: dict[str, int] = {}
    for value in values:
        ends[value.file] = max(ends.get(value.file, 0), value.end)
    ends.pop("", None)
    for file, end in ends.items():
        path = directory / file
        if not path.is_file():
            yield f"data file {path} is missing; copy all files of the checkpoint"
        elif path.stat().st_size < end:
            yield f"data file {path} has {path.stat().st_size} bytes of {end}: it was cut short; copy it anew"


def _value(entry: dict[str, Any]) -> StoredValue:
    """Returns a leaf's value; one that lies elsewhere is told as `value:<directory>:<file>:<offset>:<bytes>`."""
    where = entry.get("indirect_value")
    if where is None:
        return StoredValue(entry["inline_value"], "", 0)
    _, directory, file, offset, count = where.rsplit(":", 4)
    return StoredValue(b"", directory + file, int(offset) + int(count))
