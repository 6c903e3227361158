"""Replays recorded requests against a model version before it is served: they warm it up, and show
what it breaks.

A version is rejected for a recorded request only if the current version still serves it; a request
that both versions fail is itself at fault. Ids that a version's candidates or vocabularies no
longer hold are data, as they are to clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

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
"""Maximum number of replayed requests that the service recorded, and of requests from other
recordings.
"""
SECONDS_MAX = 30.0
"""Maximum time of the replay, pauses of the load throttle included; as much again for other
recordings.
"""

_log = logging.logger(__name__)


class ReplayedRequest(Protocol):
    """A recorded request, whoever recorded it."""

    @property
    def call(self) -> str:
        """The name of the call."""

    def compute(self, version: ModelVersion, settings: ServiceSettings) -> None:
        """Computes the request with a version; raises what a client would receive as an error."""


Recordings = Callable[[str], Iterator[ReplayedRequest]]
"""Returns the recorded requests of a model, in the order of the replay."""


def _no_recordings(_: str) -> Iterator[ReplayedRequest]:
    return iter(())


@dataclass(frozen=True)
class _OwnRequest:
    """A request that the service recorded."""

    recorded: RecordedRequest

    @property
    def call(self) -> str:
        return self.recorded.call

    def compute(self, version: ModelVersion, settings: ServiceSettings) -> None:
        body = self.recorded.body
        request, _ = OPERATIONS[self.call].read(body, self.recorded.protobuf, None, settings)
        compute = COMPUTE[type(request)]
        completed(compute(version, request, settings, Execution(self.call)))


class Replay:
    """Tests new versions with requests that clients sent to the current version."""

    def __init__(
        self,
        settings: ServiceSettings,
        versions: VersionManager,
        recordings: Recordings = _no_recordings,
    ) -> None:
        """Creates the test.

        Args:
          settings: The settings of recordings, and the limits of requests.
          versions: The versions, of which each model has a current one.
          recordings: Returns the requests that another server recorded.
        """
        self._settings = settings
        self._versions = versions
        self._recordings = recordings

    def check(self, model_version: ModelVersion, throttle: Callable[[], object]) -> None:
        """Replays recorded requests of the model, for a bounded time: the newest requests that the
        service recorded, then the requests of other recordings.

        Args:
          model_version: The version that is loaded.
          throttle: Called after each request.

        Raises:
          LoadRejected: The version fails a request that the current version serves.
          ShardsMissing: A shard failed.
        """
        recorded: list[RecordedRequest] = []
        if self._settings.record_rate:
            directory = record_directory(self._settings) / model_version.model
            recorded = read_newest(directory, REQUESTS_MAX)
        self._check_requests(model_version, map(_OwnRequest, recorded), throttle)
        recordings = islice(self._recordings(model_version.model), REQUESTS_MAX)
        self._check_requests(model_version, recordings, throttle)

    def _check_requests(
        self,
        model_version: ModelVersion,
        requests: Iterable[ReplayedRequest],
        throttle: Callable[[], object],
    ) -> None:
        end = time.monotonic() + SECONDS_MAX
        replayed_count = 0
        failures = list[str]()
        with ExitStack() as leases:
            # Without a current version, the requests only warm the new version up.
            current = None
            with suppress(ServiceError):
                current = leases.enter_context(self._versions.acquire(model_version.model))
            for request in requests:
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

    def _problem(self, model_version: ModelVersion, request: ReplayedRequest) -> Exception | None:
        """Returns the error with which a version fails a request; None: it does not fail it, or
        only because it lacks ids.
        """
        try:
            request.compute(model_version, self._settings)
        except (NoSuchCandidate, UnknownRejected):
            return None
        except Exception as problem:  # noqa: BLE001 - a client would get it, whatever it is
            return problem
        return None
