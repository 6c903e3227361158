"""Parses protobuf messages within limits, and writes results as messages."""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from bundle.features.columns import Column
from service.codec.message_fields import check_fields
from service.codec.stubs import embedding_service_pb2 as pb
from service.config import ServiceSettings
from service.contract import messages
from service.contract.forms import IdLists
from service.contract.packed import fill_column, fill_ids
from service.contract.reading import write_message
from service.engine.context import check_decoding
from service.engine.validation import SHOWN_CHARS
from service.errors import FieldViolation, InvalidArgument, TooLarge

_Url = messages.Target | None
SMALL_BYTES = 64 << 10
"""Size up to which a message is parsed within 5 ms, whatever is in it."""
_FIELDS_PER_FEATURE = 16
"""Maximum number of fields of a feature, or of a condition of a filter, with those of the messages
in it.
"""
_SEARCH_PATHS = {
    "index": pb.SEARCH_PATH_INDEX,
    "exact": pb.SEARCH_PATH_EXACT,
    "none": pb.SEARCH_PATH_NONE,
}


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


def request_message(request: messages.Request) -> Any:
    """Returns a request as its message, without the model that it names."""
    message = request_class(request.body.call)()
    write_message(request, message)
    return message


def retrieved_message(result: messages.RetrievalResult) -> pb.RetrieveResponse:
    """Returns the result as its message."""
    message = pb.RetrieveResponse(
        **_head(result),
        **_neighbors(result),
        searched=result.searched,
        explanations=map(explanation_message, result.explanations),
    )
    if result.not_found is not None:
        _write_not_found(result.not_found, message)
    return message


def ranked_message(result: messages.RankingResult) -> pb.RankResponse:
    """Returns the result as its message."""
    message = pb.RankResponse(
        **_head(result),
        positions=result.positions.tobytes(),
        scores=result.scores.tobytes(),
        heads={name: scores.tobytes() for name, scores in result.heads.items()},
        offsets=result.offsets.astype(np.int32).tobytes(),
        failed=[pb.FailedCandidate(**candidate._asdict()) for candidate in result.failed],
    )
    if result.ids is not None:
        message.ids.CopyFrom(_ids_message(result.ids))
    if result.not_found is not None:
        _write_not_found(result.not_found, message)
    return message


def _write_not_found(not_found: IdLists, message: pb.RetrieveResponse | pb.RankResponse) -> None:
    """Writes the ids of each query or context that do not exist."""
    message.not_found.CopyFrom(_ids_message(not_found.ids))
    if not_found.offsets is not None:
        message.not_found_offsets = not_found.offsets.astype(np.int32).tobytes()


def recommended_message(result: messages.RetrievalResult) -> pb.RecommendResponse:
    """Returns the result as its message."""
    return pb.RecommendResponse(
        **_head(result),
        **_neighbors(result),
        explanations=map(explanation_message, result.explanations),
        degraded=bool(result.degraded_reason),
        degraded_reason=result.degraded_reason,
    )


def embedded_message(result: messages.EmbeddingResult) -> pb.EmbedResponse:
    """Returns the result as its message."""
    return pb.EmbedResponse(
        **_head(result), vectors=result.vectors.tobytes(), dim=result.vectors.shape[1]
    )


def looked_up_message(result: messages.LookupResult) -> pb.LookupResponse:
    """Returns the result as its message."""
    message = pb.LookupResponse(
        **_head(result),
        vectors=result.vectors.tobytes(),
        dim=result.vectors.shape[1],
        found=result.found.tobytes(),
        table=result.table,
    )
    if result.lost is not None:
        message.lost = result.lost.tobytes()
    if result.not_found is not None:
        fill_column(message.not_found, Column(result.not_found.ids))
    return message


def explanation_message(explanation: messages.Explanation) -> pb.Explanation:
    """Returns an explanation as its message."""
    return pb.Explanation(**explanation._asdict() | {"path": _SEARCH_PATHS[explanation.path]})


def read_explanation(message: pb.Explanation) -> messages.Explanation:
    """Reads an explanation.

    Raises:
      KeyError: It comes from another release, which has other search paths.
    """
    paths = {number: path for path, number in _SEARCH_PATHS.items()}
    return messages.Explanation(
        path=paths[message.path],
        matches=message.matches,
        selectivity=message.selectivity,
        scored=message.scored,
        search_ms=message.search_ms,
        shortfall=message.shortfall,
    )


def _head(result: messages.Result) -> dict[str, Any]:
    """Returns the fields of every response."""
    head: dict[str, Any] = {"model": pb.ModelSpec(name=result.model, version=result.version)}
    if result.coverage < 1:
        head["coverage"] = result.coverage
    return head


def _ids_message(ids: messages.Ids) -> pb.Ids:
    message = pb.Ids()
    fill_ids(message, ids)
    return message


def _neighbors(result: messages.RetrievalResult) -> dict[str, Any]:
    """Returns the fields of a response that hold its neighbors."""
    response_fields: dict[str, Any] = {
        "ids": _ids_message(result.ids),
        "scores": result.scores.tobytes(),
        "offsets": result.offsets.astype(np.int32).tobytes(),
    }
    if result.retrieval_scores is not None:
        response_fields["retrieval_scores"] = result.retrieval_scores.tobytes()
    if result.sources is not None:
        response_fields["source_names"] = result.source_names
        response_fields["sources"] = result.sources.tobytes()
    if result.attributes:
        attributes = result.attributes.items()
        response_fields["attributes"] = {name: _attribute(values) for name, values in attributes}
    return response_fields


def _attribute(values: list[Any]) -> pb.Attribute:
    """Returns the values of an attribute as their message. A list of numbers has no room for null:
    its position holds 0, and is listed.
    """
    nulls = [position for position, value in enumerate(values) if value is None]
    message = pb.Attribute(nulls=nulls)
    # The values have one type, but for null; booleans travel as integers.
    kinds = {type(value) for value in values if value is not None}
    if kinds == {str}:
        message.strings.values.extend(value or "" for value in values)
    elif kinds == {list}:
        message.lists.values.extend(pb.Strings(values=value or ()) for value in values)
    elif kinds and kinds <= {int, bool}:
        message.int64s = np.array([value or 0 for value in values], dtype="<i8").tobytes()
    elif kinds:
        message.float64s = np.array([value or 0.0 for value in values], dtype="<f8").tobytes()
    return message
