"""Changes of the versions of a running service: published, rolled back, labelled, rejected, found
damaged.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from bundle.format import paths
from bundle.format.manifest import Manifest, dump, parse
from tests.e2e.process import WAIT_S, Process

MODEL = "movies"
ROLLBACK_EVERY = 5
"""Number of versions after which one is rolled back and served again."""
LABEL = "stable"
TOO_MANY_BYTES = 1 << 50

Change = Callable[[Path, Manifest], Manifest]


class Publisher:
    """Publishes version after version, and commands rollbacks and labels.

    Attributes:
      version: The last version that was published.
      switches: The number of changes of the current version.
      command_s: The time of each command until it returned and was in effect.
    """

    def __init__(
        self,
        service: Process,
        workers: int,
        root: Path,
        originals: list[Path],
        kept_versions: int = 2,
    ) -> None:
        """Begins after version 1.

        Args:
          workers: The number of processes of the service.
          originals: The bundles that versions are copies of, in turns.
          kept_versions: The number of versions that stay in the root.
        """
        self._service = service
        self._workers = workers
        self._root = root
        self._originals = originals
        self._kept = kept_versions
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{service.ports['admin']}", timeout=WAIT_S
        )
        self.version = 1
        self.switches = 0
        self._valid = [1]
        self.command_s: list[float] = []

    def next(self) -> None:
        """Publishes a version by one rename, waits until every process has it, and removes the
        oldest.
        """
        self._publish("version_available")
        self._valid.append(self.version)
        self.switches += 1
        if self.version % ROLLBACK_EVERY == 0:
            self.roll_back_and_forth()
        while len(self._valid) > self._kept:
            shutil.rmtree(self._directory(self._valid.pop(0)))

    def rehearse(self) -> None:
        """Does what `next` does, outside the root."""
        rehearsal = self._root.parent / "rehearsed"
        self._write(rehearsal, self.version + 1)
        shutil.rmtree(rehearsal)

    def roll_back_and_forth(self) -> None:
        """Makes the version before current, then the newest again; each is when the command
        returns, but for workers that did not read the command within its two seconds.
        """
        # A rollback is from what `status` shows, a moment after the log.
        self.wait_current(self._valid[-1])
        for command, version in zip(("rollback", "unpin"), self._valid[-2:], strict=True):
            status = self._command(command)
            current = status["models"][0]["current"]
            revisions = [process["revision"] for process in status["processes"]]
            if min(revisions) < status["revision"]:
                self.wait_current(version)
            elif current != version:
                raise RuntimeError(
                    f"version {current} is current after {command}, which all workers follow; "
                    f"{version} was expected: {status}"
                )
            self.switches += 1

    def move_label(self) -> None:
        """Labels the version before, moves the label to the newest, and removes it."""
        for version in self._valid[-2:]:
            self._command("label", label=LABEL, version=version)
        self._command("unlabel", label=LABEL)

    def publish_damaged(self) -> None:
        """Publishes a version with a table that differs from its checksum; waits until the one
        before is current.
        """
        self._publish("version_damaged", _damage)
        self.wait_current(self._valid[-1])
        shutil.rmtree(self._directory(self.version))
        self.switches += 2

    def publish_too_large(self) -> None:
        """Publishes a version that needs more memory than there is; waits until every process has
        rejected it.
        """
        self._publish("version_failed", _enlarge)
        shutil.rmtree(self._directory(self.version))

    def wait_current(self, version: int) -> None:
        """Waits until a version is current in every process."""
        end = time.monotonic() + WAIT_S
        while self._current() != version:
            if time.monotonic() > end:
                raise TimeoutError(f"version {version} never became current")
            time.sleep(0.02)

    def close(self) -> None:
        """Closes the connection to the service."""
        self._client.close()

    def _directory(self, version: int) -> Path:
        return self._root / MODEL / str(version)

    def _publish(self, event: str, change: Change | None = None) -> None:
        """Publishes a version and waits until every process has logged it: a request would cost the
        service more.
        """
        self.version += 1
        self._write(self._root / MODEL, self.version, change)
        for _ in range(self._workers):
            self._service.event(event, version=self.version)

    def _write(self, model: Path, version: int, change: Change | None = None) -> None:
        aside = model / f".{version}"
        shutil.copytree(
            self._originals[version % len(self._originals)], aside, copy_function=os.link
        )
        path = aside / paths.MANIFEST
        manifest = parse(path.read_bytes()).model_copy(update={"version": version})
        path.unlink()
        path.write_bytes(dump(change(aside, manifest) if change else manifest))
        aside.rename(model / str(version))

    def _command(self, command: str, **body: object) -> dict[str, Any]:
        """Runs a command; returns the status of the service after it."""
        began_s = time.monotonic()
        status = self._client.post(f"/v1/models/{MODEL}/{command}", json=body).raise_for_status()
        self.command_s.append(time.monotonic() - began_s)
        after: dict[str, Any] = status.json()
        return after

    def _current(self) -> int | None:
        current: int | None = self._client.get("/v1/status").json()["models"][0]["current"]
        return current


def _damage(directory: Path, manifest: Manifest) -> Manifest:
    """Changes one byte of a table, which is served before it is compared with its checksum."""
    segment = next(iter(manifest.tables.values())).segments[0]
    path = directory / segment.file
    data = bytearray(path.read_bytes())
    data[segment.offset] ^= 1
    path.unlink()  # a link to the original
    path.write_bytes(data)
    return manifest


def _enlarge(_: Path, manifest: Manifest) -> Manifest:
    """Declares every file larger than any memory."""
    files = tuple(file.model_copy(update={"bytes": TOO_MANY_BYTES}) for file in manifest.files)
    return manifest.model_copy(update={"files": files})
