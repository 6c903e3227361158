"""Indexes of checkpoints: slices, headers, files; and entries that cannot be meant."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.formats.tensorbundle import read_index
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from tests.export.checkpoint.bundles import (
    entry,
    field,
    header,
    shape_proto,
    slice_key,
    slice_proto,
    table,
    write_bundle,
)

VALUES = np.arange(40, dtype=np.float32).reshape(10, 4)


def write_index(
    prefix: Path, *pairs: tuple[bytes, bytes], head: bytes | None = None, data: bytes = bytes(1000)
) -> Path:
    Path(f"{prefix}.index").write_bytes(table([(b"", head if head is not None else header()), *pairs]))
    Path(f"{prefix}.data-00000-of-00001").write_bytes(data)
    return prefix


def test_read_index_whole_and_sliced_variables_are_described(tmp_path: Path) -> None:
    boxes = {"sliced": [[(6, 4), (0, -1)], [(0, 6), (0, -1)]]}
    write_bundle(tmp_path / "c", {"sliced": VALUES, "whole": VALUES, "scalar": np.array(1.0)}, boxes=boxes, files=2)
    entries = read_index(tmp_path / "c").entries
    assert set(entries) == {"sliced", "whole", "scalar"}
    assert entries["whole"].whole
    assert entries["scalar"].shape == ()
    assert [(part.starts, part.shape) for part in entries["sliced"].slices] == [((6, 0), (4, 4)), ((0, 0), (6, 4))]
    assert entries["sliced"].files == 2
    assert entries["sliced"].bytes == VALUES.nbytes


def test_read_index_long_starts_are_found_under_their_keys(tmp_path: Path) -> None:
    """Starts and lengths around the powers where the key's encoding grows by a byte."""
    cuts = [0, 1, 63, 64, 65, 127, 128, 8191, 8192, 8193, 70_000]
    values = np.arange(70_000, dtype=np.int32)
    boxes = {"v": [[(low, high - low)] for low, high in itertools.pairwise(cuts)]}
    write_bundle(tmp_path / "c", {"v": values}, boxes=boxes)
    assert len(read_index(tmp_path / "c").entries["v"].slices) == len(cuts) - 1


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        (entry(1, (10, 4), 0, 161, 0), "claims 161 bytes"),
        (entry(1, (1 << 40, 1 << 40), 0, 160, 0), "which nothing can have"),
        (entry(1, (-1, 4), 0, 160, 0), "which nothing can have"),
        (entry(1, (10, 4), 900, 160, 0), "was cut short"),
        (entry(1, (10, 4), 1 << 62, 160, 0), "was cut short"),
        (entry(1, (10, 4), (1 << 64) - 8, 160, 0), "at byte -8"),
        (entry(1, (10, 4), 0, 160, 0, shard=7), "data file 7 of 1"),
        (field(1, 1) + field(2, field(3, 1)), "without a rank"),
        (b"\x08", "no BundleEntryProto"),
        (b"", "an entry of dtype 0"),
        (entry(1, (1,) * 33, 0, 4, 0), "which nothing can have"),
        (entry(1, (0, 1 << 62), 0, 0, 0), "which nothing can have"),
        (field(1, 1) + field(2, shape_proto((4,))) + field(7, slice_proto([(0, 2)])), "does not hold"),
        (field(1, 1) + field(2, shape_proto((4, 4))) + field(7, slice_proto([(0, 2)])), "rank 2 and a slice of rank 1"),
    ],
)
def test_read_index_entry_that_cannot_be_is_refused(tmp_path: Path, fields: bytes, what: str) -> None:
    with pytest.raises(CheckpointError, match=what):
        open_checkpoint(write_index(tmp_path / "c", (b"v", fields)))


@pytest.mark.parametrize(("box", "stored"), [([(8, 4)], (4,)), ([(0, 4)], (5,)), ([(1, -1)], (10,))])
def test_read_index_slice_that_does_not_fit_is_refused(tmp_path: Path, box: Any, stored: tuple[int, ...]) -> None:
    size = 4 * stored[0]
    pairs = (
        (b"v", field(1, 1) + field(2, shape_proto((10,))) + field(7, slice_proto(box))),
        (slice_key("v", box), entry(1, stored, 0, size, 0)),
    )
    with pytest.raises(CheckpointError, match="does not fit"):
        open_checkpoint(write_index(tmp_path / "c", *pairs))


def test_read_index_slice_listed_twice_is_refused(tmp_path: Path) -> None:
    """Two bytes of the index would be hundreds in memory, as often as they are there."""
    box = [(0, 10)]
    pairs = (
        (b"v", field(1, 1) + field(2, shape_proto((10,))) + 2 * field(7, slice_proto(box))),
        (slice_key("v", box), entry(1, (10,), 0, 40, 0)),
    )
    with pytest.raises(CheckpointError, match="that the index does not hold, or lists it twice"):
        open_checkpoint(write_index(tmp_path / "c", *pairs))


def test_read_index_variables_that_share_their_bytes_cannot_outgrow_the_file(tmp_path: Path) -> None:
    pairs = [(f"v{number}".encode(), entry(1, (100,), 0, 400, 0)) for number in range(3)]
    with pytest.raises(CheckpointError, match="has 1000 bytes, its variables claim 1200"):
        open_checkpoint(write_index(tmp_path / "c", *pairs))


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (header(endianness=1), "big-endian"),
        (header(min_consumer=9), "newer product version"),
        (header(-3), "claims -3 data files"),
        (b"\xff", "no BundleHeaderProto"),
    ],
)
def test_read_index_header_that_is_not_read_is_refused(tmp_path: Path, head: bytes, what: str) -> None:
    with pytest.raises(CheckpointError, match=what):
        open_checkpoint(write_index(tmp_path / "c", head=head))


def test_read_index_table_without_header_is_refused(tmp_path: Path) -> None:
    Path(tmp_path / "c.index").write_bytes(table([(b"a", b"")]))
    with pytest.raises(CheckpointError, match="without a header"):
        open_checkpoint(tmp_path / "c")


def test_read_index_missing_data_file_is_named(tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"a": VALUES, "b": VALUES}, files=2)
    Path(tmp_path / "c.data-00001-of-00002").unlink()
    with pytest.raises(CheckpointError, match=r"c\.data-00001-of-00002"):
        open_checkpoint(tmp_path / "c")


def test_read_index_empty_variable_may_point_past_the_end(tmp_path: Path) -> None:
    prefix = write_index(tmp_path / "c", (b"v", entry(1, (0, 4), 5000, b"")))
    assert read_index(prefix).entries["v"].bytes == 0


def test_read_index_unknown_dtype_is_listed_by_its_number(tmp_path: Path) -> None:
    prefix = write_index(tmp_path / "c", (b"v", entry(99, (3,), 0, b"abc")))
    assert read_index(prefix).entries["v"].dtype == "dtype 99"


def test_read_index_hundred_thousand_variables_take_about_a_second(tmp_path: Path) -> None:
    """A generous limit: the test must hold on a busy machine, and fail if reading grows quadratic."""
    count = 100_000
    names = (f"model/layers/block_{number // 100}/dense_{number % 100}/kernel_{number}" for number in range(count))
    pairs = [(name.encode(), entry(1, (8, 16), 512 * number, 512, 0)) for number, name in enumerate(names)]
    prefix = write_index(tmp_path / "c", *pairs)
    with Path(f"{prefix}.data-00000-of-00001").open("wb") as file:
        file.truncate(512 * count)
    started = time.process_time()
    entries = read_index(prefix).entries
    assert time.process_time() - started < 10
    assert len(entries) == count
