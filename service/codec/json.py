"""JSON bodies to requests, and answers to JSON values.

A body has options at its top, and either one request beside them or a list of requests:
`{"k": 10, "context": {...}}` or `{"k": 10, "requests": [{"context": {...}}, ...]}`. The answer
has the same form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields as fields_of
from enum import StrEnum
from itertools import chain, pairwise
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.tables.offsets import offsets_of
from service.codec import source_lists
from service.codec.columns import (
    column,
    columns_of_one,
    fields,
    flat,
    listed,
    numbers,
    packed_together,
    shown,
)
from service.config import ServiceSettings
from service.engine import calls
from service.engine.validation import at_most, check_depth, check_terms
from service.errors import FieldViolation, InvalidArgument, TooLarge

INTEGER_MAX = 2**53 - 1
"""The largest integer that every JSON parser keeps; larger ones are written as strings."""
SEPARATORS_PER_VALUE = 2
"""A body may have this many `,` `[` `{` `:` for each of `max_values`: enough for bags of one value
each. Empty lists and objects hold no value, but take up to 30 times the memory of their text."""

PIECE_BYTES = 64 << 10
"""Size of the pieces of a large response."""
_WINDOW_BYTES = 64 << 10
_SLICE_VALUES = 1024
"""Values of a long list that are written at a time: neighbors take about 2 ms."""

_NOT_FINITE = ("NaN", "Infinity")
"""What programs in Python and JavaScript write for numbers that are not finite."""
_INTEGER_END = 2.0**63
"""The parser returns larger integers as floats."""

Part = dict[str, Any]
_SELECTION = ("filter", "crowding", "min_score", "offset")
_RETRIEVAL, _RANKING, _RECOMMENDATION = (
    {
        each.name: each.default
        for each in fields_of(request)
        if isinstance(each.default, str | int | float | tuple) and each.name != "sources"
    }
    for request in (calls.RetrievalRequest, calls.RankingRequest, calls.RecommendationRequest)
)
"""Options of requests, which are fields with a plain default: "", 0, 0.0, False, or () of several
names.
"""
_FILTER_LISTS = (*calls.FILTER_GROUPS, "near")

_EXPECTED = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    dict: "a JSON object",
    list: "a list",
}


def parse(body: bytes, settings: ServiceSettings) -> Any:
    """Parses a body.

    Raises:
      InvalidArgument: it is not JSON; NaN and infinities are not, nor is what is nested deeper than
        1024 levels.
      TooLarge: it may hold more values than the limit; nothing was parsed.
    """
    check_separators(body, settings)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        for word in _NOT_FINITE:
            if problem.doc.startswith(word, problem.pos):
                sign = "-" if problem.doc.startswith("-", problem.pos - 1) else ""
                value = f"{sign}{word} at line {problem.lineno} column {problem.colno}"
                hint = "JSON has no such number: leave the value out, or send a finite one"
                raise InvalidArgument.of_field(
                    "body", value, "a finite number", "has", hint
                ) from None
        message = f"the body is not valid JSON: {problem}"
        raise InvalidArgument(message, FieldViolation("body", str(problem), "JSON")) from None


def check_separators(body: bytes, settings: ServiceSettings) -> None:
    """Rejects a body that would take the parser long.

    Raises:
      TooLarge: it may hold more values than the limit.
    """
    most = SEPARATORS_PER_VALUE * settings.max_values
    if len(body) <= most:
        return
    count = 0
    # In windows, so that other threads run between them and a hostile body is not read to its end.
    for first in range(0, len(body), _WINDOW_BYTES):
        window = first, first + _WINDOW_BYTES
        count += sum([body.count(separator, *window) for separator in (b",", b"[", b"{", b":")])
        if count > most:
            size = f"{count} or more separators , [ {{ and :"
            raise TooLarge.of_limit("body", size, most, "twice max_values")


def dump(value: Any) -> bytes:
    """Returns the JSON bytes of an answer; float32 numbers as the shortest text that reads back as
    the same float32.
    """
    return orjson.dumps(value, _list, orjson.OPT_SERIALIZE_NUMPY)


def dump_in_pieces(value: Mapping[str, Any]) -> Iterator[bytes]:
    """Yields the JSON bytes of a large answer, as `dump` returns them, in pieces of PIECE_BYTES.

    What is built for a piece is freed with it, and other threads run between two pieces.
    """
    buffer = bytearray()
    for part in _object_parts(value):
        buffer += part
        if len(buffer) >= PIECE_BYTES:
            whole = len(buffer) - len(buffer) % PIECE_BYTES
            for first in range(0, whole, PIECE_BYTES):
                yield bytes(buffer[first : first + PIECE_BYTES])
            del buffer[:whole]
    if buffer:
        yield bytes(buffer)


def _list(value: Any) -> list[Any]:
    """Returns the elements of an iterator, for orjson."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value)} cannot be written as JSON")


def _object_parts(value: Mapping[str, Any]) -> Iterator[bytes]:
    separator = b"{"
    for name, content in value.items():
        yield separator + orjson.dumps(name) + b":"
        if isinstance(content, Iterator):
            yield from _array_parts(map(_object_parts, content))
        elif isinstance(content, list | np.ndarray):
            yield from _array_parts(_slices(content))
        else:
            yield dump(content)
        separator = b","
    yield b"}"


def _array_parts(elements: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    separator = b"["
    for element in elements:
        yield separator
        yield from element
        separator = b","
    yield b"[]" if separator == b"[" else b"]"


def _slices(values: list[Any] | NDArray[Any]) -> Iterator[Sequence[bytes]]:
    """Yields the elements of a list or array, some at a time, without its brackets."""
    row_size = math.prod(values.shape[1:]) if isinstance(values, np.ndarray) else 1
    step = max(1, _SLICE_VALUES // max(1, row_size))
    for first in range(0, len(values), step):
        yield (dump(values[first : first + step])[1:-1],)


def read_retrieval(
    body: Any, target: calls.Target, settings: ServiceSettings
) -> calls.RetrievalRequest:
    """Returns the request.

    Raises:
      InvalidArgument: an unknown field, a wrong type, or requests that do not fit together.
      TooLarge: more requests, columns or names than the limit.
    """
    queries = ("context", "vectors", "ids")
    of_each = (*queries, "context_id", "exclude_ids", "negative_ids")
    parts = _parts(body, (*_RETRIEVAL, *_SELECTION), of_each, settings)
    kind = _one_kind(parts, queries)
    lists = [listed(part[kind], kind) for part in parts] if kind in {"vectors", "ids"} else []
    counts = list(map(len, lists))
    values = list(chain.from_iterable(lists))
    return calls.RetrievalRequest(
        target,
        context=(_columns(parts, "context", settings) or None) if kind == "context" else None,
        vectors=_vectors(values) if kind == "vectors" else None,
        ids=flat(values, "ids") if kind == "ids" else None,
        query_offsets=None if set(counts) <= {1} else offsets_of(counts),
        context_ids=_ids(parts, "context_id"),
        **_selection(body, parts, settings),
        **_options(body, _RETRIEVAL, settings),
    )


def read_ranking(
    body: Any, target: calls.Target, settings: ServiceSettings
) -> calls.RankingRequest:
    """Returns the request.

    Raises:
      InvalidArgument: an unknown field, a wrong type, or requests that do not fit together.
      TooLarge: more requests, columns or names than the limit.
    """
    of_each = ("context", "context_id", "candidate_ids", "candidate_features")
    parts = _parts(body, _RANKING, of_each, settings)
    by_id = _one_kind(parts, ("candidate_ids",))
    context = _tables(parts, "context")
    tables = _tables(parts, "candidate_features")
    count = len(context[0]) + len(tables[0])
    at_most(settings, "max_features", count, "request")
    ids = [listed(part["candidate_ids"], "candidate_ids") for part in parts] if by_id else []
    counts = [len(each) for each in ids] or [
        len(listed(next(iter(table.values()), []), "candidate_features")) for table in tables
    ]
    return calls.RankingRequest(
        target,
        context=_packed(context, "context"),
        candidate_ids=flat(list(chain.from_iterable(ids)), "candidate_ids") if by_id else None,
        candidate_features=_candidate_columns(tables, counts),
        offsets=offsets_of(counts),
        context_ids=_ids(parts, "context_id"),
        **_options(body, _RANKING, settings),
    )


def read_recommendation(
    body: Any, target: calls.Target, settings: ServiceSettings
) -> calls.RecommendationRequest:
    """Returns the request.

    Raises:
      InvalidArgument: an unknown field, a wrong type, or requests that do not fit together.
      TooLarge: more requests, columns or names than the limit.
    """
    parts = _parts(
        body,
        (*_RECOMMENDATION, *_SELECTION, "sources"),
        ("context", "context_id", "exclude_ids", "negative_ids"),
        settings,
    )
    return calls.RecommendationRequest(
        target,
        context=_columns(parts, "context", settings),
        context_ids=_ids(parts, "context_id"),
        sources=source_lists.read(listed(body.get("sources", []), "sources")),
        **_selection(body, parts, settings),
        **_options(body, _RECOMMENDATION, settings),
    )


def read_embedding(
    body: Any, target: calls.Target, settings: ServiceSettings
) -> calls.EmbeddingRequest:
    """Returns the request.

    Raises:
      InvalidArgument: an unknown field, a wrong type, or requests that do not fit together.
      TooLarge: more requests or columns than the limit.
    """
    parts = _parts(body, ("tower",), ("features",), settings)
    return calls.EmbeddingRequest(
        target, _option(body, "tower", ""), _columns(parts, "features", settings)
    )


# as all
def read_lookup(body: Any, target: calls.Target, settings: ServiceSettings) -> calls.LookupRequest:  # noqa: ARG001
    """Returns the request; a lookup has a list of ids and no list of requests.

    Raises:
      InvalidArgument: an unknown field, or a wrong type.
    """
    fields(body, ("feature", "ids", "not_found"), "body")
    ids = Column(flat(listed(body.get("ids"), "ids"), "ids"))
    not_found = _option(body, "not_found", calls.NotFoundRule.ERROR)
    return calls.LookupRequest(target, _option(body, "feature", ""), ids, not_found)


def retrieved_value(answer: calls.RetrievalResult, several: bool) -> dict[str, Any]:
    """Returns the answer as a JSON value."""
    return _answer(answer, _neighbors(answer), several) | {"searched": answer.searched}


def ranked_value(answer: calls.RankingResult, several: bool) -> dict[str, Any]:
    """Returns the answer as a JSON value; `ids` is null if candidates were sent by their features
    alone.
    """
    ids = None if answer.ids is None else identifiers(answer.ids)
    results = (
        {
            "ids": None if ids is None else ids[first:last],
            "scores": answer.scores[first:last],
            "positions": answer.positions[first:last],
            "heads": {name: scores[first:last] for name, scores in answer.heads.items()},
            **_left_out(answer, context),
        }
        for context, (first, last) in enumerate(pairwise(answer.offsets.tolist()))
    )
    return _answer(answer, results, several)


def _left_out(answer: calls.RankingResult, context: int) -> dict[str, Any]:
    """Returns the fields with the candidates of a context that have no score: those that failed, if
    some did, and those that do not exist, if the request skips them.
    """
    candidates: dict[str, Any] = {}
    if answer.not_found is not None:
        candidates["not_found"] = identifiers(answer.not_found.only(context).ids)
    failed = [
        {"position": each.position, "message": each.message}
        for each in answer.failed
        if each.context == context
    ]
    if failed:
        candidates["failed"] = failed
    return candidates


def recommended_value(answer: calls.RetrievalResult, several: bool) -> dict[str, Any]:
    """Returns the answer as a JSON value."""
    return _answer(answer, _neighbors(answer), several) | {
        "degraded": bool(answer.degraded_reason),
        "degraded_reason": answer.degraded_reason,
    }


def embedded_value(answer: calls.EmbeddingResult, several: bool) -> dict[str, Any]:
    """Returns the answer as a JSON value."""
    vectors = np.ascontiguousarray(answer.vectors)
    return _answer(answer, ({"vector": vector} for vector in vectors), several)


def looked_up_value(answer: calls.LookupResult, several: bool) -> dict[str, Any]:
    """Returns the answer as a JSON value."""
    vectors = np.ascontiguousarray(answer.vectors)
    result = {"table": answer.table, "vectors": vectors, "found": answer.found}
    if answer.lost is not None:
        result["lost"] = answer.lost
    if answer.not_found is not None:
        result["not_found"] = identifiers(answer.not_found)
    return _answer(answer, iter([result]), several)


def identifiers(ids: calls.Ids) -> list[Any]:
    """Returns ids as JSON values: strings as they are, integers beyond 2^53 as decimal strings; of
    a lookup, numbers as their shortest text.
    """
    if ids.dtype == np.float32:
        return list(ids)
    values: list[Any] = ids.tolist()
    if ids.dtype == object or not ids.size:
        return values
    if ids.min() >= -INTEGER_MAX and ids.max() <= INTEGER_MAX:
        return values
    return [_safe(value) for value in values]


def _safe(value: Any) -> Any:
    return (
        str(value) if isinstance(value, int) and not -INTEGER_MAX <= value <= INTEGER_MAX else value
    )


def _answer(answer: Any, results: Iterator[dict[str, Any]], several: bool) -> dict[str, Any]:
    head = {"model": answer.model, "version": answer.version}
    if answer.coverage < 1:
        head["coverage"] = answer.coverage
    return head | ({"results": results} if several else next(results))


def _neighbors(answer: calls.RetrievalResult) -> Iterator[dict[str, Any]]:
    """Yields the columns of each query's neighbors as JSON values."""
    for query, (first, last) in enumerate(pairwise(answer.offsets.tolist())):
        columns: dict[str, Any] = {
            "ids": identifiers(answer.ids[first:last]),
            "scores": answer.scores[first:last],
        }
        if answer.retrieval_scores is not None:
            columns["retrieval_scores"] = answer.retrieval_scores[first:last]
        if answer.sources is not None:
            numbers = answer.sources[first:last].tolist()
            columns["sources"] = [answer.source_names[number] for number in numbers]
        columns["attributes"] = {
            name: list(map(_safe, values[first:last])) for name, values in answer.attributes.items()
        }
        if answer.explanations:
            columns["explanation"] = answer.explanations[query]._asdict()
        if answer.not_found is not None:
            columns["not_found"] = identifiers(answer.not_found.only(query).ids)
        yield columns


def _parts(
    body: Any, once: Iterable[str], of_each: Sequence[str], settings: ServiceSettings
) -> list[Part]:
    """Returns the requests of a body."""
    fields(body, (*once, *of_each, "requests"), "body")
    if "requests" not in body:
        return [body]
    beside = next((name for name in of_each if name in body), None)
    if beside is not None:
        message = f"the body has 'requests', so {beside!r} belongs in each of them"
        expected = "a field of each of the requests"
        raise InvalidArgument(message, FieldViolation(beside, "beside requests", expected))
    parts = listed(body["requests"], "requests")
    if not parts:
        raise InvalidArgument.of_field("requests", "empty", "at least one")
    at_most(settings, "max_queries", len(parts), "requests")
    return [fields(part, of_each, f"requests[{place}]") for place, part in enumerate(parts)]


def _option(body: Part, name: str, default: Any) -> Any:
    """Returns an option, of the same type as its default."""
    value = body.get(name, default)
    kind = list if default == () else type(default)
    if kind is float and type(value) is int:
        value = float(value)
    if kind is int and type(value) is float and abs(value) >= _INTEGER_END:
        expected = "an integer in [-2^63, 2^63)"
        raise InvalidArgument.of_field(name, f"about {shown(int(value))}", expected)
    if type(value) is kind:
        return value
    if isinstance(default, StrEnum):
        return _word(value, type(default), name)
    raise InvalidArgument.of_field(name, shown(value), _EXPECTED[kind])


def _word(value: Any, words: type[StrEnum], name: str) -> StrEnum:
    """Returns the option that a word names."""
    if value in list(words):
        return words(value)
    expected = " or ".join([repr(word.value) for word in words])
    raise InvalidArgument.of_field(name, shown(value), expected)


def _options(body: Part, known: Mapping[str, Any], settings: ServiceSettings) -> dict[str, Any]:
    found = {name: _option(body, name, default) for name, default in known.items() if name in body}
    for name, value in found.items():
        if isinstance(value, list):
            at_most(settings, "max_names", len(value), name)
            odd = [entry for entry in value if not isinstance(entry, str)]
            if odd:
                raise InvalidArgument.of_field(name, shown(odd[0]), "a string", "holds")
            found[name] = tuple(value)
    return found


def _one_kind(parts: list[Part], kinds: Sequence[str]) -> str | None:
    """Returns which of the kinds every part has; None if none has any.

    Raises:
      InvalidArgument: a part has two, or two parts differ.
    """
    seen = {tuple(kind for kind in kinds if kind in part) for part in parts}
    found = seen.pop()
    if seen:
        expected = f"the same one of {', '.join(kinds)} in each"
        raise InvalidArgument.of_field("requests", "different fields", expected, "has")
    if len(found) > 1:
        value = f"both {found[0]!r} and {found[1]!r}"
        raise InvalidArgument.of_field("request", value, "exactly one", "has")
    return found[0] if found else None


def _tables(parts: list[Part], where: str) -> list[Part]:
    """Returns the features of each part.

    Raises:
      InvalidArgument: one is no JSON object, or two have different features.
    """
    tables = [part.get(where, {}) for part in parts]
    for place, table in enumerate(tables):
        if not isinstance(table, dict):
            raise InvalidArgument.of_field(where, shown(table), "a JSON object of features")
        if table.keys() != tables[0].keys():
            odd = shown(min(table.keys() ^ tables[0].keys()))
            raise InvalidArgument.of_field(
                f"requests[{place}].{where}",
                odd,
                "the same features as in requests[0]",
                "differs from that of requests[0] in",
            )
    return tables


def _columns(parts: list[Part], where: str, settings: ServiceSettings) -> dict[str, Column]:
    tables = _tables(parts, where)
    at_most(settings, "max_features", len(tables[0]), where)
    return _packed(tables, where)


def _packed(tables: list[Part], where: str) -> dict[str, Column]:
    if len(tables) == 1:
        return columns_of_one(tables[0], where)
    return {
        name: column([table[name] for table in tables], f"{where}.{name}") for name in tables[0]
    }


def _candidate_columns(tables: list[Part], counts: list[int]) -> dict[str, Column]:
    where = "candidate_features"
    for table, count in zip(tables, counts, strict=True):
        for name, values in table.items():
            if type(values) is not list or len(values) != count:
                size = len(listed(values, f"{where}.{name}"))
                value = f"{size} values for {count} candidates"
                raise InvalidArgument.of_field(f"{where}.{name}", value, "one per candidate", "has")
    if len(tables) == 1:
        lists = tables[0]
    else:
        lists = {
            name: list(chain.from_iterable([table[name] for table in tables])) for name in tables[0]
        }
    packed = packed_together(lists, where)
    return {
        name: Column(packed[name]) if name in packed else column(values, f"{where}.{name}")
        for name, values in lists.items()
    }


def _ids(parts: list[Part], name: str) -> calls.Ids | None:
    return flat([part[name] for part in parts], name) if _one_kind(parts, (name,)) else None


def _vectors(vectors: list[Any]) -> NDArray[np.float32]:
    rows = [listed(each, f"vectors[{place}]") for place, each in enumerate(vectors)]
    if len({len(row) for row in rows}) > 1:
        lengths = sorted({len(row) for row in rows})
        raise InvalidArgument.of_field(
            "vectors", f"lengths {shown(lengths)}", "the dim of the index for each", "has"
        )
    return numbers(list(chain.from_iterable(rows)), "vectors").reshape(
        len(rows), len(rows[0]) if rows else 0
    )


def _id_lists(parts: list[Part], name: str) -> calls.IdLists | None:
    if not any(name in part for part in parts):
        return None
    lists = [listed(part.get(name, []), name) for part in parts]
    ids = flat(list(chain.from_iterable(lists)), name)
    return calls.IdLists(ids, offsets_of(list(map(len, lists))))


def _selection(body: Part, parts: list[Part], settings: ServiceSettings) -> dict[str, Any]:
    """Returns which candidates are allowed, of a retrieval or a recommendation."""
    found: dict[str, Any] = {
        name: _id_lists(parts, name) for name in ("exclude_ids", "negative_ids")
    }
    if "filter" in body:
        found["filter"] = _filter(_option(body, "filter", {}), "filter", 1)
        check_terms(found["filter"], settings)
    if "crowding" in body:
        crowding = _option(body, "crowding", {})
        at_most(settings, "max_names", len(crowding), "crowding")
        for attribute, maximum in crowding.items():
            if type(maximum) is not int:
                raise InvalidArgument.of_field(
                    f"crowding.{attribute}", shown(maximum), "an integer"
                )
        found["crowding"] = crowding or None
    if "min_score" in body:
        found["min_score"] = _option(body, "min_score", 0.0)
    if "offset" in body:
        found["offset"] = _option(body, "offset", 0)
    return found


def _filter(body: Any, where: str, depth: int) -> calls.Filter:
    """Returns a filter.

    Groups are lists and conditions are objects, so that an attribute may have the name of a group.
    """
    check_depth(where, depth)
    if not isinstance(body, dict):
        raise InvalidArgument.of_field(where, shown(body), "a JSON object")
    conditions = {}
    groups: dict[str, Any] = {}
    for name, value in body.items():
        part = f"{where}.{name}"
        if name not in _FILTER_LISTS or not isinstance(value, list):
            conditions[name] = _condition(value, part)
            continue
        if not value:
            raise InvalidArgument.of_field(part, "empty", "at least one")
        members = [(each, f"{part}[{number}]") for number, each in enumerate(value)]
        if name == "near":
            groups[name] = tuple([_circle(*member) for member in members])
        else:
            groups[name] = tuple([_filter(*member, depth + 1) for member in members])
    return calls.Filter(conditions, **groups)


def _circle(body: Any, where: str) -> calls.Circle:
    in_numbers = ("latitude", "longitude", "radius_m")
    attributes = ("latitude_attribute", "longitude_attribute")
    circle = dict(fields(body, (*in_numbers, *attributes), where))
    for name in in_numbers:
        value: Any = circle.get(name)
        if type(value) not in {int, float}:
            raise InvalidArgument.of_field(f"{where}.{name}", shown(value), "a number")
        circle[name] = float(value)  # as over gRPC, which a router uses to its shards
    for name in attributes:
        text = circle.get(name, "")
        if not isinstance(text, str):
            raise InvalidArgument.of_field(f"{where}.{name}", shown(text), "a string")
    return calls.Circle(**circle)


def _condition(body: Any, where: str) -> calls.Condition:
    condition = dict(fields(body, ("allow", "deny", *calls.BOUNDS, "is_null"), where))
    for name, value in condition.items():
        if name == "is_null":
            if not isinstance(value, bool):
                raise InvalidArgument.of_field(f"{where}.is_null", shown(value), "true or false")
            continue
        if name in calls.BOUNDS:
            if type(value) not in {int, float}:
                raise InvalidArgument.of_field(f"{where}.{name}", shown(value), "a number")
            continue
        values = listed(value, f"{where}.{name}")
        if set(map(type, values)) == {bool}:
            values = [str(each).lower() for each in values]
        condition[name] = flat(values, f"{where}.{name}")
    return calls.Condition(**condition)
