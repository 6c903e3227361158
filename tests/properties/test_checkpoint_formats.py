"""The encodings of a checkpoint: what is written is read; what was changed gives the same values or a typed error."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from export.checkpoint.formats.orderedcode import slice_key
from export.checkpoint.formats.sstable import read_table, write_table
from export.checkpoint.formats.tensorbundle import data_file, read_index, write_index
from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.variables import NUMPY_DTYPES, Entry, Slice, volume
from export.errors import CheckpointError
from export.tables.plan import Writing, plan_tables
from export.tables.shards import check_sources, copy_rows, manifest_table
from tests.export.checkpoint import bundles
from tests.export.checkpoint.bundles import GRAPH, SUFFIX, node, object_graph, write_bundle

VALUES = np.random.default_rng(11).standard_normal((23, 5)).astype(np.float32)
TABLE_KEY = "e/t" + SUFFIX
NODES = (
    node({"e": 1}),
    node({"_variables": 2}),
    node({"items": 3}),
    node({"parameters": 4, "accumulators": 5}),
    node(key=TABLE_KEY),
    node(key="e/t.Saccumulators" + SUFFIX),
)


@given(st.dictionaries(st.binary(max_size=80), st.binary(max_size=200), max_size=120), st.integers(1, 40))
def test_table_of_either_writer_reads_back(pairs: dict[bytes, bytes], per_block: int) -> None:
    for written in (bundles.table(pairs.items(), per_block=per_block), write_table(sorted(pairs.items()))):
        assert list(read_table(written)) == sorted(pairs.items())


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


@given(st.data(), st.integers(1, 4))
def test_written_index_reads_back(data: st.DataObject, files: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        prefix = Path(directory) / "variables"
        variables = data.draw(entries(prefix, files))
        write_index(prefix, variables, files)
        for number in range(files):
            with data_file(prefix, number, files).open("wb") as file:
                file.truncate(1 << 41)
        assert {key: _unstamped(entry) for key, entry in read_index(prefix).entries.items()} == variables


def _unstamped(entry: Entry) -> Entry:
    return entry._replace(slices=tuple(part._replace(stamp=None) for part in entry.slices))


numbers = st.integers(0, 2**62) | st.just(-1) | st.sampled_from([2**power - 1 for power in range(62)])


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=4),
)
def test_slice_key_is_that_of_the_other_writer(name: str, extents: list[tuple[int, int]]) -> None:
    assert slice_key(name, extents) == bundles.slice_key(name, extents)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a checkpoint with a table in slices, its slot variable and an object graph."""
    prefix = tmp_path_factory.mktemp("intact") / "ckpt-1"
    variables: dict[str, Any] = {
        TABLE_KEY: VALUES,
        "e/t.Saccumulators" + SUFFIX: VALUES * 2,
        GRAPH: object_graph(*NODES),
    }
    boxes: Any = {TABLE_KEY: [[(0, 9), (0, -1)], [(9, 14), (0, 2)], [(9, 14), (2, 3)]]}
    write_bundle(prefix, variables, boxes=boxes, files=2)
    return {file.name: file.read_bytes() for file in prefix.parent.iterdir()}


def mutated(data: bytes, change: tuple[str, float, int]) -> bytes:
    kind, place, byte = change
    at = int(place * len(data))
    if kind == "truncate":
        return data[:at]
    if kind == "insert":
        return data[:at] + bytes([byte]) + data[at:]
    return data[:at] + bytes([data[at] ^ (byte or 1)]) + data[at + 1 :]


change = st.tuples(
    st.sampled_from(["flip", "truncate", "insert"]), st.floats(0, 1, exclude_max=True), st.integers(0, 255)
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2), st.lists(change, min_size=1, max_size=2), st.booleans())
def test_checkpoint_with_any_change_gives_its_values_or_a_typed_error(
    intact: dict[str, bytes], tmp_path: Path, which: int, changes: list[tuple[str, float, int]], sharded: bool
) -> None:
    name = sorted(intact)[which]
    for file, data in intact.items():
        broken = data
        if file == name:
            for each in changes:
                broken = mutated(broken, each) if broken else broken
        (tmp_path / file).write_bytes(broken)
    try:
        checkpoint = open_checkpoint(tmp_path / "ckpt-1")
        inventory = recognise(checkpoint)
        plan = plan_tables(checkpoint, inventory, tmp_path / "out", writing={"items": Writing(8 if sharded else None)})
        receipts = [copy_rows(task) for task in plan.tasks]
        check_sources(plan, receipts)
        table = manifest_table(plan.tables[0], receipts)
        whole = checkpoint.read_all(TABLE_KEY)
    except CheckpointError:
        return
    assert [spec.name for spec in inventory.tables] == ["items"]
    assert whole.tobytes() == VALUES.tobytes()
    assert b"".join((tmp_path / "out" / shard.file).read_bytes() for shard in table.shards) == VALUES.tobytes()
