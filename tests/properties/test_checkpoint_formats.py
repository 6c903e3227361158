"""The encodings of a checkpoint: what is written is read, and this writer agrees with the tests'
own.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from export.checkpoint.formats.sstable import read_table, write_table
from tests.export.checkpoint import tensor_bundles as bundles


@given(
    st.dictionaries(st.binary(max_size=80), st.binary(max_size=200), max_size=120),
    st.integers(1, 40),
)
def test_table_of_either_writer_reads_back(pairs: dict[bytes, bytes], per_block: int) -> None:
    for written in (
        bundles.table(pairs.items(), per_block=per_block),
        write_table(sorted(pairs.items())),
    ):
        assert list(read_table(written)) == sorted(pairs.items())
