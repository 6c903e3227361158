"""Protobuf messages to engine requests, and engine answers to protobuf messages.

Packed bytes become read-only arrays without touching each value. Where it was built, compiled code reads columns of
plain numbers (`bundle/native/wire.h`); protobuf reads what that leaves, and everything elsewhere.
Fields that a message does not know are skipped, as protobuf promises to newer callers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from bundle.features import Column
from bundle.native import plain_columns
from service.engine import requests
from service.errors import InvalidArgument
from service.wire.stubs import embedding_service_pb2 as pb

_RETRIEVE_MAPS = (pb.RetrieveRequest.FEATURES_FIELD_NUMBER,)
_RANK_MAPS = (pb.RankRequest.CONTEXT_FIELD_NUMBER, pb.RankRequest.CANDIDATES_FIELD_NUMBER)
_RECOMMEND_MAPS = (pb.RecommendRequest.FEATURES_FIELD_NUMBER,)
_EMBED_MAPS = (pb.EmbedRequest.FEATURES_FIELD_NUMBER,)
_INT32, _INT64, _FLOAT32 = np.dtype("<i4"), np.dtype("<i8"), np.dtype("<f4")


class _Message(Protocol):
    def ParseFromString(self, serialized: bytes) -> int: ...  # noqa: N802 - protobuf's spelling


MessageType = TypeVar("MessageType", bound=_Message)


def parse(kind: type[MessageType], body: bytes) -> MessageType:
    """Reads a message from a body.

    Raises:
      InvalidArgument: the bytes are no such message.
    """
    message = kind()
    try:
        message.ParseFromString(body)
    except DecodeError:
        raise InvalidArgument(f"the body is no {kind.__name__}: its bytes do not decode as protobuf") from None
    return message


def target_of(spec: pb.ModelSpec, url: requests.Target | None) -> requests.Target:
    """Returns the model asked for.

    Args:
      spec: as the message says.
      url: as the URL says, where there is one; it wins over a message that leaves the model out.

    Raises:
      InvalidArgument: a negative version, or message and URL differ.
    """
    if spec.version < 0:
        raise InvalidArgument(f"model.version is {spec.version}; a positive number, or 0 for the newest, was expected")
    if url is None:
        return requests.Target(spec.name, spec.version or None, spec.label)
    if spec.name not in {"", url.model} or spec.version not in {0, url.version} or spec.label not in {"", url.label}:
        raise InvalidArgument("the URL names one model, version or label, the body's model another; send it once")
    return url


def read_retrieval(body: bytes, url: requests.Target | None = None) -> requests.Retrieval:
    """Reads a RetrieveRequest.

    Raises:
      InvalidArgument: the bytes are no such message, or packed bytes have no whole number of values.
    """
    message, features = _parsed(pb.RetrieveRequest, body, _RETRIEVE_MAPS)
    return requests.Retrieval(
        target_of(message.model, url),
        k=message.k or 10,
        features=_columns(features, message.features, "features") or None,
        vectors=_packed(message.vectors, _FLOAT32, "vectors") if message.vectors else None,
        ids=_ids(message.ids, "ids") if message.HasField("ids") else None,
        exclude=_exclusion(message),
        attributes=tuple(message.attributes),
        index=message.index,
        exact=message.exact,
        filter={} if message.HasField("filter") else None,
        context_ids=_context_ids(message),
    )


def read_ranking(body: bytes, url: requests.Target | None = None) -> requests.Ranking:
    """Reads a RankRequest.

    Raises:
      InvalidArgument: the bytes are no such message, or packed bytes have no whole number of values.
    """
    message, context, candidates = _parsed(pb.RankRequest, body, _RANK_MAPS)
    return requests.Ranking(
        target_of(message.model, url),
        context=_columns(context, message.context, "context"),
        candidate_ids=_ids(message.candidate_ids, "candidate_ids") if message.HasField("candidate_ids") else None,
        candidates=_columns(candidates, message.candidates, "candidates"),
        offsets=_offsets(message.offsets, "offsets"),
        heads=tuple(message.heads),
        k=message.k,
        tower=message.tower,
        formula=message.formula,
        context_ids=_context_ids(message),
    )


def read_recommendation(body: bytes, url: requests.Target | None = None) -> requests.Recommendation:
    """Reads a RecommendRequest.

    Raises:
      InvalidArgument: the bytes are no such message, or packed bytes have no whole number of values.
    """
    message, features = _parsed(pb.RecommendRequest, body, _RECOMMEND_MAPS)
    return requests.Recommendation(
        target_of(message.model, url),
        features=_columns(features, message.features, "features"),
        k=message.k or 10,
        candidates=message.candidates,
        exclude=_exclusion(message),
        attributes=tuple(message.attributes),
        index=message.index,
        tower=message.tower,
        formula=message.formula,
        context_ids=_context_ids(message),
    )


def read_embedding(body: bytes, url: requests.Target | None = None) -> requests.Embedding:
    """Reads an EmbedRequest.

    Raises:
      InvalidArgument: the bytes are no such message, or packed bytes have no whole number of values.
    """
    message, features = _parsed(pb.EmbedRequest, body, _EMBED_MAPS)
    columns = _columns(features, message.features, "features")
    return requests.Embedding(target_of(message.model, url), message.tower, columns)


def read_lookup(body: bytes, url: requests.Target | None = None) -> requests.Lookup:
    """Reads a LookupRequest.

    Raises:
      InvalidArgument: the bytes are no such message, or packed bytes have no whole number of values.
    """
    message = parse(pb.LookupRequest, body)
    return requests.Lookup(target_of(message.model, url), message.feature, _column(message.ids, "ids"))


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


def _packed(data: bytes, kind: np.dtype[Any], *where: str) -> NDArray[Any]:
    if len(data) % kind.itemsize:
        raise InvalidArgument(
            f"{'.'.join(where)} has {len(data)} bytes; "
            f"a multiple of {kind.itemsize} (little-endian {kind.name}) was expected"
        )
    return np.frombuffer(data, kind)


def _offsets(data: bytes, *where: str) -> NDArray[np.int64] | None:
    return _packed(data, _INT32, *where).astype(np.int64) if data else None


def _texts(strings: pb.Strings) -> NDArray[Any]:
    packed = np.empty(len(strings.values), dtype=object)
    packed[:] = strings.values
    return packed


def _ids(message: pb.Ids, where: str) -> requests.Ids:
    kind = message.WhichOneof("kind")
    if kind is None:
        raise InvalidArgument(f"{where} is empty; int64s or strings were expected")
    return _packed(message.int64s, _INT64, where, "int64s") if kind == "int64s" else _texts(message.strings)


def _column(message: pb.Column, *where: str) -> Column:
    kind = message.WhichOneof("values")
    if kind == "int64s":
        values = _packed(message.int64s, _INT64, *where, kind)
    elif kind == "float32s":
        values = _packed(message.float32s, _FLOAT32, *where, kind)
    elif kind == "int32s":
        values = _packed(message.int32s, _INT32, *where, kind).astype(np.int64)
    elif kind == "strings":
        values = _texts(message.strings)
    else:
        raise InvalidArgument(f"{'.'.join(where)} has no values; int64s, int32s, float32s or strings were expected")
    weights = _packed(message.weights, _FLOAT32, *where, "weights") if message.weights else None
    return Column(values, _offsets(message.offsets, *where, "offsets"), weights)


def _parsed(kind: type[Any], body: bytes, maps: tuple[int, ...]) -> tuple[Any, ...]:
    """Returns a message, and of each of its maps with these numbers the columns that protobuf need not look at."""
    split = None if plain_columns is None else plain_columns(body, maps, Column)
    if split is None:
        return parse(kind, body), *({} for _ in maps)
    *found, rest = split
    return parse(kind, rest), *found


def _columns(found: dict[str, Column], left: Mapping[str, pb.Column], where: str) -> dict[str, Column]:
    """Returns the columns found already and those left, which came before any found of the same name."""
    if left:
        return {name: _column(message, where, name) for name, message in left.items() if name not in found} | found
    return found


def _exclusion(message: pb.RetrieveRequest | pb.RecommendRequest) -> requests.Exclusion | None:
    if not message.HasField("exclude_ids"):
        if message.exclude_offsets:
            raise InvalidArgument("exclude_offsets was sent without exclude_ids")
        return None
    offsets = _offsets(message.exclude_offsets, "exclude_offsets")
    return requests.Exclusion(_ids(message.exclude_ids, "exclude_ids"), offsets)


def _context_ids(message: pb.RetrieveRequest | pb.RankRequest | pb.RecommendRequest) -> requests.Ids | None:
    return _ids(message.context_ids, "context_ids") if message.HasField("context_ids") else None


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
