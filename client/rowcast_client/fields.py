"""How values become fields of messages: each by the type that the contract gives the field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from rowcast_client.candidates import offsets_of, pack_contexts, pack_lists
from rowcast_client.columns import check_text, is_list, pack_ids, pack_requests
from rowcast_client.errors import InvalidArgument
from rowcast_client.similar_names import nearest_name
from rowcast_client.stubs import embedding_service_pb2 as pb
from rowcast_client.stubs.message_values import word_of


def packed_fields(message: Any, values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Packs values as fields of a message; None leaves a field out.

    Args:
      message: The class of the message.
      values: The values of some of the fields that `packers_of` names.
      where: What precedes the name of a field in errors, such as "sources[0].".

    Returns:
      Arguments of the class: those fields, and the offsets of lists of ids.

    Raises:
      InvalidArgument: A value cannot be sent; names the field.
    """
    packers = packers_of(message)
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if value is None:
            continue
        pack = packers[name]
        packed = pack(f"{where}{name}", value)
        if pack is pack_lists:
            packed, counts = packed
            fields[_offsets_field(name)] = offsets_of(f"{where}{name}", counts)
        fields[name] = packed
    return fields


@cache
def packers_of(message: Any) -> dict[str, Callable[[str, Any], Any]]:
    """Returns a function for each field that holds a value by itself, which packs a value, or
    raises InvalidArgument with the name that it is given.
    """
    packers: dict[str, Callable[[str, Any], Any]] = {}
    fields = message.DESCRIPTOR.fields_by_name
    for name, field in fields.items():
        if field.enum_type is not None:
            packers[name] = partial(_word, words_of(field.enum_type))
        elif _offsets_field(name) in fields:
            packers[name] = pack_lists
        elif name in _FIELDS:
            packers[name] = _FIELDS[name]
        elif field.message_type is not None:
            if field.message_type.name in _MESSAGES:
                packers[name] = _MESSAGES[field.message_type.name]
        elif field.is_repeated:
            packers[name] = _names
        elif field.type == FieldDescriptor.TYPE_STRING:
            packers[name] = check_text
        elif field.type in _SCALARS:
            packers[name] = _SCALARS[field.type].packed
    return packers


def _offsets_field(name: str) -> str:
    """Returns the field with the offsets of lists: exclude_offsets of exclude_ids."""
    return f"{name.removesuffix('ids')}offsets"


class _Scalar(NamedTuple):
    """The values of a type of the contract.

    Attributes:
      kind: The type that is sent.
      kinds: The types of values.
      expected: What messages say of it.
      limits: The range of integers.
    """

    kind: type[Any]
    kinds: tuple[type[Any], ...]
    expected: str
    limits: range = range(0)

    def packed(self, name: str, value: Any) -> Any:
        """Packs a value, or raises InvalidArgument."""
        # A bool is an int for isinstance, and any object has a truth in Python.
        is_valid = isinstance(value, self.kinds)
        if isinstance(value, bool):
            is_valid = self.kind is bool
        if not is_valid or (self.limits and int(value) not in self.limits):
            raise InvalidArgument(f"{name} is {value!r}: expected {self.expected}")
        return self.kind(value)


_INTEGERS = (int, np.integer)
_COUNT = _Scalar(int, _INTEGERS, "an integer below 2^31", range(-(2**31), 2**31))
_FLOAT = _Scalar(float, (*_INTEGERS, float, np.floating), "a number")
_SCALARS: Mapping[int, _Scalar] = {
    FieldDescriptor.TYPE_BOOL: _Scalar(bool, (bool, np.bool_), "True or False"),
    FieldDescriptor.TYPE_DOUBLE: _FLOAT,
    FieldDescriptor.TYPE_INT32: _COUNT,
    FieldDescriptor.TYPE_INT64: _Scalar(int, _INTEGERS, "an integer from 0", range(2**63)),
}


def _number(name: str, value: Any) -> pb.Number:
    number = _FLOAT.packed(name, value)
    # Integers stay integers: a float would round those beyond 2^53.
    if isinstance(value, _INTEGERS) and -(2**63) <= value < 2**63:
        return pb.Number(int64=int(value))
    return pb.Number(float64=number)


def words_of(enum: EnumDescriptor) -> dict[str, int]:
    """Returns the numbers of an enumeration by the words of JSON, such as "skip"."""
    return {word_of(enum, value.number): value.number for value in enum.values if value.number}


def _word(words: Mapping[str, int], name: str, value: Any) -> int:
    if not isinstance(value, str) or value not in words:
        expected = " or ".join(map(repr, words))
        raise InvalidArgument(f"{name} is {value!r}: expected {expected}")
    return words[value]


def _names(name: str, values: Any) -> list[str]:
    # A text would be iterated by its characters.
    is_sequence = isinstance(values, Iterable) and not isinstance(values, (str, bytes))
    names = list(values) if is_sequence else []
    if not is_sequence or not all(isinstance(entry, str) for entry in names):
        raise InvalidArgument(f"{name} is {values!r}: expected a list of names")
    return [check_text(name, entry) for entry in names]


def _crowding(name: str, crowding: Any) -> dict[str, int]:
    if not isinstance(crowding, Mapping):
        raise InvalidArgument(f"{name} is {crowding!r}: expected a dict, such as {{'seller': 3}}")
    return {
        check_text(name, attribute): _COUNT.packed(f"{name}.{attribute}", maximum)
        for attribute, maximum in crowding.items()
    }


def _tokens(name: str, values: Any) -> pb.Ids:
    """Packs the values that a condition allows or denies."""
    are_bools = (
        is_list(values)
        and len(values) > 0
        and all(isinstance(value, (bool, np.bool_)) for value in values)
    )
    # The contract has truth values of a condition as the texts "true" and "false".
    if are_bools:
        values = [str(value).lower() for value in values]
    return pack_ids(name, values)


def _struct(message: Any, where: str, values: Any) -> Any:
    """Packs a dict as a message with the same fields."""
    names = packers_of(message)
    if not isinstance(values, Mapping):
        raise InvalidArgument(f"{where} is {values!r}: expected a dict of {', '.join(names)}")
    for name in values:
        if name not in names:
            hint = ""
            meant = nearest_name(str(name), list(names))
            if meant is not None:
                hint = f" (did you mean {meant!r}?)"
            raise InvalidArgument(
                f"{where} has the unknown key {name!r}{hint}: expected a dict of {', '.join(names)}"
            )
    for name, value in values.items():
        if value is None:
            raise InvalidArgument(f"{where}.{name} is None: expected a value")
    return message(**packed_fields(message, values, f"{where}."))


def _list(pack: Callable[[str, Any], Any], name: str, values: Any) -> list[Any]:
    """Packs a list, each value with its position in the name."""
    if not is_list(values):
        raise InvalidArgument(f"{name} is {values!r}: expected a list of dicts")
    return [pack(f"{name}[{number}]", value) for number, value in enumerate(values)]


def _source(where: str, source: Any) -> pb.Source:
    packed: pb.Source = _struct(pb.Source, where, source)
    kinds = ("index", "ids", "list")
    if len({*kinds} & {*source}) != 1:
        raise InvalidArgument(f"{where} is {source!r}: expected exactly one of {', '.join(kinds)}")
    return packed


def _circle(where: str, circle: Any) -> pb.Circle:
    packed: pb.Circle = _struct(pb.Circle, where, circle)
    required = ("latitude", "longitude", "radius_m")
    missing = [f"{where}.{name}" for name in required if name not in circle]
    if missing:
        raise InvalidArgument(f"no {', '.join(missing)}: expected a number for each")
    return packed


def _condition(where: str, value: Any) -> Any:
    if isinstance(value, (str, int, list)):
        values = value
        if not isinstance(value, list):
            values = [value]
        raise InvalidArgument(
            f"{where} is {value!r}: expected a dict, such as {{'allow': {values!r}}}"
        )
    return _struct(pb.Condition, where, value)


def _filter(where: str, conditions: Any) -> pb.Filter:
    if not isinstance(conditions, Mapping):
        raise InvalidArgument(
            f"{where} is {conditions!r}: expected conditions by attribute, such as "
            "{'genres': {'allow': ['Drama']}} or where('genres').any_of('Drama')"
        )
    packed = pb.Filter()
    for name, value in conditions.items():
        path = f"{where}.{name}"
        # An attribute may have the name of a group: its condition is a dict, a group is a list.
        if name not in _GROUPS or isinstance(value, Mapping):
            condition = _condition(path, value)
            packed.conditions[check_text(path, name)].CopyFrom(condition)
            continue
        members = _list(_GROUPS[name], path, value)
        if not members:
            raise InvalidArgument(f"{path} is {value!r}: expected a list of at least one")
        getattr(packed, name).extend(members)
    return packed


_GROUPS: Mapping[str, Callable[[str, Any], Any]] = {
    "all": _filter,
    "any": _filter,
    "none": _filter,
    "near": _circle,
}
"""Fields of a filter that are lists; all others are conditions of attributes."""
_FIELDS: Mapping[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("context", "features"), lambda _, requests: pack_requests(requests)),
    "context_ids": pack_contexts,
    "crowding": _crowding,
}
"""Functions that pack fields whose type in the contract does not say how values are written."""
_MESSAGES: Mapping[str, Callable[[str, Any], Any]] = {
    "Filter": _filter,
    "Ids": _tokens,
    "Number": _number,
    "Source": partial(_list, _source),
}
"""Functions that pack messages, by the name of the message."""
