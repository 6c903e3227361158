"""The forms of the fields of changes, of which each item of a body has a value, and a message a
column.

`pack` takes the values of all items, in which ABSENT stands for a field that an item lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.tables.id_values import int64_of
from service.contract.columns import column, flat_ids, numbers, shown
from service.contract.forms import Form
from service.contract.packed import FLOAT32, INT64, read_column, read_ids, unpack
from service.decoding import in_steps
from service.errors import InvalidArgument

ABSENT = object()
_SAME = "the same as in other items"
_BOOL = np.dtype("?")
_FLOAT64 = np.dtype("<f8")


class Position(Form):
    """An integer from 0; in JSON, beyond 2^53, a decimal string."""

    def from_json(self, value: Any, where: str) -> Any:
        """See `Form`."""
        return _position(value, where)

    def from_message(self, value: Any, where: str) -> Any:
        """See `Form`."""
        return _position(value, where)


class ItemForm(Form):
    """The form of a field of items."""

    def unpack(self, value: Any, where: str, count: int) -> Any:
        """Reads the field of a message.

        Args:
          value: The value in the message.
          where: The name of the field in errors.
          count: The number of items.
        """
        raise NotImplementedError


class ItemIds(ItemForm):
    """An id of each item."""

    def pack(self, values: list[Any], where: str) -> Any:
        """See `Form`."""
        return flat_ids(values, where)

    def unpack(self, value: Any, where: str, count: int) -> Any:  # noqa: ARG002 - as all
        """See `ItemForm`."""
        return read_ids(value, where)


class Positions(ItemForm):
    """A position of each item, or of none."""

    def pack(self, values: list[Any], where: str) -> Any:
        """See `Form`."""
        if all(value is ABSENT for value in values):
            return None
        positions = []
        for number, value in in_steps(values):
            # An item without a number could neither be late nor on time.
            if value is ABSENT:
                raise InvalidArgument.of_field(f"items[{number}]", f"no {where}", _SAME, "has")
            positions.append(_position(value, f"items[{number}].{where}"))
        return np.array(positions, np.int64)

    def unpack(self, value: Any, where: str, count: int) -> Any:  # noqa: ARG002 - as all
        """See `ItemForm`."""
        positions = unpack(value, INT64, where)
        _position(int(positions.min()), where)
        return positions


class Features(ItemForm):
    """Features by name, the same ones of all items."""

    def pack(self, values: list[Any], where: str) -> Any:
        """See `Form`."""
        # Left out, a feature would have a default, and the candidate another vector.
        by_name = _by_name(values, where)
        return {name: column(by_name[name], f"{where}.{name}") for name in by_name}

    def unpack(self, value: Any, where: str, count: int) -> Any:  # noqa: ARG002 - as all
        """See `ItemForm`."""
        return {name: read_column(value[name], f"{where}.{name}") for name in value}


class Attributes(ItemForm):
    """Values by name, of which None is one; the same names of all items."""

    def pack(self, values: list[Any], where: str) -> Any:
        """See `Form`."""
        # An absent attribute could mean "as it was" or "none". Clients say which.
        return _by_name(values, where, "null stands for no value")

    def unpack(self, value: Any, where: str, count: int) -> Any:
        """See `ItemForm`."""
        return {name: _values(value[name], f"{where}.{name}", count) for name in value}


class Vectors(ItemForm):
    """Vectors by index, the same ones of all items."""

    def pack(self, values: list[Any], where: str) -> Any:
        """See `Form`."""
        by_name = _by_name(values, where)
        return {name: _matrix(by_name[name], f"{where}.{name}") for name in by_name}

    def unpack(self, value: Any, where: str, count: int) -> Any:
        """See `ItemForm`."""
        matrices = {}
        for name in value:
            path = f"{where}.{name}"
            packed = unpack(value[name], FLOAT32, path)
            if not packed.size or packed.size % count:
                expected = f"a vector of equal length for each of {count} ids"
                raise InvalidArgument.of_field(path, f"{packed.size} numbers", expected, "has")
            matrices[name] = packed.reshape(count, -1)
        return matrices


class Times(ItemForm):
    """Unix seconds, or NaN for never; in JSON null or left out."""

    def pack(self, values: list[Any], where: str) -> Any:
        """See `Form`."""
        if all(value is ABSENT for value in values):
            return None
        times = []
        for number, value in in_steps(values):
            time_s = value
            if value is None or value is ABSENT:
                time_s = np.nan
            elif type(value) not in {int, float}:
                expected = "Unix seconds or null"
                raise InvalidArgument.of_field(f"items[{number}].{where}", shown(value), expected)
            times.append(float(time_s))
        return np.array(times, np.float64)

    def unpack(self, value: Any, where: str, count: int) -> Any:  # noqa: ARG002 - as all
        """See `ItemForm`."""
        return unpack(value, _FLOAT64, where)


def _position(value: Any, where: str) -> int:
    number = int64_of(value)
    if number is None or number < 0:
        raise InvalidArgument.of_field(where, shown(value), "an integer from 0")
    return number


def _by_name(tables: Sequence[Any], field: str, hint: str = "") -> dict[str, list[Any]]:
    """Returns the values of all items by the names that a field of each has.

    Args:
      tables: The objects of all items.
      field: The name of the field in an item.
      hint: What a client can send where a name has no value.

    Raises:
      InvalidArgument: A value is no object, or an item lacks a name that others have.
    """
    if all(table is ABSENT for table in tables):
        return {}
    names: dict[str, None] = {}
    present = [{} if table is ABSENT else table for table in tables]
    for number, table in in_steps(present):
        if not isinstance(table, dict):
            where = f"items[{number}].{field}"
            raise InvalidArgument.of_field(where, shown(table), "a JSON object")
        names |= dict.fromkeys(table)
    for number, table in in_steps(present):
        for name in names:
            if name not in table:
                where = f"items[{number}].{field}"
                raise InvalidArgument.of_field(where, f"no {shown(name)}", _SAME, "has", hint)
    return {name: [table[name] for table in present] for name in names}


def _matrix(vectors: Sequence[Any], field: str) -> NDArray[np.float32]:
    """Returns [m, dim] vectors."""
    for number, vector in in_steps(vectors):
        where = f"items[{number}].{field}"
        if not isinstance(vector, list):
            value = shown(None if vector is ABSENT else vector)
            raise InvalidArgument.of_field(where, value, "a list of numbers")
        if len(vector) != len(vectors[0]):
            expected = f"a list of {len(vectors[0])} as in the first item"
            raise InvalidArgument.of_field(where, f"{len(vector)} numbers", expected, "has")
    whole = numbers([value for vector in vectors for value in vector], field)
    return whole.reshape(len(vectors), -1)


def _values(message: Any, where: str, count: int) -> list[Any]:
    """Returns the values of an attribute, None where there is none.

    Args:
      message: The message.
      where: The name of the attribute in an error.
      count: The number of items, for an attribute of which none has a value.

    Raises:
      InvalidArgument: A null has no position among the values.
    """
    values: list[Any]
    match message.WhichOneof("values"):
        case "int64s":
            values = unpack(message.int64s, INT64, f"{where}.int64s").tolist()
        case "float64s":
            values = unpack(message.float64s, _FLOAT64, f"{where}.float64s").tolist()
        case "bools":
            values = unpack(message.bools, _BOOL, f"{where}.bools").tolist()
        case "strings":
            values = list(message.strings.values)
        case "lists":
            values = [list(strings.values) for _, strings in in_steps(message.lists.values)]
        case _:
            values = [None] * count
    # A list of numbers has no room for null: each such position has some value, which is replaced.
    for position in message.nulls:
        if not 0 <= position < len(values):
            expected = f"a position below {len(values)}"
            raise InvalidArgument.of_field(f"{where}.nulls", position, expected, "has")
        values[position] = None
    return values
