"""Which form a body has, JSON or protobuf messages, and the envelopes that HTTP puts around answers and failures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from service.engine.requests import Target
from service.errors import ANSWERS, InvalidArgument
from service.wire import json_bodies
from service.wire.calls import REQUEST_ID
from service.wire.failures import Failure
from service.wire.operations import Operation, Written
from service.wire.stubs import embedding_service_pb2 as pb

JSON = "application/json"
PROTOBUF = "application/x-protobuf"
_PROTOBUF_NAMES = (PROTOBUF, "application/protobuf")
_JSON_NAMES = (JSON, "", "application/x-www-form-urlencoded")
"""The last is what `curl -d` says of any body: no call takes forms, so JSON is meant."""
VERSION_MAX = 2**63 - 1
_KEPT_MAX = 64
"""Headers that were understood before: few, since each may have the length of a whole head."""

Header = tuple[bytes, bytes]
Headers = Mapping[bytes, bytes]


class Reply(NamedTuple):
    """A whole HTTP response, but for the request id."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[Header, ...] = ()


def is_protobuf(headers: Headers) -> bool:
    """Tells whether the body is a protobuf message; otherwise it is JSON, also where no type or curl's own is told.

    Raises:
      InvalidArgument: it is neither.
    """
    return _is_protobuf(headers.get(b"content-type", b""))


@lru_cache(_KEPT_MAX)
def _is_protobuf(content_type: bytes) -> bool:
    said = content_type.decode("latin-1")
    kind, _, parameters = said.partition(";")
    kind = kind.strip().lower()
    if kind in _PROTOBUF_NAMES:
        return True
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if kind not in _JSON_NAMES or charset not in {"", "utf-8", "utf8"}:
        raise InvalidArgument(f"content-type is {said[:80]!r}; {JSON} (UTF-8) or {PROTOBUF} was expected")
    return False


def wants_protobuf(headers: Headers) -> bool:
    """Tells whether the answer is a protobuf message: as `accept` says first, or else as the body is."""
    return _wants_protobuf(headers.get(b"accept", b""), headers.get(b"content-type", b""))


@lru_cache(_KEPT_MAX)
def _wants_protobuf(accept: bytes, content_type: bytes) -> bool:
    for each in accept.decode("latin-1").lower().split(","):
        name = each.partition(";")[0].strip()
        if name in {JSON, *_PROTOBUF_NAMES}:
            return name != JSON
    kind = content_type.decode("latin-1").partition(";")[0]
    return kind.strip().lower() in _PROTOBUF_NAMES


def target_of(model: str, version: str | None, label: str | None = None) -> Target:
    """Returns the model, and the version or label, that a URL names.

    Raises:
      InvalidArgument: a name is empty, or the version no positive integer.
    """
    for name, value in (("model", model), ("label", label)):
        if value == "":
            raise InvalidArgument(f"{name} is empty; its name was expected in the path, /v1/models/MODEL:CALL")
    if version is None:
        return Target(model, label=label or "")
    number = int(version) if version.isascii() and version.isdecimal() and len(version) < 20 else 0
    if not 0 < number <= VERSION_MAX:
        raise InvalidArgument(f"version is {version[:40]!r}; a positive integer was expected")
    return Target(model, number)


def read_request(operation: Operation, body: bytes, protobuf: bool, target: Target) -> tuple[Any, bool]:
    """Returns the engine's request, and whether the answer is a list of results.

    Raises:
      InvalidArgument: the body is no such request.
    """
    if protobuf:
        return operation.read_message(body, target), True
    return operation.read_json(json_bodies.parse(body), target)


def written(message: Written | None, value: Any) -> Reply:
    """Returns the reply that carries a message if there is one, else a JSON value."""
    if message is not None:
        return Reply(200, PROTOBUF, message.SerializeToString())
    return Reply(200, JSON, json_bodies.dump(value))


def failed(failure: Failure, protobuf: bool, status: int | None = None, headers: tuple[Header, ...] = ()) -> Reply:
    """Returns the reply of a failed call: this door's one use of the table of answers.

    Args:
      failure: what the caller is told.
      protobuf: whether as an ErrorDetails message, else as JSON.
      status: where HTTP has a number of its own for what the code says (405).
      headers: further ones.
    """
    told = ANSWERS[failure.code].http if status is None else status
    if failure.retry_after_s is not None:
        headers = (*headers, (b"retry-after", str(max(1, math.ceil(failure.retry_after_s))).encode()))
    details = {"code": failure.code.value, "message": failure.message, "request_id": failure.request_id}
    if protobuf:
        return Reply(told, PROTOBUF, pb.ErrorDetails(**details).SerializeToString(), headers)
    return Reply(told, JSON, json_bodies.dump({"error": details}), headers)


def head_of(reply: Reply, request_id: str) -> list[Header]:
    """Returns the headers of a reply."""
    return [
        (b"content-type", reply.content_type.encode()),
        (b"content-length", str(len(reply.body)).encode()),
        (REQUEST_ID.encode(), request_id.encode()),
        *reply.headers,
    ]
