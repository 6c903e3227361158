"""Messages to the small bundle, calls with their failures unpacked, and connections that are
written by hand.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from service.codec.stubs import embedding_service_pb2 as pb
from service.grpc_api.servicer import SERVICE
from tests.e2e.process import WAIT_S

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How a client begins a connection: the preface and empty settings."""


@dataclass(frozen=True)
class Outcome:
    """How a call ended: OK or the code of the details, the response or the message, the trailing
    metadata, and the details if the service sent some.
    """

    code: str
    status: grpc.StatusCode
    response: Any
    trailing: dict[str, Any]
    details: pb.ErrorDetails | None = None


def call(
    channel: grpc.Channel, method: str, message: Any = b"", token: str | None = None, **options: Any
) -> Outcome:
    """Calls a method of the service with a message or its bytes."""
    raw = message if isinstance(message, bytes) else message.SerializeToString()
    metadata = [
        *options.pop("metadata", ()),
        *([] if token is None else [("authorization", f"Bearer {token}")]),
    ]
    return outcome(
        channel.unary_unary(f"/{SERVICE}/{method}").future(
            raw, **{"timeout": WAIT_S, "metadata": metadata, **options}
        )
    )


def outcome(pending: Any) -> Outcome:
    """Waits for a call."""
    problem = pending.exception(WAIT_S)
    trailing = dict(pending.trailing_metadata() or ())
    if problem is None:
        return Outcome("OK", pending.code(), pending.result(), trailing)
    status = rpc_status.from_call(pending)
    details = pb.ErrorDetails()
    if status is None:  # the client or gRPC's core ended it
        return Outcome(pending.code().name, pending.code(), pending.details(), trailing)
    assert status.details[0].Unpack(details)
    assert details.message == pending.details()
    assert details.request_id == trailing["x-request-id"]
    _check_standard_details(status, details)
    return Outcome(code_of(details), pending.code(), details.message, trailing, details)


def _check_standard_details(status: Any, details: pb.ErrorDetails) -> None:
    """Checks that Google's details of an error say the same as rowcast's."""
    info = error_details_pb2.ErrorInfo()
    assert status.details[1].Unpack(info)
    assert (info.reason, info.domain) == (code_of(details), "rowcast")
    assert dict(info.metadata) == {"request_id": details.request_id}
    bad_request = error_details_pb2.BadRequest()
    for packed in status.details[2:]:
        packed.Unpack(bad_request)
    assert [(bad.field, bad.description, bad.reason) for bad in bad_request.field_violations] == [
        (violation.field, f"{violation.value}; {violation.expected} was expected", info.reason)
        for violation in details.violations
    ]


def code_of(details: pb.ErrorDetails) -> str:
    """The code of an error as JSON names it."""
    name: str = pb.ErrorCode.Name(details.code)
    return name.removeprefix("ERROR_CODE_")


def never_sends(channel: grpc.Channel, method: str, metadata: Any = ()) -> Any:
    """A call whose message never comes."""
    silent = threading.Event()

    def messages() -> Iterator[bytes]:
        silent.wait(WAIT_S)
        yield from ()

    pending = channel.stream_unary(f"/{SERVICE}/{method}").future(messages(), metadata=metadata)
    pending.add_done_callback(lambda _: silent.set())
    return pending


def users(*ids: int) -> pb.Column:
    return pb.Column(int64s=struct.pack(f"<{len(ids)}q", *ids))


def lookup(*ids: int, model: str = "") -> pb.LookupRequest:
    return pb.LookupRequest(model=pb.ModelSpec(name=model), feature="user", ids=users(*ids))


def retrieve(model: str = "") -> pb.RetrieveRequest:
    return pb.RetrieveRequest(model=pb.ModelSpec(name=model), k=3, context={"user": users(5)})


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame."""
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes((kind, flags))
        + struct.pack(">I", stream)
        + payload
    )


def request_frames(path: str, message: bytes, stream: int = 1) -> bytes:
    """The frames of a call whose message is below the 64 KiB that may be sent unasked."""
    pseudo = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
    headers = {**pseudo, "te": "trailers", "content-type": "application/grpc"}
    block = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in headers.items()
    )
    data = b"\0" + struct.pack(">I", len(message)) + message
    parts = [data[first : first + 16_384] for first in range(0, len(data), 16_384)]
    return frame(1, 4, stream, block) + b"".join(
        frame(0, int(part is parts[-1]), stream, part) for part in parts
    )


def connect(address: str) -> socket.socket:
    host, _, port = address.partition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


def read_to_end(connection: socket.socket) -> bytes:
    """Reads until the server closes the connection."""
    received = b""
    try:
        while part := connection.recv(1 << 20):
            received += part
    except ConnectionResetError:
        pass
    return received
