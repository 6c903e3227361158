"""Long runs of like fields in an object graph, decoded at once: 10^5 variables, the slot variables of an optimizer.

A pattern only guesses where a field ends, from what names are made of; then the length that the field claims is held
against it. If one differs nothing was guessed: the caller decodes the bytes field by field, which is always right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from export.checkpoint.formats.wire import VARINT_PATTERN, WireError, decode_varints

LARGE_BYTES = 512
"""Of a node from which on looking for runs is worth while."""

_TEXT = rb"([^\x00-\x1f]*[^\x00-\x1f*])"  # a field behind it begins with a control character or `*`
_SIZE = rb"([\x80-\xff]?[\x00-\x7f])"
_LENGTH = rb"([\x00-\x7f])"
_VARIABLE = re.compile(
    rb"\x0a%b\x12%b\x0a\x0eVARIABLE_VALUE\x12%b%b\x1a%b%b((?:\*\x02\x08\x01)?)"
    % (_SIZE, _SIZE, _LENGTH, _TEXT, _SIZE, _TEXT)
)
"""A node that is a variable: its length, that of its attribute, full name, key, and that it has values."""
_CHILD = re.compile(rb"\x0a%b\x08%b\x12%b%b" % (_LENGTH, VARINT_PATTERN, _LENGTH, _TEXT))
_SLOT = re.compile(rb"\x1a%b\x08%b\x12%b%b\x18%b" % (_LENGTH, VARINT_PATTERN, _LENGTH, _TEXT, VARINT_PATTERN))

Sizes = np.ndarray[Any, np.dtype[np.int64]]


class VariableRun(NamedTuple):
    """Variables: key and full name of each."""

    keys: list[str]
    names: list[str]


class ReferenceRun(NamedTuple):
    """Children: node and name of each; or slot variables: trained variable, name, and `others`, their own nodes."""

    nodes: list[int]
    names: list[str]
    others: list[int] | None = None


def variable_runs(data: bytes) -> tuple[list[bytes], VariableRun]:
    """Splits a graph into its variables and the fields before, between and behind them.

    Raises:
      WireError: a name is no UTF-8.
    """
    between, columns = _split(_VARIABLE, data)
    if columns:
        nodes, attributes, name_sizes, names, key_sizes, keys, values = columns
        named, keyed, attributed = _bytes_of(names), _bytes_of(keys), decode_varints(attributes)
        right = (decode_varints(name_sizes) == named) & (decode_varints(key_sizes) == keyed)
        right &= attributed == 19 + named + _bytes_of(key_sizes) + keyed
        right &= decode_varints(nodes) == 1 + _bytes_of(attributes) + attributed + _bytes_of(values)
        if right.all():
            return between, VariableRun(_texts(keys), _texts(names))
    return [data], VariableRun([], [])


def reference_runs(data: bytes) -> Iterator[bytes | ReferenceRun]:
    """Yields the fields of a node in their order: runs of children, runs of slot variables, others as they are.

    Raises:
      WireError: a name is no UTF-8.
    """
    for part in _whole_run(_CHILD, data):
        yield from _whole_run(_SLOT, part) if isinstance(part, bytes) else (part,)


def _whole_run(pattern: re.Pattern[bytes], data: bytes) -> Sequence[bytes | ReferenceRun]:
    """Splits fields into what lies before one run, the run, and what lies behind; else returns them as they are."""
    between, columns = _split(pattern, data)
    if not columns or any(between[1:-1]):
        return (data,)
    sizes, nodes, name_sizes, names, *others = columns
    named = _bytes_of(names)
    claimed = 3 + _bytes_of(nodes) + named + sum(1 + _bytes_of(each) for each in others)
    if not ((decode_varints(name_sizes) == named) & (decode_varints(sizes) == claimed)).all():
        return (data,)
    numbers = [decode_varints(each).tolist() for each in (nodes, *others)]
    return between[0], ReferenceRun(numbers[0], _texts(names), *numbers[1:]), between[-1]


def _split(pattern: re.Pattern[bytes], data: bytes) -> tuple[list[bytes], list[list[bytes]]]:
    """Returns what lies around matches, and the matches' groups as columns; no columns if there is no match."""
    parts, step = pattern.split(data), pattern.groups + 1
    return parts[::step], [parts[number::step] for number in range(1, step)] if len(parts) > 1 else []


def _bytes_of(column: Sequence[bytes]) -> Sizes:
    return np.fromiter(map(len, column), np.int64, len(column))


def _texts(column: Sequence[bytes]) -> list[str]:
    try:
        return b"\0".join(column).decode().split("\0")  # no text of a pattern has a zero
    except UnicodeDecodeError as problem:
        raise WireError("text that is no UTF-8") from problem
