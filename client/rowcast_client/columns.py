"""Packs feature values, as people write them, into columns.

A value of one example is a scalar (`5`, `"drama"`), a list or one-dimensional array (a bag or
sequence), a nested list or array (a dense feature), or, of a weighted bag, a pair `(ids, weights)`
or `{"ids": ids, "weights": weights}`. So a tuple of two lists is a pair, any other tuple a list.
"""

from __future__ import annotations

import itertools
import reprlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rowcast_client.errors import InvalidArgument
from rowcast_client.stubs import embedding_service_pb2 as pb

LISTS = (list, tuple, np.ndarray)
"""The types of a bag, or of a dense value, of one example; the list of all examples' values may be
any sequence.
"""

# Types that are packed with little work. Exactly these types: a subclass such as bool or a named
# tuple may mean something else.
_PLAIN_LISTS = {list, tuple}
_PLAIN_INTEGERS = {int}
_PLAIN_NUMBERS = {int, float}
_TOO_LARGE = "an integer beyond 64 bits: expected integers from -2^63 to 2^63 - 1"


@dataclass(frozen=True)
class Column:
    """Values of one feature for n examples, packed by the caller: the fast way for many examples.

    Attributes:
      values: [m] integers, strings or floats.
      offsets: [n + 1] integers: example i owns values[offsets[i]:offsets[i + 1]]. None: every
        example owns as many.
      weights: [m] floats, the weights of the values of a weighted bag. None: all 1.
    """

    values: ArrayLike
    offsets: ArrayLike | None = None
    weights: ArrayLike | None = None


Features = Mapping[str, Any]
"""The features of one example; or of n, if every value is a Column."""


def pack_requests(requests: Features | Sequence[Features]) -> dict[str, pb.Column]:
    """Packs the features of one request, or of a list of them, into one column per feature.

    Raises:
      InvalidArgument: A value is no feature value, or only some of the requests have a feature.
    """
    if isinstance(requests, Mapping):
        # One Column makes all values those of n examples.
        for value in requests.values():
            if isinstance(value, Column):
                return pack_features(requests)
        return {name: pack_column(name, [value]) for name, value in requests.items()}
    if not is_list(requests) or not all(isinstance(request, Mapping) for request in requests):
        raise InvalidArgument(
            f"the features are {shown(requests)}: expected a dict of feature -> value, or a list "
            "of such dicts, one per request"
        )
    if not requests:
        raise InvalidArgument("the list of requests is empty: expected at least one")
    names = requests[0].keys()
    # A column has a value of every request; the service knows no absent ones.
    for position, request in enumerate(requests):
        if request.keys() != names:
            name = min(request.keys() ^ names)
            raise InvalidArgument(
                f"feature {name!r} is in only some of the {len(requests)} requests (request "
                f"{position} differs from the first): send it in all or in none"
            )
    return pack_features({name: [request[name] for request in requests] for name in names})


def pack_features(features: Mapping[str, Any]) -> dict[str, pb.Column]:
    """Packs features whose values are those of all examples: a Column, or a sequence with one value
    per example.
    """
    return {name: pack_column(name, values) for name, values in features.items()}


def pack_column(name: str, values: Column | Sequence[Any] | NDArray[Any]) -> pb.Column:
    """Packs the values of one feature for n examples.

    Args:
      name: The name of the feature, for messages.
      values: A Column, or n values, or an array [n] or [n, ...].

    Raises:
      InvalidArgument: A value is no feature value.
    """
    subject = f"feature {name!r}"
    check_text("the name of a feature", name)
    if isinstance(values, list):
        plain = _plain_column(subject, values)
        if plain is not None:
            return plain
    if isinstance(values, Column):
        weights = None
        if values.weights is not None:
            weights = _weights(subject, values.weights)
        return _message(subject, _flat(subject, values.values), values.offsets, weights)
    values = as_list(values)
    if not is_list(values):
        raise InvalidArgument(
            f"{subject} is of type {type(values).__name__}: expected one value per example"
        )

    # An array of numbers needs no look at its values.
    if isinstance(values, np.ndarray) and values.dtype != object:
        offsets = None
        if values.ndim > 1:
            width = values.size // max(len(values), 1)
            offsets = np.arange(len(values) + 1) * width
        return _message(subject, _flat(subject, values), offsets)
    if not any(isinstance(value, (Mapping, *LISTS)) for value in values):
        return _message(subject, _flat(subject, values))

    return _bags_column(subject, values)


def pack_ids(name: str, ids: Sequence[Any] | NDArray[Any]) -> pb.Ids:
    """Packs candidate ids.

    Raises:
      InvalidArgument: They are not all integers or all strings.
    """
    ids = as_list(ids)
    if not is_list(ids):
        raise InvalidArgument(f"{name} is {shown(ids)}: expected a list of ids")
    # What most requests send skips the detection of types below.
    if set(map(type, ids)) == _PLAIN_INTEGERS:
        return pb.Ids(int64s=_integers(name, ids))
    values = _flat(name, ids)
    if values.dtype == object:
        return pb.Ids(strings=_strings(name, values))
    if values.dtype.kind == "f":
        raise InvalidArgument(
            f"{name} holds {values[0]}: expected ids, all integers or all strings"
        )
    return pb.Ids(int64s=values.astype("<i8").tobytes())


def pack_offsets(name: str, offsets: ArrayLike) -> bytes:
    """Packs offsets as [n + 1] int32."""
    values = np.asarray(offsets)
    if (
        values.ndim != 1
        or values.dtype.kind not in "iu"
        or (values.size and int(values.max()) > 2**31 - 1)
    ):
        raise InvalidArgument(f"offsets of {name} must be one-dimensional integers below 2^31")
    return values.astype("<i4").tobytes()


def pack_vectors(vectors: ArrayLike | Sequence[ArrayLike]) -> tuple[bytes, list[int] | None]:
    """Packs the vectors of one query, [dim] or [m, dim], or n such arrays, as float32.

    Returns:
      The vectors, and how many each query has; None: there is one query of one vector.

    Raises:
      InvalidArgument: They are no numbers, or differ in length.
    """
    counts = None
    try:
        # Queries may have different numbers of vectors, which are no array until laid flat.
        if (
            is_list(vectors)
            and len(vectors)
            and all(is_list(query) and len(query) and is_list(query[0]) for query in vectors)
        ):
            counts = [len(query) for query in vectors]
            vectors = list(itertools.chain.from_iterable(vectors))
        with np.errstate(over="ignore"):  # becomes infinite, which the service rejects by name
            values = np.atleast_2d(np.asarray(vectors, dtype="<f4"))
        if counts is None and len(values) > 1:
            counts = [len(values)]
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"vectors cannot be read: expected numbers, [dim] or [m, dim]: {error}"
        ) from error
    if values.ndim != 2 or values.size == 0:
        raise InvalidArgument(f"vectors have shape {values.shape}: expected [dim] or [m, dim]")
    return values.tobytes(), counts


def check_text(subject: str, value: Any) -> str:
    """Returns a value that is text.

    Raises:
      InvalidArgument: It is of another type, or holds half of a surrogate pair, which is no
        character.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{subject} is {value!r}: expected text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{subject} is not Unicode text: {error}") from error
    return value


def is_list(values: Any) -> TypeGuard[Sequence[Any]]:
    """Returns whether a value is a list, an array, or another sequence but text."""
    return isinstance(values, (Sequence, np.ndarray)) and not isinstance(values, (str, bytes))


def as_list(values: Any) -> Any:
    """Returns a series of pandas or polars, or a tensor, as an array; anything else as it is."""
    # By what they can do: neither pandas nor polars is a dependency of the client.
    is_series = hasattr(values, "__array__") and hasattr(values, "__len__")
    if is_series and not is_list(values):
        return np.asarray(values)
    return values


def shown(value: Any) -> str:
    """Returns a value as an error message repeats it, at a bounded length."""
    return reprlib.repr(value)


def _plain_column(subject: str, values: list[Any]) -> pb.Column | None:
    """Packs what most requests consist of with little work: scalars, or flat lists, of the types
    of Python. None: the values are of other kinds.
    """
    kinds = set(map(type, values))
    offsets = b""
    if kinds and kinds <= _PLAIN_LISTS:
        ends = itertools.accumulate(map(len, values), initial=0)
        offsets = struct.pack(f"<{len(values) + 1}i", *ends)
        values = list(itertools.chain.from_iterable(values))
        kinds = set(map(type, values))
    if kinds <= _PLAIN_INTEGERS:
        return pb.Column(int64s=_integers(subject, values), offsets=offsets)
    if kinds <= _PLAIN_NUMBERS:
        with np.errstate(over="ignore"):  # becomes infinite, which the service rejects by name
            return pb.Column(float32s=np.array(values, "<f4").tobytes(), offsets=offsets)
    return None


def _bags_column(subject: str, values: Sequence[Any]) -> pb.Column:
    """Packs lists of values, some of which may have weights."""
    bags = [_bag(subject, value) for value in values]
    weights = None
    if any(bag_weights is not None for _, bag_weights in bags):
        weights_by_bag = []
        for ids, bag_weights in bags:
            if bag_weights is None:
                weights_by_bag.append(np.ones(len(ids), np.float32))
            else:
                weights_by_bag.append(bag_weights)
        weights = np.concatenate(weights_by_bag)
    # An empty list has no kind of its own, and must not change the type of the others.
    filled_bags = [ids for ids, _ in bags if len(ids)] or [bags[0][0]]
    offsets = np.cumsum([0, *(len(ids) for ids, _ in bags)])
    return _message(subject, _flat(subject, np.concatenate(filled_bags)), offsets, weights)


def _integers(subject: str, values: Sequence[int]) -> bytes:
    try:
        return struct.pack(f"<{len(values)}q", *values)  # for few values faster than an array
    except struct.error as error:
        raise InvalidArgument(f"{subject} holds {_TOO_LARGE}") from error


def _bag(subject: str, value: Any) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
    """Returns the flat values of one example, and its weights, None if it has none."""
    if isinstance(value, Mapping):
        if value.keys() != {"ids", "weights"}:
            raise InvalidArgument(
                f"{subject} is a dict with the keys {sorted(value)}: expected 'ids' and 'weights'"
            )
        value = (value["ids"], value["weights"])
    elif not (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(part, LISTS) for part in value)
    ):
        return _flat(subject, value), None
    ids = _flat(subject, value[0])
    weights = _weights(subject, value[1])
    if len(ids) != len(weights):
        raise InvalidArgument(
            f"{subject} has {len(ids)} ids but {len(weights)} weights: expected equal numbers"
        )
    return ids, weights


def _weights(subject: str, values: Any) -> NDArray[np.float32]:
    weights = _flat(subject, values)
    if weights.dtype == object:
        raise InvalidArgument(f"{subject} has weights that are strings: expected numbers")
    return weights.astype(np.float32)


def _flat(subject: str, values: Any) -> NDArray[Any]:
    """Returns values as [m] int64, int32, float32, or object holding str; nested lists of equal
    lengths are laid flat.
    """
    if hasattr(values, "__array__"):  # an array, a scalar of numpy, a series of pandas
        values = np.asarray(values).reshape(-1)
    # Arrays of objects and of text are read like lists: their elements may be of any type.
    if not isinstance(values, np.ndarray) or values.dtype.kind in "OU":
        elements = [values]
        if is_list(values):
            elements = list(values)
        values = _array(subject, elements)
    array: NDArray[Any] = values
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # becomes infinite, which the service rejects by name
            return array.astype(np.float32, copy=False)
    if array.dtype.kind not in "iuO":
        raise InvalidArgument(
            f"{subject} is an array of {array.dtype}: expected integers, floats or strings"
        )
    if array.dtype == np.uint64 and array.size and int(array.max()) > 2**63 - 1:
        raise InvalidArgument(f"{subject} holds {_TOO_LARGE}")
    if array.dtype in (object, np.int32):
        return array
    return array.astype(np.int64, copy=False)


def _array(subject: str, values: list[Any]) -> NDArray[Any]:
    """Returns nested lists whose values are of one kind as [m] int64, float64, or object holding
    str.
    """
    leaves = list(_leaves(values))
    kinds = set(map(type, leaves))
    are_strings = all(issubclass(kind, str) for kind in kinds)
    are_integers = all(issubclass(kind, (int, np.integer)) for kind in kinds)
    are_numbers = all(issubclass(kind, (int, float, np.integer, np.floating)) for kind in kinds)
    # A bool is an int for Python, but no id and no number of a feature.
    if bool in kinds or not (are_strings or are_numbers):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        remedy = ""
        if type(None) in kinds:
            remedy = "; omit a feature to use its default"
        raise InvalidArgument(
            f"{subject} holds {names}: expected all integers, all strings or all numbers, alone or "
            f"in a list{remedy}"
        )
    dtype: type[Any] = np.float64
    if are_integers:
        dtype = np.int64
    elif are_strings:
        dtype = object
    try:
        # Raises ValueError for unequal lengths, which the flat leaves would hide.
        np.shape(values)
        return np.array(leaves, dtype)
    except OverflowError as error:
        raise InvalidArgument(f"{subject} holds {_TOO_LARGE}") from error
    except ValueError as error:
        raise InvalidArgument(
            f"{subject} is nested with unequal lengths: expected a regular shape"
        ) from error


def _leaves(values: Sequence[Any] | NDArray[Any]) -> Iterator[Any]:
    """Yields the values of nested lists."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    for value in values:
        if isinstance(value, LISTS):
            yield from _leaves(value)
        else:
            yield value


def _message(
    subject: str,
    values: NDArray[Any],
    offsets: ArrayLike | None = None,
    weights: NDArray[Any] | None = None,
) -> pb.Column:
    message = pb.Column()
    if values.dtype == object:
        message.strings.CopyFrom(_strings(subject, values))
    else:
        # The contract's fields are named after the dtypes, and hold little-endian bytes.
        little_endian = values.astype(values.dtype.newbyteorder("<"))
        setattr(message, f"{values.dtype.name}s", little_endian.tobytes())
    if offsets is not None:
        message.offsets = pack_offsets(subject, offsets)
    if weights is not None:
        message.weights = weights.astype("<f4").tobytes()
    return message


def _strings(subject: str, values: NDArray[Any]) -> pb.Strings:
    try:
        return pb.Strings(values=values.tolist())
    except ValueError as error:  # half of a surrogate pair is no character
        raise InvalidArgument(
            f"{subject} holds a string that is not Unicode text: {error}"
        ) from error
