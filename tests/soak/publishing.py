"""What is done to the versions of a service that runs: published, gone back from, labelled, refused, found damaged."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from bundle import paths
from bundle.manifest import Manifest, dump, parse
from tests.service.process import PATIENCE_S, Process

MODEL = "movies"
BOTH_WAYS_EVERY = 5
"""After so many versions, one is gone back from and to."""
LABEL = "stable"
TOO_MANY_BYTES = 1 << 50


class Publisher:
    """Has a service serve version after version, and go back to the one before now and then."""

    def __init__(self, service: Process, workers: int, root: Path, originals: list[Path], kept: int = 2) -> None:
        """Begins behind version 1, which is served by so many processes.

        Args:
          originals: what versions are copies of, in turns.
          kept: versions that stay in the root.
        """
        self._service, self._workers, self._root, self._originals, self._kept = service, workers, root, originals, kept
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{service.ports['admin']}", timeout=PATIENCE_S)
        self.version, self.switches = 1, 0
        self._whole = [1]
        """Versions in the root that can be served."""
        self.order_s: list[float] = []
        """Of each order: until it was answered, and so in effect."""

    def next(self) -> None:
        """Publishes a version by one rename, waits until every process answers with it, and takes the oldest away."""
        self._publish("version_available")
        self._whole.append(self.version)
        self.switches += 1
        if self.version % BOTH_WAYS_EVERY == 0:
            self.go_back_and_forth()
        while len(self._whole) > self._kept:
            shutil.rmtree(self._directory(self._whole.pop(0)))

    def rehearse(self) -> None:
        """Does what `next` does, but where no service looks."""
        beside = self._root.parent / "rehearsed"
        self._write(beside, self.version + 1)
        shutil.rmtree(beside)

    def go_back_and_forth(self) -> None:
        """Has the version before answer, then the newest again; each does when the order returns."""
        for order, version in zip(("rollback", "unpin"), self._whole[-2:], strict=True):
            current = self._order(order)["current"]
            if current != version:
                raise RuntimeError(f"version {current} answered after {order}; {version} was expected")
            self.switches += 1

    def move_label(self) -> None:
        """Labels the version before, has the newest take its label, and takes it off."""
        for version in self._whole[-2:]:
            self._order("label", label=LABEL, version=version)
        self._order("unlabel", label=LABEL)

    def publish_damaged(self) -> None:
        """Publishes a version, a table of which is not what its checksum says, until the one before answers again."""
        self._publish("version_damaged", _damage)
        self._until(self._whole[-1])
        shutil.rmtree(self._directory(self.version))
        self.switches += 2

    def publish_too_large(self) -> None:
        """Publishes a version that needs more memory than there is, until every process has refused it."""
        self._publish("version_refused", _enlarge)
        shutil.rmtree(self._directory(self.version))

    def begin(self) -> None:
        """Waits until every process answers with version 1."""
        self._until(1)

    def close(self) -> None:
        """Ends the connection to the service."""
        self._client.close()

    def _directory(self, version: int) -> Path:
        return self._root / MODEL / str(version)

    def _publish(self, event: str, change: Callable[[Path, Manifest], Manifest] | None = None) -> None:
        """Publishes a version and waits until every process has logged it: to ask would cost the service more."""
        self.version += 1
        self._write(self._root / MODEL, self.version, change)
        left = self._workers
        while left:
            left -= self._service.event(event)["version"] == self.version

    def _write(self, model: Path, version: int, change: Callable[[Path, Manifest], Manifest] | None = None) -> None:
        aside = model / f".{version}"
        shutil.copytree(self._originals[version % len(self._originals)], aside, copy_function=os.link)
        page = aside / paths.MANIFEST
        manifest = parse(page.read_bytes()).model_copy(update={"version": version})
        page.unlink()
        page.write_bytes(dump(change(aside, manifest) if change else manifest))
        aside.rename(model / str(version))

    def _order(self, order: str, **body: object) -> dict[str, Any]:
        """Gives an order; returns what the service then tells of the model."""
        begun_s = time.monotonic()
        told = self._client.post(f"/v1/models/{MODEL}/{order}", json=body).raise_for_status()
        self.order_s.append(time.monotonic() - begun_s)
        page: dict[str, Any] = told.json()["models"][0]
        return page

    def _current(self) -> int | None:
        current: int | None = self._client.get("/v1/status").json()["models"][0]["current"]
        return current

    def _until(self, version: int) -> None:
        end = time.monotonic() + PATIENCE_S
        while self._current() != version:
            if time.monotonic() > end:
                raise TimeoutError(f"version {version} never answered in every process")
            time.sleep(0.02)


def _damage(directory: Path, manifest: Manifest) -> Manifest:
    """Changes one byte of a table, which is read before it is compared with its checksum."""
    shard = next(iter(manifest.tables.values())).shards[0]
    path = directory / shard.file
    data = bytearray(path.read_bytes())
    data[shard.offset] ^= 1
    path.unlink()  # a link to the original
    path.write_bytes(data)
    return manifest


def _enlarge(_: Path, manifest: Manifest) -> Manifest:
    """Has every file be told as larger than any memory."""
    files = tuple(file.model_copy(update={"bytes": TOO_MANY_BYTES}) for file in manifest.files)
    return manifest.model_copy(update={"files": files})
