"""All ways in which a request reaches a service: a JSON body, messages over HTTP and gRPC, and the
client, which waits or is awaited.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import httpx
import numpy as np
from google.rpc.error_details_pb2 import BadRequest
from grpc_status import rpc_status
from rowcast_client import AsyncClient, Client, InvalidArgument, Retries, RowcastError

from service.codec.stubs import embedding_service_pb2 as pb
from tests.e2e.process import WAIT_S
from tests.units.client.plain import plain
from tests.units.service.cases import LIMITS, Case
from tests.units.service.clients import Clients
from tests.units.service.running import RunningService

_HEAD = ("model", "version", "searched", "degraded", "degraded_reason")


class Outcome(NamedTuple):
    """What a request gets.

    Attributes:
      code: "OK", or the code of the error.
      value: The response as JSON has it for a list of requests, without fields that are null.
      field: The field at fault.
      message: The sentence of the error.
    """

    code: str
    value: Any = None
    field: str = ""
    message: str = ""


class RawRequest(NamedTuple):
    """A request of any protocol, as it is sent.

    Attributes:
      target: The method and the path of HTTP, or the path of a gRPC method.
      value: The JSON value with which a body begins; None: it has no JSON.
      content: The bytes behind the JSON, or the message.
      headers: The headers, or the metadata.
    """

    target: str
    value: Any = None
    content: bytes = b""
    headers: Mapping[str, str] | list[tuple[str, str]] = {}  # noqa: RUF012 - nothing changes it

    @property
    def body(self) -> bytes:
        """Returns all bytes."""
        if self.value is None:
            return self.content
        return json.dumps(self.value).encode() + self.content


class RawResponse(NamedTuple):
    """What a request of any protocol gets.

    Attributes:
      status: The status of HTTP, or the name of the gRPC code.
      content: The body or the message; the sentence of the error if a call over gRPC fails.
      headers: The headers, or the trailing metadata.
      faults: The number of details of a gRPC error that name fields.
    """

    status: int | str
    content: bytes
    headers: Mapping[str, str]
    faults: int = 0


class Ways:
    """A service, and clients of each kind."""

    def __init__(self, service: RunningService) -> None:
        self.service = service
        self.clients = Clients(service)
        self._urls = {"http": service.http, "grpc": f"grpc://{service.grpc}"}
        one_attempt = Retries(attempts_max=1)
        self.waiting = {
            name: Client(url, retries=one_attempt, timeout_s=WAIT_S)
            for name, url in self._urls.items()
        }
        self._awaited = {
            name: AsyncClient(url, retries=one_attempt, timeout_s=WAIT_S)
            for name, url in self._urls.items()
        }
        self._loop = asyncio.Runner()

    def close(self) -> None:
        for client in self.waiting.values():
            client.close()
        for awaited in self._awaited.values():
            self._loop.run(awaited.close())
        # Transports are closed in the next turn of the loop.
        self._loop.run(asyncio.sleep(0))
        self._loop.close()
        self.clients.close()

    def by_json(self, case: Case) -> Outcome:
        """Sends the JSON body."""
        response = self.clients.post(case, protobuf=False)
        body = response.json()
        if response.status_code == 200:
            return Outcome("OK", _listed(body))
        error = body["error"]
        fields = [violation["field"] for violation in error.get("violations", [])]
        return Outcome(error["code"], None, ", ".join(fields), error["message"])

    def by_clients(self, case: Case, turn: int | None = None) -> dict[str, Outcome]:
        """Sends what the client makes of the JSON body, by each client over each transport.

        What the client rejects itself, it rejects once.

        Args:
          case: The request.
          turn: The number of the only client that sends it; None: all do.
        """
        try:
            call = case.sent()
        except (InvalidArgument, TypeError) as problem:
            return {"client": Outcome("INVALID_ARGUMENT", message=str(problem))}
        clients: dict[str, Any] = {}
        for transport in self._urls:
            clients[f"{transport} waits"] = self.waiting[transport]
            clients[f"{transport} is awaited"] = self._awaited[transport]
        names = list(clients)
        if turn is not None:
            names = [names[turn % len(names)]]
        outcomes = {}
        for name in names:
            try:
                result = clients[name].send(call)
                if isinstance(clients[name], AsyncClient):
                    result = self._loop.run(_result(result))
            except RowcastError as error:
                fields = ", ".join(violation.field for violation in error.violations)
                outcomes[name] = Outcome(error.code, None, fields, error.message)
            else:
                outcomes[name] = Outcome("OK", _value(case, result))
        return outcomes

    def by_messages(self, case: Case) -> list[tuple[str, pb.ErrorDetails | None]]:
        """Sends the message over HTTP and gRPC; returns the code and the error of each. gRPC
        measures messages itself, and has no error for what is too large.
        """
        codes = [self.clients.by_http(case, protobuf=True)[0], self.clients.by_grpc(case)[0]]
        errors: list[pb.ErrorDetails | None] = [None, None]
        if codes[0] != "OK":
            errors = self.clients.errors(case)[1:]
        return list(zip(codes, errors, strict=True))

    def by_bytes(self, request: RawRequest) -> RawResponse:
        """Sends the bytes of a request of any protocol."""
        method, _, path = request.target.rpartition(" ")
        headers = httpx.Headers(request.headers)
        if method:
            if request.value is not None:
                headers.setdefault("content-type", "application/json")
            response = self.clients.http.request(
                method, f"{self.service.http}{path}", content=request.body, headers=headers
            )
            return RawResponse(response.status_code, response.content, response.headers)
        send = self.clients.channel.unary_unary(path).future(
            request.body, timeout=WAIT_S, metadata=[*headers.items()]
        )
        trailing = {str(name): str(value) for name, value in send.trailing_metadata()}
        if send.code() is grpc.StatusCode.OK:
            return RawResponse("OK", send.result(), trailing)
        status = rpc_status.from_call(send)
        details = () if status is None else status.details
        faults = [detail for detail in details if detail.Is(BadRequest.DESCRIPTOR)]
        return RawResponse(send.code().name, send.details().encode(), trailing, len(faults))


@contextmanager
def serving(root: Path, **settings: Any) -> Iterator[Ways]:
    """A service with small limits over the bundles of a root."""
    service = RunningService(root, **{**LIMITS, **settings})
    ways = Ways(service)
    try:
        yield ways
    finally:
        ways.close()
        service.close()


async def _result(awaitable: Any) -> Any:
    return await awaitable


def _listed(value: dict[str, Any]) -> Any:
    """Returns a JSON response in the form of a list of requests, with numbers as the float32 that
    they stand for.
    """
    if "results" not in value and "vectors" not in value:
        head = {key: value.pop(key) for key in _HEAD if key in value}
        value = head | {"results": [value]}
    return float32(value)


def _value(case: Case, result: Any) -> Any:
    """Returns what a client returns, in the same form."""
    value: dict[str, Any] = {name: getattr(result, name) for name in ("model", "version")}
    if case.call == "lookup":
        names = ["table", "vectors", "found"]
        if case.json.get("not_found") == "skip":
            names.append("not_found")
        return float32(plain(value | {name: getattr(result, name) for name in names}))
    if case.call == "embed":
        return float32(plain(value | {"results": [{"vector": row} for row in result.vectors]}))
    names_by_call = {"retrieve": ["searched"], "recommend": ["degraded", "degraded_reason"]}
    value |= {name: getattr(result, name) for name in names_by_call.get(case.call, [])}
    value["results"] = [plain(records) for records in result]
    for number, explanation in enumerate(getattr(result, "explanations", ())):
        value["results"][number]["explanation"] = plain(explanation)
    for failed in getattr(result, "failed", ()):
        failures = value["results"][failed.context].setdefault("failed", [])
        failures.append({"position": failed.position, "message": failed.message})
    (part, *_) = case.json.get("requests", [case.json])
    if case.json.get("not_found") == "skip" and {"ids", "candidate_ids"} & {*part}:
        for number, ids in enumerate(result.not_found):
            value["results"][number]["not_found"] = plain(ids)
    return float32(plain(value))


def float32(value: Any) -> Any:
    """Returns a value whose numbers are the float32 that they stand for, without what is null and
    without times.
    """
    if isinstance(value, list):
        return [float32(entry) for entry in value]
    if isinstance(value, dict):
        return {
            name: float32(entry)
            for name, entry in value.items()
            if entry is not None and name != "search_ms"
        }
    return float(np.float32(value)) if isinstance(value, float) else value
