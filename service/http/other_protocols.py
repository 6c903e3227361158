"""Protocols of other servers over HTTP: their calls pass through the same admission, middleware and
data plane as rowcast's own calls, and their errors have their own form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson
from fastapi import FastAPI
from starlette.types import Scope

from service.codec.failures import Failure, details_message, details_value
from service.codec.metadata import JSON, PROTOBUF, Headers, accepts_protobuf
from service.codec.operations import Exchange
from service.dataplane import Dataplane
from service.errors import TRANSPORT_STATUS, FieldViolation, NotFound


class HttpCall(NamedTuple):
    """A call whose headers were accepted.

    Attributes:
      exchange: Reads the body and writes the response.
      response_headers: Returns the headers of the response, without its length. It is called once
        the response is written.
    """

    exchange: Exchange
    response_headers: Callable[[], list[tuple[bytes, bytes]]]


@dataclass(frozen=True)
class OtherProtocol:
    """A protocol over HTTP.

    Attributes:
      calls: The paths of calls, which are sent by POST: a group `model`, a group `call` with the
        name of the call as in metrics unless there is one call, and `version` and `label` where
        paths can name them.
      pages: The paths of everything else.
      call_name: The name of the only call; "": the paths name it.
      probes: The paths of health checks, which are open to everybody.
      start: Accepts a call by its scope, whose state has `context` and `headers`, or raises
        ServiceError. The body was not read yet.
      add_pages: Adds everything that is no call to the application. Its routes come before
        rowcast's own.
    """

    calls: re.Pattern[str]
    pages: re.Pattern[str]
    start: Callable[[Dataplane, Scope], HttpCall]
    add_pages: Callable[[FastAPI, Dataplane], None]
    call_name: str = ""
    probes: frozenset[str] = frozenset()

    def has(self, path: str) -> bool:
        """Returns whether a path is one of the protocol."""
        return bool(self.calls.fullmatch(path) or self.pages.fullmatch(path))

    def match(self, path: str) -> dict[str, str | None] | None:
        """Returns the names in the path of a call; None: the path is no call of the protocol."""
        match = self.calls.fullmatch(path)
        if match is None:
            return None
        return {"version": None, "label": None, "call": self.call_name, **match.groupdict()}


def error_response(
    failure: Failure, headers: Headers, protocol: OtherProtocol | None
) -> tuple[int, str, bytes]:
    """Returns the status, the media type and the body of a failure.

    Args:
      failure: The failure.
      headers: The headers of the request, which name the form of rowcast's own responses.
      protocol: The protocol of the request; all write failures alike. None: it is rowcast's own.
    """
    status = TRANSPORT_STATUS[failure.code].http
    if protocol is not None:
        return status, JSON, orjson.dumps({"error": failure.message})
    if accepts_protobuf(headers):
        return status, PROTOBUF, details_message(failure).SerializeToString()
    return status, JSON, orjson.dumps(details_value(failure))


def protocol_of(protocols: Sequence[OtherProtocol], path: str) -> OtherProtocol | None:
    """Returns the protocol that a path belongs to; None: it is one of rowcast's own paths."""
    return next((protocol for protocol in protocols if protocol.has(path)), None)


def check_spoken(protocols_off: Mapping[str, OtherProtocol], path: str) -> None:
    """Rejects a path of a protocol that the service could speak.

    Raises:
      NotFound: It is one; the message names the setting.
    """
    for name, protocol in protocols_off.items():
        if protocol.has(path):
            shown_path = repr(path[:80])
            message = (
                f"path {shown_path} does not exist; a service that is started with --protocols "
                f"{name} has it"
            )
            expected = "a path of a protocol that the service speaks"
            raise NotFound(message, FieldViolation("path", shown_path, expected))
