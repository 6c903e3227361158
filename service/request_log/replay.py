"""Replays recorded requests against a model version before it is served: they warm it up, and show
what it breaks.

A version is rejected for a recorded request only if the current version still answers it; a request
that both fail is itself at fault. Ids that a version's candidates or vocabularies no longer hold
are data, as they are to clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from bundle.errors import UnknownRefused
from service.codec.operations import OPERATIONS
from service.config import ServiceSettings
from service.engine.computation import completed
from service.engine.engine import COMPUTE
from service.engine.execution import Execution
from service.engine.lookup import NoSuchCandidate
from service.errors import SHARD_FAILURES, ServiceError
from service.observability import logging
from service.request_log.record import RecordedRequest, read_newest, record_directory
from service.versions.lifecycle import VersionManager
from service.versions.loader import LoadRejected, ShardsMissing
from service.versions.version import ModelVersion

REQUESTS_MAX = 256
SECONDS_MAX = 30.0
"""Pauses of the load throttle included."""

_log = logging.logger(__name__)


class Replay:
    """Tests new versions with what clients sent to the current one."""

    def __init__(self, settings: ServiceSettings, versions: VersionManager) -> None:
        self._settings = settings
        self._versions = versions

    def check(self, model_version: ModelVersion, throttle: Callable[[], object]) -> None:
        """Replays the newest recorded requests of the model, for a bounded time; nothing if nothing
        is recorded.

        Args:
          throttle: called after each request.
        Raises:
          LoadRejected: the version fails a request that the current one answers.
          ShardsMissing: a shard failed.
        """
        directory = record_directory(self._settings) / model_version.model
        recorded = read_newest(directory, REQUESTS_MAX) if self._settings.record_rate else []
        if not recorded:
            return
        until = time.monotonic() + SECONDS_MAX
        replayed = 0
        failed = list[str]()
        with ExitStack() as leases:
            current = None
            with suppress(ServiceError):  # there is nothing to compare with
                current = leases.enter_context(self._versions.acquire(model_version.model))
            for request in recorded:
                if time.monotonic() > until:
                    break
                replayed += 1
                problem = self._problem(model_version, request)
                if model_version.shards is not None and isinstance(problem, SHARD_FAILURES):
                    raise ShardsMissing(f"a recorded {request.call} failed: {problem}")
                if (
                    problem is not None
                    and current is not None
                    and self._problem(current, request) is None
                ):
                    failed.append(f"a {request.call}: {type(problem).__name__}: {problem}")
                throttle()
        facts = {"model": model_version.model, "version": model_version.version}
        _log.info(
            "requests_replayed",
            extra=logging.fields(**facts, requests=replayed, failed=len(failed)),
        )
        if failed and current is not None:
            what = (
                f"{len(failed)} of {replayed} recorded requests that version {current.version} "
                "served fail"
            )
            raise LoadRejected(f"{what}; the newest failure is of {failed[0]}")

    def _problem(self, model_version: ModelVersion, recorded: RecordedRequest) -> Exception | None:
        """Returns what keeps a version from answering a request; None: nothing, or ids that it does
        not know.
        """
        try:
            request, _ = OPERATIONS[recorded.call].read(
                recorded.body, recorded.protobuf, None, self._settings
            )
            compute = COMPUTE[type(request)]
            completed(compute(model_version, request, self._settings, Execution(recorded.call)))
        except (NoSuchCandidate, UnknownRefused):
            return None
        except Exception as problem:  # noqa: BLE001 - a client would get it, whatever it is
            return problem
        return None
