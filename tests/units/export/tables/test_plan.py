"""Plans of tables: which are too large for a bundle, and the memory that a copy takes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Statements
from export.checkpoint.reader import Checkpoint
from export.checkpoint.variables import Entry, Listing, Slice
from export.errors import NotConvertible, UsageError
from export.tables.plan import WriteOptions, plan_tables
from tests.units.export.checkpoint.orbax_trees import write_item
from tests.units.export.checkpoint.tensor_bundles import write_bundle


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, NotConvertible, "13107200 checksums"),
        ({"segment_rows": 1 << 20}, UsageError, "at most 100000"),
        ({"dtype": "bfloat16"}, None, ""),
        ({"link": True}, None, ""),
    ],
)
def test_table_that_no_bundle_can_hold_is_rejected(
    tmp_path: Path, options: dict[str, Any], error: type[Exception] | None, words: str
) -> None:
    """Of 50 terabytes, of which nothing is read."""
    rows = 50 << 32
    part = Slice(str(tmp_path), 0, rows * 256, 0, (0, 0), (rows, 64))
    listing = Listing("crc32c:00000000", {"t": Entry("t", "float32", (rows, 64), (part,))})
    checkpoint = Checkpoint(tmp_path, listing)
    inventory = recognize(checkpoint, Statements({"t": "t"}))
    writing = {"t": WriteOptions(**options)}
    if error is None:
        assert plan_tables(checkpoint, inventory, tmp_path, write_options=writing).tables
        return
    with pytest.raises(error, match=words):
        plan_tables(checkpoint, inventory, tmp_path, write_options=writing)


PROBE = """
import json, pathlib, sys
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.inventory.recognition import recognize
from export.tables.plan import plan_tables
from export.tables.segments import carry_out, manifest_table
from export.verify.table_rows import verify_tables

def peak():  # of this program alone: getrusage would return the peak of the parent, if larger
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10

source, out = map(pathlib.Path, sys.argv[1:])
checkpoint = open_checkpoint(source)
plan = plan_tables(checkpoint, recognize(checkpoint, {"t": "t"}), out)
receipts = [carry_out(task) for task in (*plan.unpacked, *plan.tasks)]
copied = peak()
verify_tables(checkpoint, out, {"t": manifest_table(plan.tables[0], receipts)})
assert "tensorflow" not in sys.modules
print(json.dumps({"copied": copied, "all": peak(), "planned": plan.peak_memory_bytes}))
"""
CHUNK_BYTES = 48 << 20
CHUNK_ROWS = CHUNK_BYTES // 512


def large() -> NDArray[np.float32]:
    """Returns a table of four chunks."""
    return np.random.default_rng(0).random((4 * CHUNK_ROWS, 128), np.float32)


def write_hdf5(directory: Path) -> Path:
    with h5py.File(directory / "m.weights.h5", "w") as file:
        chunks = (CHUNK_ROWS, 128)
        file.create_dataset("t", data=large(), chunks=chunks, compression="lzf")
    return directory / "m.weights.h5"


def write_orbax(directory: Path) -> Path:
    write_item(directory / "item", {"t": large()}, chunk_rows=CHUNK_ROWS)
    return directory / "item"


def write_slices(directory: Path) -> Path:
    write_bundle(directory / "ckpt", {"t": large()})
    return directory / "ckpt"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("write", [write_slices, write_orbax, write_hdf5])
def test_copy_holds_at_most_400_mib_and_one_chunk(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    command = [sys.executable, "-c", PROBE, str(write(tmp_path)), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, check=True)
    page = json.loads(done.stdout)
    assert page["copied"] <= page["planned"]
    assert page["all"] <= (400 << 20) + CHUNK_BYTES
