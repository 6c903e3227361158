"""Protobuf messages to requests, and answers to protobuf messages.

Packed bytes become read-only arrays without a copy. Fields that a message does not know are
skipped, as protobuf promises to newer clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from bundle.features.columns import Column
from service.codec import options
from service.codec.message_fields import check_fields
from service.codec.stubs import embedding_service_pb2 as pb
from service.config import ServiceSettings
from service.engine import calls
from service.engine.calls import FILTER_GROUPS, check_offsets
from service.engine.limits import at_most, check_depth, check_terms
from service.errors import InvalidArgument, TooLarge

_Url = calls.Target | None
SMALL_BYTES = 64 << 10
"""A smaller message is parsed within 5 ms, whatever is in it."""
_FIELDS_PER_FEATURE = 16
"""Fields of a feature, or of a condition of a filter, with those of the messages in it."""
_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")
_SEARCH_PATHS = {
    "index": pb.SEARCH_PATH_INDEX,
    "exact": pb.SEARCH_PATH_EXACT,
    "none": pb.SEARCH_PATH_NONE,
}
_KINDS: dict[str, np.dtype[Any]] = {
    "int64s": np.dtype("<i8"),
    "int32s": _INT32,
    "float32s": _FLOAT32,
}


def parse(message_class: type[Any], body: bytes) -> Any:
    """Parses a message. It takes up to 16 times the memory of its bytes.

    Raises:
      InvalidArgument: the bytes are no such message, or a string in it is not UTF-8.
    """
    try:
        return message_class.FromString(body)
    except DecodeError as problem:
        name = message_class.__name__
        reason = str(problem).rpartition(": ")[2]
        raise InvalidArgument(
            f"the body is not a {name}: its bytes do not decode as protobuf ({reason})"
        ) from None


def parse_small(message_class: type[Any], body: bytes) -> Any:
    """Parses a message that names a model at most.

    Raises:
      InvalidArgument: See `parse`.
      TooLarge: The message has more than SMALL_BYTES.
    """
    if len(body) > SMALL_BYTES:
        raise TooLarge(f"the message has {len(body)} bytes; at most {SMALL_BYTES} are accepted")
    return parse(message_class, body)


def check_size(message_class: type[Any], body: bytes, settings: ServiceSettings) -> None:
    """Rejects a message that would take the parser long.

    Raises:
      TooLarge: It has more fields or strings than a request within the limits; nothing was parsed.
    """
    if len(body) > SMALL_BYTES:
        fields_max = _FIELDS_PER_FEATURE * (settings.max_features + settings.max_names)
        check_fields(message_class.DESCRIPTOR, body, fields_max, settings.max_values)


def target_of(spec: pb.ModelSpec, url: _Url) -> calls.Target:
    """Returns which model is wanted.

    Args:
      spec: the message's.
      url: the URL's, where there is a URL; it wins over a message that leaves the model out.

    Raises:
      InvalidArgument: a negative version, or message and URL contradict each other.
    """
    if spec.version < 0:
        raise InvalidArgument(
            f"model.version is {spec.version}; a version, or 0 for the current one, was expected"
        )
    if url is None:
        return calls.Target(spec.name, spec.version or None, spec.label)
    if (
        spec.name not in {"", url.model}
        or spec.version not in {0, url.version}
        or spec.label not in {"", url.label}
    ):
        raise InvalidArgument(
            "the URL and the body name different models, versions or labels; send the model once"
        )
    return url


def read_retrieval(
    message: pb.RetrieveRequest, url: _Url, settings: ServiceSettings
) -> calls.Retrieval:
    """Reads a RetrieveRequest.

    Raises:
      InvalidArgument: packed bytes are truncated, or ids or a column are empty; names the field.
      TooLarge: more columns or names than the limit.
    """
    sent = _sent(message)
    return calls.Retrieval(
        target_of(message.model, url),
        context=_columns(message.context, "context", settings) or None,
        vectors=packed(message.vectors, _FLOAT32, "vectors") if message.vectors else None,
        ids=_ids(sent, "ids"),
        query_offsets=_offsets(sent, "query_offsets"),
        context_ids=_ids(sent, "context_ids"),
        **_selection(sent, settings),
        **_options(sent, options.RETRIEVAL, settings),
    )


def read_ranking(message: pb.RankRequest, url: _Url, settings: ServiceSettings) -> calls.Ranking:
    """Reads a RankRequest.

    Raises:
      InvalidArgument: packed bytes are truncated, or ids or a column are empty; names the field.
      TooLarge: more columns or names than the limit.
    """
    at_most(
        settings,
        "max_features",
        len(message.context) + len(message.candidate_features),
        "context and candidate_features",
    )
    sent = _sent(message)
    ids = _ids(sent, "candidate_ids")
    offsets = _offsets(sent, "offsets")
    if ids is not None and offsets is not None:  # before it can be merged with other requests
        check_offsets(offsets, offsets.size - 1, ids.size, "candidate_ids")
    return calls.Ranking(
        target_of(message.model, url),
        context=_columns(message.context, "context", settings),
        candidate_ids=ids,
        candidate_features=_columns(message.candidate_features, "candidate_features", settings),
        offsets=offsets,
        context_ids=_ids(sent, "context_ids"),
        **_options(sent, options.RANKING, settings),
    )


def read_recommendation(
    message: pb.RecommendRequest, url: _Url, settings: ServiceSettings
) -> calls.Recommendation:
    """Reads a RecommendRequest.

    Raises:
      InvalidArgument: packed bytes are truncated, or ids or a column are empty; names the field.
      TooLarge: more columns or names than the limit.
    """
    sent = _sent(message)
    return calls.Recommendation(
        target_of(message.model, url),
        context=_columns(message.context, "context", settings),
        context_ids=_ids(sent, "context_ids"),
        **_selection(sent, settings),
        **_options(sent, options.RECOMMENDATION, settings),
    )


def read_embedding(
    message: pb.EmbedRequest, url: _Url, settings: ServiceSettings
) -> calls.Embedding:
    """Reads an EmbedRequest.

    Raises:
      InvalidArgument: packed bytes are truncated, or ids or a column are empty; names the field.
      TooLarge: more columns or names than the limit.
    """
    columns = _columns(message.features, "features", settings)
    return calls.Embedding(target_of(message.model, url), message.tower, columns)


# as all readers
def read_lookup(message: pb.LookupRequest, url: _Url, settings: ServiceSettings) -> calls.Lookup:  # noqa: ARG001
    """Reads a LookupRequest.

    Raises:
      InvalidArgument: packed bytes are truncated, or there are no ids.
    """
    return calls.Lookup(target_of(message.model, url), message.feature, _column(message.ids, "ids"))


def retrieved_message(answer: calls.Retrieved) -> pb.RetrieveResponse:
    """Returns the answer as its message."""
    return pb.RetrieveResponse(
        **_head(answer),
        **_neighbors(answer.neighbors),
        searched=answer.searched,
        explanations=_explanations(answer.explanations),
    )


def ranked_message(answer: calls.Ranked) -> pb.RankResponse:
    """Returns the answer as its message."""
    return pb.RankResponse(
        **_head(answer),
        ids=None if answer.ids is None else _ids_message(answer.ids),
        positions=_bytes(answer.positions, "<i4"),
        scores=_bytes(answer.scores, "<f4"),
        heads={name: _bytes(scores, "<f4") for name, scores in answer.heads.items()},
        offsets=_bytes(answer.offsets, "<i4"),
    )


def recommended_message(answer: calls.Recommended) -> pb.RecommendResponse:
    """Returns the answer as its message."""
    scores = _bytes(answer.retrieval_scores, "<f4")
    return pb.RecommendResponse(
        **_head(answer),
        **_neighbors(answer.neighbors),
        retrieval_scores=scores,
        explanations=_explanations(answer.explanations),
        degraded=bool(answer.degraded_reason),
        degraded_reason=answer.degraded_reason,
    )


def embedded_message(answer: calls.Embedded) -> pb.EmbedResponse:
    """Returns the answer as its message."""
    return pb.EmbedResponse(
        **_head(answer), vectors=_bytes(answer.vectors, "<f4"), dim=answer.vectors.shape[1]
    )


def looked_up_message(answer: calls.LookedUp) -> pb.LookupResponse:
    """Returns the answer as its message."""
    vectors = _bytes(answer.vectors, "<f4")
    found = _bytes(answer.found, "u1")
    dim = answer.vectors.shape[1]
    return pb.LookupResponse(
        **_head(answer), vectors=vectors, dim=dim, found=found, table=answer.table
    )


def packed(data: bytes, dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    """Returns numbers that were packed into bytes; raises InvalidArgument if they are truncated."""
    if len(data) % dtype.itemsize:
        raise InvalidArgument(
            f"{where} has {len(data)} bytes, not a multiple of {dtype.itemsize} ({dtype.name})"
        )
    return np.frombuffer(data, dtype)


def _sent(message: Any) -> dict[str, Any]:
    """Returns the fields that a message has, by name. Of the many that it could have, most are not
    sent.
    """
    return {field.name: value for field, value in message.ListFields()}


def _offsets(sent: Mapping[str, Any], name: str, where: str = "") -> NDArray[np.int64] | None:
    """Returns the offsets in one of the fields of a message; None if it was not sent."""
    if name not in sent:
        return None
    return packed(sent[name], _INT32, f"{where}{name}").astype(np.int64)


def _options(
    sent: Mapping[str, Any], known: Mapping[str, Any], settings: ServiceSettings
) -> dict[str, Any]:
    """Returns the options that were sent; all others have their defaults."""
    found = {}
    for name, value in sent.items():
        if name in known:
            default = known[name]
            if default == ():
                at_most(settings, "max_names", len(value), name)
            found[name] = type(default)(value)
    return found


def _ids(sent: Mapping[str, Any], name: str, where: str = "") -> calls.Ids | None:
    """Returns the ids in one of the fields of a message; None if it was not sent."""
    if name not in sent:
        return None
    ids: pb.Ids = sent[name]
    kind = ids.WhichOneof("kind")
    if kind is None:
        raise InvalidArgument(f"{where}{name} is empty; int64s or strings were expected")
    return _values(ids, kind, f"{where}{name}")


def _values(message: Any, kind: str, where: str) -> NDArray[Any]:
    """Returns the values in one of the fields of a message: int64, float32 or str."""
    if kind == "strings":
        return np.array(list(message.strings.values), dtype=object)
    values = packed(getattr(message, kind), _KINDS[kind], f"{where}.{kind}")
    return values.astype(np.int64) if kind == "int32s" else values


def _columns(
    columns: Mapping[str, pb.Column], where: str, settings: ServiceSettings
) -> dict[str, Column]:
    at_most(settings, "max_features", len(columns), where)
    # Their items() is Python's, in seven calls.
    return {name: _column(columns[name], f"{where}.{name}") for name in columns}


def _column(message: pb.Column, where: str) -> Column:
    kind = message.WhichOneof("values")
    if kind is None:
        raise InvalidArgument(
            f"{where} has no values; int64s, int32s, float32s or strings were expected"
        )
    values = _values(message, kind, where)
    offsets = weights = None
    if message.offsets:
        offsets = packed(message.offsets, _INT32, f"{where}.offsets").astype(np.int64)
    if message.weights:
        weights = packed(message.weights, _FLOAT32, f"{where}.weights")
    return Column(values, offsets, weights)


def column_message(column: Column) -> pb.Column:
    """Returns a column as its message."""
    message = pb.Column()
    if column.values.dtype == object:
        message.strings.values.extend(column.values.tolist())
        message.strings.SetInParent()
    elif column.values.dtype == np.float32:
        message.float32s = _bytes(column.values, "<f4")
    else:
        message.int64s = _bytes(column.values, "<i8")
    if column.offsets is not None:
        message.offsets = _bytes(column.offsets, "<i4")
    if column.weights is not None:
        message.weights = _bytes(column.weights, "<f4")
    return message


def _id_lists(sent: Mapping[str, Any], name: str) -> calls.IdLists | None:
    """Reads `exclude` or `negative`: the ids, and the offsets of each query's."""
    ids = _ids(sent, f"{name}_ids")
    offsets = _offsets(sent, f"{name}_offsets")
    if ids is None and offsets is not None:
        raise InvalidArgument(f"{name}_offsets was sent without {name}_ids")
    return None if ids is None else calls.IdLists(ids, offsets)


def read_filter(message: pb.Filter, settings: ServiceSettings) -> calls.Filter:
    """Reads a Filter.

    Raises:
      InvalidArgument: a list of tokens or a bound is empty; names it.
      TooLarge: more conditions or levels than the limit.
    """
    found = _filter(message, "filter", 1)
    check_terms(found, settings)
    return found


def _filter(message: pb.Filter, where: str, depth: int) -> calls.Filter:
    check_depth(where, depth)
    conditions = {
        name: _condition(each, f"{where}.{name}") for name, each in message.conditions.items()
    }
    groups = {}
    for group in FILTER_GROUPS:
        members = enumerate(getattr(message, group))
        groups[group] = tuple(
            [_filter(each, f"{where}.{group}[{number}]", depth + 1) for number, each in members]
        )
    near = tuple([_circle(each) for each in message.near])
    return calls.Filter(conditions, **groups, near=near)


def _circle(message: pb.Circle) -> calls.Circle:
    return calls.Circle(
        message.latitude,
        message.longitude,
        message.radius_m,
        message.latitude_attribute or "latitude",
        message.longitude_attribute or "longitude",
    )


def filter_message(sent: calls.Filter) -> pb.Filter:
    """Returns a filter as its message."""
    message = pb.Filter(near=[pb.Circle(**vars(each)) for each in sent.near])
    for group in FILTER_GROUPS:
        getattr(message, group).extend([filter_message(each) for each in getattr(sent, group)])
    for name, each in sent.conditions.items():
        condition = message.conditions[name]
        for field in ("allow", "deny"):
            if (ids := getattr(each, field)) is not None:
                getattr(condition, field).CopyFrom(_ids_message(ids))
        for bound in calls.BOUNDS:
            if (value := getattr(each, bound)) is not None:
                kind = "int64" if isinstance(value, int) else "float64"
                getattr(condition, bound).CopyFrom(pb.Number(**{kind: value}))
        if each.is_null is not None:
            condition.is_null = each.is_null
    return message


def _selection(sent: Mapping[str, Any], settings: ServiceSettings) -> dict[str, Any]:
    """Returns which candidates are allowed, of a retrieval or a recommendation."""
    found: dict[str, Any] = {
        "exclude_ids": _id_lists(sent, "exclude"),
        "negative_ids": _id_lists(sent, "negative"),
    }
    if "filter" in sent:
        found["filter"] = read_filter(sent["filter"], settings)
    if "crowding" in sent:
        at_most(settings, "max_names", len(sent["crowding"]), "crowding")
        found["crowding"] = dict(sent["crowding"])
    for name in ("min_score", "offset"):
        if name in sent:
            found[name] = sent[name]
    return found


def _condition(message: pb.Condition, where: str) -> calls.Condition:
    sent = _sent(message)
    bounds: dict[str, Any] = {}
    for name in calls.BOUNDS:
        if name in sent:
            number: pb.Number = sent[name]
            kind = number.WhichOneof("kind")
            if kind is None:
                raise InvalidArgument(f"{where}.{name} is empty; int64 or float64 was expected")
            bounds[name] = getattr(number, kind)
    if "is_null" in sent:
        bounds["is_null"] = sent["is_null"]
    return calls.Condition(
        _ids(sent, "allow", f"{where}."), _ids(sent, "deny", f"{where}."), **bounds
    )


def _explanations(explanations: Sequence[calls.Explanation]) -> list[pb.Explanation]:
    return [explanation_message(each) for each in explanations]


def explanation_message(explanation: calls.Explanation) -> pb.Explanation:
    """Returns an explanation as its message."""
    return pb.Explanation(**vars(explanation) | {"path": _SEARCH_PATHS[explanation.path]})


def read_explanation(message: pb.Explanation) -> calls.Explanation:
    """Returns the explanation of a message; KeyError: of another release."""
    paths = {number: path for path, number in _SEARCH_PATHS.items()}
    return calls.Explanation(
        path=paths[message.path],
        matches=message.matches,
        selectivity=message.selectivity,
        scored=message.scored,
        search_ms=message.search_ms,
        shortfall=message.shortfall,
    )


def _head(answer: calls.Answer) -> dict[str, Any]:
    """Returns the fields of every answer."""
    head: dict[str, Any] = {"model": pb.ModelSpec(name=answer.model, version=answer.version)}
    return head if answer.coverage == 1 else {**head, "coverage": answer.coverage}


def _bytes(array: NDArray[Any], dtype: str) -> bytes:
    return array.astype(dtype, copy=False).tobytes()


def _ids_message(ids: calls.Ids) -> pb.Ids:
    if ids.dtype == object:
        return pb.Ids(strings=pb.Strings(values=ids.tolist()))
    return pb.Ids(int64s=_bytes(ids, "<i8"))


def _neighbors(neighbors: calls.Neighbors) -> dict[str, Any]:
    """Returns the fields of a response that hold its neighbors."""
    return {
        "ids": _ids_message(neighbors.ids),
        "scores": _bytes(neighbors.scores, "<f4"),
        "offsets": _bytes(neighbors.offsets, "<i4"),
        "attributes": {name: _attribute(values) for name, values in neighbors.attributes.items()},
    }


def _attribute(values: list[Any]) -> pb.Attribute:
    message = pb.Attribute(nulls=[place for place, value in enumerate(values) if value is None])
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
