"""What filters of loaded indexes were compiled to: the least recently used goes first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any


class FilterCache:
    """Compiled filters of all indexes of a process, bounded by their bytes. Safe for any thread.

    Attributes:
      max_bytes: of all entries; one that alone has more than a quarter of it is not kept.
      bytes: of the entries held.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._entries: OrderedDict[tuple[object, bytes], tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def fits(self, size: int) -> bool:
        """Whether an entry of `size` bytes would be kept."""
        return size <= self.max_bytes // 4

    def get(self, index: object, key: bytes) -> Any:
        """Returns an entry of an index; None: it is not held."""
        with self._lock:
            found = self._entries.get((index, key))
            if found is None:
                return None
            self._entries.move_to_end((index, key))
            return found[0]

    def put(self, index: object, key: bytes, entry: Any, size: int) -> None:
        """Keeps an entry of `size` bytes in the place of what was held under its key,
        if it fits.
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
            for key in [each for each in self._entries if each[0] is index]:
                self._drop(key)

    def _drop(self, key: tuple[object, bytes]) -> None:
        self.bytes -= self._entries.pop(key, (None, 0))[1]
