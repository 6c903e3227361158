"""The requests of a load: those that a service recorded, or examples that fit the description of a
model.
"""

from __future__ import annotations

import base64
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from rowcast_client import calls
from rowcast_client.calls import Call
from rowcast_client.client import Client
from rowcast_client.errors import InvalidArgument, RowcastError
from rowcast_client.model_details import CallSignature, FeatureDetails, ModelDetails
from rowcast_client.stubs import embedding_service_pb2 as pb

EXAMPLES = 200
"""The number of different examples, so that no cache holds them all at once."""
CANDIDATES = 100
"""The number of candidates of an example of `rank`."""
LIST_LENGTH = 10
"""The number of values of a feature that holds a list of any length."""
IDS_MAX = 1000
"""Ids of a feature without a table are below this number."""
PREFERRED = ("recommend", "retrieve", "rank", "embed")
"""The calls of which the first that a model serves is sent by default."""
SEED = 1
SUFFIX = ".jsonl"

_OF_EACH = {"context_id": "context_ids"}
"""Fields of one request in a JSON body, by the argument of the call that has another name."""
_EMPTY: Mapping[str, Any] = {"context": {}, "features": {}, "exclude_ids": [], "negative_ids": []}
"""Fields that only some requests of a list may have, with what the others have."""


class LoadRequests(NamedTuple):
    """The requests of a load.

    Attributes:
      calls: The calls; their responses are checked, and not read.
      source: What they are, for people; the same for two runs whose figures can be compared.
      unreadable: The number of recorded requests that cannot be read.
      from_json: The number of requests that were recorded as JSON; the client sends all of them as
        protobuf.
    """

    calls: Sequence[Call[None]]
    source: str
    unreadable: int = 0
    from_json: int = 0


def _read(_: Any) -> None:
    """Reads nothing of a response: to parse responses would cost the generator more than to send
    requests.
    """


_UNREAD = SimpleNamespace(FromString=_read)
"""Stands for the class of a response's message."""


def recorded_requests(
    path: Path, call: str = "", *, model: str = "", **version: Any
) -> LoadRequests:
    """Reads requests that a service recorded (`--record-rate`), in the order of their time.

    Each line is a JSON object of `call`, `protobuf` (whether the body is a message, else JSON),
    `body` (in base64, or a JSON object as it is) and `at` (seconds since 1970); only `call` and
    `body` are required.

    Args:
      path: A file, the directory of a model, or the directory of all recordings.
      call: The call to select; "": all of them.
      model: The model to send them to.
      version: Its `version` or `label`, if it is not the current one.

    Raises:
      InvalidArgument: The files cannot be read, or have no request.
    """
    if model and (path / model).is_dir():
        path = path / model
    requests: list[tuple[float, Call[None]]] = []
    unreadable = 0
    from_json = 0
    problem = ""
    for location, line in _lines(path):
        try:
            recorded = json.loads(line)
            name = recorded["call"]
            if call not in ("", name):
                continue
            is_message, request = _request_of(name, recorded)
            target = calls.versioned_call(
                name.title(), request, _UNREAD, _read, model=model, **version
            )
            requests.append((float(recorded.get("at") or 0), target))
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            DecodeError,
            RowcastError,
        ) as error:
            unreadable += 1
            expected = "expected a JSON object with call and body"
            problem = problem or f"; {location} cannot be read ({error!r}): {expected}"
            continue
        from_json += not is_message
    if not requests:
        kind = f"{call or 'recorded'} request"
        raise InvalidArgument(f"{path} has no {kind}{problem}")
    requests.sort(key=lambda timed: timed[0])
    return LoadRequests(
        calls=[request for _, request in requests],
        source=f"recorded requests of {path}",
        unreadable=unreadable,
        from_json=from_json,
    )


def _lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yields each line with its file and number."""
    try:
        files = [path]
        if path.is_dir():
            files = sorted(path.glob(f"*{SUFFIX}"))
            if not files:
                raise InvalidArgument(
                    f"{path} has no file *{SUFFIX}: expected the directory in which a service "
                    "records the requests of the model"
                )
        for file in files:
            for number, line in enumerate(file.read_bytes().splitlines(), start=1):
                if line.strip():
                    yield f"{file}:{number}", line
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror or error}") from error


def _request_of(name: str, recorded: Mapping[str, Any]) -> tuple[bool, Any]:
    """Returns whether a recorded request is a message, and the message that it is or stands for."""
    body = recorded["body"]
    if isinstance(body, str):
        body = base64.b64decode(body, validate=True)
        if recorded.get("protobuf"):
            return True, getattr(pb, f"{name.title()}Request").FromString(body)
        body = json.loads(body)
    packed: Call[Any] = getattr(calls, name)(**_arguments(body))
    return False, packed.request


def _arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call for a JSON body, which has options beside one request, or
    beside a list of requests.
    """
    arguments = {_OF_EACH.get(name, name): value for name, value in body.items()}
    parts: Sequence[Mapping[str, Any]] | None = arguments.pop("requests", None)
    if parts is None:
        return arguments
    for name in {name for part in parts for name in part}:
        values = [part.get(name, _EMPTY.get(name)) for part in parts]
        if None in values:
            raise ValueError(f"only some of the requests have {name!r}")
        arguments[_OF_EACH.get(name, name)] = values
    return arguments


def example_requests(
    client: Client,
    details: ModelDetails,
    call: str = "",
    features: Mapping[str, Any] | None = None,
    **options: Any,
) -> LoadRequests:
    """Returns requests with random values that fit the features of a model. The first one is sent,
    so that values which the model does not take are an error before the load.

    Args:
      client: The client of the service.
      details: The description of the model.
      call: The call; "": the first of PREFERRED that the model serves.
      features: Values of features that all requests have.
      options: The model, and its version or label.

    Raises:
      InvalidArgument: The model does not serve the call, or does not take such values.
      RowcastError: The service failed.
    """
    signature = _signature(details, call)
    examples = _Examples(details, signature, features or {})
    if call == "":
        call = signature.call
    packed: list[Call[Any]] = []
    candidates: Sequence[Any] | None = None
    try:
        for number in range(EXAMPLES):
            arguments = examples.arguments()
            if call == "rank" and number == 0 and details.indexes and details.corpora:
                candidates = _nearest(client, details, features or {}, options)
            if call == "rank":
                arguments |= examples.candidates(candidates)
            pack: Callable[..., Call[Any]] = getattr(calls, call)
            request = pack(**arguments, **options)
            if number == 0:
                client.send(request)
            packed.append(request._replace(response=_UNREAD, unpack=_read))
    except InvalidArgument as error:
        raise InvalidArgument(
            f"the model does not take an example that was made by its description: {error}. Set "
            "the feature with --feature, or record requests and name them with --requests"
        ) from error
    return LoadRequests(packed, f"{call} requests with random features")


def _nearest(
    client: Client, details: ModelDetails, features: Mapping[str, Any], options: Mapping[str, Any]
) -> Sequence[Any]:
    """Returns the ids of candidates near to an example, which are ids that the model knows."""
    signature = _signature(details, "retrieve")
    names = {feature.name for feature in signature.features}
    query_features = {name: value for name, value in features.items() if name in names}
    query = _Examples(details, signature, query_features)
    neighbors = client.retrieve(k=CANDIDATES, **query.arguments(), **options)[0]
    return [neighbor.id for neighbor in neighbors]


def _signature(details: ModelDetails, call: str) -> CallSignature:
    """Returns the first signature of a call, of the towers that no stage uses if there are any."""
    stages = {stage.tower for stage in details.stages}
    signatures = sorted(details.calls, key=lambda signature: signature.tower in stages)
    served = {signature.call: signature for signature in reversed(signatures)}
    if call:
        if call not in served:
            raise InvalidArgument(
                f"examples of {call} cannot be made for model {details.model}: expected one of "
                f"{', '.join(served)}, or recorded requests (--requests)"
            )
        return served[call]
    # Candidates of a recommendation have no features but the stored ones.
    if any(
        feature.required and feature.role == "candidate"
        for feature in getattr(served.get("rank"), "features", ())
    ):
        served.pop("recommend", None)
    for name in PREFERRED:
        if name in served:
            return served[name]
    raise InvalidArgument(f"model {details.model} serves no call of {', '.join(PREFERRED)}")


class _Examples:
    """Random requests of one call of a model, the same ones in every run."""

    def __init__(
        self, details: ModelDetails, signature: CallSignature, features: Mapping[str, Any]
    ) -> None:
        names = {feature.name for feature in signature.features}
        unknown = features.keys() - names
        if unknown:
            raise InvalidArgument(
                f"{signature.call} has no feature {min(unknown)!r}: expected {', '.join(names)}"
            )
        self._signature = signature
        self._features = features
        self._rows = {table.name: table.rows for table in details.tables}
        self._readers = {reader.name: reader for reader in details.readers}
        self._random = random.Random(SEED)  # noqa: S311 - no secret
        self._names: dict[str, str] = {}
        towers = {entry.tower for entry in details.calls if entry.call == signature.call}
        if len(towers) > 1 and signature.call != "retrieve":
            self._names["tower"] = signature.tower
        if len(details.indexes) > 1 and signature.call in ("retrieve", "recommend"):
            self._names["index"] = details.indexes[0].name

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of the next call, without the candidates of a ranking."""
        values = self._values(
            feature
            for feature in self._signature.features
            if self._signature.call != "rank" or feature.role == "context"
        )
        name = "context"
        if self._signature.call == "embed":
            name = "features"
        return {name: values, **self._names}

    def candidates(self, ids: Sequence[Any] | None) -> dict[str, Any]:
        """Returns the arguments that name the candidates of the next ranking.

        Args:
          ids: Ids of candidates of the model; None: none are known.
        """
        features = [
            feature
            for feature in self._signature.features
            if feature.role == "candidate" and (ids is None or feature.required)
        ]
        count = CANDIDATES
        if ids is not None:
            count = len(ids)
        arguments: dict[str, Any] = {}
        if ids is not None:
            arguments["candidate_ids"] = ids
        if features:
            examples = [self._values(iter(features)) for _ in range(count)]
            arguments["candidate_features"] = {
                name: [example[name] for example in examples] for name in examples[0]
            }
        return arguments

    def _values(self, features: Iterator[FeatureDetails]) -> dict[str, Any]:
        """Returns a value of each feature; a text with a default is left out, as its vocabulary is
        not known.
        """
        values = {}
        for feature in features:
            if feature.name in self._features:
                values[feature.name] = self._features[feature.name]
            elif feature.type != "string" or feature.required:
                values[feature.name] = self._value(feature)
        return values

    def _value(self, feature: FeatureDetails) -> Any:
        readers = [self._readers[name] for name in feature.readers]
        sizes = [reader.places for reader in readers if reader.places is not None]
        size: int | None = None
        if feature.input_length is not None:
            size = feature.input_length.values
        elif sizes:
            size = max(sizes)
        elif feature.kind == "dense":
            if feature.shape:
                size = math.prod(feature.shape)
        elif feature.kind != "single":
            size = feature.length or LIST_LENGTH
        limits = [reader.below for reader in readers if reader.below is not None]
        ids_max = min([self._rows.get(feature.table, IDS_MAX), *limits])
        if size is None:
            return self._scalar(feature, ids_max)
        return [self._scalar(feature, ids_max) for _ in range(size)]

    def _scalar(self, feature: FeatureDetails, ids_max: int) -> Any:
        if feature.type == "string":
            return "a"
        if feature.type == "bool":
            return self._random.random() < 0.5
        if "float" in feature.type:
            return self._random.random()
        return self._random.randrange(max(ids_max, 1))
