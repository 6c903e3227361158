"""JSON bodies to requests, and results to JSON values.

A body has options at its top, and either one request beside them or a list of requests:
`{"k": 10, "context": {...}}` or `{"k": 10, "requests": [{"context": {...}}, ...]}`. The response
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
    COUNT_MAX,
    EXPECTED,
    check_list,
    column,
    columns_of_one,
    fields,
    flat,
    numbers,
    pack_together,
    shown,
)
from service.config import ServiceSettings
from service.engine import calls
from service.engine.context import check_decoding
from service.engine.validation import at_most, check_depth, check_terms
from service.errors import FieldViolation, InvalidArgument, TooLarge

INTEGER_MAX = 2**53 - 1
"""The largest integer that every JSON parser keeps; larger ones are written as strings."""
SEPARATORS_PER_VALUE = 2
"""Number of `,` `[` `{` `:` that a body may have for each of `max_values`: enough for bags of one
value each. Empty lists and objects hold no value, but take up to 30 times the memory of their text.
"""

PIECE_BYTES = 64 << 10
"""Size of the pieces of a large response."""
_WINDOW_BYTES = 64 << 10
"""Size of the parts of a body in which separators are counted at a time."""
_SLICE_VALUES = 1024
"""Number of values of a long list that are written at a time: neighbors take about 2 ms."""

_NOT_FINITE = ("NaN", "Infinity")
"""The words that programs in Python and JavaScript write for numbers that are not finite."""
_INTEGER_END = 2.0**63
"""The smallest integer that the parser returns as a float, which is an integer to the client."""

Part = dict[str, Any]
"""The fields of one request in a body: of the body itself, or of an entry of `requests`."""
_SELECTION = ("filter", "crowding", "min_score", "offset")


def _options_of(request_class: type[Any]) -> dict[str, Any]:
    """Returns the options of a request: its fields with a plain default, such as "", 0, 0.0, False,
    or () of several names.
    """
    options: dict[str, Any] = {}
    for field in fields_of(request_class):
        is_plain = isinstance(field.default, str | int | float | tuple)
        if is_plain and field.name != "sources":
            options[field.name] = field.default
    return options


_RETRIEVAL = _options_of(calls.RetrievalRequest)
_RANKING = _options_of(calls.RankingRequest)
_RECOMMENDATION = _options_of(calls.RecommendationRequest)
_FILTER_LISTS = (*calls.FILTER_GROUPS, "near")


def parse(body: bytes, settings: ServiceSettings) -> Any:
    """Parses a body.

    Raises:
      InvalidArgument: It is not JSON; NaN and infinities are not, nor is a value that is nested
        deeper than 1024 levels.
      TooLarge: It may hold more values than the limit; nothing was parsed.
    """
    check_separators(body, settings)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        # Python's own json module writes NaN by default: the parser's message would not help.
        for word in _NOT_FINITE:
            if problem.doc.startswith(word, problem.pos):
                sign = ""
                if problem.doc.startswith("-", problem.pos - 1):
                    sign = "-"
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
      TooLarge: It may hold more values than the limit.
    """
    separators_max = SEPARATORS_PER_VALUE * settings.max_values
    if len(body) <= separators_max:
        return
    count = 0
    # In windows, so that other threads run between them and a hostile body is not read to its end.
    for first in range(0, len(body), _WINDOW_BYTES):
        check_decoding()
        window = first, first + _WINDOW_BYTES
        count += sum([body.count(separator, *window) for separator in (b",", b"[", b"{", b":")])
        if count > separators_max:
            size = f"{count} or more separators , [ {{ and :"
            raise TooLarge.of_limit("body", size, separators_max, "twice max_values")


def dump(value: Any) -> bytes:
    """Returns the JSON bytes of a response; float32 numbers as the shortest text that reads back as
    the same float32.
    """
    # orjson writes arrays without a Python object for each number.
    return orjson.dumps(value, _list, orjson.OPT_SERIALIZE_NUMPY)


def dump_in_pieces(value: Mapping[str, Any]) -> Iterator[bytes]:
    """Yields the JSON bytes of a large response, as `dump` returns them, in pieces of PIECE_BYTES.

    The objects that are built for a piece are freed with it, and other threads run between two
    pieces.
    """
    buffer = bytearray()
    for part in _object_parts(value):
        buffer += part
        if len(buffer) >= PIECE_BYTES:
            # A part may have the size of several pieces.
            pieces_bytes = len(buffer) - len(buffer) % PIECE_BYTES
            for first in range(0, pieces_bytes, PIECE_BYTES):
                yield bytes(buffer[first : first + PIECE_BYTES])
            del buffer[:pieces_bytes]
    if buffer:
        yield bytes(buffer)


def _list(value: Any) -> list[Any]:
    """Returns the elements of an iterator, for orjson."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value)} cannot be written as JSON")


def _object_parts(value: Mapping[str, Any]) -> Iterator[bytes]:
    """Yields the JSON bytes of an object: its lists in slices, and its iterators of objects one
    object at a time.
    """
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
    # Without elements, the opening bracket is not written yet.
    if separator == b"[":
        yield separator
    yield b"]"


def _slices(values: list[Any] | NDArray[Any]) -> Iterator[Sequence[bytes]]:
    """Yields the elements of a list or array, some at a time, without its brackets."""
    row_size = 1
    if isinstance(values, np.ndarray):
        row_size = math.prod(values.shape[1:])
    step = max(1, _SLICE_VALUES // max(1, row_size))
    for first in range(0, len(values), step):
        text = dump(values[first : first + step])
        yield (text[1:-1],)


def read_retrieval(
    body: Any, target: calls.Target, settings: ServiceSettings
) -> calls.RetrievalRequest:
    """Returns the request.

    Raises:
      InvalidArgument: An unknown field, a wrong type, or requests that do not fit together.
      TooLarge: There are more requests, columns or names than the limit.
    """
    queries = ("context", "vectors", "ids")
    part_fields = (*queries, "context_id", "exclude_ids", "negative_ids")
    parts = _parts(body, (*_RETRIEVAL, *_SELECTION), part_fields, settings)
    kind = _one_kind(parts, queries)

    context = None
    vectors = None
    ids = None
    query_offsets = None
    if kind == "context":
        context = _columns(parts, "context", settings) or None
    elif kind is not None:
        lists = [check_list(part[kind], kind) for part in parts]
        values = list(chain.from_iterable(lists))
        if kind == "vectors":
            vectors = _vectors(values)
        else:
            ids = flat(values, "ids")
        # Without offsets, each vector or id is a query of its own.
        counts = list(map(len, lists))
        if set(counts) != {1}:
            query_offsets = offsets_of(counts)
    return calls.RetrievalRequest(
        target,
        context=context,
        vectors=vectors,
        ids=ids,
        query_offsets=query_offsets,
        context_ids=_ids(parts, "context_id"),
        **_selection(body, parts, settings),
        **_options(body, _RETRIEVAL, settings),
    )


def read_ranking(
    body: Any, target: calls.Target, settings: ServiceSettings
) -> calls.RankingRequest:
    """Returns the request.

    Raises:
      InvalidArgument: An unknown field, a wrong type, or requests that do not fit together.
      TooLarge: There are more requests, columns or names than the limit.
    """
    part_fields = ("context", "context_id", "candidate_ids", "candidate_features")
    parts = _parts(body, _RANKING, part_fields, settings)
    has_ids = _one_kind(parts, ("candidate_ids",))
    context = _tables(parts, "context")
    candidate_features = _tables(parts, "candidate_features")
    feature_count = len(context[0]) + len(candidate_features[0])
    at_most(settings, "max_features", feature_count, "request")

    # Each context has as many candidates as ids or, without ids, as values of its first feature.
    candidate_ids = None
    if has_ids:
        lists = [check_list(part["candidate_ids"], "candidate_ids") for part in parts]
        candidate_ids = flat(list(chain.from_iterable(lists)), "candidate_ids")
    else:
        lists = [
            check_list(next(iter(table.values()), []), "candidate_features")
            for table in candidate_features
        ]
    counts = list(map(len, lists))
    return calls.RankingRequest(
        target,
        context=_pack_tables(context, "context"),
        candidate_ids=candidate_ids,
        candidate_features=_candidate_columns(candidate_features, counts),
        offsets=offsets_of(counts),
        context_ids=_ids(parts, "context_id"),
        **_options(body, _RANKING, settings),
    )


def read_recommendation(
    body: Any, target: calls.Target, settings: ServiceSettings
) -> calls.RecommendationRequest:
    """Returns the request.

    Raises:
      InvalidArgument: An unknown field, a wrong type, or requests that do not fit together.
      TooLarge: There are more requests, columns or names than the limit.
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
        sources=source_lists.read(check_list(body.get("sources", []), "sources")),
        **_selection(body, parts, settings),
        **_options(body, _RECOMMENDATION, settings),
    )


def read_embedding(
    body: Any, target: calls.Target, settings: ServiceSettings
) -> calls.EmbeddingRequest:
    """Returns the request.

    Raises:
      InvalidArgument: An unknown field, a wrong type, or requests that do not fit together.
      TooLarge: There are more requests or columns than the limit.
    """
    parts = _parts(body, ("tower",), ("features",), settings)
    return calls.EmbeddingRequest(
        target, _option(body, "tower", ""), _columns(parts, "features", settings)
    )


# All readers take the same arguments, so that one table can name them.
def read_lookup(body: Any, target: calls.Target, settings: ServiceSettings) -> calls.LookupRequest:  # noqa: ARG001
    """Returns the request; a lookup has a list of ids and no list of requests.

    Raises:
      InvalidArgument: An unknown field, or a wrong type.
    """
    fields(body, ("feature", "ids", "not_found"), "body")
    # A column, since ids of the feature may be numbers that buckets divide.
    ids = Column(flat(check_list(body.get("ids"), "ids"), "ids"))
    not_found = _option(body, "not_found", calls.NotFoundRule.ERROR)
    return calls.LookupRequest(target, _option(body, "feature", ""), ids, not_found)


def retrieved_value(result: calls.RetrievalResult, is_list: bool) -> dict[str, Any]:
    """Returns the response as a JSON value.

    Args:
      result: The result of the call.
      is_list: Whether the body of the request had a list of requests.
    """
    return _response_value(result, _neighbors(result), is_list) | {"searched": result.searched}


def ranked_value(result: calls.RankingResult, is_list: bool) -> dict[str, Any]:
    """Returns the response as a JSON value; `ids` is null if candidates were sent by their features
    alone. See `retrieved_value`.
    """
    return _response_value(result, _rankings(result), is_list)


def _rankings(result: calls.RankingResult) -> Iterator[dict[str, Any]]:
    """Yields the columns of each context's candidates as JSON values."""
    ids = None
    if result.ids is not None:
        ids = identifiers(result.ids)
    for context, (first, last) in enumerate(pairwise(result.offsets.tolist())):
        context_ids = None
        if ids is not None:
            context_ids = ids[first:last]
        yield {
            "ids": context_ids,
            "scores": result.scores[first:last],
            "positions": result.positions[first:last],
            "heads": {name: scores[first:last] for name, scores in result.heads.items()},
            **_unscored_fields(result, context),
        }


def _unscored_fields(result: calls.RankingResult, context: int) -> dict[str, Any]:
    """Returns the fields with the candidates of a context that have no score: those that failed, if
    some did, and those that do not exist, if the request skips them.
    """
    candidates: dict[str, Any] = {}
    if result.not_found is not None:
        candidates["not_found"] = identifiers(result.not_found.only(context).ids)
    failed = [
        {"position": candidate.position, "message": candidate.message}
        for candidate in result.failed
        if candidate.context == context
    ]
    if failed:
        candidates["failed"] = failed
    return candidates


def recommended_value(result: calls.RetrievalResult, is_list: bool) -> dict[str, Any]:
    """Returns the response as a JSON value. See `retrieved_value`."""
    return _response_value(result, _neighbors(result), is_list) | {
        "degraded": bool(result.degraded_reason),
        "degraded_reason": result.degraded_reason,
    }


def embedded_value(result: calls.EmbeddingResult, is_list: bool) -> dict[str, Any]:
    """Returns the response as a JSON value. See `retrieved_value`."""
    vectors = np.ascontiguousarray(result.vectors)
    return _response_value(result, ({"vector": vector} for vector in vectors), is_list)


def looked_up_value(result: calls.LookupResult, is_list: bool) -> dict[str, Any]:
    """Returns the response as a JSON value. See `retrieved_value`."""
    vectors = np.ascontiguousarray(result.vectors)
    value = {"table": result.table, "vectors": vectors, "found": result.found}
    if result.lost is not None:
        value["lost"] = result.lost
    if result.not_found is not None:
        value["not_found"] = identifiers(result.not_found)
    return _response_value(result, iter([value]), is_list)


def identifiers(ids: calls.Ids) -> list[Any]:
    """Returns ids as JSON values: strings as they are, integers beyond 2^53 as decimal strings, and
    the numbers of a lookup as their shortest text.
    """
    if ids.dtype == np.float32:
        return list(ids)
    values: list[Any] = ids.tolist()
    if ids.dtype == object or not ids.size:
        return values
    # Almost always: to look at each id would cost more than both limits.
    if ids.min() >= -INTEGER_MAX and ids.max() <= INTEGER_MAX:
        return values
    return [_safe(value) for value in values]


def _safe(value: Any) -> Any:
    """Returns a value as every JSON parser keeps it: a large integer as a string."""
    if isinstance(value, int) and not -INTEGER_MAX <= value <= INTEGER_MAX:
        return str(value)
    return value


def _response_value(result: Any, values: Iterator[dict[str, Any]], is_list: bool) -> dict[str, Any]:
    """Returns a response as a JSON value.

    Args:
      result: The result of the call.
      values: The values of each request. They are not computed before they are written, so that a
        large response never has all of them in memory.
      is_list: Whether the body of the request had a list of requests.
    """
    head = {"model": result.model, "version": result.version}
    if result.coverage < 1:
        head["coverage"] = result.coverage
    if is_list:
        return head | {"results": values}
    return head | next(values)


def _neighbors(result: calls.RetrievalResult) -> Iterator[dict[str, Any]]:
    """Yields the columns of each query's neighbors as JSON values."""
    for query, (first, last) in enumerate(pairwise(result.offsets.tolist())):
        columns: dict[str, Any] = {
            "ids": identifiers(result.ids[first:last]),
            "scores": result.scores[first:last],
        }
        if result.retrieval_scores is not None:
            columns["retrieval_scores"] = result.retrieval_scores[first:last]
        if result.sources is not None:
            numbers = result.sources[first:last].tolist()
            columns["sources"] = [result.source_names[number] for number in numbers]
        columns["attributes"] = {
            name: list(map(_safe, values[first:last])) for name, values in result.attributes.items()
        }
        if result.explanations:
            columns["explanation"] = result.explanations[query]._asdict()
        if result.not_found is not None:
            columns["not_found"] = identifiers(result.not_found.only(query).ids)
        yield columns


def _parts(
    body: Any, options: Iterable[str], part_fields: Sequence[str], settings: ServiceSettings
) -> list[Part]:
    """Returns the requests of a body.

    Args:
      body: The JSON value.
      options: The fields that stand at the top of the body.
      part_fields: The fields of each request.
      settings: The limits.

    Raises:
      InvalidArgument: An unknown field or a wrong type, or no request.
      TooLarge: There are more requests than the limit.
    """
    fields(body, (*options, *part_fields, "requests"), "body")
    if "requests" not in body:
        return [body]
    # Beside the list, it would be ignored, or stand for all requests: the client must say which.
    misplaced = next((name for name in part_fields if name in body), None)
    if misplaced is not None:
        message = f"the body has 'requests', so {misplaced!r} belongs in each of them"
        expected = "a field of each of the requests"
        raise InvalidArgument(message, FieldViolation(misplaced, "beside requests", expected))
    parts = check_list(body["requests"], "requests")
    if not parts:
        raise InvalidArgument.of_field("requests", "empty", "at least one")
    at_most(settings, "max_queries", len(parts), "requests")
    return [fields(part, part_fields, f"requests[{number}]") for number, part in enumerate(parts)]


def _option(body: Part, name: str, default: Any) -> Any:
    """Returns an option, of the same type as its default.

    Raises:
      InvalidArgument: It has another type.
    """
    value = body.get(name, default)
    kind = type(default)
    if default == ():
        kind = list
    if kind is float and type(value) is int:
        value = float(value)
    if kind is int and (
        (type(value) is int and abs(value) > COUNT_MAX)
        or (type(value) is float and abs(value) >= _INTEGER_END)
    ):
        raise InvalidArgument.of_field(name, shown(int(value)), f"an integer up to {COUNT_MAX}")
    if type(value) is kind:
        return value
    if isinstance(default, StrEnum):
        return _word(value, type(default), name)
    raise InvalidArgument.of_field(name, shown(value), EXPECTED[kind])


def _word(value: Any, words: type[StrEnum], name: str) -> StrEnum:
    """Returns the option that a word names."""
    if value in list(words):
        return words(value)
    expected = " or ".join([repr(word.value) for word in words])
    raise InvalidArgument.of_field(name, shown(value), expected)


def _options(body: Part, defaults: Mapping[str, Any], settings: ServiceSettings) -> dict[str, Any]:
    """Returns the options that a body has.

    Args:
      body: The body.
      defaults: The defaults of all options.
      settings: The limits.

    Raises:
      InvalidArgument: An option has a wrong type.
      TooLarge: An option has more names than the limit.
    """
    options = {}
    for name, default in defaults.items():
        if name not in body:
            continue
        value = _option(body, name, default)
        if isinstance(value, list):
            at_most(settings, "max_names", len(value), name)
            odd = [entry for entry in value if not isinstance(entry, str)]
            if odd:
                raise InvalidArgument.of_field(name, shown(odd[0]), "a string", "holds")
            value = tuple(value)
        options[name] = value
    return options


def _one_kind(parts: list[Part], kinds: Sequence[str]) -> str | None:
    """Returns which of the kinds every part has; None if none has any.

    Raises:
      InvalidArgument: A part has two, or two parts differ.
    """
    combinations = {tuple(kind for kind in kinds if kind in part) for part in parts}
    part_kinds = combinations.pop()
    if combinations:
        expected = f"the same one of {', '.join(kinds)} in each"
        raise InvalidArgument.of_field("requests", "different fields", expected, "has")
    if len(part_kinds) > 1:
        value = f"both {part_kinds[0]!r} and {part_kinds[1]!r}"
        raise InvalidArgument.of_field("request", value, "exactly one", "has")
    if not part_kinds:
        return None
    return part_kinds[0]


def _tables(parts: list[Part], where: str) -> list[Part]:
    """Returns the features of each part.

    Raises:
      InvalidArgument: One is no JSON object, or two have different features.
    """
    tables = [part.get(where, {}) for part in parts]
    # One column holds a feature of all requests, so that none may lack it.
    for number, table in enumerate(tables):
        if not isinstance(table, dict):
            raise InvalidArgument.of_field(where, shown(table), "a JSON object of features")
        if table.keys() != tables[0].keys():
            odd = shown(min(table.keys() ^ tables[0].keys()))
            raise InvalidArgument.of_field(
                f"requests[{number}].{where}",
                odd,
                "the same features as in requests[0]",
                "differs from that of requests[0] in",
            )
    return tables


def _columns(parts: list[Part], where: str, settings: ServiceSettings) -> dict[str, Column]:
    tables = _tables(parts, where)
    at_most(settings, "max_features", len(tables[0]), where)
    return _pack_tables(tables, where)


def _pack_tables(tables: list[Part], where: str) -> dict[str, Column]:
    """Packs the features of all parts, which have the same names."""
    # One request of thousands of features is common: they are packed in a few steps.
    if len(tables) == 1:
        return columns_of_one(tables[0], where)
    return {
        name: column([table[name] for table in tables], f"{where}.{name}") for name in tables[0]
    }


def _candidate_columns(tables: list[Part], counts: list[int]) -> dict[str, Column]:
    """Packs the features of the candidates of all parts.

    Args:
      tables: The features of each part, whose values are lists with one entry per candidate.
      counts: The number of candidates of each part.

    Raises:
      InvalidArgument: A list has another length, or an entry another shape.
    """
    where = "candidate_features"
    for table, count in zip(tables, counts, strict=True):
        for name, values in table.items():
            if type(values) is not list or len(values) != count:
                size = len(check_list(values, f"{where}.{name}"))
                value = f"{size} values for {count} candidates"
                raise InvalidArgument.of_field(f"{where}.{name}", value, "one per candidate", "has")
    lists = tables[0]
    if len(tables) > 1:
        lists = {}
        for name in tables[0]:
            lists[name] = list(chain.from_iterable([table[name] for table in tables]))
    packed = pack_together(lists, where)
    columns = {}
    for name, values in lists.items():
        if name in packed:
            columns[name] = Column(packed[name])
        else:
            columns[name] = column(values, f"{where}.{name}")
    return columns


def _ids(parts: list[Part], name: str) -> calls.Ids | None:
    """Returns the id of each part; None: no part has one."""
    if not _one_kind(parts, (name,)):
        return None
    return flat([part[name] for part in parts], name)


def _vectors(vectors: list[Any]) -> NDArray[np.float32]:
    """Packs vectors as [n, dim].

    Raises:
      InvalidArgument: A vector is no list of numbers, or they have different lengths.
    """
    rows = [check_list(vector, f"vectors[{number}]") for number, vector in enumerate(vectors)]
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise InvalidArgument.of_field(
            "vectors", f"lengths {shown(lengths)}", "the dim of the index for each", "has"
        )
    dim = 0
    if lengths:
        dim = lengths[0]
    return numbers(list(chain.from_iterable(rows)), "vectors").reshape(len(rows), dim)


def _id_lists(parts: list[Part], name: str) -> calls.IdLists | None:
    """Returns a list of ids of each part, empty where a part has none; None: no part has one."""
    if not any(name in part for part in parts):
        return None
    lists = [check_list(part.get(name, []), name) for part in parts]
    ids = flat(list(chain.from_iterable(lists)), name)
    return calls.IdLists(ids, offsets_of(list(map(len, lists))))


def _selection(body: Part, parts: list[Part], settings: ServiceSettings) -> dict[str, Any]:
    """Returns the fields of a retrieval or a recommendation that select candidates."""
    selection: dict[str, Any] = {
        "exclude_ids": _id_lists(parts, "exclude_ids"),
        "negative_ids": _id_lists(parts, "negative_ids"),
    }
    if "filter" in body:
        selection["filter"] = _filter(_option(body, "filter", {}), "filter", 1)
        check_terms(selection["filter"], settings)
    if "crowding" in body:
        crowding = _option(body, "crowding", {})
        at_most(settings, "max_names", len(crowding), "crowding")
        # Not `isinstance`, for which true is an integer.
        for attribute, maximum in crowding.items():
            if type(maximum) is not int or abs(maximum) > COUNT_MAX:
                expected = f"an integer up to {COUNT_MAX}"
                raise InvalidArgument.of_field(f"crowding.{attribute}", shown(maximum), expected)
        selection["crowding"] = crowding or None
    if "min_score" in body:
        selection["min_score"] = _option(body, "min_score", 0.0)
    if "offset" in body:
        selection["offset"] = _option(body, "offset", 0)
    return selection


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
        members: list[Any] = []
        for number, member in enumerate(value):
            if name == "near":
                members.append(_circle(member, f"{part}[{number}]"))
            else:
                members.append(_filter(member, f"{part}[{number}]", depth + 1))
        groups[name] = tuple(members)
    return calls.Filter(conditions, **groups)


def _circle(body: Any, where: str) -> calls.Circle:
    in_numbers = ("latitude", "longitude", "radius_m")
    attributes = ("latitude_attribute", "longitude_attribute")
    circle = dict(fields(body, (*in_numbers, *attributes), where))
    for name in in_numbers:
        value: Any = circle.get(name)
        if type(value) not in {int, float}:
            raise InvalidArgument.of_field(f"{where}.{name}", shown(value), "a number")
        # Doubles, as in protobuf, by which a router sends the filter to its shards.
        circle[name] = float(value)
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
        values = check_list(value, f"{where}.{name}")
        # As in protobuf, whose lists of tokens have no booleans.
        if set(map(type, values)) == {bool}:
            values = [str(token).lower() for token in values]
        condition[name] = flat(values, f"{where}.{name}")
    return calls.Condition(**condition)
