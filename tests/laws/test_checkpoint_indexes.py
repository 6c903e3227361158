"""Indexes of TensorFlow's checkpoints: what is written is read, and no flipped bit is believed."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from export.checkpoint.formats.sstable import read_table, write_table
from tests.laws.flipped_bits import Flip, difference, flipped, read_unless_rejected
from tests.laws.stored_arrays import random_values
from tests.units.export.checkpoint import tensor_bundles as bundles


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


def test_every_flipped_bit_in_an_index_is_rejected_or_changes_nothing(tmp_path: Path) -> None:
    values = random_values("float32", (3, 2), seed=1)
    bundles.write_bundle(tmp_path / "ckpt", {"t": values})
    index = tmp_path / "ckpt.index"
    for byte in range(index.stat().st_size):
        for bit in range(8):
            with flipped(Flip(index, byte, bit)):
                readings = read_unless_rejected(tmp_path, ["t"])
            assert not any(difference(values, actual).any() for _, actual in readings), (byte, bit)
