"""A lease on one version in a store: an object that says who writes it, so that a second exporter is refused.

The store decides who came first where it can create an object only if there is none (S3 since 2024, Google Cloud
Storage, a local disk). Where it cannot, both might begin; each then finds out before its manifest is written.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

import orjson

from bundle.errors import VersionBusy
from runtime.object_store import RemotePath

RENEW_S = 60.0
STALE_S = 15 * 60.0
"""A lease that nobody renewed for so long is anyone's: its owner was killed, or lost the store."""
_LEASE_BYTES_MAX = 1 << 16


class Lease:
    """Holds one version in a store, and renews it while it is held; a context manager."""

    def __init__(self, directory: RemotePath, version: int, owner: str) -> None:
        """Takes the lease, or takes it again for the same owner after a crash.

        Args:
          directory: of the model's versions.
          version: which.
          owner: the same in every run that may go on with this version.
        Raises:
          VersionBusy: another owner holds it.
          OSError: the store refuses or cannot be reached.
        """
        self._file, self._what = directory / f".lease-{version}.json", f"{directory}/{version}"
        self._owner = owner
        try:
            self._file.write(self._page(), new=True)
        except FileExistsError:
            if not self._is_ours(stale_too=True):
                raise VersionBusy(
                    f"{self._what} is being written by {self._holder()}; wait for it or choose another version"
                ) from None
            self._file.write(self._page())
        self.check()
        self._released = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="rowcast-lease", daemon=True)
        self._renewing.start()

    def check(self) -> None:
        """Finds out whether the lease is still held.

        Raises:
          VersionBusy: another owner took it.
        """
        if not self._is_ours(stale_too=False):
            raise VersionBusy(f"{self._what} was taken over by {self._holder()}; nothing was published")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._released.set()
        self._renewing.join()
        with suppress(OSError):  # it will be stale soon
            if self._is_ours(stale_too=False):
                self._file.remove()

    def _renew(self) -> None:
        while not self._released.wait(RENEW_S):
            with suppress(OSError):  # tried again soon; what was lost is found before the manifest is written
                if self._is_ours(stale_too=False):
                    self._file.write(self._page())

    def _page(self) -> bytes:
        page = {"owner": self._owner, "host": socket.gethostname(), "time": datetime.now(UTC).isoformat()}
        return orjson.dumps(page)

    def _read(self) -> dict[str, str]:
        try:
            page = orjson.loads(self._file.read(0, _LEASE_BYTES_MAX))
        except (FileNotFoundError, orjson.JSONDecodeError):
            return {}
        return {name: str(value) for name, value in page.items()} if isinstance(page, dict) else {}

    def _is_ours(self, *, stale_too: bool) -> bool:
        page = self._read()
        if page.get("owner") == self._owner:
            return True
        try:
            age = datetime.now(UTC) - datetime.fromisoformat(page["time"])
        except (KeyError, ValueError, TypeError):
            return stale_too
        return stale_too and age > timedelta(seconds=STALE_S)

    def _holder(self) -> str:
        page = self._read()
        return f"another run on {page.get('host', 'an unknown host')} (last seen {page.get('time', 'never')})"
