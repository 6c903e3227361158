"""JSON bodies to requests, and answers to JSON values.

A body has options at its top, and either one request beside them or a list of requests:
`{"k": 10, "features": {...}}` or `{"k": 10, "requests": [{"features": {...}}, ...]}`. The answer has the same form.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from bundle.columns import Column
from service.codec.columns import column, columns_of_one, fields, flat, listed, numbers, offsets_of, shown
from service.codec.limits import Limits
from service.engine import requests
from service.errors import InvalidArgument, TooLarge

INTEGER_MAX = 2**53 - 1
"""The largest integer that every JSON parser keeps; larger ones are written as strings."""
SEPARATORS_PER_VALUE = 2
"""A body may have this many `,` `[` `{` `:` for each of `max_values`: enough for bags of one value each. Empty lists
and objects hold no value, but take up to 30 times the memory of their text."""

Part = dict[str, Any]

_EXPECTED: dict[type, str] = {int: "an integer", str: "a string", bool: "true or false", dict: "a JSON object"}


def parse(body: bytes, limits: Limits) -> Any:
    """Parses a body.

    Raises:
      InvalidArgument: it is not JSON; NaN and infinities are not, nor is what is nested deeper than 1024 levels.
      TooLarge: it may hold more values than the limit; nothing was parsed.
    """
    most = SEPARATORS_PER_VALUE * limits.max_values
    if len(body) > most and (count := sum(map(body.count, (b",", b"[", b"{", b":")))) > most:
        raise TooLarge(f"the body has {count} separators , [ {{ and :; at most {most} are accepted (twice max_values)")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        raise InvalidArgument(f"the body is not valid JSON: {problem}") from None


def dump(value: Any) -> bytes:
    """Returns the JSON bytes of an answer; float32 numbers as the shortest text that reads back as the same float32."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def read_retrieval(body: Any, target: requests.Target, limits: Limits) -> tuple[requests.Retrieval, bool]:
    """Returns the request, and whether the body had a list of them.

    Raises:
      InvalidArgument: an unknown field, a wrong type, or requests that do not fit together.
      TooLarge: more requests, columns or names than the limit.
    """
    options = ("k", "attributes", "index", "exact", "filter")
    parts, several = _parts(body, options, ("features", "vector", "id", "context_id", "exclude"), limits)
    kind = _one_kind(parts, ("features", "vector", "id"))
    return requests.Retrieval(
        target,
        k=_option(body, "k", 0) or 10,
        features=(_columns(parts, "features", limits) or None) if kind == "features" else None,
        vectors=_vectors(parts) if kind == "vector" else None,
        ids=flat([part["id"] for part in parts], "id") if kind == "id" else None,
        exclude=_exclusion(parts),
        attributes=_names(body, "attributes", limits),
        index=_option(body, "index", ""),
        exact=_option(body, "exact", False),
        filter=_option(body, "filter", {}) if "filter" in body else None,
        context_ids=_context_ids(parts),
    ), several


def read_ranking(body: Any, target: requests.Target, limits: Limits) -> tuple[requests.Ranking, bool]:
    """Returns the request, and whether the body had a list of them.

    Raises:
      InvalidArgument: an unknown field, a wrong type, or requests that do not fit together.
      TooLarge: more requests, columns or names than the limit.
    """
    options = ("heads", "k", "tower", "formula")
    parts, several = _parts(body, options, ("context", "context_id", "candidates", "features"), limits)
    by_id = _one_kind(parts, ("candidates",)) is not None
    context, tables = _tables(parts, "context"), _tables(parts, "features")
    limits.check_features(len(context[0]) + len(tables[0]), "context and features")
    ids = [listed(part["candidates"], "candidates") for part in parts] if by_id else []
    counts = list(map(len, ids)) if by_id else [_longest(table) for table in tables]
    return requests.Ranking(
        target,
        context=_columns(parts, "context", limits),
        candidate_ids=flat(list(chain.from_iterable(ids)), "candidates") if by_id else None,
        candidates={name: _candidate_column(tables, counts, name) for name in tables[0]},
        offsets=offsets_of(counts),
        heads=_names(body, "heads", limits),
        k=_option(body, "k", 0),
        tower=_option(body, "tower", ""),
        formula=_option(body, "formula", ""),
        context_ids=_context_ids(parts),
    ), several


def read_recommendation(body: Any, target: requests.Target, limits: Limits) -> tuple[requests.Recommendation, bool]:
    """Returns the request, and whether the body had a list of them.

    Raises:
      InvalidArgument: an unknown field, a wrong type, or requests that do not fit together.
      TooLarge: more requests, columns or names than the limit.
    """
    options = ("k", "candidates", "attributes", "index", "tower", "formula")
    parts, several = _parts(body, options, ("features", "context_id", "exclude"), limits)
    return requests.Recommendation(
        target,
        features=_columns(parts, "features", limits),
        k=_option(body, "k", 0) or 10,
        candidates=_option(body, "candidates", 0),
        exclude=_exclusion(parts),
        attributes=_names(body, "attributes", limits),
        index=_option(body, "index", ""),
        tower=_option(body, "tower", ""),
        formula=_option(body, "formula", ""),
        context_ids=_context_ids(parts),
    ), several


def read_embedding(body: Any, target: requests.Target, limits: Limits) -> tuple[requests.Embedding, bool]:
    """Returns the request, and whether the body had a list of them.

    Raises:
      InvalidArgument: an unknown field, a wrong type, or requests that do not fit together.
      TooLarge: more requests or columns than the limit.
    """
    parts, several = _parts(body, ("tower",), ("features",), limits)
    return requests.Embedding(target, _option(body, "tower", ""), _columns(parts, "features", limits)), several


def read_lookup(body: Any, target: requests.Target, limits: Limits) -> tuple[requests.Lookup, bool]:
    """Returns the request; a lookup has a list of ids and no list of requests.

    Raises:
      InvalidArgument: an unknown field, or a wrong type.
      TooLarge: more ids than the limit.
    """
    fields(body, ("feature", "ids"), "the body")
    ids = listed(body.get("ids"), "ids")
    limits.check_values(len(ids), "ids")
    return requests.Lookup(target, _option(body, "feature", ""), Column(flat(ids, "ids"))), False


def retrieved_value(answer: requests.Retrieved, several: bool) -> dict[str, Any]:
    """Returns the answer as a JSON value."""
    found = [{"neighbors": neighbors} for neighbors in _neighbors(answer.neighbors)]
    return _answer(answer, found, several) | {"searched": answer.searched}


def ranked_value(answer: requests.Ranked, several: bool) -> dict[str, Any]:
    """Returns the answer as a JSON value; `ids` is null if candidates were sent by their features alone."""
    ids = None if answer.ids is None else identifiers(answer.ids)
    results = [
        {
            "ids": None if ids is None else ids[first:last],
            "scores": answer.scores[first:last],
            "positions": answer.positions[first:last],
            "heads": {name: scores[first:last] for name, scores in answer.heads.items()},
        }
        for first, last in pairwise(answer.offsets.tolist())
    ]
    return _answer(answer, results, several)


def recommended_value(answer: requests.Recommended, several: bool) -> dict[str, Any]:
    """Returns the answer as a JSON value."""
    found = _neighbors(answer.neighbors)
    for neighbor, score in zip(chain.from_iterable(found), answer.retrieval_scores, strict=True):
        neighbor["retrieval_score"] = score
    return _answer(answer, [{"neighbors": neighbors} for neighbors in found], several)


def embedded_value(answer: requests.Embedded, several: bool) -> dict[str, Any]:
    """Returns the answer as a JSON value."""
    return _answer(answer, [{"vector": vector} for vector in np.ascontiguousarray(answer.vectors)], several)


def looked_up_value(answer: requests.LookedUp, several: bool) -> dict[str, Any]:  # noqa: ARG001 - as all writers
    """Returns the answer as a JSON value."""
    vectors, found = np.ascontiguousarray(answer.vectors), np.ascontiguousarray(answer.found)
    return _answer(answer, [{"table": answer.table, "vectors": vectors, "found": found}], several=False)


def identifiers(ids: requests.Ids) -> list[Any]:
    """Returns ids as JSON values: strings as they are, integers beyond 2^53 as decimal strings."""
    values: list[Any] = ids.tolist()
    if ids.dtype != object and len(ids) and (int(ids.max()) > INTEGER_MAX or int(ids.min()) < -INTEGER_MAX):
        return [_safe(value) for value in values]
    return values


def _safe(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not -INTEGER_MAX <= value <= INTEGER_MAX else value


def _answer(answer: Any, results: list[dict[str, Any]], several: bool) -> dict[str, Any]:
    head = {"model": answer.model, "version": answer.version}
    return head | ({"results": results} if several else results[0])


def _neighbors(neighbors: requests.Neighbors) -> list[list[dict[str, Any]]]:
    """Returns the neighbors of each query as JSON values."""
    names, ids = list(neighbors.attributes), identifiers(neighbors.ids)
    rows: Iterable[tuple[Any, ...]] = zip(*neighbors.attributes.values(), strict=True) if names else [()] * len(ids)
    attributes = [{name: _safe(value) for name, value in zip(names, row, strict=True)} for row in rows]
    found = [
        {"id": one, "score": score, "attributes": each}
        for one, score, each in zip(ids, neighbors.scores, attributes, strict=True)
    ]
    return [found[first:last] for first, last in pairwise(neighbors.offsets.tolist())]


def _parts(body: Any, options: Sequence[str], part_fields: Sequence[str], limits: Limits) -> tuple[list[Part], bool]:
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
    limits.check_queries(len(parts), "requests")
    return [fields(part, part_fields, f"requests[{place}]") for place, part in enumerate(parts)], True


def _option(body: Part, name: str, default: Any) -> Any:
    """Returns an option, of the same type as its default."""
    value = body.get(name, default)
    if type(value) is not type(default):
        raise InvalidArgument(f"{name} is {shown(value)}, {_EXPECTED[type(default)]} was expected")
    return value


def _names(body: Part, name: str, limits: Limits) -> tuple[str, ...]:
    names = listed(body.get(name, []), name)
    limits.check_names(len(names), name)
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
        raise InvalidArgument(f"all of requests must have the same of {', '.join(kinds)}; these differ")
    return seen[0][0] if seen[0] else None


def _tables(parts: list[Part], where: str) -> list[Part]:
    """Returns the features of each part.

    Raises:
      InvalidArgument: one is no JSON object, or two have different features.
    """
    tables = [part.get(where, {}) for part in parts]
    for place, table in enumerate(tables):
        if not isinstance(table, dict):
            raise InvalidArgument(f"{where} is {shown(table)}, a JSON object of features was expected")
        if table.keys() != tables[0].keys():
            odd = shown(min(table.keys() ^ tables[0].keys()))
            raise InvalidArgument(f"requests[{place}] and requests[0] differ in {where}: {odd}; all send the same")
    return tables


def _columns(parts: list[Part], where: str, limits: Limits) -> dict[str, Column]:
    tables = _tables(parts, where)
    limits.check_features(len(tables[0]), where)
    if len(tables) == 1:
        return columns_of_one(tables[0], where)
    return {name: column([table[name] for table in tables], f"{where}.{name}") for name in tables[0]}


def _longest(table: Part) -> int:
    return max([len(listed(values, f"features.{name}")) for name, values in table.items()], default=0)


def _candidate_column(tables: list[Part], counts: list[int], name: str) -> Column:
    where = f"features.{name}"
    lists = [listed(table[name], where) for table in tables]
    for values, count in zip(lists, counts, strict=True):
        if len(values) != count:
            raise InvalidArgument(f"{where} has {len(values)} values for {count} candidates; one each was expected")
    return column(lists[0] if len(lists) == 1 else list(chain.from_iterable(lists)), where)


def _context_ids(parts: list[Part]) -> requests.Ids | None:
    sent = [part["context_id"] for part in parts if "context_id" in part]
    if sent and len(sent) < len(parts):
        raise InvalidArgument(f"{len(sent)} of {len(parts)} requests have a 'context_id'; send it in all or in none")
    return flat(sent, "context_id") if sent else None


def _vectors(parts: list[Part]) -> NDArray[np.float32]:
    rows = [listed(part["vector"], "vector") for part in parts]
    if len({len(row) for row in rows}) > 1:
        raise InvalidArgument("the vectors of requests differ in length; all have the dim of the index")
    return numbers(list(chain.from_iterable(rows)), "vector").reshape(len(rows), -1)


def _exclusion(parts: list[Part]) -> requests.Exclusion | None:
    if not any("exclude" in part for part in parts):
        return None
    lists = [listed(part.get("exclude", []), "exclude") for part in parts]
    return requests.Exclusion(flat(list(chain.from_iterable(lists)), "exclude"), offsets_of(list(map(len, lists))))
