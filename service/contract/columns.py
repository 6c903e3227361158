"""JSON values -> packed columns. Independent of features: one rule for every call, whatever the
model.
"""

from __future__ import annotations

import reprlib
import struct
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.tables.id_values import DECIMAL
from bundle.tables.offsets import offsets_of
from service.contract.names import unknown_names
from service.errors import InvalidArgument

NESTING_MAX = 8
"""Maximum number of levels of lists in one value; a dense feature has at most that many axes."""
SHOWN_MAX = 60
"""Maximum number of characters of a client's value that an error repeats."""
INTEGER_MAX = 2**53 - 1
"""The largest integer that every JSON parser keeps; larger ones are written as strings."""
COUNT_MAX = 2**31 - 1
"""The largest count that a message can have; JSON accepts the same ones."""

EXPECTED = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    dict: "a JSON object",
    list: "a list",
}
"""What errors call the types of JSON values."""
_LARGEST = float(np.finfo(np.float32).max)
_SHORTENED = reprlib.Repr()
_SHORTENED.maxstring = _SHORTENED.maxother = SHOWN_MAX


def json_value(value: Any) -> Any:
    """Returns a value as every JSON parser keeps it: large integers, in lists and objects too, as
    strings.
    """
    if isinstance(value, int) and not -INTEGER_MAX <= value <= INTEGER_MAX:
        return str(value)
    if isinstance(value, dict):
        return {name: json_value(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(entry) for entry in value]
    return value


def shown(value: object) -> str:
    """Returns a client's value as an error repeats it: in JSON's notation, truncated to SHOWN_MAX
    characters.
    """
    if value is None:
        text = "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = _SHORTENED.repr(value)
    if len(text) <= SHOWN_MAX:
        return text
    return f"{text[:SHOWN_MAX]}…"


def fields(
    body: object, names: Sequence[str], where: str, tables: Sequence[str] = ()
) -> dict[str, Any]:
    """Checks that a JSON value is an object that has no other fields than those of some names.

    Args:
      body: The JSON value.
      names: The names of the fields that it may have.
      where: The name of the value in an error.
      tables: Those of the names whose fields hold features of the model.

    Raises:
      InvalidArgument: It is no object, or has unknown fields; the message names the nearest names.
    """
    if not isinstance(body, dict):
        raise InvalidArgument.of_field(where, shown(body), "a JSON object")
    # A misspelt option that was ignored would change the response without a sign.
    unknown = [name for name in body if name not in names]
    if unknown:
        hint = ""
        if tables:
            hint = f"the features of a model go into {' or '.join(map(repr, tables))}"
        raise unknown_names(where, "field", unknown, names, f"one of {', '.join(names)}", hint)
    return body


def present_fields(body: object, names: Collection[str], where: str) -> dict[str, Any]:
    """Returns the fields of a JSON object that are not null, as `fields` checks them. In the
    protocols of other servers, null stands for a field that was left out.

    Raises:
      InvalidArgument: See `fields`.
    """
    if isinstance(body, dict):
        body = {name: value for name, value in body.items() if value is not None}
    return fields(body, tuple(names), where)


def check_type(value: object, kind: type[Any], where: str) -> Any:
    """Checks that a JSON value is of a type, which is a key of EXPECTED.

    Raises:
      InvalidArgument: It is not.
    """
    # Not `isinstance`: true is an integer in Python.
    if type(value) is not kind:
        raise InvalidArgument.of_field(where, shown(value), EXPECTED[kind])
    return value


def check_list(value: object, where: str) -> list[Any]:
    """Checks that a JSON value is a list.

    Raises:
      InvalidArgument: It is not.
    """
    values: list[Any] = check_type(value, list, where)
    return values


def flat(
    values: list[Any],
    where: str,
    kinds: set[type] | None = None,
    expected: str = "an integer, a string or a number",
) -> NDArray[Any]:
    """Packs m scalars of one kind.

    Args:
      values: Integers, strings or numbers. Integers may be mixed with their decimal strings, since
        JSON carries integers beyond 2^53 so.
      where: The name of the values in an error.
      kinds: The types of the values, if they are known.
      expected: What may be sent, for the error.

    Returns:
      [m] int64, [m] float32 (if any is no integer), or [m] object holding str.

    Raises:
      InvalidArgument: A value is none of these, kinds are mixed, or a number does not fit its type.
    """
    # By types and not by `isinstance`: for it, True would be an integer.
    if kinds is None:
        kinds = set(map(type, values))
    if kinds <= {int}:
        return _integers(values, where)
    if kinds == {str}:
        return np.array(values, dtype=object)
    if kinds <= {int, float}:
        return numbers(values, where)
    if kinds == {int, str}:
        return _integers([_decimal(value, where) for value in values], where)
    if kinds <= {int, float, str}:
        raise InvalidArgument.of_field(where, "numbers and strings", "one kind", "mixes")
    odd = next(value for value in values if type(value) not in {int, str, float})
    raise InvalidArgument.of_field(where, shown(odd), expected, "holds")


def flat_ids(values: list[Any], where: str) -> NDArray[Any]:
    """Packs m ids as `flat` does. Numbers are left to whoever knows the kind of the ids.

    Returns:
      [m] int64, [m] object holding str, or [m] float32, which are no ids.

    Raises:
      InvalidArgument: As of `flat`.
    """
    return flat(values, where, expected="an integer or a string")


def numbers(values: list[Any], where: str) -> NDArray[np.float32]:
    """Packs m numbers as [m] float32.

    Raises:
      InvalidArgument: A value is no number, or beyond float32.
    """
    if not set(map(type, values)) <= {int, float}:
        odd = next(value for value in values if type(value) not in {int, float})
        raise InvalidArgument.of_field(where, shown(odd), "a number", "holds")
    # Unlike np.array, packing fails where a number would become infinite.
    try:
        return np.frombuffer(struct.pack(f"<{len(values)}f", *values), "<f4")
    except OverflowError:
        odd = next(value for value in values if not -_LARGEST <= value <= _LARGEST)
        expected = "a number within float32"
        raise InvalidArgument.of_field(where, shown(odd), expected, "holds") from None


def column(examples: list[Any], where: str) -> Column:
    """Packs the values of one feature for n examples.

    Args:
      examples: n JSON values: a scalar; a list (a bag or sequence; of equally long lists: a dense
        value); or {"ids": [...], "weights": [...]}.
      where: The name of the feature in an error.

    Raises:
      InvalidArgument: A value has another shape.
    """
    # Most columns are scalars or flat lists, which C code packs without a look at each value.
    kinds = set(map(type, examples))
    if kinds.isdisjoint((list, dict)):
        return Column(_scalars(examples, where, kinds))
    if kinds == {list}:
        scalars = list(chain.from_iterable(examples))
        kinds = set(map(type, scalars))
        if list not in kinds:
            return Column(_scalars(scalars, where, kinds), offsets_of(list(map(len, examples))))

    bags = [_bag(example, where) for example in examples]
    scalars = [value for ids, _ in bags for value in ids]
    values = _scalars(scalars, where, set(map(type, scalars)))
    weights = None
    if any(isinstance(example, dict) and "weights" in example for example in examples):
        all_weights = [weight for _, bag_weights in bags for weight in bag_weights]
        weights = numbers(all_weights, f"{where}.weights")
    return Column(values, offsets_of([len(ids) for ids, _ in bags]), weights)


def columns_of_one(table: Mapping[str, Any], where: str) -> dict[str, Column]:
    """Packs all features of one example, each as `column` packs it.

    Args:
      table: The JSON values by feature.
      where: The name of the features in an error.

    Raises:
      InvalidArgument: A value has another shape; the message names its feature.
    """
    lists = {}
    for name, value in table.items():
        lists[name] = value
        if type(value) is not list:
            lists[name] = [value]
    packed = pack_together(lists, where)
    columns = {}
    for name, value in table.items():
        if name not in packed:
            columns[name] = column([value], f"{where}.{name}")
        elif type(value) is list:
            columns[name] = Column(packed[name], np.array([0, packed[name].size]))
        else:
            columns[name] = Column(packed[name])
    return columns


def pack_together(lists: Mapping[str, list[Any]], where: str) -> dict[str, NDArray[Any]]:
    """Packs the scalars of many features as `flat` does, thousands of features in a few steps: all
    integers at once, and all numbers.

    Args:
      lists: The values by feature.
      where: The name of the features in an error.

    Returns:
      The packed values of the features that hold integers or numbers: [m] int64 or [m] float32 for
      m values, views of one array. The other features are packed one by one, where an error names
      the feature.
    """
    packed_by_name = {}
    for kind in (int, float):
        # The first value decides. If one behind it is of another kind, none is packed here.
        names = [name for name, values in lists.items() if values and type(values[0]) is kind]
        parts = [lists[name] for name in names]
        values = list(chain.from_iterable(parts))
        kinds = set(map(type, values))
        if not kinds or not kinds <= {int, kind}:
            continue
        try:
            packed = flat(values, where, kinds)
        except InvalidArgument:
            # A value is too large. Packed alone, its feature is named.
            continue
        ends = accumulate(map(len, parts), initial=0)
        for name, (first, end) in zip(names, pairwise(ends), strict=True):
            packed_by_name[name] = packed[first:end]
    return packed_by_name


def _scalars(values: list[Any], where: str, kinds: set[type]) -> NDArray[Any]:
    """Packs the values of a feature as `flat` does, but integers that are mixed with strings as
    strings: ids may be either, and a feature of numbers has to reject them.
    """
    packed = flat(values, where, kinds)
    if kinds == {int, str}:
        return packed.astype(str).astype(object)
    return packed


def _integers(values: list[Any], where: str) -> NDArray[np.int64]:
    # In a quarter of the time that np.array takes.
    try:
        return np.frombuffer(struct.pack(f"{len(values)}q", *values), np.int64)
    except struct.error:
        odd = next(value for value in values if not -(2**63) <= value < 2**63)
        expected = "an integer within int64"
        raise InvalidArgument.of_field(where, shown(odd), expected, "holds") from None


def _decimal(value: int | str, where: str) -> int:
    if isinstance(value, str) and not DECIMAL.fullmatch(value):
        raise InvalidArgument.of_field(
            where, shown(value), "one kind", "mixes integers with the string"
        )
    return int(value)


def _bag(bag: Any, where: str) -> tuple[list[Any], list[Any]]:
    """Returns the values of one example and their weights, 1 where none are sent."""
    if not isinstance(bag, dict):
        values = _flatten(bag, where)
        return values, [1.0] * len(values)
    ids = check_list(fields(bag, ("ids", "weights"), where).get("ids"), f"{where}.ids")
    weights = check_list(bag.get("weights", [1.0] * len(ids)), f"{where}.weights")
    if len(weights) != len(ids):
        counts = f"{len(ids)} ids and {len(weights)} weights"
        raise InvalidArgument.of_field(where, counts, "one weight per id", "has")
    return ids, weights


def _flatten(value: Any, where: str) -> list[Any]:
    """Returns the scalars of a scalar, a list, or a list of equally long lists."""
    values: list[Any] = [value]
    if isinstance(value, list):
        values = value
    # By loops, not by recursion: a hostile value cannot exhaust the stack.
    for _ in range(NESTING_MAX):
        inner = sum(1 for entry in values if isinstance(entry, list))
        if inner == 0:
            return values
        if inner < len(values) or len({len(entry) for entry in values}) > 1:
            raise InvalidArgument.of_field(
                where, "nested lists of different lengths", "a value of one shape", "holds"
            )
        values = list(chain.from_iterable(values))
    depth = f"more than {NESTING_MAX} levels of lists"
    raise InvalidArgument.of_field(where, depth, f"a list of at most {NESTING_MAX}", "has")
