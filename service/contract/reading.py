"""JSON bodies and protobuf messages to the classes of the contract, by the forms of their fields.

A body has options at its top, and either one request beside them or a list of requests:
`{"k": 10, "context": {...}}` or `{"k": 10, "requests": [{"context": {...}}, ...]}`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bundle.tables.offsets import offsets_of
from service.config import ServiceSettings
from service.contract import columns
from service.contract.columns import EXPECTED, SHOWN_MAX, check_list, shown
from service.contract.forms import (
    Axis,
    Columns,
    IdLists,
    Scalar,
    Struct,
    StructByName,
)
from service.contract.layouts import Layout, layout_of
from service.contract.limits import at_most, check_count
from service.contract.packed import unpack_offsets
from service.decoding import check_decoding
from service.errors import FieldViolation, InvalidArgument, TooLarge

Part = dict[str, Any]
"""The fields of one request in a body: of the body itself, or of an entry of its list."""

DEPTH_MAX = 8
"""Maximum depth of objects of one class in each other: each level takes a stack frame wherever a
filter is read or compiled.
"""
_VALUES_SHOWN_MAX = 6
"""Maximum number of a client's values that an error repeats."""


class NoCondition(InvalidArgument):
    """A filter has a value that is no condition, below a name that may be no attribute.

    Attributes:
      name: The name.
      path: Its path in the request.
    """

    def __init__(self, name: str, path: str, problem: InvalidArgument) -> None:
        super().__init__(str(problem), *problem.violations)
        self.name = name
        self.path = path


@dataclass
class _Objects:
    """Counts the objects in an option before they are read, so that of too many none is read.

    Attributes:
      part_class: The class of the option, which states the limit: a setting as its `limit`, and
        what counts as `counted`. A class without a limit has any number.
      where: The option in errors.
      count: The number of objects so far, in lists, by name and in each other.
    """

    part_class: Any
    where: str
    settings: ServiceSettings
    count: int = 0

    def add(self, count: int) -> None:
        """Counts objects that are read next.

        Raises:
          TooLarge: There are more than the limit.
          ServiceError: The request has ended.
        """
        check_decoding()
        setting = getattr(self.part_class, "limit", "")
        if not setting:
            return
        self.count += count
        limit: int = getattr(self.settings, setting)
        if self.count > limit:
            size = f"{self.count} {self.part_class.counted}"
            raise TooLarge.of_limit(self.where, size, limit, setting)


def from_body(cls: Any, body: Any, target: Any, settings: ServiceSettings) -> Any:
    """Returns the request that a JSON body holds; for errors, see `read_body`."""
    request = cls(target=target, **read_body(layout_of(cls), body, settings))
    request.check(settings)
    return request


def from_message(cls: Any, message: Any, target: Any, settings: ServiceSettings) -> Any:
    """Returns the request that a parsed message holds; for errors, see `read_message`."""
    request = cls(target=target, **read_message(layout_of(cls), message, settings))
    request.check(settings)
    return request


def read_body(layout: Layout, body: Any, settings: ServiceSettings) -> dict[str, Any]:
    """Returns the fields that a JSON body has, packed.

    Raises:
      InvalidArgument: An unknown field, a wrong type, or requests that do not fit together.
      TooLarge: There are more requests, features or names than the limits.
    """
    check_decoding()
    parts = _parts(layout, body, settings)
    # All parts have the same features.
    tables = [parts[0].get(name) for name in layout.tables]
    _check_features(layout, [table for table in tables if type(table) is dict], settings)
    content: dict[str, Any] = {}
    for name, value in body.items():
        field = layout.options.get(name)
        if field is None:
            continue
        form = field.form
        if isinstance(form, Struct):
            objects = _Objects(form.part_class, name, settings)
            content[field.name] = _structs_of_json(form, value, name, 1, objects)
        else:
            check_count(form.limit, value, name, settings)
            content[field.name] = form.from_json(value, name)
    if layout.required:
        _add_missing(layout, content, "")
    if layout.list_name:
        if layout.one_of:
            _check_same(parts, layout.one_of, layout.list_name)
        content |= _packed_parts(layout, parts)
    else:
        for name, field in layout.parts.items():
            content[field.name] = field.form.pack(check_list(body.get(name), name), name)
    return content


def _packed_parts(layout: Layout, parts: Sequence[Part]) -> dict[str, Any]:
    """Returns the fields along the axes, packed over all parts."""
    content: dict[str, Any] = {}
    counts: list[int] | None = None
    sent_names = set[str]().union(*parts)
    for name, field in layout.parts.items():
        if name not in sent_names:
            continue
        check_decoding()
        if not field.form.may_lack and not all(name in part for part in parts):
            _check_same(parts, (name,), layout.list_name)
        values = [part.get(name, field.form.empty) for part in parts]
        if isinstance(field.form, Columns):
            _check_tables(values, name, layout.list_name)
            # Columns without a feature are as good as none.
            if not values[0]:
                continue
        if field.form.axis is Axis.EXAMPLE:
            content[field.name] = field.form.pack(values, name)
            continue
        # The first field along entries says how many there are.
        if counts is None:
            counts = [len(field.form.entries(value, name)) for value in values]
        content[field.name] = field.form.pack_entries(values, name, counts)
    _divide(layout, content, counts, len(parts))
    return content


def _divide(
    layout: Layout, content: dict[str, Any], counts: Sequence[int] | None, part_count: int
) -> None:
    """Adds the offsets that divide the entries of all parts."""
    for name, of_each in layout.divisions.items():
        if not of_each:
            content[name] = offsets_of(counts or [0] * part_count)
        elif counts is not None and set(counts) != {1}:
            content[name] = offsets_of(counts)


def _parts(layout: Layout, body: Any, settings: ServiceSettings) -> list[Part]:
    """Returns the requests of a body.

    Raises:
      InvalidArgument: An unknown field or a wrong type, or no request.
      TooLarge: There are more requests than the limit.
    """
    list_name = layout.list_name
    if type(body) is list and list_name:
        hint = f'write {{"{list_name}": [...]}} for several {list_name}'
        raise InvalidArgument.of_field("body", shown(body), EXPECTED[dict], hint=hint)
    columns.fields(body, layout.names, "body", layout.tables)
    if list_name not in body:
        return [body]
    # Beside the list, it would be ignored, or stand for all requests: the client must say which.
    misplaced = next((name for name in layout.parts if name in body), None)
    if misplaced is not None:
        message = f"the body has {list_name!r}, so {misplaced!r} belongs in each of them"
        expected = f"a field of each of the {list_name}"
        violation = FieldViolation(misplaced, f"beside {list_name}", expected)
        raise InvalidArgument(message, violation)
    parts = check_list(body[list_name], list_name)
    if not parts:
        raise InvalidArgument.of_field(list_name, "empty", "at least one")
    at_most(settings, "max_queries", len(parts), list_name)
    names = tuple(layout.parts)
    return [
        columns.fields(part, names, f"{list_name}[{number}]", layout.tables)
        for number, part in enumerate(parts)
    ]


def _check_same(parts: Sequence[Part], names: Sequence[str], list_name: str) -> None:
    """Checks that all parts have the same one of some fields, or none of them.

    Raises:
      InvalidArgument: A part has two, or two parts differ.
    """
    combinations = {tuple(name for name in names if name in part) for part in parts}
    names_sent = combinations.pop()
    if combinations:
        expected = f"the same one of {', '.join(names)} in each"
        raise InvalidArgument.of_field(list_name, "different fields", expected, "has")
    if len(names_sent) > 1:
        value = f"both {names_sent[0]!r} and {names_sent[1]!r}"
        raise InvalidArgument.of_field("request", value, "exactly one", "has")


def _check_features(
    layout: Layout, tables: Sequence[Mapping[str, Any]], settings: ServiceSettings
) -> None:
    """Rejects a request with too many features, before they are read."""
    count = sum(map(len, tables))
    if count > settings.max_features:
        where = "request"
        if len(layout.tables) == 1:
            where = layout.tables[0]
        at_most(settings, "max_features", count, where)


def _check_tables(tables: Sequence[Any], name: str, list_name: str) -> None:
    """Checks that the features of each part are an object, and the same ones in all.

    Raises:
      InvalidArgument: They are not.
    """
    first = tables[0]
    for number, table in enumerate(tables):
        if not isinstance(table, dict):
            raise InvalidArgument.of_field(name, shown(table), "a JSON object of features")
        # One column holds a feature of all requests, so that none may lack it.
        if table is not first and table.keys() != first.keys():
            raise InvalidArgument.of_field(
                f"{list_name}[{number}].{name}",
                shown(min(table.keys() ^ first.keys())),
                f"the same features as in {list_name}[0]",
                f"differs from that of {list_name}[0] in",
            )


def _structs_of_json(form: Struct, value: Any, where: str, depth: int, objects: _Objects) -> Any:
    if form.is_list:
        check_list(value, where)
    return _structs(form, value, where, depth, objects, _read_object)


def _structs(
    form: Struct,
    value: Any,
    where: str,
    depth: int,
    objects: _Objects,
    read: Callable[[Any, Any, str, int, _Objects], Any],
) -> Any:
    """Reads an object in others, or a list of them, whatever they come in."""
    if not form.is_list:
        return read(form.part_class, value, where, depth, objects)
    if len(value) < form.fewest:
        raise InvalidArgument.of_field(where, "empty", "at least one")
    if form.most and len(value) > form.most:
        raise TooLarge.of_limit(where, f"{len(value)} entries", form.most)
    objects.add(len(value))
    return tuple(
        [
            read(form.part_class, part, f"{where}[{number}]", depth, objects)
            for number, part in enumerate(value)
        ]
    )


def _read_object(cls: Any, value: Any, where: str, depth: int, objects: _Objects) -> Any:
    """Reads a JSON object of a class without a body.

    Where other names are accepted, the fields of the class are lists: so an attribute may have the
    name of a field.
    """
    layout = layout_of(cls)
    if layout.is_nested:
        _check_depth(where, depth)
    if type(value) is not dict:
        raise _no_object(cls, value, where)
    content: dict[str, Any] = {}
    objects_by_name: dict[str, Any] = {}
    if layout.by_name:
        content[layout.by_name] = objects_by_name
    elif not value.keys() <= layout.in_json.keys():
        columns.fields(value, layout.names, where)
    for name, entry in value.items():
        path = f"{where}.{name}"
        if layout.by_name and (type(entry) is dict or name not in layout.in_json):
            objects.add(1)
            objects_by_name[name] = _read_by_name(layout, name, entry, where, depth, objects)
            continue
        form = layout.in_json[name].form
        if isinstance(form, Struct):
            content[name] = _structs_of_json(form, entry, path, depth + 1, objects)
        else:
            content[name] = form.from_json(entry, path)
    if layout.required:
        _add_missing(layout, content, f"{where}.")
    return cls(**content)


def _read_by_name(
    layout: Layout, name: str, entry: Any, where: str, depth: int, objects: _Objects
) -> Any:
    """Reads an object of an object below a name that is no field."""
    # A list of objects is meant for a field of the class, whose name is misspelt.
    if type(entry) is list and entry and type(entry[0]) is dict:
        columns.fields({name: entry}, layout.names, where)
    path = f"{where}.{name}"
    if type(entry) is not dict:
        raise NoCondition(name, path, _no_object(layout.of_others, entry, path))
    return _read_object(layout.of_others, entry, path, depth, objects)


def _no_object(cls: Any, value: Any, where: str) -> InvalidArgument:
    """Returns the error of a value that is no object of a class."""
    hint = _object_hint(cls, value)
    return InvalidArgument.of_field(where, shown(value), EXPECTED[dict], hint=hint)


def _object_hint(cls: Any, value: Any) -> str:
    """Returns the object of a class that a value was probably meant as, or an example of one; "" if
    there is none.
    """
    example = getattr(cls, "example", "")
    if example:
        return f"write an object such as {example}"
    field = getattr(cls, "field_of_values", "")
    values = [value]
    if isinstance(value, list):
        values = value
    if not field or not values or type(values[0]) not in {str, int, bool}:
        return ""
    # A client may have sent millions of values, or a text of megabytes.
    text = "[...]"
    if len(values) <= _VALUES_SHOWN_MAX and len(shown(values)) <= SHOWN_MAX:
        text = json.dumps(values, ensure_ascii=False)
    return f'write {{"{field}": {text}}}'


def _check_depth(where: str, depth: int) -> None:
    """Rejects an object that lies too deep in others, before it is read."""
    if depth > DEPTH_MAX:
        raise TooLarge.of_limit(where, f"level {depth}", DEPTH_MAX, verb="is a filter at")


def _add_missing(layout: Layout, content: dict[str, Any], path: str) -> None:
    """Adds the options that must be sent and were not: texts are empty, as they are in protobuf."""
    problems = []
    for name, json_name, form, _ in layout.required:
        if form.axis is not None or name in content:
            continue
        if form == Scalar(kind=str):
            content[name] = ""
            continue
        try:
            form.from_json(None, f"{path}{json_name}")
        except InvalidArgument as problem:
            problems.append(problem)
    if problems:
        violations = [violation for problem in problems for violation in problem.violations]
        raise InvalidArgument("; ".join(map(str, problems)), *violations)


def read_message(layout: Layout, message: Any, settings: ServiceSettings) -> dict[str, Any]:
    """Returns the fields that a parsed message has, as the engine takes them. Of the many that it
    could have, most are not sent. Fields that the class does not know are skipped, as protobuf
    promises to newer clients.

    Raises:
      InvalidArgument: Packed bytes are truncated, ids or a column are empty, or offsets have no
        ids.
      TooLarge: There are more features or names than the limits.
    """
    tables = [getattr(message, name) for name in layout.tables]
    _check_features(layout, tables, settings)
    return _fields_of_message(layout, message, "", 0, settings)


def _fields_of_message(
    layout: Layout,
    message: Any,
    path: str,
    depth: int,
    settings: ServiceSettings,
    objects: _Objects | None = None,
) -> dict[str, Any]:
    """Returns the fields of a message; `objects` counts those in an option."""
    content: dict[str, Any] = {}
    offsets: dict[str, Any] = {}
    forms = layout.forms
    for descriptor, value in message.ListFields():
        check_decoding()
        name = descriptor.name
        form = forms.get(name)
        if form is None:
            if name in layout.lists:
                offsets[name] = unpack_offsets(value, f"{path}{name}")
        elif isinstance(form, Struct):
            counted = objects or _Objects(form.part_class, name, settings)
            where = f"{path}{name}"
            content[name] = _structs(form, value, where, depth + 1, counted, _read_submessage)
        elif isinstance(form, StructByName):
            assert objects is not None  # noqa: S101 - only an option has objects by name
            objects.add(len(value))
            # JSON has the names beside those of other fields.
            content[name] = {
                key: _read_submessage(form.part_class, value[key], f"{path}{key}", depth, objects)
                for key in value
            }
        else:
            check_count(form.limit, value, f"{path}{name}", settings)
            content[name] = form.from_message(value, f"{path}{name}")
    if layout.lists:
        _join_lists(layout, content, offsets, path)
    for name, _, form, _ in layout.required:
        # A required number of 0, or an empty text, is not on the wire.
        if name not in content:
            content[name] = form.from_message(getattr(message, name), f"{path}{name}")
    return content


def _join_lists(
    layout: Layout, content: dict[str, Any], offsets: Mapping[str, Any], path: str
) -> None:
    """Joins lists of ids with the offsets that divide them.

    Raises:
      InvalidArgument: Offsets have no ids.
    """
    for name, list_field in layout.lists.items():
        if list_field in content:
            content[list_field] = IdLists(content[list_field], offsets.get(name))
        elif name in offsets:
            violation = FieldViolation(f"{path}{list_field}", "empty", f"a list beside {name}")
            raise InvalidArgument(f"{path}{name} was sent without {list_field}", violation)


def read_submessage(cls: Any, value: Any, where: str, settings: ServiceSettings) -> Any:
    """Reads a message without a model, such as a filter; for errors, see `read_message`."""
    return _read_submessage(cls, value, where, 1, _Objects(cls, where, settings))


def _read_submessage(cls: Any, value: Any, where: str, depth: int, objects: _Objects) -> Any:
    layout = layout_of(cls)
    if layout.is_nested:
        _check_depth(where, depth)
    content = _fields_of_message(layout, value, f"{where}.", depth, objects.settings, objects)
    return cls(**content)
