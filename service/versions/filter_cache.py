"""Compiled filters of loaded indexes. The least recently used entry is dropped first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any


class FilterCache:
    """Compiled filters of all indexes of a process, bounded by their bytes. Safe for any thread.

    Attributes:
      max_bytes: The size that all entries may have; an entry of more than a quarter of it is not
        kept, so that one request does not replace the filters of all others.
      bytes: The size of the entries in the cache.
    """

    def __init__(self, max_bytes: int) -> None:
        """Creates an empty cache."""
        self.max_bytes = max_bytes
        self.bytes = 0
        self._entries: OrderedDict[tuple[object, bytes], tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def fits(self, size: int) -> bool:
        """Whether an entry of `size` bytes would be kept."""
        return size <= self.max_bytes // 4

    def get(self, index: object, key: bytes) -> Any:
        """Returns an entry of an index; None: it is not in the cache."""
        with self._lock:
            sized_entry = self._entries.get((index, key))
            if sized_entry is None:
                return None
            self._entries.move_to_end((index, key))
            return sized_entry[0]

    def put(self, index: object, key: bytes, entry: Any, size: int) -> None:
        """Stores an entry if it fits; an older entry of the key is dropped.

        Args:
          index: The index that the filter is of, by its identity.
          key: The key of the filter, as for `get`.
          entry: The compiled filter.
          size: Its size, in bytes.
        """
        with self._lock:
            self._drop((index, key))
            if not self.fits(size):
                return
            self._entries[index, key] = entry, size
            self.bytes += size
            while self.bytes > self.max_bytes:
                self._drop(next(iter(self._entries)))

    def forget(self, index: object) -> None:
        """Drops all entries of an index."""
        with self._lock:
            keys = [key for key in self._entries if key[0] is index]
            for key in keys:
                self._drop(key)

    def _drop(self, key: tuple[object, bytes]) -> None:
        self.bytes -= self._entries.pop(key, (None, 0))[1]
