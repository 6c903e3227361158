"""Protobuf messages to requests, and results to protobuf messages.

Packed numbers are little-endian, as are all processors that the service runs on: bytes become
read-only arrays without a copy, and arrays are written as they are. Fields that a message does not
know are skipped, as protobuf promises to newer clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from bundle.features.columns import Column
from service.codec.message_fields import check_fields
from service.codec.source_lists import check_sources
from service.codec.stubs import embedding_service_pb2 as pb
from service.config import ServiceSettings
from service.engine import calls
from service.engine.calls import FILTER_GROUPS, check_offsets
from service.engine.context import check_decoding
from service.engine.validation import SHOWN_CHARS, at_most, check_depth, check_terms
from service.errors import FieldViolation, InvalidArgument, TooLarge

_Url = calls.Target | None
SMALL_BYTES = 64 << 10
"""Size up to which a message is parsed within 5 ms, whatever is in it."""
_FIELDS_PER_FEATURE = 16
"""Maximum number of fields of a feature, or of a condition of a filter, with those of the messages
in it.
"""
_INT32 = np.dtype("<i4")
_INT64 = np.dtype("<i8")
_FLOAT32 = np.dtype("<f4")
_NOT_FOUND_RULES: dict[int, calls.NotFoundRule] = {
    pb.NOT_FOUND_RULE_ERROR: calls.NotFoundRule.ERROR,
    pb.NOT_FOUND_RULE_SKIP: calls.NotFoundRule.SKIP,
}
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


def target_of(spec: pb.ModelSpec, url: _Url) -> calls.Target:
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
        return calls.Target(spec.name, spec.version or None, spec.label)
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


def read_retrieval(
    message: pb.RetrieveRequest, url: _Url, settings: ServiceSettings
) -> calls.RetrievalRequest:
    """Reads a RetrieveRequest.

    Raises:
      InvalidArgument: Packed bytes are truncated, or ids or a column are empty; the message names
        the field.
      TooLarge: There are more columns or names than the limit.
    """
    return calls.RetrievalRequest(target_of(message.model, url), **_sent_fields(message, settings))


def read_ranking(
    message: pb.RankRequest, url: _Url, settings: ServiceSettings
) -> calls.RankingRequest:
    """Reads a RankRequest.

    Raises:
      InvalidArgument: Packed bytes are truncated, or ids or a column are empty; the message names
        the field.
      TooLarge: There are more columns or names than the limit.
    """
    columns = len(message.context) + len(message.candidate_features)
    at_most(settings, "max_features", columns, "request")
    request_fields = _sent_fields(message, settings)
    if "offsets" in request_fields and "candidate_ids" in request_fields:
        # Before the request can be merged with others, which it would make fail.
        offsets = request_fields["offsets"]
        check_offsets(offsets, offsets.size - 1, request_fields["candidate_ids"].size, "offsets")
    return calls.RankingRequest(target_of(message.model, url), **request_fields)


def read_recommendation(
    message: pb.RecommendRequest, url: _Url, settings: ServiceSettings
) -> calls.RecommendationRequest:
    """Reads a RecommendRequest.

    Raises:
      InvalidArgument: Packed bytes are truncated, or ids or a column are empty; the message names
        the field.
      TooLarge: There are more columns or names than the limit.
    """
    return calls.RecommendationRequest(
        target_of(message.model, url), **_sent_fields(message, settings)
    )


def read_embedding(
    message: pb.EmbedRequest, url: _Url, settings: ServiceSettings
) -> calls.EmbeddingRequest:
    """Reads an EmbedRequest.

    Raises:
      InvalidArgument: Packed bytes are truncated, or ids or a column are empty; the message names
        the field.
      TooLarge: There are more columns or names than the limit.
    """
    return calls.EmbeddingRequest(target_of(message.model, url), **_sent_fields(message, settings))


# All readers take the same arguments, so that one table can name them.
def read_lookup(
    message: pb.LookupRequest,
    url: _Url,
    settings: ServiceSettings,  # noqa: ARG001
) -> calls.LookupRequest:
    """Reads a LookupRequest.

    Raises:
      InvalidArgument: Packed bytes are truncated, or there are no ids.
    """
    ids = _column(message.ids, "ids")
    not_found = calls.NotFoundRule.ERROR
    if message.not_found:
        not_found = _not_found_rule(message.not_found, "not_found")
    return calls.LookupRequest(target_of(message.model, url), message.feature, ids, not_found)


def retrieved_message(result: calls.RetrievalResult) -> pb.RetrieveResponse:
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


def ranked_message(result: calls.RankingResult) -> pb.RankResponse:
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


def _write_not_found(
    not_found: calls.IdLists, message: pb.RetrieveResponse | pb.RankResponse
) -> None:
    """Writes the ids of each query or context that do not exist."""
    message.not_found.CopyFrom(_ids_message(not_found.ids))
    if not_found.offsets is not None:
        message.not_found_offsets = not_found.offsets.astype(np.int32).tobytes()


def recommended_message(result: calls.RetrievalResult) -> pb.RecommendResponse:
    """Returns the result as its message."""
    return pb.RecommendResponse(
        **_head(result),
        **_neighbors(result),
        explanations=map(explanation_message, result.explanations),
        degraded=bool(result.degraded_reason),
        degraded_reason=result.degraded_reason,
    )


def embedded_message(result: calls.EmbeddingResult) -> pb.EmbedResponse:
    """Returns the result as its message."""
    return pb.EmbedResponse(
        **_head(result), vectors=result.vectors.tobytes(), dim=result.vectors.shape[1]
    )


def looked_up_message(result: calls.LookupResult) -> pb.LookupResponse:
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
        message.not_found.CopyFrom(column_message(Column(result.not_found)))
    return message


def unpack(data: bytes, dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    """Reads packed numbers from bytes; raises InvalidArgument if they are truncated."""
    try:
        return np.frombuffer(data, dtype)
    except ValueError:
        expected = f"a multiple of {dtype.itemsize} ({dtype.name})"
        raise InvalidArgument.of_field(where, f"{len(data)} bytes", expected, "has") from None


def _sent_fields(message: Any, settings: ServiceSettings) -> dict[str, Any]:
    """Returns the fields of a request that were sent, as the engine takes them. Of the many that it
    could have, most are not sent.

    Raises:
      InvalidArgument: Packed bytes are truncated, ids or a column are empty, or offsets have no
        ids.
      TooLarge: There are more columns, names or conditions than the limit.
    """
    request_fields = {}
    for field, value in message.ListFields():
        name = field.name
        if name in _LIMITS:
            at_most(settings, _LIMITS[name], len(value), name)
        if name in _READERS:
            request_fields[name] = _READERS[name](value, name)
        elif name != "model":
            request_fields[name] = value
    if "filter" in request_fields:
        request_fields["filter"] = read_filter(request_fields["filter"], settings)
    for name, offsets in _LISTS_OF_IDS.items():
        if name in request_fields:
            id_offsets = request_fields.pop(offsets, None)
            request_fields[name] = calls.IdLists(request_fields[name], id_offsets)
        elif offsets in request_fields:
            violation = FieldViolation(name, "empty", f"a list beside {offsets}")
            raise InvalidArgument(f"{offsets} was sent without {name}", violation)
    return request_fields


def read_columns(columns: Mapping[str, pb.Column], where: str) -> dict[str, Column]:
    """Reads columns by name; raises InvalidArgument if one is empty or truncated."""
    # The items() of a protobuf map is written in Python, and costs seven calls.
    return {name: _column(columns[name], f"{where}.{name}") for name in columns}


def _column(message: pb.Column, where: str) -> Column:
    """Reads a column; raises InvalidArgument if it is empty or truncated."""
    kind = message.WhichOneof("values")
    if kind is None:
        expected = "a list of int64s, int32s, float32s or strings"
        raise InvalidArgument.of_field(where, "no values", expected, "has")
    values = _values(message, kind, where)
    offsets = None
    weights = None
    # int32 on the wire, which no message can exceed; int64 in the engine, as in all its arrays.
    if message.offsets:
        offsets = unpack(message.offsets, _INT32, f"{where}.offsets").astype(np.int64)
    if message.weights:
        weights = unpack(message.weights, _FLOAT32, f"{where}.weights")
    return Column(values, offsets, weights)


def _values(message: Any, kind: str, where: str) -> NDArray[Any]:
    """Returns the values in one of the fields of a message: int64, float32 or str."""
    if kind == "int64s":
        return unpack(message.int64s, _INT64, f"{where}.int64s")
    if kind == "strings":
        return np.array(list(message.strings.values), dtype=object)
    if kind == "float32s":
        return unpack(message.float32s, _FLOAT32, f"{where}.float32s")
    return unpack(message.int32s, _INT32, f"{where}.int32s").astype(np.int64)


def read_ids(message: pb.Ids, where: str) -> calls.Ids:
    """Reads ids; raises InvalidArgument if there are none, or if they are truncated."""
    kind = message.WhichOneof("kind")
    if kind is None:
        raise InvalidArgument.of_field(where, "empty", "a list of int64s or strings")
    return _values(message, kind, where)


def _offsets(data: bytes, where: str) -> calls.Offsets:
    return unpack(data, _INT32, where).astype(np.int64)


def _vectors(data: bytes, where: str) -> calls.Vectors:
    return unpack(data, _FLOAT32, where)


def _names(names: Sequence[str], where: str) -> tuple[str, ...]:  # noqa: ARG001 - see _READERS
    return tuple(names)


def _sources(messages: Sequence[pb.Source], where: str) -> tuple[calls.Source, ...]:
    check_sources(len(messages))
    return tuple(
        [_source(message, f"{where}[{number}]") for number, message in enumerate(messages)]
    )


def _source(message: pb.Source, where: str) -> calls.Source:
    """Reads a source, whose ids and offsets are one list of ids for each context."""
    # The other fields have the names of those of Source.
    source: dict[str, Any] = {field.name: value for field, value in message.ListFields()}
    offsets = source.pop("offsets", None)
    if "ids" in source:
        if offsets is not None:
            offsets = _offsets(offsets, f"{where}.offsets")
        source["ids"] = calls.IdLists(read_ids(source["ids"], f"{where}.ids"), offsets)
    elif offsets is not None:
        raise InvalidArgument.of_field(f"{where}.offsets", "sent", f"{where}.ids beside it")
    return calls.Source(**source)


def _crowding(crowding: Mapping[str, int], where: str) -> dict[str, int]:  # noqa: ARG001 - see _READERS
    return dict(crowding)


def _not_found_rule(number: int, where: str) -> calls.NotFoundRule:
    rule = _NOT_FOUND_RULES.get(number)
    if rule is None:
        names = " or ".join(map(pb.NotFoundRule.Name, _NOT_FOUND_RULES))
        raise InvalidArgument.of_field(where, number, names)
    return rule


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "attributes": _names,
    "candidate_features": read_columns,
    "candidate_ids": read_ids,
    "context": read_columns,
    "context_ids": read_ids,
    "crowding": _crowding,
    "exclude_ids": read_ids,
    "exclude_offsets": _offsets,
    "features": read_columns,
    "heads": _names,
    "ids": read_ids,
    "negative_ids": read_ids,
    "negative_offsets": _offsets,
    "not_found": _not_found_rule,
    "offsets": _offsets,
    "query_offsets": _offsets,
    "sources": _sources,
    "vectors": _vectors,
}
"""The readers of fields by name, which is the same in all requests; other fields are taken as they
are. A reader takes the value of the field and its name in an error.
"""
_LIMITS = {
    "attributes": "max_names",
    "candidate_features": "max_features",
    "context": "max_features",
    "crowding": "max_names",
    "features": "max_features",
    "heads": "max_names",
}
"""The setting that limits how long a field is."""
_LISTS_OF_IDS = {"exclude_ids": "exclude_offsets", "negative_ids": "negative_offsets"}
"""The fields that are one list of ids for each query, and the fields with their offsets."""


def column_message(column: Column) -> pb.Column:
    """Returns a column as its message."""
    message = pb.Column()
    if column.values.dtype == object:
        message.strings.values.extend(column.values.tolist())
        # Also without values: an empty list of texts is no column without a kind.
        message.strings.SetInParent()
    elif column.values.dtype == np.float32:
        message.float32s = column.values.tobytes()
    else:
        message.int64s = column.values.astype(_INT64).tobytes()
    if column.offsets is not None:
        message.offsets = column.offsets.astype(_INT32).tobytes()
    if column.weights is not None:
        message.weights = column.weights.astype(_FLOAT32).tobytes()
    return message


def read_filter(message: pb.Filter, settings: ServiceSettings) -> calls.Filter:
    """Reads a Filter.

    Raises:
      InvalidArgument: A list of tokens or a bound is empty; the message names it.
      TooLarge: There are more conditions or levels than the limit.
    """
    request_filter = _filter(message, "filter", 1)
    check_terms(request_filter, settings)
    return request_filter


def _filter(message: pb.Filter, where: str, depth: int) -> calls.Filter:
    # Before the next level: a filter of thousands of levels would exhaust the stack.
    check_depth(where, depth)
    conditions = {
        name: _condition(condition, f"{where}.{name}")
        for name, condition in message.conditions.items()
    }
    groups = {}
    for group in FILTER_GROUPS:
        members = []
        for number, member in enumerate(getattr(message, group)):
            members.append(_filter(member, f"{where}.{group}[{number}]", depth + 1))
        groups[group] = tuple(members)
    near = tuple([_circle(circle) for circle in message.near])
    return calls.Filter(conditions, **groups, near=near)


def _circle(message: pb.Circle) -> calls.Circle:
    return calls.Circle(
        message.latitude,
        message.longitude,
        message.radius_m,
        message.latitude_attribute or "latitude",
        message.longitude_attribute or "longitude",
    )


def filter_message(request_filter: calls.Filter) -> pb.Filter:
    """Returns a filter as its message."""
    message = pb.Filter(near=[pb.Circle(**vars(circle)) for circle in request_filter.near])
    for group in FILTER_GROUPS:
        members = [filter_message(member) for member in getattr(request_filter, group)]
        getattr(message, group).extend(members)
    for name, condition in request_filter.conditions.items():
        condition_message = message.conditions[name]
        for field in ("allow", "deny"):
            ids = getattr(condition, field)
            if ids is not None:
                getattr(condition_message, field).CopyFrom(_ids_message(ids))
        for bound in calls.BOUNDS:
            value = getattr(condition, bound)
            if isinstance(value, int):
                getattr(condition_message, bound).CopyFrom(pb.Number(int64=value))
            elif value is not None:
                getattr(condition_message, bound).CopyFrom(pb.Number(float64=value))
        if condition.is_null is not None:
            condition_message.is_null = condition.is_null
    return message


def _condition(message: pb.Condition, where: str) -> calls.Condition:
    """Reads a condition; raises InvalidArgument if a list of tokens or a bound is empty."""
    condition: dict[str, Any] = {}
    for field, value in message.ListFields():
        name = field.name
        if name == "is_null":
            condition[name] = value
        elif name in calls.BOUNDS:
            kind = value.WhichOneof("kind")
            if kind is None:
                raise InvalidArgument.of_field(f"{where}.{name}", "empty", "int64 or float64")
            condition[name] = getattr(value, kind)
        else:
            condition[name] = read_ids(value, f"{where}.{name}")
    return calls.Condition(**condition)


def explanation_message(explanation: calls.Explanation) -> pb.Explanation:
    """Returns an explanation as its message."""
    return pb.Explanation(**explanation._asdict() | {"path": _SEARCH_PATHS[explanation.path]})


def read_explanation(message: pb.Explanation) -> calls.Explanation:
    """Reads an explanation.

    Raises:
      KeyError: It comes from another release, which has other search paths.
    """
    paths = {number: path for path, number in _SEARCH_PATHS.items()}
    return calls.Explanation(
        path=paths[message.path],
        matches=message.matches,
        selectivity=message.selectivity,
        scored=message.scored,
        search_ms=message.search_ms,
        shortfall=message.shortfall,
    )


def _head(result: calls.Result) -> dict[str, Any]:
    """Returns the fields of every response."""
    head: dict[str, Any] = {"model": pb.ModelSpec(name=result.model, version=result.version)}
    if result.coverage < 1:
        head["coverage"] = result.coverage
    return head


def _ids_message(ids: calls.Ids) -> pb.Ids:
    if ids.dtype == object:
        return pb.Ids(strings=pb.Strings(values=ids.tolist()))
    return pb.Ids(int64s=ids.tobytes())


def _neighbors(result: calls.RetrievalResult) -> dict[str, Any]:
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
