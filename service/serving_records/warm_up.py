"""The warm-up of a version before it is served: the requests that its bundle has for it, which are
computed as TensorFlow Serving computes the warm-up requests of a SavedModel, then synthetic ones.

A record that cannot be read, or whose request fails, rejects the version. Every record is read and
compared with its signature; computations end after a time, as pauses for other requests may be
long.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bundle.errors import RecordDamaged
from bundle.storage import files
from bundle.storage.tfrecords import READ_ERRORS, read_records
from service.config import ServiceSettings
from service.engine.engine import Engine
from service.errors import SHARD_FAILURES
from service.observability import logging
from service.serving_records.logged_requests import (
    compute_bound,
    read_prediction_log,
)
from service.versions.rejections import LoadRejected, ShardsMissing
from service.versions.throttle import LoadThrottle
from service.versions.version import ModelVersion
from tensors.errors import NoRequest

SECONDS_MAX = 30.0
"""Maximum time of the computations, pauses of the load throttle included."""

_log = logging.logger(__name__)


def warm_up(
    engine: Engine, version: ModelVersion, settings: ServiceSettings, throttle: LoadThrottle
) -> None:
    """Computes the requests of a version's bundle, which the model takes, then synthetic ones, of
    which nobody knows that.

    Args:
      engine: The engine that computes.
      version: The version that is loaded.
      settings: The limits of requests.
      throttle: Called after each request.

    Raises:
      Exception: The version cannot serve.
    """
    compute_requests(version, settings, throttle)
    engine.warm_up(version, throttle)


def compute_requests(
    version: ModelVersion, settings: ServiceSettings, throttle: Callable[[], object]
) -> None:
    """Computes the requests of a version's bundle; nothing if it has none.

    Args:
      version: The version that is loaded.
      settings: The limits of requests.
      throttle: Called after each request.

    Raises:
      LoadRejected: A record cannot be read, or its request fails; names file and record.
      ShardsMissing: A shard failed.
    """
    entry = version.files.warm_up
    if entry is None:
        return
    path = files.locate(version.directory, entry.file)
    end = time.monotonic() + SECONDS_MAX
    computed_count = 0
    count = 0
    try:
        for count, record in enumerate(read_records(path), 1):
            record_name = f"record {count} of {entry.file}"
            if count > entry.size:
                raise LoadRejected(f"{record_name}: the manifest has {entry.size} records")
            # Once time is up, records are still read and compared with their signatures, so that a
            # version is rejected on every machine or on none.
            has_time = time.monotonic() < end
            _check(version, settings, record, record_name, has_time)
            computed_count += has_time
            throttle()
    except RecordDamaged as problem:
        raise LoadRejected(f"{entry.file}: {problem}") from problem
    except READ_ERRORS as problem:
        raise LoadRejected(f"{entry.file} cannot be read: {problem}") from problem
    if count < entry.size:
        raise LoadRejected(f"{entry.file} has {count} records; the manifest has {entry.size}")
    facts = {"model": version.model, "version": version.version}
    _log.info(
        "warm_up_requests_computed",
        extra=logging.fields(**facts, requests=computed_count, records=count),
    )


def _check(
    version: ModelVersion,
    settings: ServiceSettings,
    record: bytes,
    record_name: str,
    has_time: bool,
) -> None:
    """Reads a record, and computes its request unless time is up."""
    try:
        request = read_prediction_log(record, version.model)
    except NoRequest as problem:
        raise LoadRejected(f"{record_name} {problem}") from problem

    try:
        bound = request.bind(version, settings)
        if has_time:
            compute_bound(request.call, bound, version, settings)
    except Exception as problem:
        # A client would receive it, whatever it is.
        message = f"{record_name}: the {request.call} request fails: {problem}"
        # The version is not at fault: it is loaded again later.
        if version.shards is not None and isinstance(problem, SHARD_FAILURES):
            raise ShardsMissing(message) from problem
        raise LoadRejected(message) from problem
