"""The encodings of a checkpoint: what is written is read, and this writer agrees with the tests' own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from export.checkpoint.formats.orderedcode import slice_key
from export.checkpoint.formats.sstable import read_table, write_table
from tests.export.checkpoint import bundles


@given(st.dictionaries(st.binary(max_size=80), st.binary(max_size=200), max_size=120), st.integers(1, 40))
def test_table_of_either_writer_reads_back(pairs: dict[bytes, bytes], per_block: int) -> None:
    for written in (bundles.table(pairs.items(), per_block=per_block), write_table(sorted(pairs.items()))):
        assert list(read_table(written)) == sorted(pairs.items())


numbers = st.integers(0, 2**62) | st.just(-1) | st.sampled_from([2**power - 1 for power in range(62)])


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=4),
)
def test_slice_key_is_that_of_the_other_writer(name: str, extents: list[tuple[int, int]]) -> None:
    assert slice_key(name, extents) == bundles.slice_key(name, extents)
