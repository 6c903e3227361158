"""The messages of the contract as the service's JSON bodies, and its JSON answers as messages.

For people who want to read what travels; protobuf bodies are smaller and several times faster. JSON keeps integers up
to 2^53, so larger ids travel as strings: where an answer holds only decimal digits of such, they are read as integers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowcast_client.calls import Call
from rowcast_client.columns import pack_ids
from rowcast_client.errors import InvalidArgument
from rowcast_client.results import unpack_ids
from rowcast_client.stubs import embedding_service_pb2 as pb

INTEGER_MAX = 2**53 - 1
"""The largest integer that every JSON reader keeps."""

Body = dict[str, Any]


def write_body(call: Call[Any]) -> bytes:
    """Writes the request of a call as its JSON body.

    Raises:
      InvalidArgument: it holds a NaN or an infinity, which JSON has not.
    """
    try:
        value = _retrieve(call) if call.method == "Retrieve" else WRITERS[call.method](call.request)
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as error:
        raise InvalidArgument(
            "a feature, weight or vector holds NaN or an infinity: expected finite numbers"
        ) from error


def read_body(method: str, body: bytes) -> Any:
    """Reads a JSON answer as the message of its call.

    Raises:
      ValueError, KeyError, TypeError: it is no such answer.
    """
    return READERS[method](json.loads(body))


def _retrieve(call: Call[Any]) -> Body:
    request = call.request
    if request.HasField("ids"):
        parts = [{"id": one} for one in _json_ids(request.ids)]
    elif request.vectors:
        parts = [{"vector": one} for one in np.frombuffer(request.vectors, "<f4").reshape(call.queries, -1).tolist()]
    else:
        parts = _by_features(request)
    _exclude(request, parts)
    options = {
        "k": request.k,
        "attributes": list(request.attributes),
        "index": request.index,
        "exact": request.exact,
    }
    return _body(options, parts)


def _rank(request: pb.RankRequest) -> Body:
    ids = _json_ids(request.candidate_ids) if request.HasField("candidate_ids") else None
    candidates = _examples(request.candidates)
    count = len(candidates) if ids is None else len(ids)
    offsets = np.frombuffer(request.offsets, "<i4").tolist() or [0, count]
    contexts = _examples(request.context) or [{}] * (len(offsets) - 1)
    parts = []
    for context, (first, last) in zip(contexts, pairwise(offsets), strict=True):
        part: Body = {"context": context}
        if ids is not None:
            part["candidates"] = ids[first:last]
        if request.candidates:
            part["features"] = {name: [one[name] for one in candidates[first:last]] for name in request.candidates}
        parts.append(part)
    options = {"k": request.k, "heads": list(request.heads), "tower": request.tower, "formula": request.formula}
    return _body(options, _with_contexts(request, parts))


def _recommend(request: pb.RecommendRequest) -> Body:
    parts = _by_features(request)
    _exclude(request, parts)
    options = {
        "k": request.k,
        "candidates": request.candidates,
        "attributes": list(request.attributes),
        "index": request.index,
        "tower": request.tower,
        "formula": request.formula,
    }
    return _body(options, parts)


def _embed(request: pb.EmbedRequest) -> Body:
    return _body({"tower": request.tower}, [{"features": one} for one in _examples(request.features)])


def _lookup(request: pb.LookupRequest) -> Body:
    return {"feature": request.feature, "ids": _values(request.ids)}


WRITERS: dict[str, Callable[[Any], Body]] = {
    "Rank": _rank,
    "Recommend": _recommend,
    "Embed": _embed,
    "Lookup": _lookup,
}


def _body(options: Mapping[str, Any], parts: list[Body]) -> Body:
    given = {name: value for name, value in options.items() if value}
    return given | (parts[0] if len(parts) == 1 else {"requests": parts})


def _by_features(request: pb.RetrieveRequest | pb.RecommendRequest) -> list[Body]:
    """A request for each example of packed features, or, where none are sent, for each context."""
    examples = _examples(request.features)
    if not request.features and request.HasField("context_ids"):
        examples = [{} for _ in _json_ids(request.context_ids)]
    return _with_contexts(request, [{"features": one} for one in examples])


def _with_contexts(request: Any, parts: list[Body]) -> list[Body]:
    if not request.HasField("context_ids"):
        return parts
    ids = _json_ids(request.context_ids)
    if len(ids) != len(parts):
        raise InvalidArgument(f"{len(ids)} context_ids were sent for {len(parts)} requests: expected one each")
    return [part | {"context_id": one} for part, one in zip(parts, ids, strict=True)]


def _exclude(request: pb.RetrieveRequest | pb.RecommendRequest, parts: list[Body]) -> None:
    if not request.HasField("exclude_ids"):
        return
    ids = _json_ids(request.exclude_ids)
    offsets = np.frombuffer(request.exclude_offsets, "<i4").tolist()
    if offsets and len(offsets) != len(parts) + 1:
        raise InvalidArgument(f"exclude has {len(offsets) - 1} lists for {len(parts)} requests: expected one each")
    for place, part in enumerate(parts):
        part["exclude"] = ids[offsets[place] : offsets[place + 1]] if offsets else ids


def _examples(columns: Mapping[str, pb.Column]) -> list[Body]:
    """Packed columns as one object of JSON values per example."""
    values = {name: _values(column) for name, column in columns.items()}
    offsets = {name: np.frombuffer(column.offsets, "<i4").tolist() for name, column in columns.items()}
    counts = {len(some) - 1 for some in offsets.values() if some}
    count = min(counts) if counts else min(map(len, values.values()), default=0)
    shaped = {name: _shaped(name, columns[name], values[name], offsets[name], count) for name in columns}
    return [{name: shaped[name][place] for name in columns} for place in range(count)]


def _shaped(name: str, column: pb.Column, values: list[Any], offsets: list[int], count: int) -> list[Any]:
    """The values of one feature, one JSON value per example."""
    if not offsets:
        if count == 0 or len(values) % count:
            raise InvalidArgument(
                f"feature {name!r} has {len(values)} values for {count} examples: expected as many each"
            )
        if len(values) == count and not column.weights:
            return values
        offsets = list(range(0, len(values) + 1, len(values) // count))
    if len(offsets) != count + 1:
        raise InvalidArgument(
            f"feature {name!r} is that of {len(offsets) - 1} examples, another of {count}: expected one n"
        )
    spans = [slice(first, last) for first, last in pairwise(offsets)]
    if not column.weights:
        return [values[span] for span in spans]
    weights = np.frombuffer(column.weights, "<f4").tolist()
    return [{"ids": values[span], "weights": weights[span]} for span in spans]


def _values(column: pb.Column) -> list[Any]:
    kind = column.WhichOneof("values")
    if kind == "strings":
        return list(column.strings.values)
    if kind == "float32s":
        return list(np.frombuffer(column.float32s, "<f4").tolist())
    if kind == "int32s":
        return list(np.frombuffer(column.int32s, "<i4").tolist())
    return _safe(np.frombuffer(column.int64s, "<i8"))


def _json_ids(ids: pb.Ids) -> list[Any]:
    values = unpack_ids(ids)
    return values.tolist() if values.dtype == object else _safe(values)


def _safe(values: NDArray[np.int64]) -> list[Any]:
    """Integers as JSON keeps them: strings beyond 2^53."""
    return [one if -INTEGER_MAX <= one <= INTEGER_MAX else str(one) for one in values.tolist()]


def _read_retrieved(body: Body) -> pb.RetrieveResponse:
    return pb.RetrieveResponse(
        model=_spec(body), neighbors=_neighbors(_results(body, "neighbors")), searched=body["searched"]
    )


def _read_recommended(body: Body) -> pb.RecommendResponse:
    lists = _results(body, "neighbors")
    scores = [neighbor["retrieval_score"] for neighbors in lists for neighbor in neighbors]
    return pb.RecommendResponse(model=_spec(body), neighbors=_neighbors(lists), retrieval_scores=_floats(scores))


def _read_ranked(body: Body) -> pb.RankResponse:
    results = body.get("results", [body])
    heads = results[0]["heads"] if results else {}
    return pb.RankResponse(
        model=_spec(body),
        candidate_ids=None if results[0]["ids"] is None else _ids([one for part in results for one in part["ids"]]),
        positions=np.array([one for part in results for one in part["positions"]], "<i4").tobytes(),
        scores=_floats([one for part in results for one in part["scores"]]),
        heads={name: _floats([one for part in results for one in part["heads"][name]]) for name in heads},
        offsets=_offsets([part["scores"] for part in results]),
    )


def _read_embedded(body: Body) -> pb.EmbedResponse:
    vectors = np.array(_results(body, "vector"), "<f4")
    return pb.EmbedResponse(model=_spec(body), vectors=vectors.tobytes(), dim=vectors.shape[1])


def _read_looked_up(body: Body) -> pb.LookupResponse:
    vectors = np.array(body["vectors"], "<f4")
    return pb.LookupResponse(
        model=_spec(body),
        vectors=vectors.tobytes(),
        dim=vectors.shape[1] if vectors.ndim == 2 else 0,
        found=bytes(body["found"]),
        table=body["table"],
    )


READERS: dict[str, Callable[[Any], Any]] = {
    "Retrieve": _read_retrieved,
    "Rank": _read_ranked,
    "Recommend": _read_recommended,
    "Embed": _read_embedded,
    "Lookup": _read_looked_up,
}


def _spec(body: Body) -> pb.ModelSpec:
    return pb.ModelSpec(name=body["model"], version=body["version"])


def _results(body: Body, name: str) -> list[Any]:
    """What each request of an answer got; an answer to one request is not wrapped in a list."""
    return [part[name] for part in body["results"]] if "results" in body else [body[name]]


def _neighbors(lists: list[list[Body]]) -> pb.Neighbors:
    found = [neighbor for neighbors in lists for neighbor in neighbors]
    names = found[0]["attributes"] if found else {}
    return pb.Neighbors(
        ids=_ids([neighbor["id"] for neighbor in found]),
        scores=_floats([neighbor["score"] for neighbor in found]),
        offsets=_offsets(lists),
        attributes={name: _attribute([neighbor["attributes"][name] for neighbor in found]) for name in names},
    )


def _attribute(values: list[Any]) -> pb.Attribute:
    nulls = [place for place, value in enumerate(values) if value is None]
    kinds = {type(value) for value in values if value is not None}
    if not kinds:
        return pb.Attribute(nulls=nulls)
    if kinds == {list}:
        lists = [pb.Strings(values=value or ()) for value in values]
        return pb.Attribute(lists=pb.Lists(values=lists), nulls=nulls)
    if str in kinds and not (int in kinds or _large([value for value in values if value is not None])):
        return pb.Attribute(strings=pb.Strings(values=[value or "" for value in values]), nulls=nulls)
    if float in kinds:
        return pb.Attribute(float64s=np.array([value or 0.0 for value in values], "<f8").tobytes(), nulls=nulls)
    return pb.Attribute(int64s=np.array([int(value or 0) for value in values], "<i8").tobytes(), nulls=nulls)


def _ids(values: list[Any]) -> pb.Ids:
    if {type(value) for value in values} == {int, str} or _large(values):
        values = [int(value) for value in values]
    return pack_ids("ids", values)


def _large(values: Sequence[Any]) -> bool:
    """Whether strings are the decimal digits of integers beyond 2^53, every one."""
    return bool(values) and all(
        isinstance(value, str)
        and len(value) <= 20
        and value.isascii()
        and value.removeprefix("-").isdigit()
        and str(int(value)) == value
        and abs(int(value)) > INTEGER_MAX
        and -(2**63) <= int(value) < 2**63
        for value in values
    )


def _offsets(lists: Sequence[Sequence[Any]]) -> bytes:
    return np.cumsum([0, *map(len, lists)]).astype("<i4").tobytes()


def _floats(values: list[Any]) -> bytes:
    return np.array(values, "<f4").tobytes()
