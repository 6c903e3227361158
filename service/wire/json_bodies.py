"""JSON bodies to engine requests, and engine answers to JSON values.

A body has options at its top, and either one request beside them or a list of requests:
`{"k": 10, "features": {...}}` or `{"k": 10, "requests": [{"features": {...}}, ...]}`. The answer has the same form.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from itertools import chain, pairwise
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from bundle.features import Column
from bundle.native import plain_lists
from service.engine import requests
from service.errors import InvalidArgument
from service.wire.columns import column, columns_of_one, fields, flat, listed, numbers, offsets_of, shown

INTEGER_MAX = 2**53 - 1
"""The largest integer that every JSON reader keeps; larger ones are written as strings."""

Part = dict[str, Any]

_EXPECTED: dict[type, str] = {
    int: "an integer",
    str: "a string",
    bool: "true or false",
    dict: "a JSON object",
    list: "a list",
}


def parse(body: bytes) -> Any:
    """Reads a body's JSON value.

    Long lists of integers in its `features`, which are most of a ranking, come as [m] int64 arrays where compiled code
    reads them.

    Raises:
      InvalidArgument: it is no JSON. NaN and infinities are none.
    """
    split = None if plain_lists is None else plain_lists(body, "features")
    if split is None:
        return _value(body)
    lists, rest = split
    try:
        value = orjson.loads(rest)
    except orjson.JSONDecodeError:
        return _value(body)  # fails too, and tells the place in the body
    value["features"].update(lists)
    return value


def _value(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        raise InvalidArgument(f"the body is no JSON: {problem}") from None


def dump(value: Any) -> bytes:
    """Returns the JSON bytes of an answer; float32 numbers as the shortest text that reads back as the same float32."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def read_retrieval(body: Any, target: requests.Target) -> tuple[requests.Retrieval, bool]:
    """Returns the request, and whether the body had a list of them.

    Raises:
      InvalidArgument: an unknown field, a wrong type, or requests that do not fit together.
    """
    options = ("k", "attributes", "index", "exact", "filter")
    parts, several = _parts(body, options, ("features", "vector", "id", "context_id", "exclude"))
    kind = _one_kind(parts, ("features", "vector", "id"))
    return requests.Retrieval(
        target,
        k=_option(body, "k", 0) or 10,
        features=(_columns(parts, "features") or None) if kind == "features" else None,
        vectors=_vectors(parts) if kind == "vector" else None,
        ids=flat([part["id"] for part in parts], "id") if kind == "id" else None,
        exclude=_exclusion(parts),
        attributes=_names(body, "attributes"),
        index=_option(body, "index", ""),
        exact=_option(body, "exact", False),
        filter=_option(body, "filter", {}) if "filter" in body else None,
        context_ids=_context_ids(parts),
    ), several


def read_ranking(body: Any, target: requests.Target) -> tuple[requests.Ranking, bool]:
    """Returns the request, and whether the body had a list of them.

    Raises:
      InvalidArgument: an unknown field, a wrong type, or requests that do not fit together.
    """
    options = ("heads", "k", "tower", "formula")
    parts, several = _parts(body, options, ("context", "context_id", "candidates", "features"))
    by_id = _one_kind(parts, ("candidates",)) is not None
    tables = [_table(part.get("features", {}), "features") for part in parts]
    ids = [listed(part["candidates"], "candidates") for part in parts] if by_id else []
    counts = [len(values) for values in ids] if by_id else [_longest(table) for table in tables]
    return requests.Ranking(
        target,
        context=_columns(parts, "context"),
        candidate_ids=flat(list(chain.from_iterable(ids)), "candidates") if by_id else None,
        candidates=_candidate_columns(tables, counts),
        offsets=offsets_of(counts),
        heads=_names(body, "heads"),
        k=_option(body, "k", 0),
        tower=_option(body, "tower", ""),
        formula=_option(body, "formula", ""),
        context_ids=_context_ids(parts),
    ), several


def read_recommendation(body: Any, target: requests.Target) -> tuple[requests.Recommendation, bool]:
    """Returns the request, and whether the body had a list of them.

    Raises:
      InvalidArgument: an unknown field, a wrong type, or requests that do not fit together.
    """
    options = ("k", "candidates", "attributes", "index", "tower", "formula")
    parts, several = _parts(body, options, ("features", "context_id", "exclude"))
    return requests.Recommendation(
        target,
        features=_columns(parts, "features"),
        k=_option(body, "k", 0) or 10,
        candidates=_option(body, "candidates", 0),
        exclude=_exclusion(parts),
        attributes=_names(body, "attributes"),
        index=_option(body, "index", ""),
        tower=_option(body, "tower", ""),
        formula=_option(body, "formula", ""),
        context_ids=_context_ids(parts),
    ), several


def read_embedding(body: Any, target: requests.Target) -> tuple[requests.Embedding, bool]:
    """Returns the request, and whether the body had a list of them.

    Raises:
      InvalidArgument: an unknown field, a wrong type, or requests that do not fit together.
    """
    parts, several = _parts(body, ("tower",), ("features",))
    return requests.Embedding(target, _option(body, "tower", ""), _columns(parts, "features")), several


def read_lookup(body: Any, target: requests.Target) -> tuple[requests.Lookup, bool]:
    """Returns the request; a lookup has a list of ids and no list of requests.

    Raises:
      InvalidArgument: an unknown field, or a wrong type.
    """
    fields(body, ("feature", "ids"), "the body")
    ids = flat(listed(body.get("ids"), "ids"), "ids")
    return requests.Lookup(target, _option(body, "feature", ""), Column(ids)), False


def retrieved_value(answer: requests.Retrieved, several: bool) -> dict[str, Any]:
    """Returns the answer as a JSON value."""
    found = [{"neighbors": neighbors} for neighbors in _neighbors(answer.neighbors, {})]
    return _answer(answer, found, several) | {"searched": answer.searched}


def ranked_value(answer: requests.Ranked, several: bool) -> dict[str, Any]:
    """Returns the answer as a JSON value; `ids` is null if candidates were sent by their features alone."""
    ids = None if answer.ids is None else identifiers(answer.ids)

    def one(first: int, last: int) -> dict[str, Any]:
        return {
            "ids": None if ids is None else ids[first:last],
            "scores": answer.scores[first:last],
            "positions": answer.positions[first:last],
            "heads": {name: scores[first:last] for name, scores in answer.heads.items()},
        }

    return _answer(answer, [one(*span) for span in _spans(answer.offsets)], several)


def recommended_value(answer: requests.Recommended, several: bool) -> dict[str, Any]:
    """Returns the answer as a JSON value."""
    found = _neighbors(answer.neighbors, {"retrieval_score": answer.retrieval_scores})
    return _answer(answer, [{"neighbors": neighbors} for neighbors in found], several)


def embedded_value(answer: requests.Embedded, several: bool) -> dict[str, Any]:
    """Returns the answer as a JSON value."""
    return _answer(answer, [{"vector": vector} for vector in np.ascontiguousarray(answer.vectors)], several)


def looked_up_value(answer: requests.LookedUp, several: bool) -> dict[str, Any]:  # noqa: ARG001 - as all writers
    """Returns the answer as a JSON value."""
    return {
        "model": answer.model,
        "version": answer.version,
        "table": answer.table,
        "vectors": np.ascontiguousarray(answer.vectors),
        "found": np.ascontiguousarray(answer.found),
    }


def identifiers(ids: requests.Ids) -> list[Any]:
    """Returns ids as JSON values: strings as they are, integers beyond 2^53 as decimal strings."""
    values: list[Any] = ids.tolist()
    if ids.dtype != object and len(ids) and (int(ids.max()) > INTEGER_MAX or int(ids.min()) < -INTEGER_MAX):
        return [_safe(value) for value in values]
    return values


def _safe(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not -INTEGER_MAX <= value <= INTEGER_MAX else value


def _spans(offsets: NDArray[np.int64]) -> list[tuple[int, int]]:
    bounds = offsets.tolist()
    return list(pairwise(bounds))


def _answer(answer: Any, results: list[dict[str, Any]], several: bool) -> dict[str, Any]:
    head = {"model": answer.model, "version": answer.version}
    return head | ({"results": results} if several else results[0])


def _neighbors(neighbors: requests.Neighbors, more: dict[str, NDArray[np.float32]]) -> list[list[dict[str, Any]]]:
    names = list(neighbors.attributes)
    rows: Iterable[tuple[Any, ...]] = zip(*neighbors.attributes.values(), strict=True) if names else ()
    attributes = [{name: _safe(value) for name, value in zip(names, row, strict=True)} for row in rows]
    ids = identifiers(neighbors.ids)
    columns = (ids, neighbors.scores, *more.values(), attributes or [{}] * len(ids))
    keys = ("id", "score", *more, "attributes")
    if more:
        found = [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]
    else:  # a literal, which costs less
        found = [{"id": one, "score": score, "attributes": each} for one, score, each in zip(*columns, strict=True)]
    return [found[first:last] for first, last in _spans(neighbors.offsets)]


def _parts(body: Any, options: Sequence[str], part_fields: Sequence[str]) -> tuple[list[Part], bool]:
    """Returns the requests of a body and whether it had a list of them."""
    fields(body, (*options, *part_fields, "requests"), "the body")
    if "requests" not in body:
        return [body], False
    beside = next((name for name in part_fields if name in body), None)
    if beside is not None:
        raise InvalidArgument(f"the body has 'requests', so {beside!r} belongs into each of them")
    parts = listed(body["requests"], "requests")
    if not parts:
        raise InvalidArgument("requests is empty; at least one was expected")
    return [fields(part, part_fields, f"requests[{place}]") for place, part in enumerate(parts)], True


def _option(body: Part, name: str, default: Any) -> Any:
    """Returns an option, of the same type as its default."""
    value = body.get(name, default)
    if type(value) is not type(default):
        raise InvalidArgument(f"{name} is {shown(value)}, {_EXPECTED[type(default)]} was expected")
    return value


def _names(body: Part, name: str) -> tuple[str, ...]:
    names = listed(body.get(name, []), name)
    for entry in names:
        if not isinstance(entry, str):
            raise InvalidArgument(f"{name} holds {shown(entry)}, a string was expected")
    return tuple(names)


def _one_kind(parts: list[Part], kinds: Sequence[str]) -> str | None:
    """Returns which of the kinds every part has; None if none has any.

    Raises:
      InvalidArgument: a part has two, or two parts differ.
    """
    seen = [tuple(kind for kind in kinds if kind in part) for part in parts]
    both = next((kind for kind in seen if len(kind) > 1), None)
    if both is not None:
        raise InvalidArgument(f"a request has both {both[0]!r} and {both[1]!r}; exactly one was expected")
    if len(set(seen)) > 1:
        raise InvalidArgument(f"every one of requests is told by the same of {', '.join(kinds)}; these differ")
    return seen[0][0] if seen[0] else None


def _table(value: Any, where: str) -> Part:
    if not isinstance(value, dict):
        raise InvalidArgument(f"{where} is {shown(value)}, a JSON object of features was expected")
    return value


def _same_names(tables: list[Part], where: str) -> list[str]:
    names = list(tables[0])
    for place, table in enumerate(tables):
        if table.keys() != tables[0].keys():
            odd = sorted(table.keys() ^ tables[0].keys())[0]
            raise InvalidArgument(
                f"requests[{place}] and requests[0] differ in {where}.{odd}; all send the same features"
            )
    return names


def _columns(parts: list[Part], where: str) -> dict[str, Column]:
    tables = [_table(part.get(where, {}), where) for part in parts]
    if len(tables) == 1:
        return columns_of_one(tables[0], where)
    return {name: column([table[name] for table in tables], f"{where}.{name}") for name in _same_names(tables, where)}


def _longest(table: Part) -> int:
    return max([len(_of_candidates(values, name)) for name, values in table.items()], default=0)


def _of_candidates(values: Any, name: str) -> list[Any] | NDArray[np.int64]:
    """Returns what is sent of one feature, a value for each candidate."""
    return values if isinstance(values, np.ndarray) else listed(values, f"features.{name}")


def _candidate_columns(tables: list[Part], counts: list[int]) -> dict[str, Column]:
    if len(tables) == 1:
        return {name: _candidate_column(values, counts[0], name) for name, values in tables[0].items()}
    columns = {}
    for name in _same_names(tables, "features"):
        lists = [_of_candidates(table[name], name) for table in tables]
        for values, count in zip(lists, counts, strict=True):
            _check_count(values, count, name)
        columns[name] = column(list(chain.from_iterable(lists)), f"features.{name}")
    return columns


def _candidate_column(sent: Any, count: int, name: str) -> Column:
    if isinstance(sent, np.ndarray):
        _check_count(sent, count, name)
        return Column(sent)
    values = listed(sent, f"features.{name}")
    _check_count(values, count, name)
    return column(values, f"features.{name}")


def _check_count(values: Sized, count: int, name: str) -> None:
    if len(values) != count:
        raise InvalidArgument(f"features.{name} has {len(values)} values for {count} candidates; one each was expected")


def _context_ids(parts: list[Part]) -> requests.Ids | None:
    told = [part["context_id"] for part in parts if "context_id" in part]
    if told and len(told) < len(parts):
        raise InvalidArgument(f"{len(told)} of {len(parts)} requests have a 'context_id'; send it in all or in none")
    return flat(told, "context_id") if told else None


def _vectors(parts: list[Part]) -> NDArray[np.float32]:
    rows = [listed(part["vector"], "vector") for part in parts]
    if len({len(row) for row in rows}) > 1:
        raise InvalidArgument("the vectors of requests differ in length; all have the index' dim")
    return numbers(list(chain.from_iterable(rows)), "vector").reshape(len(rows), -1)


def _exclusion(parts: list[Part]) -> requests.Exclusion | None:
    if not any("exclude" in part for part in parts):
        return None
    lists = [listed(part.get("exclude", []), "exclude") for part in parts]
    return requests.Exclusion(
        flat(list(chain.from_iterable(lists)), "exclude"), offsets_of([len(ids) for ids in lists])
    )
