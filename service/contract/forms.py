"""The forms of fields: how values look in JSON and in protobuf, and how they are packed.

A field without an axis is an option: it stands at the top of a body. A field along an axis has a
value for each example (`Axis.EXAMPLE`), or a list for each example, whose entries lie end to end
and are divided by the offsets of the message (`Axis.ENTRY`): the candidates of a context, the
vectors of a query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from itertools import chain
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.tables.id_values import int64_of
from bundle.tables.offsets import Offsets, offsets_of
from service.contract.columns import (
    COUNT_MAX,
    EXPECTED,
    INTEGER_MAX,
    check_list,
    check_type,
    column,
    columns_of_one,
    flat,
    flat_ids,
    numbers,
    pack_together,
    shown,
)
from service.contract.packed import (
    FLOAT32,
    INT32,
    INT64,
    fill_column,
    fill_ids,
    read_column,
    read_ids,
    unpack,
    unpack_offsets,
)
from service.errors import InvalidArgument

_INTEGER_END = 2.0**63
"""The smallest integer that the parser returns as a float."""


class Axis(IntEnum):
    """What the values of a field lie along."""

    EXAMPLE = 0
    ENTRY = 1


@dataclass(frozen=True)
class IdLists:
    """A list of ids for each query: query i has `ids[offsets[i]:offsets[i + 1]]`; offsets None:
    each query has all of them.
    """

    ids: NDArray[Any]
    offsets: Offsets | None = None

    def only(self, query: int) -> IdLists:
        """Returns the list of one query."""
        if self.offsets is None:
            return self
        first, end = self.offsets[query : query + 2].tolist()
        return IdLists(self.ids[first:end], np.array([0, end - first], np.int64))


@dataclass(frozen=True)
class Form:
    """How the values of a field look. Reading raises InvalidArgument for any other value.

    Attributes:
      axis: What the values lie along; None: the field is an option.
      name: The name in JSON; "": that of the field.
      limit: The setting that limits how many elements the field has; "": none of its own.
      in_json: Whether JSON has the field, and not protobuf alone.
      may_lack: Whether, of several requests in a body, some may have the field and others not:
        these have what `empty` says. Else all must have it, or none.
    """

    axis: Axis | None = None
    name: str = ""
    limit: str = ""
    in_json: bool = True

    may_lack: ClassVar[bool] = False
    empty: ClassVar[Any] = None

    def from_json(self, value: Any, where: str) -> Any:
        """Reads the JSON value of an option."""
        raise NotImplementedError

    def pack(self, values: list[Any], where: str) -> Any:
        """Packs the JSON values of all examples."""
        raise NotImplementedError

    def pack_entries(self, lists: list[Any], where: str, counts: list[int]) -> Any:
        """Packs the entries of all examples, of which each has as many as `counts` says."""
        raise NotImplementedError

    def entries(self, value: Any, where: str) -> list[Any]:
        """Returns a list with one element for each entry of an example."""
        return check_list(value, where)

    def from_message(self, value: Any, where: str) -> Any:  # noqa: ARG002 - as all
        """Reads the field of a message."""
        return value

    def write(self, message: Any, name: str, value: Any) -> None:
        """Sets the field of a message."""
        setattr(message, name, value)


@dataclass(frozen=True)
class Scalar(Form):
    """A string, a boolean, a float or an integer: int of 32 bits, np.int64 of 64."""

    kind: type[Any] = str

    def from_json(self, value: Any, where: str) -> Any:
        """See `Form`."""
        kind = self.kind
        if type(value) is kind and (kind is not int or -COUNT_MAX <= value <= COUNT_MAX):
            return value
        if kind is float and type(value) is int:
            return float(value)
        # What is too large for the parser is an integer to the client.
        if kind is int and (
            type(value) is int or (type(value) is float and abs(value) >= _INTEGER_END)
        ):
            expected = f"an integer up to {COUNT_MAX}"
            raise InvalidArgument.of_field(where, shown(int(value)), expected)
        return check_type(value, kind, where)

    def from_message(self, value: Any, where: str) -> Any:
        """See `Form`."""
        # JSON has no other numbers.
        if self.kind is float and not math.isfinite(value):
            raise InvalidArgument.of_field(where, value, "a finite number")
        return value


class Number(Form):
    """An integer or a double, which compare differently with the integers of an attribute."""

    def from_json(self, value: Any, where: str) -> Any:
        """See `Form`."""
        # JSON carries integers beyond 2^53 as strings, and no others.
        integer = int64_of(value)
        if integer is not None and abs(integer) > INTEGER_MAX:
            return integer
        if type(value) is not int:
            check_type(value, float, where)
        return value

    def from_message(self, value: Any, where: str) -> Any:
        """See `Form`."""
        kind = value.WhichOneof("kind")
        if kind is None:
            raise InvalidArgument.of_field(where, "empty", "int64 or float64")
        return getattr(value, kind)

    def write(self, message: Any, name: str, value: Any) -> None:
        """See `Form`."""
        number = getattr(message, name)
        if isinstance(value, int):
            number.int64 = value
        else:
            number.float64 = value


@dataclass(frozen=True)
class Word(Form):
    """One of the words of an enumeration, whose numbers in protobuf begin at 1, in their order."""

    words: type[StrEnum] = StrEnum

    def from_json(self, value: Any, where: str) -> Any:
        """See `Form`."""
        if isinstance(value, str) and value in self.words.__members__.values():
            return self.words(value)
        expected = " or ".join([repr(word.value) for word in self.words])
        raise InvalidArgument.of_field(where, shown(value), expected)

    def from_message(self, value: Any, where: str) -> Any:
        """See `Form`."""
        words = list(self.words)
        if 0 < value <= len(words):
            return words[value - 1]
        raise InvalidArgument.of_field(where, value, " or ".join(words))

    def write(self, message: Any, name: str, value: Any) -> None:
        """See `Form`."""
        setattr(message, name, list(self.words).index(value) + 1)


class Head(Scalar):
    """What every response has, as transports write it."""


class Names(Form):
    """A list of names."""

    def from_json(self, value: Any, where: str) -> Any:
        """See `Form`."""
        names = check_list(value, where)
        for name in names:
            if type(name) is not str:
                raise InvalidArgument.of_field(where, shown(name), EXPECTED[str], "holds")
        return tuple(names)

    def from_message(self, value: Any, where: str) -> Any:  # noqa: ARG002 - as all
        """See `Form`."""
        return tuple(value)

    def write(self, message: Any, name: str, value: Any) -> None:
        """See `Form`."""
        getattr(message, name).extend(value)


class Counts(Form):
    """Counts by name."""

    def from_json(self, value: Any, where: str) -> Any:
        """See `Form`."""
        if type(value) is not dict:
            expected = 'a JSON object such as {"year": 3}'
            raise InvalidArgument.of_field(where, shown(value), expected)
        counts: dict[str, Any] = value
        for name, count in counts.items():
            # A float is no integer here, however large it is.
            if type(count) is not int or abs(count) > COUNT_MAX:
                expected = f'an integer up to {COUNT_MAX} (as in {{"year": 3}})'
                raise InvalidArgument.of_field(f"{where}.{name}", shown(count), expected)
        return counts or None

    def from_message(self, value: Any, where: str) -> Any:  # noqa: ARG002 - as all
        """See `Form`."""
        return dict(value)

    def write(self, message: Any, name: str, value: Any) -> None:
        """See `Form`."""
        getattr(message, name).update(value)


class Columns(Form):
    """Features by name. Along entries, the value of each is a list with one value per entry."""

    may_lack = True
    empty: ClassVar[Any] = {}

    def pack(self, values: list[Any], where: str) -> Any:
        """See `Form`."""
        # One request of thousands of features is common: they are packed in a few steps.
        if len(values) == 1:
            return columns_of_one(values[0], where)
        return {
            name: column([table[name] for table in values], f"{where}.{name}") for name in values[0]
        }

    def entries(self, value: Any, where: str) -> list[Any]:
        """See `Form`."""
        return check_list(next(iter(value.values()), []), where)

    def pack_entries(self, lists: list[Any], where: str, counts: list[int]) -> Any:
        """See `Form`."""
        for table, count in zip(lists, counts, strict=True):
            for name, values in table.items():
                if type(values) is not list or len(values) != count:
                    size = len(check_list(values, f"{where}.{name}"))
                    value = f"{size} values for {count} candidates"
                    expected = "one per candidate"
                    raise InvalidArgument.of_field(f"{where}.{name}", value, expected, "has")
        values_by_name = lists[0]
        if len(lists) > 1:
            values_by_name = {
                name: list(chain.from_iterable([table[name] for table in lists]))
                for name in lists[0]
            }
        packed = pack_together(values_by_name, where)
        columns = {}
        for name, values in values_by_name.items():
            if name in packed:
                columns[name] = Column(packed[name])
            else:
                columns[name] = column(values, f"{where}.{name}")
        return columns

    def from_message(self, value: Any, where: str) -> Any:
        """See `Form`."""
        # The items() of a protobuf map is written in Python, and costs seven calls.
        return {name: read_column(value[name], f"{where}.{name}") for name in value}

    def write(self, message: Any, name: str, value: Any) -> None:
        """See `Form`."""
        columns = getattr(message, name)
        for column_name, packed_column in value.items():
            fill_column(columns[column_name], packed_column)


class Ids(Form):
    """Ids, all integers or all strings: one of each example, or a list of entries."""

    def pack(self, values: list[Any], where: str) -> Any:
        """See `Form`."""
        return flat_ids(values, where)

    def pack_entries(self, lists: list[Any], where: str, counts: list[int]) -> Any:  # noqa: ARG002
        """See `Form`."""
        return flat_ids(list(chain.from_iterable(lists)), where)

    def from_message(self, value: Any, where: str) -> Any:
        """See `Form`."""
        return read_ids(value, where)

    def write(self, message: Any, name: str, value: Any) -> None:
        """See `Form`."""
        fill_ids(getattr(message, name), value)


class IdsOrNull(Ids):
    """Ids of a result, null in JSON if it has none."""


class Tokens(Ids):
    """A list of values of an attribute, as an option."""

    def from_json(self, value: Any, where: str) -> Any:
        """See `Form`."""
        values = check_list(value, where)
        # As in protobuf, whose lists of tokens have no booleans.
        if set(map(type, values)) == {bool}:
            values = [str(token).lower() for token in values]
        return flat(values, where)


class Values(Form):
    """One value of each example, as a column: ids of a feature may be numbers that it divides."""

    def pack(self, values: list[Any], where: str) -> Any:
        """See `Form`."""
        return Column(flat(values, where))

    def from_message(self, value: Any, where: str) -> Any:
        """See `Form`."""
        return read_column(value, where)

    def write(self, message: Any, name: str, value: Any) -> None:
        """See `Form`."""
        fill_column(getattr(message, name), value)


class Lists(Form):
    """A list of ids of each example; in protobuf, with a field for their offsets."""

    may_lack = True
    empty: ClassVar[Any] = []

    def from_json(self, value: Any, where: str) -> Any:
        """Reads one list for all examples, or a list of lists."""
        lists = check_list(value, where)
        if not lists or not isinstance(lists[0], list):
            return IdLists(flat_ids(lists, where))
        for number, ids in enumerate(lists):
            check_list(ids, f"{where}[{number}]")
        return self.pack(lists, where)

    def pack(self, values: list[Any], where: str) -> Any:
        """See `Form`."""
        lists = [check_list(ids, where) for ids in values]
        ids = flat_ids(list(chain.from_iterable(lists)), where)
        return IdLists(ids, offsets_of(list(map(len, lists))))

    def from_message(self, value: Any, where: str) -> Any:
        """Reads the ids, which the reader of the message joins with their offsets."""
        return read_ids(value, where)

    def write(self, message: Any, name: str, value: Any) -> None:
        """See `Form`."""
        fill_ids(getattr(message, name), value.ids)
        if value.offsets is not None:
            setattr(message, offsets_field(name), value.offsets.astype(INT32).tobytes())


class MissingIds(Lists):
    """Of each id of a lookup, itself if it does not exist; in protobuf, a column."""

    def write(self, message: Any, name: str, value: Any) -> None:
        """See `Form`."""
        fill_column(getattr(message, name), Column(value.ids))


def offsets_field(name: str) -> str:
    """Returns the field with the offsets of lists: exclude_offsets of exclude_ids."""
    stem = name.removesuffix("ids").removesuffix("_")
    return f"{stem}_offsets".removeprefix("_")


class Vectors(Form):
    """Vectors of one length; those of examples are a result, whose message has their `dim`."""

    def pack_entries(self, lists: list[Any], where: str, counts: list[int]) -> Any:  # noqa: ARG002
        """See `Form`."""
        vectors = list(chain.from_iterable(lists))
        for number, vector in enumerate(vectors):
            check_list(vector, f"{where}[{number}]")
        lengths = sorted(set(map(len, vectors)))
        if len(lengths) > 1:
            value = f"lengths {shown(lengths)}"
            raise InvalidArgument.of_field(where, value, "the dim of the index for each", "has")
        (dim,) = lengths or [0]
        return numbers(list(chain.from_iterable(vectors)), where).reshape(len(vectors), dim)

    def from_message(self, value: Any, where: str) -> Any:
        """See `Form`."""
        return unpack(value, FLOAT32, where)

    def write(self, message: Any, name: str, value: Any) -> None:
        """See `Form`."""
        setattr(message, name, value.tobytes())
        if self.axis is Axis.EXAMPLE:
            message.dim = value.shape[1]


class OneVector(Vectors):
    """One vector of each example of a result."""


@dataclass(frozen=True)
class Numbers(Form):
    """Numbers of a result, in JSON of a kind."""

    kind: type[Any] = float

    def write(self, message: Any, name: str, value: Any) -> None:
        """See `Form`."""
        setattr(message, name, value.tobytes())


class Choices(Numbers):
    """The number of a name for each candidate of a result; its name in JSON."""


class NumbersByName(Form):
    """Several lists of numbers of a result."""

    def write(self, message: Any, name: str, value: Any) -> None:
        """See `Form`."""
        lists = getattr(message, name)
        for list_name, numbers_of_list in value.items():
            lists[list_name] = numbers_of_list.tobytes()


class AttributeLists(Form):
    """Values of attributes by name: int, float, str, bool, list[str] or None."""

    def write(self, message: Any, name: str, value: Any) -> None:
        """See `Form`."""
        # A list of numbers has no room for null: its position holds 0, and is listed.
        for attribute, values in value.items():
            content = getattr(message, name)[attribute]
            content.nulls.extend([i for i, element in enumerate(values) if element is None])
            # The values have one type, but for null; booleans travel as integers.
            kinds = {type(element) for element in values if element is not None}
            if kinds == {str}:
                content.strings.values.extend([element or "" for element in values])
            elif kinds == {list}:
                for element in values:
                    content.lists.values.add(values=element or ())
            elif kinds and kinds <= {int, bool}:
                content.int64s = np.array([element or 0 for element in values], INT64).tobytes()
            elif kinds:
                content.float64s = np.array([element or 0.0 for element in values]).tobytes()


@dataclass(frozen=True)
class Division(Form):
    """Offsets, which divide entries among examples. JSON has none: each request has its own list.

    Attributes:
      of_each: What their absence means: each entry is an example, or one example has all entries.
    """

    of_each: bool = False

    def from_message(self, value: Any, where: str) -> Any:
        """See `Form`."""
        return unpack_offsets(value, where)

    def write(self, message: Any, name: str, value: Any) -> None:
        """See `Form`."""
        setattr(message, name, value.astype(INT32).tobytes())


@dataclass(frozen=True)
class Struct(Form):
    """An object with the fields of a class, or a list of them. `reading` reads it.

    Attributes:
      part_class: The class.
      is_list: Whether it is a list.
      fewest, most: The minimum and the maximum number of elements of a list; 0: any number.
    """

    part_class: type[Any] = object
    is_list: bool = False
    fewest: int = 0
    most: int = 0


class Records(Struct):
    """Named tuples of a result, one of each example, or none at all."""


class RecordLists(Struct):
    """Named tuples of a result, of which each has the number of its example first."""


@dataclass(frozen=True)
class StructByName(Form):
    """An object with the fields of a class for each name that is no other field."""

    part_class: type[Any] = object
