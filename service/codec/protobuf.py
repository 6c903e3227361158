"""Parses protobuf messages within limits, and writes results as messages."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from service.codec.message_fields import check_fields
from service.codec.stubs import embedding_service_pb2 as pb
from service.config import ServiceSettings
from service.contract import messages
from service.contract.writing import write_message
from service.decoding import check_decoding
from service.engine.validation import SHOWN_CHARS
from service.errors import FieldViolation, InvalidArgument, TooLarge

_Url = messages.Target | None
SMALL_BYTES = 64 << 10
"""Size up to which a message is parsed within 5 ms, whatever is in it."""
_FIELDS_PER_FEATURE = 16
"""Maximum number of fields of a feature, or of a condition of a filter, with those of the messages
in it.
"""


def parse(message_class: type[Any], body: bytes) -> Any:
    """Parses a message. It takes up to 16 times the memory of its bytes.

    Raises:
      InvalidArgument: The bytes are no such message, or a string in it is not UTF-8.
    """
    check_decoding()
    try:
        return message_class.FromString(body)
    except DecodeError as problem:
        # Only the end of protobuf's message is of use to a client: "Error parsing message with type
        # 'rowcast...': Wire format was corrupt".
        name = message_class.__name__
        reason = str(problem).rpartition(": ")[2]
        message = f"the body is not a {name}: its bytes do not decode as protobuf ({reason})"
        violation = FieldViolation("body", reason, f"a {name}")
        raise InvalidArgument(message, violation) from None


def parse_small(message_class: type[Any], body: bytes) -> Any:
    """Parses a message that names a model at most.

    Raises:
      InvalidArgument: See `parse`.
      TooLarge: The message has more than SMALL_BYTES.
    """
    if len(body) > SMALL_BYTES:
        raise TooLarge.of_limit("message", f"{len(body)} bytes", SMALL_BYTES)
    return parse(message_class, body)


def check_size(message_class: type[Any], body: bytes, settings: ServiceSettings) -> None:
    """Rejects a message that would take the parser long.

    Raises:
      TooLarge: It has more fields or values than a request within the limits; nothing was parsed.
    """
    if len(body) > SMALL_BYTES:
        fields_max = _FIELDS_PER_FEATURE * (settings.max_features + settings.max_names)
        check_fields(message_class.DESCRIPTOR, body, fields_max, settings.max_values)


def target_of(spec: pb.ModelSpec, url: _Url) -> messages.Target:
    """Returns the model and version that a request names.

    Args:
      spec: The model in the message.
      url: The model in the URL, where there is a URL; it wins over a message that leaves the model
        out.

    Raises:
      InvalidArgument: The version is negative, or message and URL contradict each other.
    """
    if spec.version < 0:
        expected = "a version, or 0 for the current one"
        raise InvalidArgument.of_field("model.version", spec.version, expected)
    if url is None:
        return messages.Target(spec.name, spec.version or None, spec.label)
    # A message without a model is sent by clients that name it in the URL.
    if (
        spec.name not in {"", url.model}
        or spec.version not in {0, url.version}
        or spec.label not in {"", url.label}
    ):
        message = (
            "the URL and the body name different models, versions or labels; send the model once"
        )
        spec_text = f"{spec.name[:SHOWN_CHARS]!r} version {spec.version} label {spec.label!r}"
        raise InvalidArgument(message, FieldViolation("model", spec_text, "the model of the URL"))
    return url


def request_class(call: str) -> type[Any]:
    """Returns the class of the messages of a call's requests."""
    message_class: type[Any] = getattr(pb, f"{call.capitalize()}Request")
    return message_class


def response_class(call: str) -> type[Any]:
    """Returns the class of the messages of a call's responses."""
    message_class: type[Any] = getattr(pb, f"{call.capitalize()}Response")
    return message_class


def request_message(request: messages.Request) -> Any:
    """Returns a request as its message, without the model that it names."""
    return write_message(request, request_class(request.body.call)())


def result_message(message_class: type[Any], result: Any) -> Any:
    """Returns a result as its message."""
    message = message_class(model=pb.ModelSpec(name=result.model, version=result.version))
    if result.coverage < 1:
        message.coverage = result.coverage
    return write_message(result, message)


def explanation_message(explanation: messages.Explanation) -> Any:
    """Returns an explanation as its message."""
    return write_message(explanation, pb.Explanation())


def read_explanation(message: pb.Explanation) -> messages.Explanation:
    """Reads an explanation.

    Raises:
      KeyError: It comes from another release, which has other search paths.
    """
    fields = {name: getattr(message, name) for name in messages.Explanation._fields}
    fields["unmatched"] = tuple(message.unmatched)
    fields["path"] = dict(enumerate(messages.SearchPath, 1))[message.path]
    return messages.Explanation(**fields)
