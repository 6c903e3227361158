"""Replays recorded requests against a model version before it is served: they warm it up, and show
what it breaks.

A version is rejected for a recorded request only if the current version still serves it; a request
that both versions fail is itself at fault. Ids that a version's candidates or vocabularies no
longer hold are data, as they are to clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from bundle.errors import UnknownRejected
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
from service.versions.rejections import LoadRejected, ShardsMissing
from service.versions.version import ModelVersion

REQUESTS_MAX = 256
"""Maximum number of replayed requests."""
SECONDS_MAX = 30.0
"""Maximum time of the replay, pauses of the load throttle included."""

_log = logging.logger(__name__)


class Replay:
    """Tests new versions with requests that clients sent to the current version."""

    def __init__(self, settings: ServiceSettings, versions: VersionManager) -> None:
        """Creates the test.

        Args:
          settings: The settings of recordings, and the limits of requests.
          versions: The versions, of which each model has a current one.
        """
        self._settings = settings
        self._versions = versions

    def check(self, model_version: ModelVersion, throttle: Callable[[], object]) -> None:
        """Replays the newest recorded requests of the model, for a bounded time.

        Args:
          model_version: The version that is loaded.
          throttle: Called after each request.

        Raises:
          LoadRejected: The version fails a request that the current version serves.
          ShardsMissing: A shard failed.
        """
        if not self._settings.record_rate:
            return
        directory = record_directory(self._settings) / model_version.model
        end = time.monotonic() + SECONDS_MAX
        replayed_count = 0
        failures = list[str]()
        with ExitStack() as leases:
            # Without a current version, the requests only warm the new version up.
            current = None
            with suppress(ServiceError):
                current = leases.enter_context(self._versions.acquire(model_version.model))
            for request in read_newest(directory, REQUESTS_MAX):
                if time.monotonic() > end:
                    break
                replayed_count += 1
                problem = self._problem(model_version, request)
                # The version is not at fault: it is loaded again later.
                if model_version.shards is not None and isinstance(problem, SHARD_FAILURES):
                    raise ShardsMissing(f"a recorded {request.call} failed: {problem}")
                if (
                    problem is not None
                    and current is not None
                    and self._problem(current, request) is None
                ):
                    failures.append(f"a {request.call}: {type(problem).__name__}: {problem}")
                throttle()

        if not replayed_count:
            return
        facts = {"model": model_version.model, "version": model_version.version}
        _log.info(
            "requests_replayed",
            extra=logging.fields(**facts, requests=replayed_count, failed=len(failures)),
        )
        if failures and current is not None:
            raise LoadRejected(
                f"{len(failures)} of {replayed_count} recorded requests that version "
                f"{current.version} served fail; the first to fail is {failures[0]}"
            )

    def _problem(self, model_version: ModelVersion, request: RecordedRequest) -> Exception | None:
        """Returns the error with which a version fails a request; None: it does not fail it, or
        only because it lacks ids.
        """
        try:
            read = OPERATIONS[request.call].read
            message, _ = read(request.body, request.protobuf, None, self._settings)
            compute = COMPUTE[type(message)]
            completed(compute(model_version, message, self._settings, Execution(request.call)))
        except (NoSuchCandidate, UnknownRejected):
            return None
        except Exception as problem:  # noqa: BLE001 - a client would get it, whatever it is
            return problem
        return None
