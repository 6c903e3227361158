"""A request in each of its forms: a JSON body, a call of the client, and a message."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rowcast_client import calls

from service.codec.stubs import embedding_service_pb2 as pb

MODEL = "movies"
LIMITS = {
    "max_k": 50,
    "max_candidates": 60,
    "max_queries": 8,
    "max_values": 300,
    "max_names": 10,
    "max_filter_terms": 10,
    "max_features": 20,
    "max_request_bytes": 16_384,
}
"""Of the service that is called."""
REQUESTS: dict[str, Any] = {
    "retrieve": pb.RetrieveRequest,
    "rank": pb.RankRequest,
    "recommend": pb.RecommendRequest,
    "embed": pb.EmbedRequest,
    "lookup": pb.LookupRequest,
}
_EMPTY: dict[str, Any] = {"context": {}, "features": {}, "exclude_ids": [], "negative_ids": []}
_OF_EACH = {
    *("context", "context_id", "vectors", "ids", "exclude_ids", "negative_ids"),
    *("candidate_ids", "candidate_features", "features"),
}
"""Fields of one request, which are no options of a list of them."""


@dataclass(frozen=True)
class Case:
    """One request, and what it gets.

    Attributes:
      json: A JSON value, or raw bytes.
      message: The fields of the message, or raw bytes; None: the message that the client sends for
        the content of the JSON value.
      field: The field at fault, as the response to the JSON body names it.
    """

    call: str
    name: str
    json: Any
    code: str = "OK"
    message: Mapping[str, Any] | bytes | None = None
    model: str = MODEL
    version: int = 0
    field: str = ""

    def __str__(self) -> str:
        return f"{self.call}: {self.name}"

    def sent(self) -> calls.Call[Any]:
        """Returns the client's call with the content of the JSON value.

        Raises:
          InvalidArgument: The client rejects it.
          TypeError: The client has no such argument.
        """
        arguments = dict(self.json)
        if "requests" in arguments:
            parts = arguments.pop("requests")
            if _OF_EACH & {*arguments}:
                raise TypeError("a field of each request is among the options")
            for name in dict.fromkeys(name for part in parts for name in part):
                arguments[name] = [part.get(name, _EMPTY.get(name)) for part in parts]
                if None in arguments[name]:
                    raise TypeError(f"some requests have no {name}")
        if "context_id" in arguments:
            arguments["context_ids"] = arguments.pop("context_id")
        call: calls.Call[Any] = getattr(calls, self.call)(
            **{name: _integers(value) for name, value in arguments.items()},
            model=self.model,
            version=self.version,
        )
        return call

    def body(self) -> bytes:
        """Returns the protobuf body. It names the model, as gRPC has no other place for that."""
        if isinstance(self.message, bytes):
            return self.message
        if self.message is None:
            return bytes(self.sent().request.SerializeToString())
        spec = pb.ModelSpec(name=self.model, version=self.version)
        return bytes(REQUESTS[self.call](model=spec, **self.message).SerializeToString())


def _integers(value: Any) -> Any:
    """Returns a value in which lists hold integers where JSON may mix them with decimal strings."""
    if isinstance(value, dict):
        return {name: _integers(element) for name, element in value.items()}
    if not isinstance(value, list):
        return value
    if any(type(element) is int for element in value):
        return [
            int(element) if isinstance(element, str) and element.isdecimal() else element
            for element in value
        ]
    return [_integers(element) for element in value]


def i64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def i32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def f32(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def user(value: Any = 5, **more: Any) -> dict[str, Any]:
    return {"context": {"user": value, **more}}


def rank(candidates: Any = (1000,), **more: Any) -> dict[str, Any]:
    return {"context": {"user": 5}, "candidate_ids": list(candidates), **more}
