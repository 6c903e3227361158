"""Parses JSON bodies, and writes results as JSON values.

The response to a body with one request has its fields; that to a list of requests has `results`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.config import ServiceSettings
from service.contract import messages
from service.engine.context import check_decoding
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


def retrieved_value(result: messages.RetrievalResult, is_list: bool) -> dict[str, Any]:
    """Returns the response as a JSON value.

    Args:
      result: The result of the call.
      is_list: Whether the body of the request had a list of requests.
    """
    return _response_value(result, _neighbors(result), is_list) | {"searched": result.searched}


def ranked_value(result: messages.RankingResult, is_list: bool) -> dict[str, Any]:
    """Returns the response as a JSON value; `ids` is null if candidates were sent by their features
    alone. See `retrieved_value`.
    """
    return _response_value(result, _rankings(result), is_list)


def _rankings(result: messages.RankingResult) -> Iterator[dict[str, Any]]:
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


def _unscored_fields(result: messages.RankingResult, context: int) -> dict[str, Any]:
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


def recommended_value(result: messages.RetrievalResult, is_list: bool) -> dict[str, Any]:
    """Returns the response as a JSON value. See `retrieved_value`."""
    return _response_value(result, _neighbors(result), is_list) | {
        "degraded": bool(result.degraded_reason),
        "degraded_reason": result.degraded_reason,
    }


def embedded_value(result: messages.EmbeddingResult, is_list: bool) -> dict[str, Any]:
    """Returns the response as a JSON value. See `retrieved_value`."""
    vectors = np.ascontiguousarray(result.vectors)
    return _response_value(result, ({"vector": vector} for vector in vectors), is_list)


def looked_up_value(result: messages.LookupResult, is_list: bool) -> dict[str, Any]:
    """Returns the response as a JSON value. See `retrieved_value`."""
    vectors = np.ascontiguousarray(result.vectors)
    value = {"table": result.table, "vectors": vectors, "found": result.found}
    if result.lost is not None:
        value["lost"] = result.lost
    if result.not_found is not None:
        value["not_found"] = identifiers(result.not_found.ids)
    return _response_value(result, iter([value]), is_list)


def identifiers(ids: messages.Ids) -> list[Any]:
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


def _neighbors(result: messages.RetrievalResult) -> Iterator[dict[str, Any]]:
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
