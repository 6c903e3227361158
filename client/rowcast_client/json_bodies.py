"""Requests as the service's JSON bodies, and its JSON answers.

For people who want to read what travels; protobuf bodies are smaller and several times faster. JSON keeps integers up
to 2^53, so larger ids travel as strings: where an answer holds only decimal digits of such, they are read as integers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowcast_client.calls import Call
from rowcast_client.errors import InvalidArgument
from rowcast_client.results import (
    Embedded,
    Ids,
    LookedUp,
    Neighbors,
    Ranked,
    RankedCandidates,
    Retrieved,
    unpack_ids,
)
from rowcast_client.stubs import embedding_service_pb2 as pb

INTEGER_MAX = 2**53 - 1
"""The largest integer that every JSON reader keeps."""
DIGITS = re.compile(r"-?[1-9][0-9]{15,18}", re.ASCII)

Body = dict[str, Any]


def write_body(call: Call[Any]) -> bytes:
    """Writes the request of a call as its JSON body: its options, beside them one request or a list of them.

    Raises:
      InvalidArgument: it holds a NaN or an infinity, which JSON has not, or parts that are not of as many requests.
    """
    given = {field.name: value for field, value in call.request.ListFields() if field.message_type is None}
    options = {name: value for name, value in given.items() if not isinstance(value, bytes)}
    if call.method == "Lookup":
        body = options | {"ids": _values(call.request.ids)}
    else:
        requests: list[Any] = _rows(_rank_parts(call) if call.method == "Rank" else _query_parts(call))
        body = options | (requests[0] if len(requests) == 1 else {"requests": requests})
    try:  # a repeated field is no list to json
        return json.dumps(body, allow_nan=False, separators=(",", ":"), default=list).encode()
    except ValueError as error:
        raise InvalidArgument(
            "a feature, weight or vector holds NaN or an infinity: expected finite numbers"
        ) from error


def _query_parts(call: Call[Any]) -> dict[str, list[Any]]:
    """What each request of retrieve, recommend or embed has, by its name in JSON."""
    request = call.request
    parts: dict[str, list[Any]] = {}
    given = {field.name for field, _ in request.ListFields()}
    if "features" in given:
        parts["features"] = _examples(request.features)
    if "context_ids" in given:
        parts["context_id"] = _ids(request.context_ids)
    if "ids" in given:
        parts["id"] = _ids(request.ids)
    if "vectors" in given:
        parts["vector"] = np.frombuffer(request.vectors, "<f4").reshape(call.queries, -1).tolist()
    if "exclude_ids" in given:
        ids, count = _ids(request.exclude_ids), len(next(iter(parts.values()), [None]))
        parts["exclude"] = _split(ids, _int32s(request.exclude_offsets)) if request.exclude_offsets else [ids] * count
    return parts


def _rank_parts(call: Call[pb.RankRequest]) -> dict[str, list[Any]]:
    """What each request of rank has, by its name in JSON."""
    request = call.request
    parts: dict[str, list[Any]] = {}
    columns = _examples_by_name(request.candidates)
    ids = _ids(request.candidate_ids) if request.HasField("candidate_ids") else None
    count = len(next(iter(columns.values()))) if ids is None else len(ids)
    offsets = _int32s(request.offsets) or [0, count]
    if ids is not None:
        parts["candidates"] = _split(ids, offsets)
    if columns:
        parts["features"] = _rows({name: _split(values, offsets) for name, values in columns.items()})
    if request.HasField("context_ids"):
        parts["context_id"] = _ids(request.context_ids)
    parts["context"] = _examples(request.context) or [{}] * (len(offsets) - 1)
    return parts


def _examples(columns: Mapping[str, pb.Column]) -> list[Body]:
    """One object per example, of packed columns."""
    return _rows(_examples_by_name(columns))


def _examples_by_name(columns: Mapping[str, pb.Column]) -> dict[str, list[Any]]:
    """One JSON value per example, of each packed column."""
    counts = [len(_int32s(one.offsets)) - 1 if one.offsets else len(_values(one)) for one in columns.values()]
    return {name: _column(column, min(counts)) for name, column in columns.items()}


def _column(column: pb.Column, count: int) -> list[Any]:
    """One JSON value per example; without offsets, each of the `count` examples owns as many."""
    values, offsets = _values(column), _int32s(column.offsets)
    if not offsets:
        width = max(len(values) // max(count, 1), 1)
        if width == 1 and not column.weights:
            return values
        offsets = list(range(0, len(values) + width, width))
    bags = _split(values, offsets)
    if not column.weights:
        return bags
    weights = _split(np.frombuffer(column.weights, "<f4").tolist(), offsets)
    return [{"ids": ids, "weights": own} for ids, own in zip(bags, weights, strict=True)]


def _int32s(packed: bytes) -> list[int]:
    values: list[int] = np.frombuffer(packed, "<i4").tolist()
    return values


def _split(values: Sequence[Any], offsets: Sequence[int]) -> list[Any]:
    return [values[first:last] for first, last in pairwise(offsets)]


def _rows(columns: Mapping[str, list[Any]]) -> list[Body]:
    """The rows of columns, which have to be equally long."""
    counts = {name: len(values) for name, values in columns.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count} of {name!r}" for name, count in counts.items())
        raise InvalidArgument(f"the request has {listed}: expected as many of each")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _values(column: pb.Column) -> list[Any]:
    kind = column.WhichOneof("values")
    if kind == "strings":
        return list(column.strings.values)
    if kind == "int64s":
        return _safe(np.frombuffer(column.int64s, "<i8"))
    if kind == "int32s":
        return _int32s(column.int32s)
    return list(np.frombuffer(column.float32s, "<f4").tolist())


def _ids(ids: pb.Ids) -> list[Any]:
    values = unpack_ids(ids)
    return list(values) if values.dtype == object else _safe(values)


def _safe(values: NDArray[np.int64]) -> list[Any]:
    """Integers as JSON keeps them: strings beyond 2^53."""
    return [one if -INTEGER_MAX <= one <= INTEGER_MAX else str(one) for one in values.tolist()]


def read_body(method: str, body: bytes) -> Any:
    """Reads the result of a call from its JSON answer.

    Raises:
      ValueError, KeyError, TypeError, AttributeError, IndexError: it is no such answer.
    """
    return READERS[method](json.loads(body))


def _read_retrieved(body: Body) -> Retrieved:
    lists = [part["neighbors"] for part in _results(body)]
    neighbors = list(chain.from_iterable(lists))
    names = neighbors[0]["attributes"] if neighbors else ()
    packed = Neighbors(
        ids=_id_array(each["id"] for each in neighbors),
        scores=_floats(each["score"] for each in neighbors),
        attributes={name: _integers([each["attributes"][name] for each in neighbors]) for name in names},
        retrieval_scores=None if "searched" in body else _floats(each["retrieval_score"] for each in neighbors),
    )
    return Retrieved(body["model"], body["version"], packed, _offsets(lists), body.get("searched", 0))


def _read_ranked(body: Body) -> Ranked:
    results = _results(body)
    packed = RankedCandidates(
        ids=None if results[0]["ids"] is None else _id_array(_joined(results, "ids")),
        scores=_floats(_joined(results, "scores")),
        positions=np.array(list(_joined(results, "positions")), "<i4"),
        heads={name: _floats(_joined([part["heads"] for part in results], name)) for name in results[0]["heads"]},
    )
    return Ranked(body["model"], body["version"], packed, _offsets([part["scores"] for part in results]))


def _read_embedded(body: Body) -> Embedded:
    return Embedded(body["model"], body["version"], np.array([part["vector"] for part in _results(body)], "<f4"))


def _read_looked_up(body: Body) -> LookedUp:
    found = np.array(body["found"], np.bool_)
    vectors = np.array(body["vectors"], "<f4").reshape(len(found), -1 if len(found) else 1)
    return LookedUp(body["model"], body["version"], body["table"], vectors, found)


READERS: dict[str, Callable[[Any], Any]] = {
    "Retrieve": _read_retrieved,
    "Recommend": _read_retrieved,
    "Rank": _read_ranked,
    "Embed": _read_embedded,
    "Lookup": _read_looked_up,
}


def _results(body: Body) -> list[Any]:
    """What each request of an answer got; an answer to one request is not wrapped in a list."""
    results: list[Any] = body.get("results", [body])
    return results


def _joined(results: list[Any], name: str) -> Iterable[Any]:
    return chain.from_iterable(part[name] for part in results)


def _id_array(values: Iterable[Any]) -> Ids:
    ids = _integers(list(values))
    return np.array(ids, object if any(isinstance(one, str) for one in ids) else np.int64)


def _integers(values: list[Any]) -> list[Any]:
    """The same values, with integers in place of the strings that stand for those beyond 2^53."""
    large = all(_is_large(value) for value in values if isinstance(value, str))
    return [int(value) if large and isinstance(value, str) else value for value in values]


def _is_large(text: str) -> bool:
    return bool(DIGITS.fullmatch(text)) and abs(int(text)) > INTEGER_MAX and -(2**63) <= int(text) < 2**63


def _floats(values: Iterable[Any]) -> NDArray[np.float32]:
    return np.array(list(values), "<f4")


def _offsets(lists: Sequence[Sequence[Any]]) -> NDArray[np.int64]:
    return np.cumsum([0, *map(len, lists)])
