"""The five calls, each with its readers and writers. A door picks a call by name and a form by content type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from service.engine.requests import Target
from service.wire import json_bodies, messages


class Written(Protocol):
    """A protobuf message."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's spelling
        """Returns the message's bytes."""


@dataclass(frozen=True)
class Operation:
    """One call of the contract.

    Attributes:
      name: as in a URL and as the engine's method.
      method: as in the gRPC service.
      read_json: a parsed body and the URL's target -> the request, and whether the body had a list of them.
      write_json: an answer, and whether a list was asked for -> a JSON value.
      read_message: a body, and the URL's target if there is a URL -> the request.
      write_message: an answer -> its message.
    """

    name: str
    method: str
    read_json: Callable[[Any, Target], tuple[Any, bool]]
    write_json: Callable[[Any, bool], Any]
    read_message: Callable[[bytes, Target | None], Any]
    write_message: Callable[[Any], Written]


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation(
            "retrieve",
            "Retrieve",
            json_bodies.read_retrieval,
            json_bodies.retrieved_value,
            messages.read_retrieval,
            messages.retrieved_message,
        ),
        Operation(
            "rank",
            "Rank",
            json_bodies.read_ranking,
            json_bodies.ranked_value,
            messages.read_ranking,
            messages.ranked_message,
        ),
        Operation(
            "recommend",
            "Recommend",
            json_bodies.read_recommendation,
            json_bodies.recommended_value,
            messages.read_recommendation,
            messages.recommended_message,
        ),
        Operation(
            "embed",
            "Embed",
            json_bodies.read_embedding,
            json_bodies.embedded_value,
            messages.read_embedding,
            messages.embedded_message,
        ),
        Operation(
            "lookup",
            "Lookup",
            json_bodies.read_lookup,
            json_bodies.looked_up_value,
            messages.read_lookup,
            messages.looked_up_message,
        ),
    )
}
