"""Feature values as people write them -> packed columns.

A value of one example is a scalar (`5`, `"drama"`), a list or one-dimensional array (a bag or sequence), a nested list
or array (a dense feature), or, of a weighted bag, a pair `(ids, weights)` or `{"ids": ids, "weights": weights}`. So a
tuple of two lists is a pair, any other tuple a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rowcast_client.errors import InvalidArgument
from rowcast_client.stubs import embedding_service_pb2 as pb

LISTS = (list, tuple, np.ndarray)


@dataclass(frozen=True)
class Column:
    """Values of one feature for n examples, packed by the caller: the fast way for many examples.

    Attributes:
      values: [m] integers, strings or floats.
      offsets: [n + 1] integers: example i owns values[offsets[i]:offsets[i + 1]]. None: every example owns as many.
      weights: [m] floats beside the values of a weighted bag. None: all 1.
    """

    values: ArrayLike
    offsets: ArrayLike | None = None
    weights: ArrayLike | None = None


Features = Mapping[str, Any]
"""The features of one example; or of n, if every value is a Column."""


def pack_requests(requests: Features | Sequence[Features]) -> dict[str, pb.Column]:
    """Packs the features of one request, or of a list of them, into one column per feature.

    Raises:
      InvalidArgument: a value that is no feature value, or a feature that only some of the requests have.
    """
    if isinstance(requests, Mapping):
        if any(isinstance(value, Column) for value in requests.values()):
            return pack_features(requests)
        requests = [requests]
    listed = isinstance(requests, Sequence) and not isinstance(requests, (str, bytes))
    if not listed or not all(isinstance(one, Mapping) for one in requests):
        raise InvalidArgument("features are a dict of feature -> value, or a list of such dicts, one per request")
    if not requests:
        raise InvalidArgument("the list of requests is empty: expected at least one")
    names = requests[0].keys()
    for place, request in enumerate(requests):
        if request.keys() != names:
            name = min(request.keys() ^ names)
            raise InvalidArgument(
                f"feature {name!r} is in some of the {len(requests)} requests only (request {place} differs from the "
                "first): send it in all or in none"
            )
    return {name: pack_column(name, [request[name] for request in requests]) for name in names}


def pack_features(features: Mapping[str, Any]) -> dict[str, pb.Column]:
    """Packs features whose values are those of all examples: a Column, or a sequence with one value per example."""
    return {name: pack_column(name, values) for name, values in features.items()}


def pack_column(name: str, values: Column | Sequence[Any] | NDArray[Any]) -> pb.Column:
    """Packs the values of one feature for n examples.

    Args:
      name: of the feature, for messages.
      values: a Column, or n values, or an array [n] or [n, ...].
    Raises:
      InvalidArgument: a value that is no feature value.
    """
    what = f"feature {name!r}"
    if not isinstance(name, str):
        raise InvalidArgument(f"{what} is named by a {type(name).__name__}: expected text")
    if isinstance(values, Column):
        return _message(
            what,
            _flat(what, values.values),
            None if values.offsets is None else np.asarray(values.offsets),
            None if values.weights is None else _weights(what, values.weights),
        )
    if isinstance(values, np.ndarray):
        if values.ndim < 2:
            return _message(what, _flat(what, np.atleast_1d(values)))
        width = int(np.prod(values.shape[1:]))
        return _message(what, _flat(what, values), np.arange(len(values) + 1) * width)
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Sequence):
        raise InvalidArgument(f"{what} is a {type(values).__name__}: expected one value per example")
    kinds = set(map(type, values))
    if not any(issubclass(kind, (*LISTS, Mapping)) for kind in kinds):
        return _message(what, _flat(what, values))
    parts = [_example(what, value) for value in values]
    offsets = np.cumsum([0, *(len(ids) for ids, _ in parts)])
    weights = None
    if any(weight is not None for _, weight in parts):
        weights = np.concatenate([np.ones(len(ids), np.float32) if w is None else w for ids, w in parts])
    return _message(what, _join(what, [ids for ids, _ in parts]), offsets, weights)


def pack_ids(name: str, ids: Sequence[Any] | NDArray[Any]) -> pb.Ids:
    """Packs candidate ids.

    Raises:
      InvalidArgument: they are not all integers or all strings.
    """
    if isinstance(ids, (str, bytes, Mapping)) or not isinstance(ids, (Sequence, np.ndarray)):
        raise InvalidArgument(f"{name} is {ids!r}: expected a list of ids")
    values = _flat(name, ids)
    if values.dtype == object:
        return pb.Ids(strings=pack_strings(name, values.tolist()))
    if values.dtype.kind == "f":
        raise InvalidArgument(f"{name} holds {values[0]}: expected ids, all integers or all strings")
    return pb.Ids(int64s=values.astype("<i8", copy=False).tobytes())


def pack_strings(name: str, values: list[str]) -> pb.Strings:
    """Packs strings; half of a surrogate pair is no character and is rejected."""
    try:
        return pb.Strings(values=values)
    except ValueError as error:
        raise InvalidArgument(f"{name} holds a string that is not Unicode text: {error}") from error


def pack_offsets(name: str, offsets: ArrayLike) -> bytes:
    """Packs offsets as [n + 1] int32."""
    values = np.asarray(offsets)
    if values.ndim != 1 or values.dtype.kind not in "iu" or (values.size and int(values.max()) > 2**31 - 1):
        raise InvalidArgument(f"offsets of {name} must be one-dimensional integers below 2^31")
    return values.astype("<i4").tobytes()


def pack_vectors(vectors: ArrayLike) -> tuple[bytes, int]:
    """Packs a vector [dim], or [n, dim] of them, as float32; says how many they are."""
    try:
        with np.errstate(over="ignore"):  # becomes infinite, which the service refuses by name
            values = np.atleast_2d(np.asarray(vectors, dtype="<f4"))
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"vectors are no numbers, [dim] or [n, dim]: {error}") from error
    if values.ndim != 2 or values.size == 0:
        raise InvalidArgument(f"vectors have shape {np.shape(vectors)}: expected [dim] or [n, dim]")
    return values.tobytes(), len(values)


def _example(what: str, value: Any) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
    """Flat values of one example, and its weights."""
    if isinstance(value, Mapping):
        if set(value) != {"ids", "weights"}:
            raise InvalidArgument(f"{what} is a dict with {sorted(value)}: expected 'ids' and 'weights'")
        value = (value["ids"], value["weights"])
        pair = True
    else:
        pair = isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, LISTS) for part in value)
    if not pair:
        return _flat(what, value if isinstance(value, LISTS) else [value]), None
    ids, weights = _flat(what, _list(what, value[0])), _weights(what, _list(what, value[1]))
    if len(ids) != len(weights):
        raise InvalidArgument(f"{what} has {len(ids)} ids but {len(weights)} weights: expected as many")
    return ids, weights


def _list(what: str, values: Any) -> Any:
    if not isinstance(values, LISTS):
        raise InvalidArgument(f"{what} holds {values!r} beside weights: expected a list of ids and a list of weights")
    return values


def _weights(what: str, values: Any) -> NDArray[np.float32]:
    weights = _flat(what, values)
    if weights.dtype == object:
        raise InvalidArgument(f"{what} has weights that are strings: expected numbers")
    return weights.astype(np.float32)


def _flat(what: str, values: Any) -> NDArray[Any]:
    """[m] int64, int32, float32, or object holding str; nested lists of equal lengths are laid flat."""
    if isinstance(values, np.ndarray):
        return _narrow(what, values.reshape(-1))
    try:
        kinds = set(map(type, values))
    except TypeError as error:
        raise InvalidArgument(f"{what} is {values!r}: expected a list of values") from error
    if kinds <= {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError as error:
            raise InvalidArgument(f"{what} holds an integer beyond 64 bits") from error
    if kinds <= {str, np.str_}:
        return np.array([str(value) for value in values], object)
    wrong = [kind for kind in kinds if not issubclass(kind, (int, float, np.integer, np.floating, *LISTS))]
    wrong += [kind for kind in kinds if kind is bool]
    nested = [kind for kind in kinds if issubclass(kind, LISTS)]
    if wrong or (nested and len(nested) != len(kinds)):
        kinds_named = ", ".join(sorted(kind.__name__ for kind in kinds))
        cure = "; leave a feature out to take its default" if type(None) in kinds else ""
        raise InvalidArgument(f"{what} holds {kinds_named}: expected all integers, all strings or all numbers{cure}")
    if not nested and all(issubclass(kind, (int, np.integer)) for kind in kinds):
        return _flat(what, [int(value) for value in values])
    if nested:
        rows = [_flat(what, value) for value in values]
        if len({len(row) for row in rows}) > 1:
            raise InvalidArgument(f"{what} is nested with unequal lengths: expected a regular shape")
        return _join(what, rows)
    return _narrow(what, np.asarray(values))


def _narrow(what: str, values: NDArray[Any]) -> NDArray[Any]:
    """The same values in one of the dtypes that travel."""
    if values.dtype.kind in "iu":
        if values.dtype == np.uint64 and values.size and int(values.max()) > 2**63 - 1:
            raise InvalidArgument(f"{what} holds an integer beyond 64 bits")
        return values if values.dtype == np.int32 else values.astype(np.int64, copy=False)
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):  # becomes infinite, which the service refuses by name
            return values.astype(np.float32, copy=False)
    if values.dtype.kind in "OU":
        listed = values.tolist()
        if any(isinstance(value, np.ndarray) for value in listed):
            raise InvalidArgument(f"{what} is an array of arrays: expected a regular shape")
        return _flat(what, listed)
    raise InvalidArgument(f"{what} is an array of {values.dtype}: expected integers, floats or strings")


def _join(what: str, parts: list[NDArray[Any]]) -> NDArray[Any]:
    filled = [part for part in parts if len(part)]
    if not filled:
        return np.zeros(0, np.int64)
    strings = sum(part.dtype == object for part in filled)
    if strings not in (0, len(filled)):
        raise InvalidArgument(f"{what} mixes strings and numbers: expected one kind")
    return _narrow(what, np.concatenate(filled))


def _message(
    what: str,
    values: NDArray[Any],
    offsets: NDArray[Any] | None = None,
    weights: NDArray[np.float32] | None = None,
) -> pb.Column:
    message = pb.Column()
    if values.dtype == object:
        message.strings.CopyFrom(pack_strings(what, values.tolist()))
    elif values.dtype == np.int32:
        message.int32s = values.astype("<i4", copy=False).tobytes()
    elif values.dtype == np.float32:
        message.float32s = values.astype("<f4", copy=False).tobytes()
    else:
        message.int64s = values.astype("<i8", copy=False).tobytes()
    if offsets is not None:
        message.offsets = pack_offsets(what, offsets)
    if weights is not None:
        message.weights = weights.astype("<f4").tobytes()
    return message
