"""Protobuf messages to requests, and answers to protobuf messages.

Packed bytes become read-only arrays without a copy. Fields that a message does not know are skipped, as protobuf
promises to newer clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from bundle.columns import Column
from service.codec.limits import Limits
from service.codec.stubs import embedding_service_pb2 as pb
from service.engine import requests
from service.errors import InvalidArgument

_Url = requests.Target | None
_INT32, _INT64, _FLOAT32 = np.dtype("<i4"), np.dtype("<i8"), np.dtype("<f4")
_KINDS: dict[str, np.dtype[Any]] = {"int64s": _INT64, "int32s": _INT32, "float32s": _FLOAT32}


def parse(message_class: type[Any], body: bytes) -> Any:
    """Parses a message. It takes up to 16 times the memory of its bytes.

    Raises:
      InvalidArgument: the bytes are no such message, or a string in it is not UTF-8.
    """
    message, name = message_class(), message_class.__name__
    try:
        message.ParseFromString(body)
    except DecodeError as problem:
        reason = str(problem).rpartition(": ")[2]
        raise InvalidArgument(f"the body is not a {name}: its bytes do not decode as protobuf ({reason})") from None
    return message


def target_of(spec: pb.ModelSpec, url: _Url) -> requests.Target:
    """Returns which model is wanted.

    Args:
      spec: the message's.
      url: the URL's, where there is a URL; it wins over a message that leaves the model out.

    Raises:
      InvalidArgument: a negative version, or message and URL contradict each other.
    """
    if spec.version < 0:
        raise InvalidArgument(f"model.version is {spec.version}; a version, or 0 for the current one, was expected")
    if url is None:
        return requests.Target(spec.name, spec.version or None, spec.label)
    if spec.name not in {"", url.model} or spec.version not in {0, url.version} or spec.label not in {"", url.label}:
        raise InvalidArgument("the URL names one model, version or label, the body's model another; send it once")
    return url


def read_retrieval(message: pb.RetrieveRequest, url: _Url, limits: Limits) -> requests.Retrieval:
    """Reads a RetrieveRequest.

    Raises:
      InvalidArgument: packed bytes, offsets or weights do not fit, or a number is not finite; names the field.
      TooLarge: a field holds more than the limit; names it.
    """
    return requests.Retrieval(
        target_of(message.model, url),
        k=message.k or 10,
        features=_columns(message.features, "features", limits) or None,
        vectors=_packed(message.vectors, _FLOAT32, "vectors", limits) if message.vectors else None,
        ids=_ids(message, "ids", limits),
        exclude=_exclusion(message, limits),
        attributes=_names(message.attributes, "attributes", limits),
        index=message.index,
        exact=message.exact,
        filter={} if message.HasField("filter") else None,
        context_ids=_ids(message, "context_ids", limits),
    )


def read_ranking(message: pb.RankRequest, url: _Url, limits: Limits) -> requests.Ranking:
    """Reads a RankRequest.

    Raises:
      InvalidArgument: packed bytes, offsets or weights do not fit, or a number is not finite; names the field.
      TooLarge: a field holds more than the limit; names it.
    """
    limits.check_features(len(message.context) + len(message.candidates), "context and candidates")
    ids = _ids(message, "candidate_ids", limits)
    return requests.Ranking(
        target_of(message.model, url),
        context=_columns(message.context, "context", limits),
        candidate_ids=ids,
        candidates=_columns(message.candidates, "candidates", limits),
        offsets=_offsets(message.offsets, None if ids is None else len(ids), "offsets", limits),
        heads=_names(message.heads, "heads", limits),
        k=message.k,
        tower=message.tower,
        formula=message.formula,
        context_ids=_ids(message, "context_ids", limits),
    )


def read_recommendation(message: pb.RecommendRequest, url: _Url, limits: Limits) -> requests.Recommendation:
    """Reads a RecommendRequest.

    Raises:
      InvalidArgument: packed bytes, offsets or weights do not fit, or a number is not finite; names the field.
      TooLarge: a field holds more than the limit; names it.
    """
    return requests.Recommendation(
        target_of(message.model, url),
        features=_columns(message.features, "features", limits),
        k=message.k or 10,
        candidates=message.candidates,
        exclude=_exclusion(message, limits),
        attributes=_names(message.attributes, "attributes", limits),
        index=message.index,
        tower=message.tower,
        formula=message.formula,
        context_ids=_ids(message, "context_ids", limits),
    )


def read_embedding(message: pb.EmbedRequest, url: _Url, limits: Limits) -> requests.Embedding:
    """Reads an EmbedRequest.

    Raises:
      InvalidArgument: packed bytes, offsets or weights do not fit, or a number is not finite; names the field.
      TooLarge: a field holds more than the limit; names it.
    """
    columns = _columns(message.features, "features", limits)
    return requests.Embedding(target_of(message.model, url), message.tower, columns)


def read_lookup(message: pb.LookupRequest, url: _Url, limits: Limits) -> requests.Lookup:
    """Reads a LookupRequest.

    Raises:
      InvalidArgument: packed bytes, offsets or weights do not fit, or a number is not finite; names the field.
      TooLarge: more ids than the limit.
    """
    return requests.Lookup(target_of(message.model, url), message.feature, _column(message.ids, "ids", limits))


def retrieved_message(answer: requests.Retrieved) -> pb.RetrieveResponse:
    """Returns the answer as its message."""
    return pb.RetrieveResponse(model=_spec(answer), neighbors=_neighbors(answer.neighbors), searched=answer.searched)


def ranked_message(answer: requests.Ranked) -> pb.RankResponse:
    """Returns the answer as its message."""
    message = pb.RankResponse(
        model=_spec(answer),
        positions=_bytes(answer.positions, "<i4"),
        scores=_bytes(answer.scores, "<f4"),
        heads={name: _bytes(scores, "<f4") for name, scores in answer.heads.items()},
        offsets=_bytes(answer.offsets, "<i4"),
    )
    if answer.ids is not None:
        _fill_ids(message.candidate_ids, answer.ids)
    return message


def recommended_message(answer: requests.Recommended) -> pb.RecommendResponse:
    """Returns the answer as its message."""
    scores = _bytes(answer.retrieval_scores, "<f4")
    return pb.RecommendResponse(model=_spec(answer), neighbors=_neighbors(answer.neighbors), retrieval_scores=scores)


def embedded_message(answer: requests.Embedded) -> pb.EmbedResponse:
    """Returns the answer as its message."""
    return pb.EmbedResponse(model=_spec(answer), vectors=_bytes(answer.vectors, "<f4"), dim=answer.vectors.shape[1])


def looked_up_message(answer: requests.LookedUp) -> pb.LookupResponse:
    """Returns the answer as its message."""
    return pb.LookupResponse(
        model=_spec(answer),
        vectors=_bytes(answer.vectors, "<f4"),
        dim=answer.vectors.shape[1],
        found=_bytes(answer.found, "u1"),
        table=answer.table,
    )


def _packed(data: bytes, dtype: np.dtype[Any], where: str, limits: Limits) -> NDArray[Any]:
    """Returns the values of a packed field: int64 or int32 as sent, float32 if all are finite."""
    if len(data) % dtype.itemsize:
        raise InvalidArgument(f"{where} has {len(data)} bytes, not a multiple of {dtype.itemsize} ({dtype.name})")
    values = np.frombuffer(data, dtype)
    limits.check_values(values.size, where)
    if dtype is _FLOAT32 and np.count_nonzero(finite := np.isfinite(values)) < values.size:
        raise InvalidArgument(f"{where} holds {values[~finite][0]}; finite numbers were expected")
    return values


def _offsets(data: bytes, size: int | None, where: str, limits: Limits) -> NDArray[np.int64] | None:
    """Returns offsets as int64; None if there are none.

    Args:
      size: of the values that they divide; None: it depends on the model.
    """
    if not data:
        return None
    offsets = _packed(data, _INT32, where, limits).astype(np.int64)
    falls = np.count_nonzero(offsets[1:] < offsets[:-1])
    if offsets[0] or falls or size not in {None, offsets[-1]}:
        end = "" if size is None else f" and end with the number of values, {size}"
        raise InvalidArgument(f"{where} must begin with 0, never fall{end}")
    return offsets


def _texts(strings: pb.Strings, where: str, limits: Limits) -> NDArray[Any]:
    limits.check_values(len(strings.values), where)
    return np.array(list(strings.values), dtype=object)


def _names(names: Any, where: str, limits: Limits) -> tuple[str, ...]:
    limits.check_names(len(names), where)
    return tuple(names)


def _ids(message: Any, where: str, limits: Limits) -> requests.Ids | None:
    """Returns the ids in a field of a message; None if it was not sent."""
    if not message.HasField(where):
        return None
    ids: pb.Ids = getattr(message, where)
    kind = ids.WhichOneof("kind")
    if kind is None:
        raise InvalidArgument(f"{where} is empty; int64s or strings were expected")
    if kind == "int64s":
        return _packed(ids.int64s, _INT64, f"{where}.int64s", limits)
    return _texts(ids.strings, f"{where}.strings", limits)


def _columns(columns: Mapping[str, pb.Column], where: str, limits: Limits) -> dict[str, Column]:
    limits.check_features(len(columns), where)
    return {name: _column(message, f"{where}.{name}", limits) for name, message in columns.items()}


def _column(message: pb.Column, where: str, limits: Limits) -> Column:
    kind = message.WhichOneof("values")
    if kind is None:
        raise InvalidArgument(f"{where} has no values; int64s, int32s, float32s or strings were expected")
    if kind == "strings":
        values = _texts(message.strings, f"{where}.strings", limits)
    else:
        values = _packed(getattr(message, kind), _KINDS[kind], f"{where}.{kind}", limits)
        if kind == "int32s":
            values = values.astype(np.int64)
    weights = None
    if message.weights:
        weights = _packed(message.weights, _FLOAT32, f"{where}.weights", limits)
        if weights.size != values.size:
            raise InvalidArgument(f"{where} has {values.size} values and {weights.size} weights; as many were expected")
    return Column(values, _offsets(message.offsets, values.size, f"{where}.offsets", limits), weights)


def _exclusion(message: pb.RetrieveRequest | pb.RecommendRequest, limits: Limits) -> requests.Exclusion | None:
    ids = _ids(message, "exclude_ids", limits)
    if ids is None:
        if message.exclude_offsets:
            raise InvalidArgument("exclude_offsets was sent without exclude_ids")
        return None
    return requests.Exclusion(ids, _offsets(message.exclude_offsets, len(ids), "exclude_offsets", limits))


def _spec(answer: Any) -> pb.ModelSpec:
    return pb.ModelSpec(name=answer.model, version=answer.version)


def _bytes(array: NDArray[Any], dtype: str) -> bytes:
    return array.astype(dtype, copy=False).tobytes()


def _fill_ids(message: pb.Ids, ids: requests.Ids) -> None:
    if ids.dtype == object:
        message.strings.values.extend(ids.tolist())
        message.strings.SetInParent()
    else:
        message.int64s = _bytes(ids, "<i8")


def _neighbors(neighbors: requests.Neighbors) -> pb.Neighbors:
    message = pb.Neighbors(scores=_bytes(neighbors.scores, "<f4"), offsets=_bytes(neighbors.offsets, "<i4"))
    _fill_ids(message.ids, neighbors.ids)
    for name, values in neighbors.attributes.items():
        _fill_attribute(message.attributes[name], values)
    return message


def _fill_attribute(message: pb.Attribute, values: list[Any]) -> None:
    message.nulls.extend(place for place, value in enumerate(values) if value is None)
    kinds = {type(value) for value in values if value is not None}
    if kinds == {str}:
        message.strings.values.extend("" if value is None else value for value in values)
    elif kinds == {list}:
        message.lists.values.extend(pb.Strings(values=value or ()) for value in values)
    elif kinds and kinds <= {int, bool}:
        message.int64s = np.array([value or 0 for value in values], dtype="<i8").tobytes()
    elif kinds:
        message.float64s = np.array([value or 0.0 for value in values], dtype="<f8").tobytes()
