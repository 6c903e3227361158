"""Why a version is not loaded, though its files may be sound."""

from __future__ import annotations


class LoadRejected(Exception):
    """A sound bundle that will not be served here; the message says why."""


class ShardsMissing(LoadRejected):
    """A router cannot reach all parts of a version yet."""


class KeysUnusable(LoadRejected):
    """A key that signatures are verified with cannot be used now."""


class InsufficientMemory(LoadRejected):
    """A version may need more memory than there is now.

    Attributes:
      missing_bytes: How much more it may need, in each process; infinite: it exceeds what is
        allowed, whatever is free.
    """

    def __init__(self, message: str, missing_bytes: float) -> None:
        super().__init__(message)
        self.missing_bytes = missing_bytes
