"""How changes are packed, and their results. `change_calls` has a function for each change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rowcast_client.calls import Call, CallOptions, versioned_call
from rowcast_client.columns import (
    Features,
    as_list,
    check_text,
    is_list,
    pack_features,
    pack_ids,
    shown,
)
from rowcast_client.errors import InvalidArgument
from rowcast_client.fields import packed_fields
from rowcast_client.model_details import AppliedChanges, ChangeResult
from rowcast_client.results import unpack_ids
from rowcast_client.stubs import embedding_service_pb2 as pb
from rowcast_client.stubs.message_values import number_of, value_of

Values = Sequence[Any] | NDArray[Any]
"""One value for each id: a list or an array."""
_INT64 = "<i8"
"""The dtype of integers in a message."""


class ChangeOptions(CallOptions, total=False):
    """Options of every change, beside those of calls. The version is the one that the change is
    checked against; all versions that are served get the change.

    Attributes:
      sequences: An integer from 0 for each id: an id keeps its state if the state has this sequence
        or a later one.
      stream: The name of the stream that the change was read from, with `offset`.
      offset: The position in the stream behind the change. If the stream was applied up to it
        before, the change is left out, so that each change is made once.
      from_offset: The position in the stream before the change. If the stream was applied beyond
        it, all of the change is left out, so that no part of it is made twice; left out: a change
        that ends behind the stream's offset is made as a whole.
    """

    sequences: Values | None
    stream: str
    offset: int
    from_offset: int | None


def changes(
    model: str = "", *, timeout_s: float | None = None, request_id: str | None = None
) -> Call[AppliedChanges]:
    """Returns what was changed of a model so far: where the readers of streams continue.

    Args:
      model: The name of the model; the only one if left out.
      timeout_s: The timeout in seconds for all attempts together; None: The client's timeout.
      request_id: The ID under which the service logs the call; None: a new one.

    Raises:
      InvalidArgument: A value cannot be sent; the service's own errors are raised as `errors.py`
        lists them.
    """
    return versioned_call(
        "GetChanges",
        pb.GetChangesRequest(),
        pb.GetChangesResponse,
        _unpack_applied,
        model=model,
        timeout_s=timeout_s,
        request_id=request_id,
    )


def change(
    kind: str,
    action: str,
    ids: Values,
    *,
    target: str = "",
    features: Features | None = None,
    attributes: Mapping[str, Values] | None = None,
    vectors: Mapping[str, ArrayLike] | None = None,
    expires_s: Values | None = None,
    sequences: Values | None = None,
    stream: str = "",
    offset: int = 0,
    from_offset: int | None = None,
    **options: Unpack[CallOptions],
) -> Call[ChangeResult]:
    """Makes a change of candidates or contexts: the functions of `change_calls` say which
    fields each has.

    Raises:
      InvalidArgument: A value cannot be sent.
    """
    texts_and_offsets = {
        "target": target,
        "stream": stream,
        "offset": offset,
        "from_offset": from_offset,
    }
    request = pb.ChangeRequest(
        kind=number_of(pb.ChangeKind.DESCRIPTOR, kind),
        action=number_of(pb.ChangeAction.DESCRIPTOR, action),
        ids=pack_ids("ids", ids),
        features=pack_features(features or {}),
        attributes=_packed_attributes(attributes or {}),
        **packed_fields(pb.ChangeRequest, texts_and_offsets),
    )
    for name, matrix in (vectors or {}).items():
        request.vectors[name] = _matrix(f"vectors {name}", matrix)
    if expires_s is not None:
        # The contract has NaN for candidates that never expire.
        times_s = _filled(_listed("expires_s", expires_s), np.nan)
        request.expires_s = _packed("expires_s", times_s, "<f8")
    if sequences is not None:
        request.sequences = _packed("sequences", _listed("sequences", sequences), _INT64)
    return versioned_call("Change", request, pb.ChangeResponse, _unpack, **options)


def _unpack_applied(message: pb.GetChangesResponse) -> AppliedChanges:
    return AppliedChanges(message.model.name, message.sequence, dict(message.streams))


def _unpack(message: pb.ChangeResponse) -> ChangeResult:
    fields = value_of(message)
    fields |= {name: unpack_ids(getattr(message, name)) for name in ("outdated", "unknown")}
    return ChangeResult(**fields)


def _matrix(subject: str, vectors: ArrayLike) -> bytes:
    """Packs [m, dim] numbers as float32."""
    try:
        with np.errstate(over="ignore"):  # becomes infinite, which the service rejects by name
            matrix = np.asarray(as_list(vectors), dtype="<f4")
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"{subject} cannot be read: expected numbers, [m, dim]: {error}"
        ) from error
    if matrix.ndim != 2 or not matrix.size:
        raise InvalidArgument(f"{subject} have shape {matrix.shape}: expected [m, dim]")
    return matrix.tobytes()


def _listed(subject: str, values: Values) -> list[Any]:
    values = as_list(values)
    if not is_list(values):
        raise InvalidArgument(
            f"{subject} is {shown(values)}: expected a list, one value for each id"
        )
    # tolist, since the types of NumPy's scalars are no types of Python.
    if isinstance(values, np.ndarray):
        return values.tolist()
    return list(values)


def _filled(values: list[Any], filler: float | str) -> list[Any]:
    """Returns values with a filler instead of None."""
    return [filler if value is None else value for value in values]


def _packed(subject: str, values: list[Any], dtype: str) -> bytes:
    """Packs numbers, of which integers must be integers: NumPy would round a float."""
    kinds: tuple[type, ...] = (int, float, np.number)
    expected = "numbers"
    if dtype == _INT64:
        kinds = (int, np.integer)
        expected = "integers"
    for value in values:
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise InvalidArgument(f"{subject} holds {shown(value)}: expected {expected}")
    try:
        return np.array(values, dtype).tobytes()
    except OverflowError as error:
        raise InvalidArgument(f"{subject} holds a number beyond 64 bits") from error


def _packed_attributes(attributes: Mapping[str, Values]) -> dict[str, pb.Attribute]:
    return {
        check_text("an attribute", name): _packed_attribute(
            f"attribute {name!r}", _listed(f"attribute {name!r}", values)
        )
        for name, values in attributes.items()
    }


def _packed_attribute(subject: str, values: list[Any]) -> pb.Attribute:
    """Packs the values of one attribute, None where there is none."""
    nulls = [position for position, value in enumerate(values) if value is None]
    message = pb.Attribute(nulls=nulls)
    present = [value for value in values if value is not None]
    if not present:
        return message

    # The type of the attribute is that of all its values, bools before integers, since every bool
    # is an int. The message has a filler at the positions of its nulls.
    if all(isinstance(value, (bool, np.bool_)) for value in present):
        message.bools = bytes(bool(value) for value in values)
    elif all(isinstance(value, str) for value in present):
        message.strings.values.extend(_texts(subject, _filled(values, "")))
    elif all(isinstance(value, (list, tuple)) for value in present):
        for value in values:
            message.lists.values.append(pb.Strings(values=_texts(subject, value or ())))
    elif all(isinstance(value, (int, np.integer)) for value in present):
        message.int64s = _packed(subject, _filled(values, 0), _INT64)
    else:
        message.float64s = _packed(subject, _filled(values, 0), "<f8")
    return message


def _texts(subject: str, values: Sequence[Any]) -> list[str]:
    for value in values:
        if not isinstance(value, str):
            raise InvalidArgument(f"{subject} holds {shown(value)} in a list: expected strings")
    return [check_text(subject, value) for value in values]
