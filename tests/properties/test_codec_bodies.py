"""Bodies of any kind, damaged ones among them, are read or refused as a client's mistake; nothing else happens."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.codec import json as codec_json
from service.codec import protobuf
from service.codec.columns import flat
from service.codec.limits import Limits
from service.codec.operations import OPERATIONS
from service.engine.requests import Target
from service.errors import InvalidArgument, TooLarge

LIMITS = Limits(max_values=200, max_features=10, max_queries=5, max_names=3)
SHOWN = {
    "retrieve": {"k": 3, "requests": [{"features": {"a": 1, "b": [1, 2]}, "exclude": [5]}] * 2, "attributes": ["x"]},
    "rank": {"context": {"a": 7, "w": {"ids": [1], "weights": [0.5]}}, "candidates": [3, 4], "features": {"c": [1, 2]}},
    "recommend": {"k": 3, "features": {"a": "x", "v": [0.5, 2]}, "context_id": 4, "formula": "a + b"},
    "embed": {"tower": "query", "features": {"d": [[1, 2], [3, 4]]}},
    "lookup": {"feature": "a", "ids": [1, "9007199254740993"]},
}
PIECES = st.sampled_from(
    [b"[", b"]", b"{}", b",", b":", b'"', b"0", b"1e39", b"true", b"null", b"9" * 20, b"\xff", b"\0"]
)
CALLS = st.sampled_from(sorted(OPERATIONS))


@st.composite
def damaged(draw: st.DrawFn, body: bytes) -> bytes:
    """Returns a body with some stretches replaced, and perhaps cut off."""
    found = bytearray(body)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(found)))
        found[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3) | PIECES)
    return bytes(found[: draw(st.integers(0, len(found)) | st.just(len(found)))])


def _columns(request: Any) -> list[Any]:
    sent = (getattr(request, name, None) for name in ("features", "context", "candidates"))
    return [column for columns in sent if isinstance(columns, dict) for column in columns.values()]


@settings(max_examples=300)
@given(CALLS, st.data())
def test_damaged_json_is_read_or_refused(call: str, data: st.DataObject) -> None:
    body = data.draw(damaged(json.dumps(SHOWN[call]).encode()))
    try:
        request, _ = OPERATIONS[call].read_json(codec_json.parse(body, LIMITS), Target(), LIMITS)
    except (InvalidArgument, TooLarge):
        return
    for column in _columns(request):
        assert column.values.dtype in (np.dtype(np.int64), np.dtype(np.float32), np.dtype(object))
        assert column.values.dtype != np.float32 or np.isfinite(column.values).all()
        assert column.offsets is None or (column.offsets[0], column.offsets[-1]) == (0, column.values.size)
        assert column.weights is None or column.weights.shape == column.values.shape


@settings(max_examples=300)
@given(CALLS, st.data())
def test_damaged_messages_are_read_or_refused(call: str, data: st.DataObject) -> None:
    operation = OPERATIONS[call]
    column = {"int64s": bytes(16), "offsets": b"\0\0\0\0\2\0\0\0", "weights": bytes(8)}
    field = {"rank": "candidates", "lookup": "ids"}.get(call, "features")
    fields = {field: column if call == "lookup" else {"a": column, "b": {"strings": {"values": ["x", "y"]}}}}
    body = data.draw(damaged(operation.request_class(**fields, model={"name": "m"}).SerializeToString()))
    try:
        request = operation.read_message(protobuf.parse(operation.request_class, body), None, LIMITS)
    except (InvalidArgument, TooLarge):
        return
    for column in _columns(request):  # whether offsets and numbers are sound is checked with the features
        assert column.values.dtype in (np.dtype(np.int64), np.dtype(np.float32), np.dtype(object))


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1)), st.sampled_from([True, None, 2**63, -(2**63) - 1, [1], {}]), st.data()
)
def test_integers_are_packed_and_refused_beside_anything_else(values: list[int], odd: Any, data: st.DataObject) -> None:
    assert flat(values, "x").tolist() == values
    at = data.draw(st.integers(0, len(values)))
    with pytest.raises(InvalidArgument, match="x holds"):
        flat([*values[:at], odd, *values[at:]], "x")
