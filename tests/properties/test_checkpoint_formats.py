"""The encodings of a checkpoint: what is written is read; what was changed gives the same values or a typed error."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from export.checkpoint.formats.coding import Malformed, read_varint
from export.checkpoint.formats.object_graph import parse_object_graph
from export.checkpoint.formats.orderedcode import slice_key
from export.checkpoint.formats.sstable import read_table
from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.variables import NUMPY_DTYPES
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


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_varint_round_trip(number: int, before: bytes) -> None:
    written = bundles.varint(number)
    assert read_varint(before + written, len(before)) == (number, len(before) + len(written))


@given(st.dictionaries(st.binary(max_size=80), st.binary(max_size=200), max_size=120), st.integers(1, 40))
def test_table_round_trip(pairs: dict[bytes, bytes], per_block: int) -> None:
    assert list(read_table(bundles.table(pairs.items(), per_block=per_block))) == sorted(pairs.items())


numbers = st.integers(0, 2**62) | st.just(-1) | st.sampled_from([2**power - 1 for power in range(62)])


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=4),
)
def test_slice_key_is_that_of_the_other_writer(name: str, extents: list[tuple[int, int]]) -> None:
    assert slice_key(name, extents) == bundles.slice_key(name, extents)


@given(st.lists(numbers, min_size=2, max_size=2))
def test_slice_key_orders_as_its_numbers(pair: list[int]) -> None:
    low, high = sorted(pair)
    assert (slice_key("v", [(low, 0)]) < slice_key("v", [(high, 0)])) == (low < high)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_typed_error(data: bytes) -> None:
    with contextlib.suppress(Malformed):
        parse_object_graph(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_table_or_a_typed_error(data: bytes) -> None:
    with pytest.raises(Malformed):
        list(read_table(data))


@given(st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=6))
def test_table_resealed_after_any_change_is_read_or_a_typed_error(changes: list[tuple[int, int]]) -> None:
    """A crc that fits proves nothing: whoever writes a hostile block writes its crc too."""
    block = bytearray(bundles.block([(f"key{number:03d}".encode(), bytes(number)) for number in range(40)])[:-5])
    for at, byte in changes:
        block[at % len(block)] = byte
    sealed = bundles.sealed(bytes(block))
    handle = bundles.varint(0) + bundles.varint(len(sealed) - 5)
    try:
        keys = [key for key, _ in read_table(bundles.joined(sealed, bundles.block([(b"z", handle)])))]
    except Malformed:
        return
    assert keys == sorted(set(keys))


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


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 5), st.lists(change, min_size=1, max_size=3))
def test_checkpoint_resealed_after_any_change_of_an_entry_is_read_or_a_typed_error(
    intact: dict[str, bytes], tmp_path: Path, which: int, changes: list[tuple[str, float, int]]
) -> None:
    """Entries that a hostile writer sealed with crcs that fit: never a crash, a hang or a huge allocation."""
    for file, data in intact.items():
        (tmp_path / file).write_bytes(data)
    pairs = list(read_table(intact["ckpt-1.index"]))
    key, value = pairs[which % len(pairs)]
    for each in changes:
        value = mutated(value, each) if value else value
    pairs[which % len(pairs)] = key, value
    (tmp_path / "ckpt-1.index").write_bytes(bundles.table(pairs))
    try:
        checkpoint = open_checkpoint(tmp_path / "ckpt-1")
        for name, entry in checkpoint.entries.items():
            if entry.dtype in NUMPY_DTYPES:
                checkpoint.read_all(name)
        recognise(checkpoint)
    except CheckpointError:
        return
