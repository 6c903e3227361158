"""Calls over HTTP/1.1: kept connections, bodies as protobuf (the fast way) or as JSON (the readable one)."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx
from google.protobuf.message import DecodeError

from rowcast_client import calls
from rowcast_client.addresses import Address
from rowcast_client.calls import Call
from rowcast_client.errors import (
    BadAnswer,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    NotReady,
    RowcastError,
    TlsFailed,
    Unreachable,
    parse_retry_after,
    service_error,
)
from rowcast_client.identity import Identity
from rowcast_client.json_bodies import read_body, write_body
from rowcast_client.retries import Deadline
from rowcast_client.stubs import embedding_service_pb2 as pb

PROTOBUF, JSON = "application/x-protobuf", "application/json"
BODIES = {"protobuf": PROTOBUF, "json": JSON}
KEPT_S = 30.0
"""How long an idle connection is kept: well below the time after which services and proxies close it."""
PROXIES = {413: "TOO_LARGE", 429: "OVERLOADED", 502: "NOT_READY", 503: "NOT_READY", 504: "DEADLINE"}
"""Status -> code, for refusals without an error of rowcast: those of a proxy on the way."""
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=KEPT_S)


class HttpTransport:
    """Sends calls over a pool of connections."""

    def __init__(self, address: Address, *, body: str, identity: Identity, headers: Mapping[str, str]) -> None:
        self._wire = _Wire(address, body, headers)
        self._client = httpx.Client(verify=_trust(address, identity), limits=LIMITS)

    def send(self, call: Call[Any], deadline: Deadline, request_id: str) -> Any:
        """Sends a call once. The deadline bounds each step of it: connecting, sending, and waiting for bytes.

        Raises:
          RowcastError: it failed.
        """
        if self._wire.lacks_model(call):
            self._wire.model = only_model(self.send(calls.models(), deadline, request_id))
        request = self._wire.request(call, deadline, request_id)
        try:
            answer = self._client.request(**request)
        except httpx.HTTPError as error:
            raise self._wire.failure(error, deadline, request_id) from error
        return self._wire.read(call, answer, request_id)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()


class AsyncHttpTransport:
    """Sends calls over a pool of connections, without blocking."""

    def __init__(self, address: Address, *, body: str, identity: Identity, headers: Mapping[str, str]) -> None:
        self._wire = _Wire(address, body, headers)
        self._client = httpx.AsyncClient(verify=_trust(address, identity), limits=LIMITS)

    async def send(self, call: Call[Any], deadline: Deadline, request_id: str) -> Any:
        """Sends a call once.

        Raises:
          RowcastError: it failed.
        """
        if self._wire.lacks_model(call):
            self._wire.model = only_model(await self.send(calls.models(), deadline, request_id))
        request = self._wire.request(call, deadline, request_id)
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                answer = await self._client.request(**request)
        except (httpx.HTTPError, TimeoutError) as error:
            raise self._wire.failure(error, deadline, request_id) from error
        return self._wire.read(call, answer, request_id)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()


class _Wire:
    """What both transports share: everything but waiting."""

    def __init__(self, address: Address, body: str, headers: Mapping[str, str]) -> None:
        if body not in BODIES:
            raise InvalidArgument(f"body is {body!r}: expected 'protobuf' or 'json'")
        self._address = address
        self._json = body == "json"
        self.model = ""
        """The service's only model, once it is known: unlike a gRPC message, a URL has to name one."""
        self._headers = {**headers, "content-type": BODIES[body], "accept": BODIES[body]}

    def lacks_model(self, call: Call[Any]) -> bool:
        """Whether the name of the only model has to be requested first."""
        return call.method != "ListModels" and not (call.request.model.name or self.model)

    def request(self, call: Call[Any], deadline: Deadline, request_id: str) -> dict[str, Any]:
        """Arguments of httpx' request."""
        left_s = deadline.remaining_s()
        timeout_ms = str(max(int(left_s * 1000), 1))
        headers = {**self._headers, "x-request-id": request_id, "x-request-timeout-ms": timeout_ms}
        request = {"headers": headers, "timeout": left_s, "url": self._address.target + self._path(call)}
        if call.method in {"ListModels", "GetModel"}:  # descriptions have one form on this side: the contract's
            return {"method": "GET", **request, "headers": headers | {"accept": PROTOBUF}}
        if self._json:
            return {"method": "POST", "content": write_body(call.method, call.request, call.vectors), **request}
        return {"method": "POST", "content": call.request.SerializeToString(), **request}

    def read(self, call: Call[Any], answer: httpx.Response, request_id: str) -> Any:
        """The message of an answer."""
        if answer.status_code != HTTPStatus.OK:
            refusal = self._refusal(answer, request_id)
            if isinstance(refusal, NotFound):
                self.model = ""  # another may be the only one by now
            raise refusal
        kind = answer.headers.get("content-type", "").partition(";")[0].strip()
        try:
            if kind == PROTOBUF:
                return call.response.FromString(answer.content)
            if kind == JSON:
                return read_body(call.method, answer.content)
        except (DecodeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise self._strange(f"its {kind} body is no answer of {call.method}: {error!r}", request_id) from error
        raise self._strange(f"content-type {kind!r} instead of {self._headers['accept']}", request_id)

    def failure(self, error: Exception, deadline: Deadline, request_id: str) -> RowcastError:
        """What a failed exchange means."""
        url = self._address.url
        details: dict[str, Any] = {"request_id": request_id, "address": url}
        reason = str(error) or type(error).__name__
        if isinstance(error, (httpx.TimeoutException, TimeoutError)):
            return DeadlineExceeded(f"{url} did not answer within {deadline.timeout_s:g} s", **details)
        if _of_tls(error):
            return TlsFailed(f"no secure connection to {url}: {reason}", address=url)
        if isinstance(error, httpx.ConnectError):
            return Unreachable(f"{url} cannot be reached: {reason}", address=url)
        if isinstance(error, httpx.LocalProtocolError):
            return InvalidArgument(f"the request to {url} cannot be sent: {reason}", **details)
        if isinstance(error, httpx.TransportError):
            return Unreachable(f"the connection to {url} broke: {reason}", **details)
        return self._strange(reason, request_id)

    def _path(self, call: Call[Any]) -> str:
        if call.method == "ListModels":
            return "/v1/models"
        spec = call.request.model
        version = f"/versions/{spec.version}" if spec.version else ""
        version = f"/labels/{quote(spec.label, safe='')}" if spec.label else version
        verb = "" if call.method == "GetModel" else f":{call.method.lower()}"
        return f"/v1/models/{quote(spec.name or self.model, safe='')}{version}{verb}"

    def _refusal(self, answer: httpx.Response, request_id: str) -> RowcastError:
        status = answer.status_code
        details = _error_details(answer)
        if details is None:
            if status not in PROXIES:
                return self._strange(f"status {status} without an error of rowcast", request_id)
            details = pb.ErrorDetails(
                code=PROXIES[status], message=f"{self._address.url} answered with status {status}"
            )
        return service_error(
            details.code,
            details.message,
            request_id=details.request_id or request_id,
            address=self._address.url,
            retry_after_s=parse_retry_after(answer.headers.get("retry-after")),
        )

    def _strange(self, reason: str, request_id: str) -> RowcastError:
        url = self._address.url
        return BadAnswer(
            f"{url} does not answer as a rowcast service would: {reason}", request_id=request_id, address=url
        )


def only_model(listed: pb.ListModelsResponse) -> str:
    """The name of the service's only model.

    Raises:
      NotReady: it has none yet.
      InvalidArgument: it has several.
    """
    names = [str(model.name) for model in listed.models]
    if not names:
        raise NotReady("the service has no model yet")
    if len(names) > 1:
        raise InvalidArgument(f"the service has the models {', '.join(names)}: name one of them")
    return names[0]


def _error_details(answer: httpx.Response) -> pb.ErrorDetails | None:
    """The service's own error; None if it is not a rowcast service that answered."""
    kind = answer.headers.get("content-type", "").partition(";")[0].strip()
    try:
        if kind == PROTOBUF:
            details = pb.ErrorDetails.FromString(answer.content)
            return details if details.code else None
        if kind == JSON:
            return pb.ErrorDetails(**json.loads(answer.content)["error"])
    except (DecodeError, ValueError, KeyError, TypeError):
        return None
    return None


def _trust(address: Address, identity: Identity) -> ssl.SSLContext:
    """Whom TLS trusts: a file of authorities or the system's; nobody where TLS is not: reading them is slow."""
    if not address.secure:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return identity.context()


def _of_tls(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False
