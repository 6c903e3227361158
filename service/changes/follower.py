"""The changes of all models of a process: follows their logs, and takes further changes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from bundle.changes.compaction import Compaction
from bundle.changes.log import Recovery
from bundle.changes.log_lock import attempts
from bundle.errors import BundleError, LogLocked, LogsDiffer, LogUnsynced
from bundle.format.log_position import LogPosition
from bundle.storage import files
from bundle.storage.frames import Record
from service.changes.applied_log import WAIT_S, AppliedLog
from service.changes.copying import Leader, LogCopier
from service.changes.hand_over import Client, Server, WriterGone
from service.changes.model_changes import ModelChanges
from service.changes.submissions import rejection_of_log
from service.config import ServiceSettings
from service.contract.changes import AppliedChanges, ChangeRequest, ChangeResult
from service.contract.messages import Target
from service.errors import (
    DataLoss,
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

Result = TypeVar("Result")
LOG_NAME = "changes.log"
"""The log in the directory of a model; no version can have this name."""
_FILES = "changes.*"
"""The log, its lock and copies."""
_FOLLOW_MIN_S = 0.01
_FOLLOW_MAX_S = 0.04
"""Time between two looks at the logs, each a call of the kernel for each model: a worker serves a
change of another one some hundredths of a second later.
"""
_FOLLOW_ALONE_S = 0.1
"""The same for the only worker of a service, as long as no model has ever changed: it is the one to
write the first change, and to look costs an idle process more than all else that it does.
"""
_TAKE_OVER_S = 2.0
"""Time for which a process that writes the log is looked for. If it has died, the next one that is
to change the model takes over.
"""
_CLOSE_S = 0.05
"""Time between attempts of a process that ends to let others write a log that a thread has."""
_FOLLOW_GROWTH = 1.1
"""Factor by which that time grows from look to look while nothing changes."""


class Changes:
    """The changes of all models. Safe for any number of threads.

    A service that follows another one copies its logs, and takes no changes itself: one service
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
          settings: The directory of the logs, and the limits.
          manager: Serves the versions.
          metrics: Counts the changes.
          report: Called when the copy of a log has caught up.

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
        self._copiers: dict[str, LogCopier] = {}
        self._attached: dict[ModelVersion, ModelChanges] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._reported: dict[str, int] = {}
        """The sequence of the last change that the metrics show, by model."""
        self._reported_counts: dict[str, set[tuple[str, str]]] = {}
        """What the metrics count, by model: the kind and the name of a corpus or store."""
        self._reported_drops: dict[str, set[tuple[int, str]]] = {}
        """What versions do not serve, by model: the version and the reason."""
        # Shards change nothing.
        self._client = Client()
        self._server: Server | None = None
        if settings.shard is None:
            self._server = Server(
                {"change": self.change, "compact": self.compact, "recover": self.recover}
            )

    def start(self) -> None:
        """Follows the logs, in a thread."""
        threading.Thread(target=self._run, name="rowcast-changes", daemon=True).start()

    def stop(self) -> None:
        """Ends the threads that follow, and lets other processes write. Waits for nothing: it is
        called on the event loop, for which threads that have a log may wait.
        """
        self._stopping.set()
        for copier in list(self._copiers.values()):
            copier.stop()
        if self._server is not None:
            self._server.close()
        self._client.close()
        busy = [model.log for model in list(self._models.values()) if not _has_closed(model.log)]
        if busy:
            threading.Thread(
                target=_close, args=(busy,), name="rowcast-close-changes", daemon=True
            ).start()

    @property
    def problem(self) -> str:
        """Why requests should not be sent here: earlier changes are missing; "": none are
        missing.
        """
        for name, copier in list(self._copiers.items()):
            if not copier.has_caught_up:
                reason = copier.problem or f"{copier.lag} are missing"
                return f"the changes of model {name!r} are not copied yet: {reason}"
        return ""

    def after(
        self, name: str, position: LogPosition | None, deadline: float | None = None
    ) -> tuple[list[Record], int]:
        """Returns records behind the last one of a copy, and the sequence of the last change.

        Args:
          name: The name of the model.
          position: The last record of the copy; None: it has none.
          deadline: The monotonic time until which the log is waited for; None: in
            `request_timeout_s`.

        Raises:
          DeadlineExceeded: A change that is being written has taken until the deadline.
          InvalidArgument: The copy is of another log.
          ServiceError: There is no such model, or its log cannot be read.
        """
        model = self._changes_of(name)
        records: list[Record] = []
        try:
            end = model.log.end(self._deadline(deadline))
            # Almost always, since copies send a request ten times per second: no record is read.
            if position != end:
                records = model.log.after(position)
        except LogLocked as problem:
            raise DeadlineExceeded(str(problem)) from problem
        except LogsDiffer as problem:
            violation = FieldViolation("log", str(position), "a record of the log")
            raise InvalidArgument(f"log: {without_host(str(problem))}", violation) from problem
        except BundleError as problem:
            raise DataLoss(str(problem)) from problem
        last = 0
        if end is not None:
            last = end.sequence
        if records:
            last = max(last, records[-1].sequence)
        return records, last

    def catch_up(self, name: str) -> None:
        """Applies the log of a model before a version is attached, so that this takes no time.

        Args:
          name: The name of the model, which exists.

        Raises:
          LogLocked, BundleError, OSError: See `attach`.
        """
        if self._settings.shard is None:
            log_of_model = self._existing_changes_of(name).log
            with log_of_model.caught_up(time.monotonic() + WAIT_S):
                pass

    def attach(self, loaded: ModelVersion, serve: Callable[..., object]) -> None:
        """Serves a version with the changes in the log of its model.

        Args:
          loaded: The version as it was loaded.
          serve: Called with the version as it was loaded, and as it is with its changes.

        Raises:
          LogLocked: Another process has begun to write the log, or a thread has held its state, for
            `WAIT_S`.
          LogDamaged: The log is damaged.
          FormatError: The log has records of another release.
          OSError: The log cannot be read.
        """
        # A shard serves its candidates as they were exported.
        if self._settings.shard is not None:
            serve(loaded)
            return
        model = self._existing_changes_of(loaded.model)
        model.log.attach(loaded, lambda served: serve(loaded, served))
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

            def submit() -> ChangeResult:
                result = model.submissions.submit(request, version.version, end, withdrawal)
                self._metrics.count(
                    "changes", result.changed, version.model, request.kind, request.action
                )
                return result

            def hand_over(address: str) -> ChangeResult:
                named = replace(target, model=version.model)
                result: ChangeResult = self._client.call(
                    address, "change", named, request, end, deadline=end, withdrawal=withdrawal
                )
                self._serve_up_to(model.log, version.version, result.sequence, end)
                return result

            result = self._by_writer(model.log, end, submit, hand_over)
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
        except LogLocked as problem:
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
          NotReady: The service has no version of the model yet, or the log cannot be read now.
          DataLoss: The log is damaged.
          Unimplemented: The service is a shard.
        """
        self._check_takes_changes()
        changes = self._changes_of(model)
        try:
            return changes.applied(self._deadline(deadline))
        except LogLocked as problem:
            raise DeadlineExceeded(str(problem)) from problem
        except BundleError as problem:
            raise DataLoss(str(problem)) from problem
        except OSError as problem:
            raise NotReady(f"change log {problem.filename} cannot be read: {problem}") from problem

    def recover(
        self, name: str, deadline: float, withdrawal: Future[None] | None = None
    ) -> Recovery:
        """Rewrites the log of a model without what is damaged in it; see `recover` of
        `bundle.changes.log`.

        Args:
          name: The name of the model.
          deadline: The monotonic time until which others are waited for.
          withdrawal: Ends the wait when it is set; None: nothing does.

        Raises:
          NotFound: The model has no change log.
          NotReady: The log cannot be read or written; nothing was recovered, unless the message
            says that the log was.
        """
        applied = self._logged_changes_of(name).log

        def hand_over(address: str) -> Recovery:
            recovery: Recovery = self._client.call(
                address, "recover", name, deadline, deadline=deadline, withdrawal=withdrawal
            )
            return recovery

        # No process becomes the writer of a log that it cannot read. One may have been it before
        # the damage, though.
        reason = ""
        for _ in attempts(min(deadline, time.monotonic() + _TAKE_OVER_S)):
            try:
                with suppress(LogLocked):
                    return applied.recover(deadline)
                writer = applied.other_writer
            except LogUnsynced as problem:
                message = f"change log {applied.path} was recovered; {problem}"
                raise NotReady(message) from problem
            except (BundleError, OSError) as problem:
                message = f"change log {applied.path} cannot be recovered: {problem}"
                raise NotReady(message) from problem
            if writer is not None:
                try:
                    return hand_over(writer.address)
                except WriterGone as problem:
                    reason = str(problem)
        raise _unreachable(applied, reason, "nothing was recovered")

    def compact(
        self, name: str, deadline: float, withdrawal: Future[None] | None = None
    ) -> Compaction:
        """Puts a log without the changes that later ones have replaced in the place of the log of a
        model; see `Compactor.compact`.

        Args:
          name: The name of the model.
          deadline: The monotonic time until which it is waited for.
          withdrawal: Ends the wait when it is set; None: nothing does.

        Raises:
          NotFound: The model has no change log.
          NotReady: The log, or the root, cannot be read or written; the log is as it was, unless
            the message says that it was compacted.
          DeadlineExceeded: The compaction goes on.
        """
        model = self._logged_changes_of(name)

        def compact() -> Compaction:
            return model.compactor.compact(deadline)

        def hand_over(address: str) -> Compaction:
            compaction: Compaction = self._client.call(
                address, "compact", name, deadline, deadline=deadline, withdrawal=withdrawal
            )
            return compaction

        return self._by_writer(model.log, deadline, compact, hand_over)

    def path_of(self, model: str) -> Path:
        """Returns the path of the log of a model."""
        directory = self._settings.changes_dir or self._settings.root
        return directory / model / LOG_NAME

    def _by_writer(
        self,
        applied: AppliedLog,
        deadline: float,
        submit: Callable[[], Result],
        hand_over: Callable[[str], Result],
    ) -> Result:
        """Has a change made by the process of the host that writes its log.

        Args:
          applied: The log.
          deadline: The monotonic time until which the result is waited for.
          submit: Makes the change, if this process is the one.
          hand_over: Has the process make it that is reached by an address.

        Raises:
          NotReady: The process that writes cannot be reached, or has ended before it responded.
          ServiceError: See `change`.
        """
        reason = ""
        for _ in attempts(min(deadline, time.monotonic() + _TAKE_OVER_S)):
            try:
                if applied.may_write(deadline):
                    return submit()
                writer = applied.other_writer
            except LogLocked as problem:
                raise DeadlineExceeded(f"{problem}; the change was not made") from problem
            except (BundleError, OSError) as problem:
                raise rejection_of_log(problem) from problem
            if writer is not None:
                # One that has died is replaced at the next attempt.
                try:
                    return hand_over(writer.address)
                except WriterGone as problem:
                    reason = str(problem)
        raise _unreachable(applied, reason, "no change was made")

    def _serve_up_to(
        self, applied: AppliedLog, version: int, sequence: int, deadline: float
    ) -> None:
        """Serves a log up to a sequence that another process has appended; 0: it has appended none.

        Raises:
          NotReady: The change is in the log, and is not served yet.
        """
        if not sequence:
            return
        try:
            with applied.caught_up(deadline):
                problem = applied.problem_of(version)
        except (BundleError, OSError) as error:
            problem = str(error)
        if problem:
            raise NotReady(
                f"the change is in the log, as sequence {sequence}, and is not served yet: "
                f"{problem}"
            )

    def follow(self) -> bool:
        """Applies what other processes have appended to the logs; returns whether there was
        something.
        """
        self._forget_retired()
        has_news = False
        for name, model in list(self._models.items()):
            sequence = model.log.sequence
            problem = ""
            try:
                # Nothing new is known of a log that another thread or process has.
                if not model.log.follow():
                    problem = model.log.problem
            except (BundleError, ServiceError, OSError) as error:
                problem = str(error)
            has_news = has_news or model.log.sequence != sequence
            copier = self._copiers.get(name)
            if copier is not None:
                problem = problem or copier.problem
                self._metrics.set("change_lag", copier.lag, name)

            # A problem stays for many rounds, and is logged when it begins and when it ends.
            if problem != model.log.problem:
                model.log.problem = problem
                if problem:
                    log.error("changes_not_followed", extra=fields(model=name, problem=problem))
                else:
                    log.info("changes_followed", extra=fields(model=name))
                self._report(name, model)
            elif self._reported.get(name) != model.log.served_sequence:
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

    def _logged_changes_of(self, name: str) -> ModelChanges:
        """Returns the changes of a model that has a log.

        Raises:
          NotFound: It has none.
        """
        path = self.path_of(name)
        if not path.is_file():
            violation = FieldViolation("model", repr(name[:128]), "a model with a change log")
            message = f"model {name[:128]!r} has no change log: {path} does not exist"
            raise NotFound(message, violation)
        return self._existing_changes_of(name)

    def _existing_changes_of(self, name: str) -> ModelChanges:
        """Returns the changes of a model that exists, which begin with the first call."""
        with self._lock:
            if name not in self._models:
                self._keep_private(name)
                assert self._server is not None  # noqa: S101 - nothing changes on a shard
                model = ModelChanges(
                    name, self.path_of(name), self._settings, self._manager, self._server.writer
                )
                self._models[name] = model
                if self._leader is not None:
                    copier = LogCopier(name, self._leader, model.log, self._announce)
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
        exposed = [str(path) for path in paths if not files.make_private(path)]
        if exposed:
            log.warning("changes_not_private", extra=fields(model=name, paths=exposed))

    def _forget_retired(self) -> None:
        """Stops applying the log to versions that are not served any more."""
        with self._lock:
            attached = list(self._attached)
        # Read after the attached versions: each was added to the manager before it was attached, so
        # that one that is missing here was retired.
        loaded = set(self._manager.loaded())
        retired = [version for version in attached if version not in loaded]
        for version in retired:
            # If a thread has the state of the log, the next call tries again.
            with suppress(LogLocked):
                self._attached[version].log.detach(version, time.monotonic())
                with self._lock:
                    del self._attached[version]

    def _report(self, name: str, model: ModelChanges) -> None:
        """Sets the metrics of a model, unless a thread has its state: then `follow` tries again."""
        with suppress(LogLocked), model.log.held(time.monotonic()):
            self._report_state(name, model)

    def _report_state(self, name: str, model: ModelChanges) -> None:
        served_sequence = model.log.served_sequence
        self._reported[name] = served_sequence
        self._metrics.set("change_sequence", served_sequence, name)
        self._metrics.set("change_log_bytes", model.log.size_bytes, name)
        self._metrics.set("change_log_limit_bytes", self._settings.max_log_bytes, name)
        is_followed = not (model.log.problem or model.log.behind)
        self._metrics.set("changes_followed", is_followed, name)
        counts: Counter[tuple[str, str]] = Counter()
        for version in model.log.versions:
            counts.update(version.counts)
        counted = self._reported_counts.setdefault(name, set())
        counted.update(counts)
        # Those of versions that are gone, too: their last figures would stay for ever.
        for kind, target in counted:
            self._metrics.set(f"changed_{kind}", counts[kind, target], name, target)
        self._report_dropped(name, model)

    def _report_dropped(self, name: str, model: ModelChanges) -> None:
        """Reports what versions do not serve of the log of a model, each reason once in the log."""
        reported = self._reported_drops.setdefault(name, set())
        items: Counter[str] = Counter()
        for version in model.log.versions:
            for reason, dropped in version.dropped.items():
                items[reason] += dropped.items
                number = version.loaded.version
                if (number, reason) not in reported:
                    reported.add((number, reason))
                    about = fields(model=name, version=number, reason=reason, **asdict(dropped))
                    log.warning("changes_dropped", extra=about)
        for reason in {reason for _, reason in reported}:
            self._metrics.set("changes_dropped", items[reason], name, reason)

    def _run(self) -> None:
        pause_s = _FOLLOW_MIN_S
        while not self._stopping.wait(pause_s):
            pause_max_s = _FOLLOW_MAX_S
            has_changed = any(model.log.sequence for model in list(self._models.values()))
            if self._settings.workers == 1 and not has_changed:
                pause_max_s = _FOLLOW_ALONE_S
            pause_s = min(pause_max_s, _FOLLOW_GROWTH * pause_s)
            try:
                if self.follow():
                    pause_s = _FOLLOW_MIN_S
            except Exception:
                log.exception("changes_failed")


def _has_closed(applied: AppliedLog) -> bool:
    """Lets other processes write a log, unless a thread has its state; returns whether it does."""
    with suppress(LogLocked):
        applied.close(time.monotonic())
        return True
    return False


def _close(busy: Sequence[AppliedLog]) -> None:
    """Lets other processes write logs, each once no thread has its state. Ends with the process."""
    while busy:
        time.sleep(_CLOSE_S)
        busy = [applied for applied in busy if not _has_closed(applied)]


def _unreachable(applied: AppliedLog, reason: str, outcome: str) -> NotReady:
    """Returns the error for a process that writes a log and cannot be reached; `reason`: why, if
    that is known.
    """
    if reason:
        reason = f" ({reason})"
    return NotReady(
        f"change log {applied.path} is written by {applied.holders}, which this process cannot "
        f"reach{reason}; {outcome}"
    )
