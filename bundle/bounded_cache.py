"""Values that are computed once and kept beside what they are computed from, which stays as it
is.
"""

from __future__ import annotations

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedCache(dict[Key, Value]):
    """Values by key. It changes while any number of threads read it; `keep` adds to it."""

    def __init__(self, count_max: int) -> None:
        """Creates an empty cache of at most `count_max` values."""
        super().__init__()
        self._count_max = count_max

    def keep(self, key: Key, value: Value) -> Value:
        """Adds a value, and returns it; a full cache is emptied first."""
        if len(self) >= self._count_max:
            self.clear()
        self[key] = value
        return value
