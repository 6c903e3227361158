"""A lease on one version in a store: an object that says who writes it, so that a second exporter is refused.

The store decides who came first where it can create an object only if there is none (S3 since 2024, Google Cloud
Storage, a local disk). Where it cannot, both might begin; each then finds out before its manifest is written.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import orjson

from bundle.errors import VersionBusy
from runtime.object_store import RemotePath

RENEW_S = 60.0
STALE_S = 15 * 60.0
"""A lease that nobody renewed for so long is anyone's: its owner was killed, or lost the store."""
_LEASE_BYTES_MAX = 1 << 16


class Lease:
    """Holds one version of a model in a store; `hold` takes it."""

    def __init__(self, directory: RemotePath, version: int, owner: str) -> None:
        self._file, self._what = directory / f".lease-{version}.json", f"{directory}/{version}"
        self._owner = owner

    def check(self) -> None:
        """Finds out whether the lease is still held.

        Raises:
          VersionBusy: another owner took it.
        """
        holder = self._read()
        if holder.get("owner") != self._owner:
            raise VersionBusy(
                f"{self._what} was taken over by {_named(holder)}; this run published nothing"
            )

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Takes the lease, or takes it again for the same owner after a crash, and renews it meanwhile.

        Raises:
          VersionBusy: another owner holds it.
          OSError: the store refuses or cannot be reached.
        """
        try:
            self._write(new=True)
        except FileExistsError:
            holder = self._read()
            if holder.get("owner") != self._owner and _age(holder) <= timedelta(seconds=STALE_S):
                raise VersionBusy(
                    f"{self._what} is being written by {_named(holder)}; wait for it or choose another version"
                ) from None
            self._write()
        self.check()
        released = threading.Event()
        renewing = threading.Thread(
            target=self._renew, args=(released,), name="rowcast-lease", daemon=True
        )
        renewing.start()
        try:
            yield
        finally:
            released.set()
            renewing.join()
            with suppress(
                OSError, VersionBusy
            ):  # another's stays; one that cannot be removed will be stale soon
                self.check()
                self._file.remove()

    def _renew(self, released: threading.Event) -> None:
        while not released.wait(RENEW_S):
            with suppress(
                OSError, VersionBusy
            ):  # what was lost is found before the manifest is written
                self.check()
                self._write()

    def _write(self, *, new: bool = False) -> None:
        holder = {
            "owner": self._owner,
            "host": socket.gethostname(),
            "time": datetime.now(UTC).isoformat(),
        }
        self._file.write(orjson.dumps(holder), new=new)

    def _read(self) -> dict[str, str]:
        try:
            holder = orjson.loads(self._file.read(0, _LEASE_BYTES_MAX))
        except (FileNotFoundError, orjson.JSONDecodeError):
            return {}
        return (
            {name: str(value) for name, value in holder.items()} if isinstance(holder, dict) else {}
        )


def _age(holder: dict[str, str]) -> timedelta:
    try:
        return datetime.now(UTC) - datetime.fromisoformat(holder["time"])
    except (KeyError, ValueError, TypeError):  # no lease of ours
        return timedelta.max


def _named(holder: dict[str, str]) -> str:
    return f"another run on {holder.get('host', 'an unknown host')} (last seen {holder.get('time', 'never')})"
