"""Pickles of plain values, of every protocol, are read without running what they name."""

from __future__ import annotations

import pickle
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from export.checkpoint.formats.pickled_values import read_pickle

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False)
    | st.text()
)
VALUES = st.recursive(
    SCALARS,
    lambda parts: (
        st.lists(parts)
        | st.lists(parts).map(tuple)
        | st.dictionaries(st.text(), parts)
        | parts.map(lambda part: [part, (part, part)])
    ),
    max_leaves=20,
)


@settings(max_examples=settings().max_examples // 2)
@given(VALUES, st.sampled_from([2, 3, 4, 5]))
def test_plain_values_of_every_protocol_are_read(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol), lambda module, name: None) == value
