"""JSON values -> packed columns. Knows nothing of what a feature is: one rule for every call, whatever the model."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features import Column
from bundle.native import integers
from service.errors import InvalidArgument

NESTING_MAX = 8
"""Levels of lists in one value; a dense feature has at most that many axes."""
SHOWN_MAX = 60
"""Characters of a caller's value that an error repeats."""

_LARGEST = float(np.finfo(np.float32).max)
_NO_COLUMN = Column(np.empty(0, np.int64))
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]{0,18})", re.ASCII)


def shown(value: object) -> str:
    """Returns a caller's value as an error repeats it: short, never more than a glance of it, in JSON's words."""
    text = "null" if value is None else repr(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def fields(body: object, known: Sequence[str], where: str) -> dict[str, Any]:
    """Checks that a JSON value is an object with known fields only.

    Raises:
      InvalidArgument: it is no object, or has a field that is not known; names the nearest known one.
    """
    if not isinstance(body, dict):
        raise InvalidArgument(f"{where} is {shown(body)}, a JSON object was expected")
    for name in body:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise InvalidArgument(f"{where} has the unknown field {shown(name)}; {hint}")
    return body


def listed(value: object, where: str) -> list[Any]:
    """Checks that a JSON value is a list.

    Raises:
      InvalidArgument: it is none.
    """
    if not isinstance(value, list):
        raise InvalidArgument(f"{where} is {shown(value)}, a list was expected")
    return value


def flat(values: list[Any], where: str) -> NDArray[Any]:
    """Packs m scalars of one kind.

    Args:
      values: integers, strings or numbers. Integers may be mixed with their decimal strings, since JSON carries
        integers beyond 2^53 so.
      where: what an error calls them.

    Returns:
      [m] int64, [m] float32 (if any is no integer), or [m] object holding str.

    Raises:
      InvalidArgument: a value is none of these, kinds are mixed, or a number does not fit its type.
    """
    if integers is not None and (packed := integers(values)) is not None:
        return packed
    return _flat(values, set(map(type, values)), where)


def _flat(values: list[Any], kinds: set[type], where: str) -> NDArray[Any]:
    if kinds <= {int}:
        return _integers(values, where)
    if kinds == {str}:
        packed = np.empty(len(values), dtype=object)
        packed[:] = values
        return packed
    if kinds <= {int, float}:
        return numbers(values, where)
    if kinds == {int, str}:
        return _integers([_decimal(value, where) for value in values], where)
    if kinds <= {int, float, str}:
        raise InvalidArgument(f"{where} mixes numbers and strings; one kind was expected")
    odd = next(value for value in values if type(value) not in {int, str, float})
    raise InvalidArgument(f"{where} holds {shown(odd)}; an integer, a string or a number was expected")


def numbers(values: list[Any], where: str) -> NDArray[np.float32]:
    """Packs m numbers as [m] float32.

    Raises:
      InvalidArgument: a value is no number or beyond float32.
    """
    if not set(map(type, values)) <= {int, float}:
        odd = next(value for value in values if type(value) not in {int, float})
        raise InvalidArgument(f"{where} holds {shown(odd)}; a number was expected")
    try:
        return np.frombuffer(struct.pack(f"<{len(values)}f", *values), "<f4")
    except OverflowError:
        odd = next(value for value in values if not -_LARGEST <= value <= _LARGEST)
        raise InvalidArgument(f"{where} holds {shown(odd)}, which is beyond float32") from None


def offsets_of(lengths: Sequence[int]) -> NDArray[np.int64]:
    """Returns [n + 1] int64, 0 and the running sums of n lengths."""
    return np.fromiter(accumulate(lengths, initial=0), dtype=np.int64, count=len(lengths) + 1)


def column(examples: list[Any], where: str) -> Column:
    """Packs the values of one feature for n examples.

    Args:
      examples: n JSON values: a scalar; a list (a bag or sequence; of equally long lists: a dense value); or
        {"ids": [...], "weights": [...]}.
      where: what an error calls them.

    Raises:
      InvalidArgument: a value has another shape.
    """
    if integers is not None and (numbered := integers(examples)) is not None:
        return Column(numbered)
    kinds = set(map(type, examples))
    if kinds.isdisjoint((list, dict)):
        return Column(_flat(examples, kinds, where))
    parts: list[list[Any]] = []
    weights: list[list[Any] | None] = []
    for example in examples:
        part, weight = _bag(example, where) if isinstance(example, dict) else (_unnested(example, where), None)
        parts.append(part)
        weights.append(weight)
    packed = flat(list(chain.from_iterable(parts)), where)
    if all(weight is None for weight in weights):
        return Column(packed, offsets_of([len(part) for part in parts]))
    filled = [[1.0] * len(part) if weight is None else weight for part, weight in zip(parts, weights, strict=True)]
    packed_weights = numbers(list(chain.from_iterable(filled)), f"{where}.weights")
    return Column(packed, offsets_of([len(part) for part in parts]), packed_weights)


def columns_of_one(table: Mapping[str, Any], where: str) -> dict[str, Column]:
    """Packs the values of all features of one example: what `column` gives for each, thousands in a few steps.

    Args:
      table: JSON values by feature; an [m] int64 array stands for a list of integers.
      where: what an error calls them.

    Raises:
      InvalidArgument: a value has another shape; names its feature.
    """
    scalars: dict[type, list[str]] = {int: [], float: []}
    lists: dict[type, list[str]] = {int: [], float: []}
    found: dict[str, Column] = dict.fromkeys(table, _NO_COLUMN)
    for name, value in table.items():
        kind = type(value)
        if kind in scalars:
            scalars[kind].append(name)
        elif kind is list and value and type(value[0]) in lists:
            lists[type(value[0])].append(name)
        elif kind is np.ndarray:
            found[name] = Column(value, offsets_of([len(value)]))
        else:
            found[name] = column([value], f"{where}.{name}")
    whole, reals = (
        [*map(table.__getitem__, scalars[kind]), *chain.from_iterable(map(table.__getitem__, lists[kind]))]
        for kind in (int, float)
    )
    try:
        packed = {int: flat(whole, where), float: numbers(reals, where)}
        if packed[int].dtype != np.int64:
            raise InvalidArgument(where)
    except InvalidArgument:  # one of them is odd: it is told by its own name
        return {
            name: found[name] if isinstance(value, np.ndarray) else column([value], f"{where}.{name}")
            for name, value in table.items()
        }
    for kind, values in packed.items():
        first = len(scalars[kind])
        for name, one in zip(scalars[kind], values[:first].reshape(-1, 1), strict=True):
            found[name] = Column(one)
        sizes = [len(table[name]) for name in lists[kind]]
        spans = np.zeros((len(sizes), 2), np.int64)
        spans[:, 1] = sizes
        for name, size, span in zip(lists[kind], sizes, spans, strict=True):
            found[name] = Column(values[first : first + size], span)
            first += size
    return found


def _integers(values: list[Any], where: str) -> NDArray[np.int64]:
    try:  # packed by struct in a quarter of the time that np.array takes to look at each
        return np.frombuffer(struct.pack(f"{len(values)}q", *values), np.int64)
    except struct.error:
        odd = next(value for value in values if not -(2**63) <= value < 2**63)
        raise InvalidArgument(f"{where} holds {shown(odd)}, which does not fit int64") from None


def _decimal(value: int | str, where: str) -> int:
    if isinstance(value, str) and not _DECIMAL.fullmatch(value):
        raise InvalidArgument(f"{where} mixes integers with the string {shown(value)}; one kind was expected")
    return int(value)


def _bag(bag: dict[str, Any], where: str) -> tuple[list[Any], list[Any] | None]:
    fields(bag, ("ids", "weights"), where)
    if "ids" not in bag:
        raise InvalidArgument(f"{where} has no 'ids'")
    ids = listed(bag["ids"], f"{where}.ids")
    if "weights" not in bag:
        return ids, None
    weights = listed(bag["weights"], f"{where}.weights")
    if len(weights) != len(ids):
        raise InvalidArgument(f"{where} has {len(ids)} ids and {len(weights)} weights; as many were expected")
    return ids, weights


def _unnested(value: Any, where: str) -> list[Any]:
    """Returns the scalars of a scalar, a list, or a list of equally long lists."""
    values = value if isinstance(value, list) else [value]
    for _ in range(NESTING_MAX):
        inner = sum(1 for entry in values if isinstance(entry, list))
        if inner == 0:
            return values
        if inner < len(values) or len({len(entry) for entry in values}) > 1:
            raise InvalidArgument(f"{where} holds nested lists of several lengths; a dense value has one shape")
        values = list(chain.from_iterable(values))
    raise InvalidArgument(f"{where} nests lists deeper than {NESTING_MAX}")
