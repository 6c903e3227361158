"""Calls over gRPC: one channel, kept and reconnected by gRPC itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import status_pb2

from rowcast_client.addresses import Address
from rowcast_client.calls import Call
from rowcast_client.errors import (
    BadAnswer,
    DeadlineExceeded,
    RowcastError,
    TlsFailed,
    Unreachable,
    parse_retry_after,
    service_error,
)
from rowcast_client.identity import Identity
from rowcast_client.retries import Deadline
from rowcast_client.stubs import embedding_service_pb2 as pb

SERVICE = "/rowcast.embedding.v1.EmbeddingService/"
OPTIONS = (
    ("grpc.max_send_message_length", -1),  # what is too large is the service's to say
    ("grpc.max_receive_message_length", -1),
    # After a failed connection gRPC refuses calls for this long; below the first wait of a retry, so that one connects.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
TLS_MARKS = ("ssl", "tls", "certificate", "handshake")


class GrpcTransport:
    """Sends calls over a channel."""

    def __init__(self, address: Address, *, identity: Identity, headers: Mapping[str, str]) -> None:
        self._wire = _Wire(address, headers)
        self._channel = self._wire.channel(grpc, identity)

    def send(self, call: Call[Any], deadline: Deadline, request_id: str) -> Any:
        """Sends a call once.

        Raises:
          RowcastError: it failed.
        """
        try:
            return self._wire.method(self._channel, call)(call.request, **self._wire.sent(deadline, request_id))
        except grpc.RpcError as error:
            raise self._wire.failure(error, deadline, request_id) from error

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()


class AsyncGrpcTransport:
    """Sends calls over a channel of the running event loop."""

    def __init__(self, address: Address, *, identity: Identity, headers: Mapping[str, str]) -> None:
        self._wire = _Wire(address, headers)
        self._channel = self._wire.channel(grpc.aio, identity)

    async def send(self, call: Call[Any], deadline: Deadline, request_id: str) -> Any:
        """Sends a call once.

        Raises:
          RowcastError: it failed.
        """
        try:
            return await self._wire.method(self._channel, call)(call.request, **self._wire.sent(deadline, request_id))
        except grpc.RpcError as error:
            raise self._wire.failure(error, deadline, request_id) from error

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()


class _Wire:
    """What both transports share: everything but waiting."""

    def __init__(self, address: Address, headers: Mapping[str, str]) -> None:
        self._address = address
        self._headers = tuple((name.lower(), value) for name, value in headers.items())
        self._methods: dict[str, Any] = {}

    def channel(self, module: Any, identity: Identity) -> Any:
        if not self._address.secure:
            return module.insecure_channel(self._address.target, options=OPTIONS)
        credentials = grpc.ssl_channel_credentials(*identity.pems())
        return module.secure_channel(self._address.target, credentials, options=OPTIONS)

    def method(self, channel: Any, call: Call[Any]) -> Any:
        if call.method not in self._methods:
            self._methods[call.method] = channel.unary_unary(
                SERVICE + call.method,
                request_serializer=type(call.request).SerializeToString,
                response_deserializer=call.response.FromString,
            )
        return self._methods[call.method]

    def sent(self, deadline: Deadline, request_id: str) -> dict[str, Any]:
        metadata = (("x-request-id", request_id), *self._headers)
        return {"timeout": deadline.remaining_s(), "metadata": metadata}

    def failure(self, error: Any, deadline: Deadline, request_id: str) -> RowcastError:
        url = self._address.url
        status, text = error.code().name, error.details() or ""
        trailers = dict(error.trailing_metadata() or ())
        retry_after_s = parse_retry_after(trailers.get("retry-after"))
        details = _error_details(trailers.get("grpc-status-details-bin"))
        if details is not None:
            return service_error(
                details.code,
                details.message,
                request_id=details.request_id or request_id,
                address=url,
                retry_after_s=retry_after_s,
            )
        return self._own_failure(status, text, deadline, {"request_id": request_id, "address": url}, retry_after_s)

    def _own_failure(
        self, status: str, text: str, deadline: Deadline, details: dict[str, Any], retry_after_s: float | None
    ) -> RowcastError:
        """What a failure means that gRPC itself reports, or a proxy on the way."""
        url = self._address.url
        if status == "DEADLINE_EXCEEDED":
            return DeadlineExceeded(f"{url} did not answer within {deadline.timeout_s:g} s", **details)
        if status == "UNAVAILABLE":
            if self._address.secure and any(mark in text.lower() for mark in TLS_MARKS):
                return TlsFailed(f"no secure connection to {url}: {text}", address=url)
            return Unreachable(f"{url} cannot be reached: {text}", address=url)
        if status == "RESOURCE_EXHAUSTED":  # said by gRPC itself or by a proxy
            code = "TOO_LARGE" if retry_after_s is None else "OVERLOADED"
            return service_error(code, f"{url} rejected the call: {text}", **details, retry_after_s=retry_after_s)
        if status == "CANCELLED":  # not by this caller, who would not see it: the service was shutting down
            return Unreachable(f"{url} gave the call up unanswered: {text}", address=url)
        return BadAnswer(f"{url} does not answer as a rowcast service would: {status}, {text}", **details)


def _error_details(packed: bytes | None) -> pb.ErrorDetails | None:
    """The service's own words in a failed call's trailers; None if there are none."""
    if packed is None:
        return None
    status, details = status_pb2.Status(), pb.ErrorDetails()
    try:
        status.ParseFromString(packed)
        for one in status.details:
            if one.Unpack(details):
                return details
    except DecodeError:
        return None
    return None
