"""The calls, each with its readers and writers. A transport picks a call by name and a form by
content type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from service.codec import json, message_fields, protobuf
from service.config import ServiceSettings
from service.contract import reading
from service.contract.messages import REQUESTS, Request, Target
from service.errors import InvalidArgument


class Exchange(Protocol):
    """How a request is read and its response written: by a call of the contract, or by another
    protocol. The methods are those of `Operation`.
    """

    @property
    def name(self) -> str:
        """The name of the call, as in metrics."""

    def model_of(self, body: bytes) -> str:
        """Returns the model that a body names, as far as it is known before parsing; else ""."""

    def read(
        self, body: bytes, is_protobuf: bool, url: Target | None, settings: ServiceSettings
    ) -> tuple[Any, bool]:
        """Returns the request that a body holds, and whether `write_json` writes a list.

        Arguments and errors are those of `Operation.read`.
        """

    def write(self, result: Any) -> bytes:
        """Returns the body of the response."""

    def recorded(self, request: Any, is_protobuf: bool, body: bytes) -> tuple[str, bool, bytes]:
        """Returns the name of a call, whether a body for it is protobuf, and the body, for the
        request log.
        """


def _no_json(*_: object) -> Any:
    raise InvalidArgument.of_field("body", "JSON", "protobuf")


@dataclass(frozen=True)
class Operation:
    """One call of the contract.

    Attributes:
      name: The name in a URL.
      method: The name in the gRPC service.
      request_class: The class of the protobuf message of a request.
      read_message: Takes a parsed message, the URL's target if there is a URL, and the settings,
        and returns the request.
      write_message: Takes a result, and returns its message.
      read_json: Takes a parsed body, the URL's target and the settings, and returns the request.
      write_json: Takes a result, and whether the body had a list of requests, and returns a JSON
        value.
    """

    name: str
    method: str
    request_class: type[Any]
    read_message: Callable[[Any, Target | None, ServiceSettings], Any]
    write_message: Callable[[Any], Any]
    read_json: Callable[[Any, Target, ServiceSettings], Any] = _no_json
    write_json: Callable[[Any, bool], Any] = _no_json

    def model_of(self, body: bytes) -> str:
        """Returns the model that a protobuf message names, as far as it can be read before the
        message is parsed; else "".
        """
        return message_fields.model_of(self.request_class.DESCRIPTOR, body)

    def read(
        self, body: bytes, is_protobuf: bool, url: Target | None, settings: ServiceSettings
    ) -> tuple[Any, bool]:
        """Returns the request that a body holds, and whether its response is a list of results.

        Args:
          body: The body, decompressed.
          is_protobuf: Whether the body is a protobuf message; else it is JSON.
          url: The model and version in the URL; None: there is no URL.
          settings: The limits.

        Raises:
          ServiceError: The body cannot be read, or exceeds a limit.
        """
        if is_protobuf:
            protobuf.check_size(self.request_class, body, settings)
            return self.read_message(protobuf.parse(self.request_class, body), url, settings), True
        value = json.parse(body, settings)
        return self.read_json(value, url or Target(), settings), "requests" in value

    def write(self, result: Any) -> bytes:
        """Returns a result as its message, serialized."""
        message: bytes = self.write_message(result).SerializeToString()
        return message

    def recorded(self, request: Any, is_protobuf: bool, body: bytes) -> tuple[str, bool, bytes]:
        """Returns what the request log stores of a request: the name of the call, whether the body
        is a protobuf message, and the body.
        """
        # The body has all of it.
        del request
        return self.name, is_protobuf, body


def _message_reader(request: type[Request]) -> Callable[[Any, Target | None, ServiceSettings], Any]:
    def read(message: Any, url: Target | None, settings: ServiceSettings) -> Any:
        target = protobuf.target_of(message.model, url)
        return reading.from_message(request, message, target, settings)

    return read


OPERATIONS: dict[str, Operation] = {
    name: Operation(
        name,
        name.capitalize(),
        protobuf.request_class(name),
        read_message=_message_reader(request),
        write_message=partial(protobuf.result_message, protobuf.response_class(name)),
        read_json=partial(reading.from_body, request),
        write_json=partial(json.response_value, name),
    )
    for name, request in REQUESTS.items()
}
"""The calls by name. The methods of the gRPC service have the same names, with a capital."""
