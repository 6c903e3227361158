"""The changes of all models of a process: follows their logs, and takes further changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bundle.errors import BundleError
from service.changes.model_changes import ModelChanges
from service.changes.requests import ChangeRequest, ChangeResult
from service.config import ServiceSettings
from service.engine.calls import Target
from service.errors import ServiceError, Unimplemented
from service.observability.logging import fields, logger
from service.observability.metrics import Metrics
from service.versions.lifecycle import VersionManager
from service.versions.version import ModelVersion

log = logger(__name__)

LOG_NAME = "changes.log"
"""In the directory of a model; no version can have this name."""
_FOLLOW_S = 0.01
"""Between two looks at the logs: a call of the kernel for each model."""
_EXPIRE_S = 0.5
"""Between two searches for candidates that have expired."""


_ABSORB_S = 1.0
"""Between two looks at how many changed rows are in memory."""
_ABSORB_AGAIN_S = 60.0
"""After a file could not be written or read, such as on a full disk."""


class Changes:
    """The changes of all models. Safe for any number of threads.

    What routers and shards serve does not change: their parts of a version would have to change
    together.
    """

    def __init__(
        self, settings: ServiceSettings, manager: VersionManager, metrics: Metrics
    ) -> None:
        """Begins without models.

        Args:
          settings: Where the logs are, and the limits.
          manager: Serves the versions.
          metrics: Counts the changes.
        """
        self._settings = settings
        self._manager = manager
        self._metrics = metrics
        self._models: dict[str, ModelChanges] = {}
        self._attached: dict[ModelVersion, ModelChanges] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._expire_at = 0.0
        self._absorb_at: dict[str, float] = {}
        """When it is tried again after a failure, by model."""

    def start(self) -> None:
        """Follows the logs in a thread."""
        threading.Thread(target=self._run, name="rowcast-changes", daemon=True).start()
        threading.Thread(target=self._run_absorb, name="rowcast-changed-rows", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopping.set()

    def attach(self, loaded: ModelVersion, serve: Callable[..., object]) -> None:
        """Has a version served with the changes in the log of its model.

        Args:
          loaded: The version as it was loaded.
          serve: Called with it, and with the version as it is with its changes.

        Raises:
          LogDamaged, FormatError: The log cannot be read.
          OSError: Likewise.
        """
        if self._is_divided:
            serve(loaded)
            return
        model = self._of(loaded.model)
        model.attach(loaded, lambda served: serve(loaded, served))
        with self._lock:
            self._attached[loaded] = model
        self._report(loaded.model, model)

    def change(self, target: Target, request: ChangeRequest) -> ChangeResult:
        """Makes a change: when this returns, it is on the disk, and served by this process.

        Blocks, and must not be called on the event loop.

        Args:
          target: The model, and the version that the change is checked against.
          request: What to change.

        Raises:
          ServiceError: The request does not fit the version, or cannot be written; nothing was
            changed.
        """
        if self._is_divided:
            raise Unimplemented(
                "rows, candidates and contexts do not change on routers and shards; send the "
                "change to a service that holds all of the model, or export it again"
            )
        with self._manager.acquire(target.model, target.version, target.label) as version:
            model = self._of(version.model)
            result = model.submit(request, version.version)
        if result.sequence:
            self._metrics.count(
                "changes", result.changed, version.model, request.kind, request.action
            )
        self._report(version.model, model)
        return result

    def status(self, model: str) -> dict[str, Any]:
        """Returns what operators are shown of the changes of a model.

        Raises:
          NotFound, NotReady: The service has no version of the model, and had none.
        """
        with self._lock:
            changes = self._models.get(model)
        if changes is None:
            with self._manager.acquire(model) as version:
                changes = self._of(version.model)
        return {"model": model, **changes.status()}

    def path_of(self, model: str) -> Path:
        """Returns the path of the log of a model."""
        directory = self._settings.changes_dir or self._settings.root
        return directory / model / LOG_NAME

    def follow(self) -> None:
        """Applies what other processes have appended to the logs; deletes what has expired."""
        self._forget_retired()
        is_due = time.monotonic() >= self._expire_at
        if is_due:
            self._expire_at = time.monotonic() + _EXPIRE_S
        for name, model in list(self._models.items()):
            before = model.sequence
            problem = ""
            try:
                model.follow()
                if is_due:
                    model.expire(time.time())
            except (BundleError, ServiceError, OSError) as error:
                problem = str(error)
            if problem != model.problem:
                model.problem = problem
                if problem:
                    log.error("changes_not_followed", extra=fields(model=name, problem=problem))
                else:
                    log.info("changes_followed", extra=fields(model=name))
                self._report(name, model)
            elif model.sequence != before:
                self._report(name, model)

    def absorb(self) -> None:
        """Has files hold the changed rows of tables of which many are in memory."""
        for name, model in list(self._models.items()):
            if time.monotonic() < self._absorb_at.get(name, 0.0):
                continue
            try:
                model.absorb()
            except (BundleError, OSError) as problem:
                self._absorb_at[name] = time.monotonic() + _ABSORB_AGAIN_S
                text = str(problem)
                log.warning("changed_rows_not_absorbed", extra=fields(model=name, problem=text))

    @property
    def _is_divided(self) -> bool:
        return self._settings.shard is not None or bool(self._settings.shard_addresses)

    def _of(self, name: str) -> ModelChanges:
        with self._lock:
            if name not in self._models:
                self._models[name] = ModelChanges(
                    name, self.path_of(name), self._settings, self._manager
                )
            return self._models[name]

    def _forget_retired(self) -> None:
        loaded = set(self._manager.loaded())
        with self._lock:
            retired = [version for version in self._attached if version not in loaded]
            models = [self._attached.pop(version) for version in retired]
        for version, model in zip(retired, models, strict=True):
            model.detach(version)

    def _report(self, name: str, model: ModelChanges) -> None:
        self._metrics.set("change_sequence", model.sequence, name)
        self._metrics.set("changes_followed", not model.problem, name)

    def _run_absorb(self) -> None:
        while not self._stopping.wait(_ABSORB_S):
            try:
                self.absorb()
            except Exception:
                log.exception("changes_failed")

    def _run(self) -> None:
        while not self._stopping.wait(_FOLLOW_S):
            try:
                self.follow()
            except Exception:
                log.exception("changes_failed")
