"""Records of the change log: many are decoded at once as each is alone, and what is no change of
this format is an error.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundle.changes.records import Change, Head, decode, decode_head, decode_runs, encode
from bundle.errors import FormatError

KEYS = st.integers(0, 5)
PRICES = st.integers(0, 1000)


def head(target: str = "movies", stream: str = "") -> Head:
    return Head(kind="candidates", action="upsert", target=target, version=3, stream=stream)


def upsert(prices: dict[int, int], offset: int = 0, **parts: Any) -> Change:
    """Returns a change of the prices of candidates."""
    ids = pa.array([*prices], pa.int64())
    columns = {"id": ids, "attribute:price": pa.array([*prices.values()], pa.int64())}
    return Change(head(**parts), pa.record_batch(columns), 12.5, offset)


def prices_of(change: Change) -> list[tuple[int, int]]:
    prices = change.numbers("attribute:price")
    assert prices is not None
    return [*zip(change.ids.tolist(), prices.tolist(), strict=True)]


@given(
    states=st.lists(
        st.tuples(st.sampled_from(["movies", "books"]), st.dictionaries(KEYS, PRICES)), min_size=1
    )
)
def test_runs_hold_every_change_and_the_last_state_of_each_id(
    states: list[tuple[str, dict[int, int]]],
) -> None:
    changes = [
        upsert(prices, number, target=target, stream="prices")
        for number, (target, prices) in enumerate(states)
    ]
    runs = decode_runs([*enumerate(map(encode, changes), 10)])

    targets = [run.head.target for run in runs]
    assert all(target != following for target, following in pairwise(targets))
    decoded = [change for run in runs for change in run.changes]
    assert [sequence for sequence, _ in decoded] == [*range(10, 10 + len(states))]
    for change, (_, copy) in zip(changes, decoded, strict=True):
        assert copy.columns.equals(change.columns)
        assert (copy.head, copy.time_s, copy.offset) == (change.head, 12.5, change.offset)
    for run in runs:
        expected: dict[int, int] = {}
        for sequence in run.sequences:
            for key, price in states[sequence - 10][1].items():
                expected.pop(key, None)
                expected[key] = price
        assert prices_of(run.last_states) == [*expected.items()]
        assert run.joined.size == sum(change.size for _, change in run.changes)
        assert run.last_states.offset == run.offset == run.sequences[-1] - 10
        middle = run.sequences[len(run.sequences) // 2]
        parts = [run.up_to(middle), run.behind(middle)]
        assert run.sequences == [
            sequence for part in parts if part is not None for sequence in part.sequences
        ]


PAYLOAD = encode(upsert({7: 100}))
PREFIX = struct.Struct("<dQII")
HEAD_BYTES, SCHEMA_BYTES = struct.unpack_from("<II", PAYLOAD, 16)
COLUMNS_BEGIN = PREFIX.size + HEAD_BYTES + SCHEMA_BYTES


def prefixed(head_bytes: int = HEAD_BYTES, schema_bytes: int = SCHEMA_BYTES) -> bytes:
    return PREFIX.pack(0.0, 0, head_bytes, schema_bytes) + PAYLOAD[PREFIX.size :]


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(PAYLOAD[:10], id="shorter than its lengths"),
        pytest.param(PAYLOAD[: PREFIX.size + 5], id="cut within its head"),
        pytest.param(PAYLOAD[:COLUMNS_BEGIN], id="without columns"),
        pytest.param(PAYLOAD[:-40], id="cut within its columns"),
        pytest.param(PAYLOAD + PAYLOAD[COLUMNS_BEGIN:], id="with two batches"),
        pytest.param(prefixed(head_bytes=1 << 31), id="of a long head"),
        pytest.param(prefixed(schema_bytes=1 << 31), id="of a long schema"),
        pytest.param(prefixed(head_bytes=HEAD_BYTES - 8), id="of a head that ends early"),
        pytest.param(PAYLOAD.replace(b'"upsert"', b'"update"'), id="of an unknown action"),
        pytest.param(PAYLOAD.replace(b'"version":3', b'"version":0'), id="of version 0"),
        pytest.param(b"\xff" * 200, id="of ones"),
        pytest.param(b"\0" * 200, id="of zeros"),
    ],
)
def test_a_payload_that_holds_no_change_is_rejected_alone_and_among_others(payload: bytes) -> None:
    with pytest.raises(FormatError, match="no change that this release reads"):
        decode(payload)
    records = [(1, PAYLOAD), (2, payload), (3, PAYLOAD)]
    with pytest.raises(FormatError, match="no change that this release reads"):
        [run.changes for run in decode_runs(records)]


def test_a_head_is_read_without_the_columns() -> None:
    change = upsert({7: 100}, target="books")
    assert decode_head(encode(change)[:COLUMNS_BEGIN]) == change.head
    assert np.isclose(decode(encode(change)).time_s, 12.5)
