"""Calls over gRPC: one channel for an address, kept and reconnected by gRPC itself. If a name has
several addresses, gRPC connects to all of them, and calls take them in turns.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2

from rowcast_client.addresses import Address
from rowcast_client.calls import Call
from rowcast_client.errors import (
    NotReady,
    RowcastError,
    error_of,
    parse_retry_after,
    service_error,
)
from rowcast_client.retries import Deadline
from rowcast_client.stubs import embedding_service_pb2 as pb
from rowcast_client.transport import CONNECT_TIMEOUT_S, RESPONSE_BYTES_MAX, Tls, Transport

SERVICE = "/rowcast.embedding.v1.EmbeddingService/"
PORT_TIMEOUT_S = 0.2
"""Maximum time for a port to show which protocol it expects."""
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
OPTIONS = (
    # No limit here: the service rejects what is too large, with an error that says how large.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", RESPONSE_BYTES_MAX),
    # As over HTTP: a token must not pass a proxy unnoticed.
    ("grpc.enable_http_proxy", 0),
    # After a failed connection gRPC rejects calls for this long. It is below the first wait of a
    # retry, so that the retry connects.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", int(1000 * CONNECT_TIMEOUT_S)),  # the time to connect
    # Idle connections are pinged, too: a load balancer that drops silent ones keeps them, and what
    # was lost is noticed before the next call. Services accept a ping every 10 s.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # 0 is no limit.
    ("grpc.http2.max_pings_without_data", 0),
    # Calls take all addresses of a name in turns; by default gRPC uses the first that connects.
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
)


class GrpcTransport(Transport):
    """Sends calls over a channel of `grpc`, or of `grpc.aio` and the running event loop."""

    errors = grpc.RpcError

    def __init__(
        self, address: Address, tls: Tls | None, headers: Mapping[str, str], asynchronous: bool
    ) -> None:
        super().__init__(address)
        library = grpc.aio if asynchronous else grpc
        if tls is None:
            self._channel = library.insecure_channel(address.target, options=OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(*tls.pems)
            self._channel = library.secure_channel(address.target, credentials, options=OPTIONS)
        self._headers = tuple(headers.items())
        self._methods: dict[str, Any] = {}
        self.close = self._channel.close

    def send(self, call: Call[Any], deadline: Deadline, request_id: str) -> Any:
        """Sends a call once; returns the bytes of the response."""
        return self._send(SERVICE + call.method, call.request, deadline, request_id)

    def send_probe(self, deadline: Deadline, request_id: str) -> Any:
        """Sends a health check; returns the bytes of the response."""
        return self._send(HEALTH_CHECK, health_pb2.HealthCheckRequest(), deadline, request_id)

    def _send(self, path: str, request: Any, deadline: Deadline, request_id: str) -> Any:
        # Creating a method costs more than looking it up, and few paths exist.
        method = self._methods.get(path)
        if method is None:
            method = self._channel.unary_unary(path)
            self._methods[path] = method
        metadata = (("x-request-id", request_id), *self._headers)
        return method(
            request.SerializeToString(), timeout=deadline.remaining_s(), metadata=metadata
        )

    def read(self, call: Call[Any], response: bytes) -> Any:
        """Reads the result of a call."""
        return self.unpack(call, response)

    def check_probe(self, response: bytes) -> None:
        """Checks that the service is ready."""
        status = health_pb2.HealthCheckResponse.FromString(response).status
        if status != health_pb2.HealthCheckResponse.SERVING:
            raise NotReady(f"{self.address.url} is not ready")

    def failure(self, error: Any, deadline: Deadline) -> RowcastError:
        """Returns the error for a failed call, which the service, gRPC or a proxy reported."""
        status = error.code().name
        text = error.details() or ""
        trailers = dict(error.trailing_metadata() or ())
        retry_after_s = parse_retry_after(trailers.get("retry-after"))
        details = _error_details(trailers.get("grpc-status-details-bin"))
        if details is not None:
            return error_of(details, retry_after_s)

        # Without details, the status is that of gRPC itself or of a proxy.
        if status == "DEADLINE_EXCEEDED":
            return self.out_of_time(deadline)
        if status == "UNAVAILABLE":
            # The reason is that of one address. Of `localhost`, it may be the one at which nobody
            # listens.
            if "refused" in text and self._speaks_another_protocol:
                text += f"; {self.other_schemes()}"
            return self.unreachable("cannot be reached", text)
        if status == "CANCELLED":
            # Not by this client, which would not see the status: the service was shutting down.
            return self.unreachable("ended the call without a response", text)
        if status == "RESOURCE_EXHAUSTED":
            # gRPC has one status for both: only an overloaded service permits a retry.
            code = "TOO_LARGE" if retry_after_s is None else "OVERLOADED"
            message = f"{self.address.url} rejected the call: {text}"
            return service_error(code, message, retry_after_s)
        return self.invalid_response(f"{status}, {text}")

    @cached_property
    def _speaks_another_protocol(self) -> bool:
        """Whether a server at the port responds to HTTP/1.1 as none of the scheme does. Found out
        once, since an event loop waits for it.
        """
        host, _, port = self.address.target.rpartition(":")
        endpoint = host.strip("[]"), int(port)
        try:
            with socket.create_connection(endpoint, PORT_TIMEOUT_S) as connection:
                connection.sendall(b"HEAD / HTTP/1.1\r\nhost: %b\r\n\r\n" % host.encode())
                first_byte = connection.recv(1)
        except OSError:
            return False
        # A frame of HTTP/2, or an alert of TLS.
        expected_byte = b"\x00"
        if self.address.secure:
            expected_byte = b"\x15"
        return first_byte not in {b"", expected_byte}


def _error_details(packed: bytes | None) -> pb.ErrorDetails | None:
    """Returns the error of the service in the trailers of a failed call; None if there is none."""
    status = status_pb2.Status()
    details = pb.ErrorDetails()
    try:
        status.ParseFromString(packed or b"")
        # Unpack reads a detail of this type only, and returns whether it was one.
        if any(detail.Unpack(details) for detail in status.details):
            return details
    except DecodeError:
        return None
    return None
