"""Indexes of checkpoints: slices, headers, files; and entries that cannot be meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from tests.export.checkpoint.tensor_bundles import (
    entry,
    field,
    header,
    shape_proto,
    slice_key,
    slice_proto,
    table,
    write_bundle,
)


def write_index(
    prefix: Path, *pairs: tuple[bytes, bytes], head: bytes | None = None, data: bytes = bytes(1000)
) -> Path:
    Path(f"{prefix}.index").write_bytes(
        table([(b"", head if head is not None else header()), *pairs])
    )
    Path(f"{prefix}.data-00000-of-00001").write_bytes(data)
    return prefix


Pair = tuple[bytes, bytes]


def sliced(shape: tuple[int, ...], *boxes: Any) -> Pair:
    return b"v", field(1, 1) + field(2, shape_proto(shape)) + b"".join(
        field(7, slice_proto(box)) for box in boxes
    )


def stored(box: Any, shape: tuple[int, ...]) -> Pair:
    return slice_key("v", box), entry(1, shape, 0, 4 * shape[0], 0)


@pytest.mark.parametrize(
    ("pairs", "what"),
    [
        *(
            ([(b"v", fields)], what)
            for fields, what in (
                (entry(1, (10, 4), 0, 161, 0), "claims 161 bytes"),
                (entry(1, (1 << 40, 1 << 40), 0, 160, 0), "which nothing can have"),
                (entry(1, (-1, 4), 0, 160, 0), "which nothing can have"),
                (entry(1, (1,) * 33, 0, 4, 0), "which nothing can have"),
                (entry(1, (0, 1 << 62), 0, 0, 0), "which nothing can have"),
                (entry(1, (10, 4), 900, 160, 0), "was cut short"),
                (entry(1, (10, 4), 1 << 62, 160, 0), "was cut short"),
                (entry(1, (10, 4), (1 << 64) - 8, 160, 0), "at byte -8"),
                (entry(1, (10, 4), 0, 160, 0, shard=7), "data file 7 of 1"),
                (field(1, 1) + field(2, field(3, 1)), "without a rank"),
                (b"\x08", "no BundleEntryProto"),
                (b"", "an entry of dtype 0"),
            )
        ),
        ([sliced((4,), [(0, 2)])], "does not hold"),
        ([sliced((4, 4), [(0, 2)])], "rank 2 and a slice of rank 1"),
        ([sliced((10,), [(8, 4)]), stored([(8, 4)], (4,))], "does not fit"),
        ([sliced((10,), [(0, 4)]), stored([(0, 4)], (5,))], "does not fit"),
        ([sliced((10,), [(1, -1)]), stored([(1, -1)], (10,))], "does not fit"),
        (
            [sliced((10,), [(0, 10)], [(0, 10)]), stored([(0, 10)], (10,))],
            "does not hold, or lists it twice",
        ),
        (
            [(b"v%d" % n, entry(1, (100,), 0, 400, 0)) for n in range(3)],
            "has 1000 bytes, its variables claim 1200",
        ),
    ],
)
def test_read_index_of_impossible_entries_is_rejected(
    tmp_path: Path, pairs: list[Pair], what: str
) -> None:
    with pytest.raises(CheckpointError, match=what):
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
def test_read_index_of_an_unsupported_header_is_rejected(
    tmp_path: Path, head: bytes, what: str
) -> None:
    with pytest.raises(CheckpointError, match=what):
        open_checkpoint(write_index(tmp_path / "c", head=head))


def test_read_index_table_without_header_is_refused(tmp_path: Path) -> None:
    Path(tmp_path / "c.index").write_bytes(table([(b"a", b"")]))
    with pytest.raises(CheckpointError, match="without a header"):
        open_checkpoint(tmp_path / "c")


def test_read_index_missing_data_file_is_named(tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"a": np.zeros(3), "b": np.zeros(3)}, files=2)
    Path(tmp_path / "c.data-00001-of-00002").unlink()
    with pytest.raises(CheckpointError, match=r"c\.data-00001-of-00002"):
        open_checkpoint(tmp_path / "c")


def test_read_index_empty_variable_past_the_end_and_unknown_dtype_are_listed(
    tmp_path: Path,
) -> None:
    pairs = (b"empty", entry(1, (0, 4), 5000, b"")), (b"odd", entry(99, (3,), 0, b"abc"))
    entries = open_checkpoint(write_index(tmp_path / "c", *pairs)).entries
    assert (entries["empty"].bytes, entries["odd"].dtype) == (0, "dtype 99")
