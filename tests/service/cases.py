"""What the tables of requests are made of: a request as JSON and as a protobuf message, each written by hand."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.wire.stubs import embedding_service_pb2 as pb

MODEL = "movies"
LIMITS = {
    "k_max": 50,
    "candidates_max": 60,
    "queries_max": 8,
    "ids_max": 300,
    "body_bytes_max": 16_384,
}
"""Of the service that is asked."""
REQUESTS: dict[str, Any] = {
    "retrieve": pb.RetrieveRequest,
    "rank": pb.RankRequest,
    "recommend": pb.RecommendRequest,
    "embed": pb.EmbedRequest,
    "lookup": pb.LookupRequest,
}


@dataclass(frozen=True)
class Case:
    """One request in both forms, and the code of its answer.

    Attributes:
      json: a JSON value, or raw bytes. message: a message's fields, or raw bytes.
      model, version: asked for; 0 is the newest.
    """

    name: str
    call: str
    json: Any
    message: Mapping[str, Any] | bytes
    code: str = "OK"
    model: str = MODEL
    version: int = 0

    def body(self) -> bytes:
        """The protobuf body; the model is told in it, as gRPC has no other place for that."""
        if isinstance(self.message, bytes):
            return self.message
        spec = pb.ModelSpec(name=self.model, version=self.version)
        told: bytes = REQUESTS[self.call](model=spec, **self.message).SerializeToString()
        return told


def i64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def i32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def f32(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def ints(*values: int, at: Sequence[int] = (), weights: Sequence[float] = ()) -> pb.Column:
    return pb.Column(int64s=i64(*values), offsets=i32(*at), weights=f32(*weights))


def floats(*values: float, at: Sequence[int] = ()) -> pb.Column:
    return pb.Column(float32s=f32(*values), offsets=i32(*at))


def texts(*values: str, at: Sequence[int] = ()) -> pb.Column:
    return pb.Column(strings=pb.Strings(values=values), offsets=i32(*at))


def ids(*values: int) -> pb.Ids:
    return pb.Ids(int64s=i64(*values))


def user(value: Any = 5, **more: Any) -> dict[str, Any]:
    return {"features": {"user": value, **more}}


def pb_user(value: int = 5, **more: pb.Column) -> dict[str, Any]:
    return {"features": {"user": ints(value), **more}}


BAD, BIG, GONE = "INVALID_ARGUMENT", "TOO_LARGE", "NOT_FOUND"
