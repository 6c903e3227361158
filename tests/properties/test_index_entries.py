"""Entries of an index, decoded all at once, are what they are field by field, or refused alike."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from export.checkpoint.formats.entry_protos import StoredEntries, decode_entries
from export.checkpoint.formats.wire import WireError
from tests.export.checkpoint.bundles import entry, field

UNKNOWN = field(15, 1)
"""A field that means nothing; an entry with it has no usual form."""

sizes = st.integers(0, 2**62) | st.integers(0, 300)
usual = st.builds(
    entry,
    st.integers(1, 130),
    st.lists(st.integers(0, 300), max_size=3),
    sizes,
    sizes,
    st.integers(0, 2**32 - 1),
    st.integers(0, 200),
)


def decoded(values: Sequence[bytes]) -> StoredEntries | None:
    try:
        return decode_entries(values)
    except WireError:
        return None


@given(st.lists(usual, min_size=1, max_size=20))
def test_entries_at_once_are_what_they_are_field_by_field(values: list[bytes]) -> None:
    found = decode_entries(values)
    assert found == decode_entries([value + UNKNOWN for value in values])
    assert list(found) == [column[1:] for column in decode_entries([UNKNOWN + values[0], *values])]


@given(st.lists(usual, min_size=1, max_size=3), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=3))
def test_entries_with_any_change_are_what_they_are_field_by_field(
    values: list[bytes], changes: list[tuple[int, int]]
) -> None:
    changed = bytearray(values[0])
    for place, byte in changes:
        changed[place % len(changed)] = byte
    value = bytes(changed)
    assert decoded([value, *values]) == decoded([UNKNOWN + value, *(each + UNKNOWN for each in values)])
