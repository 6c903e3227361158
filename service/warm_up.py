"""The warm-up of a version before it is served: the requests that its bundle has for it, which are
computed as TensorFlow Serving computes the warm-up requests of a SavedModel, then synthetic ones.

The model and version in a record are those of the server that recorded it, and are ignored, as
TensorFlow Serving ignores them.

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
from service.engine.computation import completed
from service.engine.engine import COMPUTE, Engine
from service.engine.execution import Execution
from service.errors import SHARD_FAILURES, TooLarge
from service.observability import logging
from service.protocols.binding import BoundRequest, bind, tensor_errors, tensors_of
from service.protocols.exchange import COMPUTED
from service.protocols.tensorflow_serving import messages
from service.protocols.tensorflow_serving.protocol import CLASSIFIED, REGRESSED
from service.versions.rejections import LoadRejected, ShardsMissing
from service.versions.throttle import LoadThrottle
from service.versions.version import ModelVersion
from tensors import records
from tensors.errors import NoRequest

SECONDS_MAX = 30.0
"""Maximum time of the computations, pauses of the load throttle included."""

_CALLS = {
    "predict": (messages.read_predict, COMPUTED),
    "classify": (messages.read_example_request, CLASSIFIED),
    "regress": (messages.read_example_request, REGRESSED),
}
"""For each call, what reads its message, and the calls of the engine that compute it."""

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
        logged = records.read_prediction_log(record)
    except NoRequest as problem:
        raise LoadRejected(f"{record_name} {problem}") from problem

    try:
        bound = _bound_request(logged, version, settings)
        if has_time:
            compute = COMPUTE[type(bound.request)]
            execution = Execution(logged.call)
            result = completed(compute(version, bound.request, settings, execution))
            # The tensors of the response can fail, too, such as by their size.
            tensors_of(bound, result)
    except Exception as problem:
        # A client would receive it, whatever it is.
        message = f"{record_name}: the {logged.call} request fails: {problem}"
        # The version is not at fault: it is loaded again later.
        if version.shards is not None and isinstance(problem, SHARD_FAILURES):
            raise ShardsMissing(message) from problem
        raise LoadRejected(message) from problem


def _bound_request(
    logged: records.LoggedCall, version: ModelVersion, settings: ServiceSettings
) -> BoundRequest:
    """Returns a request in the form that a version computes.

    Raises:
      ServiceError: The version has no signature for it, or it exceeds a limit.
    """
    message = logged.request
    # The version that is loaded computes it.
    message.model_spec.name = version.model
    message.model_spec.ClearField("version_choice")
    # The limits are those of clients: a request that passes is one that a client can send.
    size_bytes = message.ByteSize()
    if size_bytes > settings.max_request_bytes:
        raise TooLarge.of_limit("request", f"{size_bytes} bytes", settings.max_request_bytes)
    read, computed = _CALLS[logged.call]
    with tensor_errors():
        return bind(version, read(message, settings), logged.call, computed, settings)
