"""Parses JSON bodies, and writes results as JSON values.

The response to a body with one request has its fields; that to a list of requests, or to a protobuf
message, has `results`. A lookup has one list of ids in each form, so its response is never a list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.codec.protobuf import response_class
from service.config import ServiceSettings
from service.contract import forms, messages
from service.contract.columns import INTEGER_MAX, json_value
from service.contract.layouts import Field, layout_of
from service.decoding import check_decoding
from service.errors import FieldViolation, InvalidArgument, TooLarge

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

# orjson writes arrays without a Python object for each number. Its strict integers are those that
# every JSON parser keeps.
_WRITING = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_STRICT_INTEGER
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
    """Returns the JSON bytes of a response: float32 numbers as the shortest text that reads back as
    the same float32, and integers beyond 2^53 as strings.
    """
    try:
        return orjson.dumps(value, _list, _WRITING)
    except orjson.JSONEncodeError:
        # Almost no response has such integers: to look at all values would cost more than both.
        return orjson.dumps(json_value(value), _list, _WRITING)


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


class Results:
    """The results of the requests in a body as JSON values, each computed when it is written."""

    def __init__(self, result: Any, parts: list[Any]) -> None:
        """Takes the result of the call, and what is written of it; see `_plan_of`."""
        self._result = result
        self._parts = parts

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Computes them."""
        return _values_of_requests(self._result, self._parts)


def _list(value: Any) -> list[Any]:
    """Returns the elements of results, for orjson."""
    if isinstance(value, Results):
        return list(value)
    raise TypeError(f"{type(value)} cannot be written as JSON")


def _object_parts(value: Mapping[str, Any]) -> Iterator[bytes]:
    """Yields the JSON bytes of an object: its lists in slices, and results or iterators of objects
    one object at a time.
    """
    separator = b"{"
    for name, content in value.items():
        yield separator + orjson.dumps(name) + b":"
        if isinstance(content, Iterator | Results):
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
    return [json_value(value) for value in values]


def _chosen_names(numbers: NDArray[np.int32], along: slice, result: Any) -> list[str]:
    """Returns the names of sources, by their positions."""
    return [result.source_names[number] for number in numbers[along].tolist()]


def _attributes(lists: Mapping[str, list[Any]], along: slice, _: Any) -> dict[str, list[Any]]:
    return {name: list(map(json_value, lists[name][along])) for name in lists}


def _record(records: Sequence[Any], example: int, _: Any) -> dict[str, Any] | None:
    """Returns the record of an example, if there are any."""
    if not records:
        return None
    fields: dict[str, Any] = records[example]._asdict()
    return fields


def _records(records: Sequence[Any], example: int, _: Any) -> list[dict[str, Any]] | None:
    """Returns the records of an example, whose number is their first field; None: it has none."""
    own_records = []
    for record in records:
        if record[0] == example:
            fields = record._asdict()
            del fields[record._fields[0]]
            own_records.append(fields)
    return own_records or None


_PARTS: Mapping[type[forms.Form], Callable[[Any, Any, Any], Any]] = {
    forms.AttributeLists: _attributes,
    forms.Choices: _chosen_names,
    forms.Ids: lambda ids, along, _: identifiers(ids[along]),
    forms.Lists: lambda lists, example, _: identifiers(lists.only(example).ids),
    forms.MissingIds: lambda ids, _along, _: identifiers(ids.ids),
    forms.Numbers: lambda numbers, along, _: numbers[along],
    forms.NumbersByName: lambda lists, along, _: {name: lists[name][along] for name in lists},
    forms.Records: _record,
    forms.RecordLists: _records,
    forms.Scalar: lambda value, _along, _: value,
    forms.Vectors: lambda vectors, along, _: np.ascontiguousarray(vectors[along]),
}
"""The JSON of what a field has for one example, by its form or a base of it; None: it is left out.

A function takes the value of the field, the number of the example or a slice of values, and the
result.
"""


def fields_of_response(call: str) -> tuple[list[Field], list[Field]]:
    """Returns the fields at the top of a call's response, and those of each result."""
    has_list = messages.REQUESTS[call].body.list_name
    # Of the results of one class, each has the fields of its message.
    message = response_class(call).DESCRIPTOR
    options = []
    parts = []
    for field in layout_of(messages.RESULTS[call]).in_json.values():
        if type(field.form) is forms.Head:
            options.append(field)
        elif field.name in message.fields_by_name:
            if field.form.axis is None and has_list:
                options.append(field)
            else:
                parts.append(field)
    return options, parts


@cache
def _plan_of(call: str) -> tuple[list[Field], list[Any]]:
    """Returns what is written for every response: the options behind the heads; and of each part,
    its names in JSON and in the class, its axis, its function in `_PARTS`, and whether it is null
    if it has no value.
    """
    options, fields = fields_of_response(call)
    parts = []
    for name, json_name, form, is_required in fields:
        part_of = next(_PARTS[kind] for kind in type(form).__mro__ if kind in _PARTS)
        parts.append((json_name, name, int(form.axis or 0), part_of, is_required))
    return [field for field in options if type(field.form) is not forms.Head], parts


def response_value(call: str, result: Any, is_list: bool) -> dict[str, Any]:
    """Returns a response as a JSON value.

    Args:
      call: The name of the call.
      result: The result of the call.
      is_list: Whether the body of the request was a protobuf message, or had a list of requests.
    """
    options, parts = _plan_of(call)
    value = {"model": result.model, "version": result.version}
    if result.coverage < 1:
        value["coverage"] = result.coverage
    # The values of each request are not computed before they are written, so that a large response
    # never has all of them in memory.
    values = Results(result, parts)
    if is_list and messages.REQUESTS[call].body.list_name:
        value["results"] = values
    else:
        value |= next(iter(values))
    for name, json_name, _, _ in options:
        value[json_name] = getattr(result, name)
    return value


def _values_of_requests(result: Any, parts: list[Any]) -> Iterator[dict[str, Any]]:
    """Yields the fields of each request's result as JSON values."""
    values = vars(result)
    whole = slice(None)
    bounds_of_requests: Iterable[tuple[Any, slice]] = [(whole, whole)]
    if "offsets" in values:
        offsets = values["offsets"].tolist()
        bounds_of_requests = enumerate(map(slice, offsets, offsets[1:]))
    elif isinstance(result, messages.EmbeddingResult):
        bounds_of_requests = enumerate([whole] * len(result.vectors))
    for bounds in bounds_of_requests:
        part = {}
        for json_name, name, axis, part_of, is_required in parts:
            value = values[name]
            if value is not None:
                value = part_of(value, bounds[axis], result)
            if value is not None or is_required:
                part[json_name] = value
        yield part
