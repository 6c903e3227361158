"""One client of each transport: HTTP as JSON and as protobuf, and gRPC."""

from __future__ import annotations

import json
from typing import Any

import grpc
import httpx

from service.codec.operations import OPERATIONS
from service.codec.stubs import embedding_service_pb2 as pb
from service.errors import TRANSPORT_STATUS, Code
from tests.e2e.process import WAIT_S
from tests.units.service.cases import Case, user
from tests.units.service.grpc_api.requests import call, code_of
from tests.units.service.running import RunningService

PROTOBUF = {"content-type": "application/x-protobuf"}
SIMPLE = Case("retrieve", "simple", {"requests": [user()]})


def details_of(body: Any) -> pb.ErrorDetails:
    """The error of a JSON body as a message."""
    error = body["error"] | {"code": f"ERROR_CODE_{body['error']['code']}"}
    error.pop("retry_after_s", None)  # over the other transports it is a header
    return pb.ErrorDetails(**error)


def _error_of(response: httpx.Response, protobuf: bool) -> pb.ErrorDetails:
    details = pb.ErrorDetails()
    if protobuf:
        details.ParseFromString(response.content)
    else:
        details.CopyFrom(details_of(response.json()))
    return details


class Clients:
    """A service, and one client of each transport."""

    def __init__(self, service: RunningService) -> None:
        self.service = service
        self.http = httpx.Client(base_url=service.http, timeout=WAIT_S, verify=False)
        self.channel = grpc.insecure_channel(service.grpc)

    def close(self) -> None:
        self.http.close()
        self.channel.close()

    def by_http(self, case: Case, protobuf: bool, **headers: str) -> tuple[str, Any]:
        """Returns the code, and the response's body or the message of the failure."""
        response = self.post(case, protobuf, **headers)
        if response.status_code == 200:
            return "OK", response.content
        error = _error_of(response, protobuf)
        code = code_of(error)
        assert response.status_code == TRANSPORT_STATUS[Code(code)].http
        assert error.request_id == "agree"
        return code, error.message

    def errors(self, case: Case) -> list[pb.ErrorDetails | None]:
        """Returns the error of a request that fails by each transport: JSON, protobuf and gRPC.
        None: gRPC itself rejected the message.
        """
        method = OPERATIONS[case.call].method
        outcome = call(self.channel, method, case.body(), metadata=[("x-request-id", "agree")])
        return [
            _error_of(self.post(case, protobuf=False), protobuf=False),
            _error_of(self.post(case, protobuf=True), protobuf=True),
            outcome.details,
        ]

    def post(self, case: Case, protobuf: bool, **headers: str) -> httpx.Response:
        """Sends one of the forms over HTTP."""
        version = f"/versions/{case.version}" if case.version else ""
        path = f"/v1/models/{case.model}{version}:{case.call}"
        if protobuf:
            body = case.body()
        else:
            body = case.json if isinstance(case.json, bytes) else json.dumps(case.json).encode()
        kind = PROTOBUF if protobuf else {"content-type": "application/json"}
        sent = {"x-request-id": "agree", **kind, **headers}
        response = self.http.post(path, content=body, headers=sent)
        assert response.headers["x-request-id"] == sent["x-request-id"]
        return response

    def by_grpc(self, case: Case) -> tuple[str, Any]:
        outcome = call(
            self.channel,
            OPERATIONS[case.call].method,
            case.body(),
            metadata=[("x-request-id", "agree")],
        )
        if (
            outcome.code == "RESOURCE_EXHAUSTED"
        ):  # grpc's core measures messages, and has no details
            return "TOO_LARGE", outcome.response
        assert outcome.trailing["x-request-id"] == "agree"
        if outcome.code != "OK":
            assert outcome.status.name == TRANSPORT_STATUS[Code(outcome.code)].grpc
        return outcome.code, outcome.response

    def all(self, case: Case = SIMPLE) -> list[tuple[str, Any]]:
        return [
            self.by_http(case, protobuf=False),
            self.by_http(case, protobuf=True),
            self.by_grpc(case),
        ]

    def expect(self, code: str) -> None:
        outcomes = self.all()
        assert [code_and_message[0] for code_and_message in outcomes] == [code] * 3
        assert code == "OK" or len({message for _, message in outcomes}) == 1
