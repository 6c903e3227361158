"""What the index writer writes is what the reader reads, and what another writer of the format writes."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from export.checkpoint.formats.coding import mask, unmask
from export.checkpoint.formats.sstable import BLOCK_BYTES, read_table, write_table
from export.checkpoint.formats.tensorbundle import data_file, read_index, string_bytes, write_index
from export.checkpoint.variables import NUMPY_DTYPES, Entry, Slice, volume
from tests.export.checkpoint import bundles

pairs_of_bytes = st.dictionaries(st.binary(max_size=80), st.binary(max_size=200), max_size=120)


@st.composite
def entries(draw: st.DrawFn, prefix: Path, files: int) -> dict[str, Entry]:
    """Variables of up to three axes, cut anywhere along each, their slices strewn over the data files."""
    found = {}
    names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
        lambda name: name[0] > "\0"
    )
    for key in draw(st.sets(names, max_size=6)):
        dtype = draw(st.sampled_from(sorted(NUMPY_DTYPES)))
        shape = tuple(draw(st.lists(st.integers(1, 300), max_size=3)))
        cuts = [sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=2))}) for size in shape]
        boxes: list[tuple[tuple[int, int], ...]] = [()]
        for axis in cuts:
            boxes = [(*box, extent) for box in boxes for extent in pairwise(axis)]
        slices = []
        for box in boxes:
            extent = tuple(end - start for start, end in box)
            size = volume(extent) * NUMPY_DTYPES[dtype].itemsize
            file = str(data_file(prefix, draw(st.integers(0, files - 1)), files))
            offset, crc = draw(st.integers(0, 1 << 40)), draw(st.integers(0, (1 << 32) - 1))
            slices.append(Slice(file, offset, size, crc, tuple(start for start, _ in box), extent))
        found[key] = Entry(key, dtype, shape, tuple(slices))
    return found


@given(pairs_of_bytes)
def test_written_table_is_that_of_the_other_writer(pairs: dict[bytes, bytes]) -> None:
    written = write_table(sorted(pairs.items()))
    assert list(read_table(written)) == sorted(pairs.items())
    if pairs:
        assert written == bundles.table(pairs.items(), per_block=len(pairs))


def test_table_of_many_blocks_reads_back() -> None:
    pairs = [(b"layer/%06d" % number, b"v" * (number % 300)) for number in range(5000)]
    written = write_table(pairs)
    assert list(read_table(written)) == pairs
    assert len(written) > 2 * BLOCK_BYTES


@given(st.data(), st.integers(1, 4))
def test_written_index_reads_back(data: st.DataObject, files: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        prefix = Path(directory) / "variables"
        variables = data.draw(entries(prefix, files))
        write_index(prefix, variables, files)
        for number in range(files):
            with data_file(prefix, number, files).open("wb") as file:
                file.truncate(1 << 41)
        assert {key: _unstamped(entry) for key, entry in read_index(prefix)[1].items()} == variables


def _unstamped(entry: Entry) -> Entry:
    return entry._replace(slices=tuple(part._replace(stamp=None) for part in entry.slices))


@given(st.integers(0, (1 << 32) - 1))
def test_mask_is_undone_by_unmask(crc: int) -> None:
    assert unmask(mask(crc)) == crc


@given(st.binary(max_size=300))
def test_string_lies_as_the_other_writer_lays_it(text: bytes) -> None:
    assert string_bytes(text) == bundles.text_data(text)
