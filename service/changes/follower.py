"""The changes of all models of a process: follows their files, and takes further changes."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bundle.changes.states import State
from bundle.errors import BundleError, ChangesLocked, CopyDiffers
from bundle.format.changes_position import ChangesPosition
from bundle.storage import files
from service.changes.copying import Copier, Leader
from service.changes.model_changes import ModelChanges
from service.changes.opening import path_of_changes
from service.changes.submissions import rejection_of_file
from service.config import ServiceSettings
from service.contract.changes import AppliedChanges, ChangeRequest, ChangeResult
from service.contract.messages import Target
from service.errors import (
    DeadlineExceeded,
    FieldViolation,
    InvalidArgument,
    NotFound,
    NotReady,
    ServiceError,
    Unimplemented,
    without_host,
)
from service.observability.logging import fields, logger
from service.observability.metrics import Metrics
from service.versions.lifecycle import VersionManager
from service.versions.version import ModelVersion

log = logger(__name__)

_FILES = "changes.*"
"""The file, with what SQLite keeps beside it, and copies."""
_FOLLOW_MIN_S = 0.01
_FOLLOW_MAX_S = 0.04
"""Time between two looks at the files, each some calls of the kernel for each model: a worker
serves a change of another one some hundredths of a second later.
"""
_FOLLOW_ALONE_S = 0.1
"""The same for the only worker of a service, as long as no model has ever changed: it is the one to
write the first change, and to look costs an idle process more than all else that it does.
"""
_FOLLOW_GROWTH = 1.1
"""Factor by which that time grows from look to look while nothing changes."""
_DAY_S = 86_400
_FORGET_S = 600.0
"""Time between two examinations of what can be forgotten, each of a part of a file."""


class Changes:
    """The changes of all models. Safe for any number of threads.

    A service that follows another one copies its files, and takes no changes itself: one service
    writes.

    What shards serve does not change: routers lay the changes over what shards return.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        manager: VersionManager,
        metrics: Metrics,
        report: Callable[[], object] = lambda: None,
    ) -> None:
        """Begins without models.

        Args:
          settings: The directory of the files, and the limits.
          manager: Serves the versions.
          metrics: Counts the changes.
          report: Called when the copy of a file has caught up.

        Raises:
          SettingsError: The service that is to be followed cannot be.
        """
        self._settings = settings
        self._manager = manager
        self._metrics = metrics
        self._models: dict[str, ModelChanges] = {}
        self._announce = report
        self._leader: Leader | None = None
        if settings.follow_changes:
            self._leader = Leader(settings)
        self._copiers: dict[str, Copier] = {}
        self._attached: dict[ModelVersion, ModelChanges] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._reported: dict[str, int] = {}
        """The sequence of the last change that the metrics show, by model."""
        self._reported_counts: dict[str, set[tuple[str, str]]] = {}
        """What the metrics count, by model: the kind and the name of a corpus or store."""
        self._reported_drops: dict[str, set[tuple[int, str]]] = {}
        """What versions do not serve, by model: the version and the reason."""

    def start(self) -> None:
        """Follows the files, in a thread."""
        threading.Thread(target=self._run, name="rowcast-changes", daemon=True).start()

    def stop(self) -> None:
        """Ends the threads that follow. Waits for nothing: it is called on the event loop, for
        which threads that have a file may wait.
        """
        self._stopping.set()
        for copier in list(self._copiers.values()):
            copier.stop()
        for model in list(self._models.values()):
            model.file.close()

    @property
    def problem(self) -> str:
        """Why requests should not be sent here: earlier changes are missing; "": none are
        missing.
        """
        for name, copier in list(self._copiers.items()):
            if not copier.has_caught_up:
                reason = copier.problem or f"{copier.lag or 0:,} are missing"
                return f"the changes of model {name!r} are not copied yet: {reason}"
        return ""

    def after(
        self, name: str, position: ChangesPosition | None, deadline: float | None = None
    ) -> tuple[list[State], int, int]:
        """Returns states behind the last one of a copy, the sequence of the last one, and that of
        the last one that is forgotten; see `ChangesFile.after`.

        Args:
          name: The name of the model.
          position: The last state of the copy; None: it has none.
          deadline: The monotonic time until which the file is waited for; None: in
            `request_timeout_s`.

        Raises:
          DeadlineExceeded: Other copies have been made until the deadline.
          InvalidArgument: The copy is of another file.
          ServiceError: There is no such model, or its file cannot be read.
        """
        model = self._changes_of(name)
        try:
            return model.file.after(position, self._deadline(deadline))
        except ChangesLocked as problem:
            raise DeadlineExceeded(str(problem)) from problem
        except CopyDiffers as problem:
            violation = FieldViolation("mark", str(position), "a state of the file")
            raise InvalidArgument(f"mark: {without_host(str(problem))}", violation) from problem
        except BundleError as problem:
            raise rejection_of_file(problem) from problem

    def prepared(self, loaded: ModelVersion) -> AbstractContextManager[ModelVersion]:
        """Yields a version as `attach` will serve it, with the changes so far. Raises as `attach`.

        Args:
          loaded: The version as it was loaded.
        """
        if self._settings.shard is not None:
            return nullcontext(loaded)
        return self._existing_changes_of(loaded.model).file.prepared(loaded)

    def attach(self, loaded: ModelVersion, serve: Callable[..., object]) -> None:
        """Serves a version with the changes of its model.

        Args:
          loaded: The version as it was loaded.
          serve: Called with the version as it was loaded, and as it is with its changes.

        Raises:
          ChangesLocked: A thread has held the state for `WAIT_S`.
          BundleError: The file cannot be read.
          ShardsMissing: A shard that a change needs does not respond.
        """
        # A shard serves its candidates as they were exported.
        if self._settings.shard is not None:
            serve(loaded)
            return
        model = self._existing_changes_of(loaded.model)
        model.file.attach(loaded, lambda served: serve(loaded, served))
        with self._lock:
            self._attached[loaded] = model
        self._report(loaded.model, model)

    def change(
        self,
        target: Target,
        request: ChangeRequest,
        deadline: float | None = None,
        withdrawal: Future[None] | None = None,
    ) -> ChangeResult:
        """Makes a change: when this returns, it is on the disk, and served by this process.

        Blocks, and must not be called on the event loop.

        Args:
          target: The model, and the version that the change is checked against.
          request: What to change.
          deadline: The monotonic time until which the change is waited for; None: in
            `request_timeout_s`.
          withdrawal: Withdraws the change when it is set, if it is not being written by then; None:
            nothing does.

        Raises:
          Cancelled: The change was withdrawn, and is never made.
          DeadlineExceeded: The change was withdrawn, and is never made; or it was being written,
            and the response to a repeated request says whether it was made.
          ServiceError: The request does not fit the version, or cannot be written; nothing was
            changed.
        """
        self._check_takes_changes()
        if self._leader is not None:
            raise Unimplemented(
                f"this service follows the changes of {self._leader.url}, which alone takes "
                "changes; send the change there"
            )
        # Leased, so that the version that the change is checked against is not closed meanwhile.
        with self._manager.acquire(target.model, target.version, target.label) as version:
            model = self._existing_changes_of(version.model)
            end = self._deadline(deadline)
            result = model.submissions.submit(request, version.version, end, withdrawal)
            self._metrics.count(
                "changes", result.changed, version.model, request.kind, request.action
            )
        self._report(version.model, model)
        return result

    def status(self, model: str, deadline: float | None = None) -> dict[str, Any]:
        """Returns the status of the changes of a model that operators see.

        Args:
          model: The name of the model.
          deadline: See `after`.

        Raises:
          DeadlineExceeded: See `after`.
          NotFound: There is no such model.
          NotReady: The service has no version of the model yet, and had none.
        """
        changes = self._changes_of(model)
        try:
            status = {"model": model, **changes.status(self._deadline(deadline))}
        except ChangesLocked as problem:
            raise DeadlineExceeded(str(problem)) from problem
        copier = self._copiers.get(model)
        if self._leader is not None and copier is not None:
            status["follows"] = self._leader.url
            status["lag"] = copier.lag
            status["problem"] = status["problem"] or copier.problem
        return status

    def applied(self, model: str, deadline: float | None = None) -> AppliedChanges:
        """Returns what was changed of a model so far, by any process of the service.

        Args:
          model: The name of the model; empty: the only one.
          deadline: See `after`.

        Raises:
          DeadlineExceeded: See `after`.
          NotFound: There is no such model.
          NotReady: The service has no version of the model yet, or the file cannot be read now.
          DataLoss: The file is damaged.
          Unimplemented: The service is a shard.
        """
        self._check_takes_changes()
        changes = self._changes_of(model)
        try:
            return changes.applied(self._deadline(deadline))
        except ChangesLocked as problem:
            raise DeadlineExceeded(str(problem)) from problem
        except BundleError as problem:
            raise rejection_of_file(problem) from problem

    def back_up(self, name: str, target: Path, deadline: float) -> int:
        """Writes a copy of the changes of a model as they are now; returns its size, in bytes.

        Args:
          name: The name of the model.
          target: The copy, an absolute path on this host, where nothing is yet.
          deadline: The monotonic time until which other copies are waited for.

        Raises:
          NotFound: The model has no changes.
          InvalidArgument: The path is relative.
          NotReady: The file cannot be read, or the copy cannot be written.
          DeadlineExceeded: Other copies have been made until the deadline.
        """
        if not target.is_absolute():
            raise InvalidArgument.of_field("path", repr(str(target)), "an absolute path")
        path = self.path_of(name)
        if not path.exists():
            violation = FieldViolation("model", repr(name[:128]), "a model with changes")
            message = f"model {name[:128]!r} has no changes: {path} does not exist"
            raise NotFound(message, violation)
        try:
            return self._existing_changes_of(name).file.back_up(target, deadline)
        except ChangesLocked as problem:
            raise DeadlineExceeded(str(problem)) from problem
        except BundleError as problem:
            raise NotReady(str(problem)) from problem

    def path_of(self, model: str) -> Path:
        """Returns the path of the changes of a model."""
        return path_of_changes(self._settings, model)

    def follow(self) -> bool:
        """Applies what other processes have written; returns whether there was something."""
        self._forget_retired()
        has_news = False
        for name, model in list(self._models.items()):
            sequence = model.file.sequence
            problem = ""
            try:
                # Nothing new is known of a file that another thread has.
                if not model.file.follow():
                    problem = model.file.problem
            except (BundleError, ServiceError) as error:
                problem = str(error)
            has_news = has_news or model.file.sequence != sequence
            copier = self._copiers.get(name)
            if copier is not None:
                problem = problem or copier.problem
                lag = math.nan if copier.lag is None else copier.lag
                self._metrics.set("change_lag", lag, name)

            # A problem stays for many rounds, and is logged when it begins and when it ends.
            if problem != model.file.problem:
                model.file.problem = problem
                if problem:
                    log.error("changes_not_followed", extra=fields(model=name, problem=problem))
                else:
                    log.info("changes_followed", extra=fields(model=name))
                self._reported.pop(name, None)
            if self._reported.get(name) != model.file.served_sequence:
                self._report(name, model)
        return has_news

    def _deadline(self, deadline: float | None) -> float:
        if deadline is None:
            return time.monotonic() + self._settings.request_timeout_s
        return deadline

    def _check_takes_changes(self) -> None:
        if self._settings.shard is not None:
            raise Unimplemented(
                "candidates and contexts do not change on a shard; send the change to a router of "
                "this shard"
            )

    def _changes_of(self, model: str) -> ModelChanges:
        """Returns the changes of a model that the service has, or had."""
        with self._lock:
            changes = self._models.get(model)
        if changes is not None:
            return changes
        # An empty name stands for the only model.
        with self._manager.acquire(model) as version:
            return self._existing_changes_of(version.model)

    def _existing_changes_of(self, name: str) -> ModelChanges:
        """Returns the changes of a model that exists, which begin with the first call."""
        with self._lock:
            if name not in self._models:
                self._keep_private(name)
                model = ModelChanges(name, self.path_of(name), self._settings, self._manager)
                self._models[name] = model
                if self._leader is not None:
                    copier = Copier(name, self._leader, model.file, self._announce)
                    self._copiers[name] = copier
                    copier.start()
            return self._models[name]

    def _keep_private(self, name: str) -> None:
        """Takes away the permissions that other users have for what a model's changes consist of:
        they hold contexts of users. The directory of the versions is left as it is.
        """
        directory = self.path_of(name).parent
        paths = list(directory.glob(_FILES))
        root = self._settings.root.resolve()
        if directory.exists() and directory.parent.resolve() != root:
            paths.append(directory)
        exposed = []
        for path in paths:
            # SQLite removes files at any moment, and a link may be there before its file.
            with suppress(FileNotFoundError):
                if not files.make_private(path):
                    exposed.append(str(path))
        if exposed:
            log.warning("changes_not_private", extra=fields(model=name, paths=exposed))

    def _forget_retired(self) -> None:
        """Stops applying changes to versions that are not served any more."""
        with self._lock:
            attached = list(self._attached)
        # Read after the attached versions: each was added to the manager before it was attached, so
        # that one that is missing here was retired.
        loaded = set(self._manager.loaded())
        retired = [version for version in attached if version not in loaded]
        for version in retired:
            # If a thread has the state, the next call tries again.
            with suppress(ChangesLocked):
                self._attached[version].file.detach(version, time.monotonic())
                with self._lock:
                    del self._attached[version]

    def _report(self, name: str, model: ModelChanges) -> None:
        """Sets the metrics of a model, unless a thread has its state: then `follow` tries again."""
        with suppress(BundleError), model.file.held(time.monotonic()):
            self._report_state(name, model)

    def _report_state(self, name: str, model: ModelChanges) -> None:
        served_sequence = model.file.served_sequence
        self._reported[name] = served_sequence
        self._metrics.set("change_sequence", served_sequence, name)
        is_followed = not (model.file.problem or model.file.behind)
        self._metrics.set("changes_followed", is_followed, name)
        counts: Counter[tuple[str, str]] = Counter()
        for version in model.file.versions:
            counts.update(version.counts)
        counted = self._reported_counts.setdefault(name, set())
        counted.update(counts)
        # Those of versions that are gone, too: their last figures would stay for ever.
        for kind, target in counted:
            self._metrics.set(f"changed_{kind}", counts[kind, target], name, target)
        self._report_dropped(name, model)
        self._metrics.set("changes_limit_bytes", self._settings.max_changes_bytes, name)
        self._metrics.set("changes_bytes", model.file.size_bytes(), name)

    def _report_dropped(self, name: str, model: ModelChanges) -> None:
        """Reports what versions do not serve of the changes of a model, each reason once."""
        reported = self._reported_drops.setdefault(name, set())
        items: Counter[str] = Counter()
        for version in model.file.versions:
            for reason, dropped in version.dropped.items():
                items[reason] += dropped.items
                number = version.loaded.version
                if (number, reason) not in reported:
                    reported.add((number, reason))
                    about = fields(model=name, version=number, reason=reason, **asdict(dropped))
                    log.warning("changes_dropped", extra=about)
        for reason in {reason for _, reason in reported}:
            self._metrics.set("changes_dropped", items[reason], name, reason)

    def _forget(self) -> None:
        """Forgets what has had no effect for as long as the settings say."""
        before_s = time.time() - self._settings.deletions_kept_days * _DAY_S
        for name, model in list(self._models.items()):
            try:
                forgotten = model.file.forget_ended(before_s)
            except BundleError as problem:
                log.warning("changes_not_forgotten", extra=fields(model=name, problem=str(problem)))
                continue
            if forgotten:
                log.info("changes_forgotten", extra=fields(model=name, items=forgotten))

    def _run(self) -> None:
        pause_s = _FOLLOW_MIN_S
        forget_at = time.monotonic() + _FORGET_S
        while not self._stopping.wait(pause_s):
            pause_max_s = _FOLLOW_MAX_S
            has_changed = any(model.file.sequence for model in list(self._models.values()))
            if self._settings.workers == 1 and not has_changed:
                pause_max_s = _FOLLOW_ALONE_S
            pause_s = min(pause_max_s, _FOLLOW_GROWTH * pause_s)
            try:
                if self.follow():
                    pause_s = _FOLLOW_MIN_S
                if time.monotonic() >= forget_at:
                    self._forget()
                    forget_at = time.monotonic() + _FORGET_S
            except Exception:
                log.exception("changes_failed")
