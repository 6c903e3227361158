"""The encodings of a checkpoint: what is written is read; what was changed gives the same values or a typed error."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.checkpoint.formats.orderedcode import slice_key
from export.checkpoint.formats.sstable import read_table, write_table
from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from tests.export.checkpoint import bundles
from tests.export.checkpoint.bundles import GRAPH, SUFFIX, node, object_graph, write_bundle
from tests.golden.copies import copied
from tests.hostile.mutations import flip

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


@pytest.mark.parametrize("seed", range(150))
def test_checkpoint_with_any_change_gives_its_values_or_a_typed_error(
    intact: dict[str, bytes], tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    name = sorted(intact)[seed % len(intact)]
    for file, data in intact.items():
        (tmp_path / file).write_bytes(flip(rng, data) if file == name else data)
    try:
        checkpoint = open_checkpoint(tmp_path / "ckpt-1")
        inventory = recognise(checkpoint)
        copies = copied(checkpoint, inventory, tmp_path / "out")
        whole = checkpoint.read_all(TABLE_KEY)
    except CheckpointError:
        return
    assert whole.tobytes() == VALUES.tobytes()
    assert copies == {"items": VALUES.tobytes()}
