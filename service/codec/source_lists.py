"""JSON values and protobuf messages to the sources of a recommendation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from bundle.tables.offsets import offsets_of
from service.codec.columns import COUNT_MAX, check_list, fields, flat, shown
from service.engine.calls import SOURCES_MAX, IdLists, Source
from service.errors import FieldViolation, InvalidArgument, TooLarge

_KINDS: dict[type, str] = {str: "a string", int: "an integer", bool: "true or false"}
_FIELDS: dict[str, type] = {
    "name": str,
    "index": str,
    "list": str,
    "pool_size": int,
    "min_count": int,
    "max_count": int,
    "fallback": bool,
}
"""The fields of a source but its ids, and their types."""


def check_sources(count: int) -> None:
    """Rejects a request with too many sources, before they are read."""
    if count > SOURCES_MAX:
        message = f"sources has {count} entries; at most {SOURCES_MAX} are accepted"
        raise TooLarge(message, FieldViolation("sources", str(count), f"at most {SOURCES_MAX}"))


def read(values: Sequence[Any]) -> tuple[Source, ...]:
    """Returns the sources in a list of JSON values.

    Raises:
      InvalidArgument: An unknown field or a wrong type; the message names it.
      TooLarge: There are too many.
    """
    check_sources(len(values))
    return tuple([_source(value, f"sources[{number}]") for number, value in enumerate(values)])


def _source(value: Any, where: str) -> Source:
    content = dict(fields(value, (*_FIELDS, "ids"), where))
    for name, kind in _FIELDS.items():
        if name not in content:
            continue
        field: Any = content[name]
        # Not `isinstance`, for which true is an integer.
        if type(field) is not kind:
            raise InvalidArgument.of_field(f"{where}.{name}", shown(field), _KINDS[kind])
        if isinstance(field, int) and abs(field) > COUNT_MAX:
            expected = f"an integer up to {COUNT_MAX}"
            raise InvalidArgument.of_field(f"{where}.{name}", field, expected)
    if "ids" in content:
        content["ids"] = _ids(check_list(content["ids"], f"{where}.ids"), f"{where}.ids")
    return Source(**content)


def _ids(values: list[Any], where: str) -> IdLists:
    """Returns the ids of a source: one list for all contexts, or one list for each."""
    if not values or not isinstance(values[0], list):
        return IdLists(flat(values, where))
    lists = [check_list(part, f"{where}[{number}]") for number, part in enumerate(values)]
    ids = flat(list(chain.from_iterable(lists)), where)
    return IdLists(ids, offsets_of([len(part) for part in lists]))
