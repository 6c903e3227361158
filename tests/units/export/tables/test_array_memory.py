"""Memory of a worker that exports an array, and of the comparison: it decodes whole chunks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.units.export.checkpoint.orbax_trees import write_item

DIM = 128
CHUNK_BYTES = 48 << 20
CHUNK_ROWS = CHUNK_BYTES // (4 * DIM)
CHUNKS = 4
ROWS = CHUNKS * CHUNK_ROWS

PROBE = """
import json, pathlib, sys
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import StatedTable, Statements
from export.tables.plan import plan_tables
from export.tables.segments import copy_rows, manifest_table
from export.verify.table_rows import verify_tables

def peak():  # of this program alone: getrusage would return the peak of the parent, if larger
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10

source, out = map(pathlib.Path, sys.argv[1:3])
checkpoint = open_checkpoint(source)
key = next(key for key in checkpoint.entries if key.endswith("t"))
rows, dim = checkpoint.entries[key].shape
cores = {"cores": 4} if sys.argv[3] == "sparse_core" else {}
table = StatedTable(key=key, kind=sys.argv[3], rows=rows, dim=dim, **cores)
inventory = recognize(checkpoint, Statements(layouts={"t": table}))
plan = plan_tables(checkpoint, inventory, out)
for task in plan.unpacked:
    copy_rows(task)
receipts = [copy_rows(task) for task in plan.tasks]
copied = peak()
verify_tables(checkpoint, out, {"t": manifest_table(plan.tables[0], receipts)})
print(json.dumps({"copied": copied, "all": peak(), "planned": plan.peak_memory_bytes}))
"""


def orbax(directory: Path) -> Path:
    write_item(directory / "item", {"t": values()}, chunk_rows=CHUNK_ROWS)
    return directory / "item"


def hdf5(directory: Path) -> Path:
    with h5py.File(directory / "m.weights.h5", "w") as file:
        file.create_dataset("t", data=values(), chunks=(CHUNK_ROWS, DIM), compression="lzf")
    return directory / "m.weights.h5"


def values() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Rows that no codec makes small."""
    return np.random.default_rng(0).standard_normal((ROWS, DIM), np.float32)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "layout"), [(orbax, "plain"), (orbax, "sparse_core"), (hdf5, "plain")]
)
def test_export_of_an_array_holds_at_most_400_mib_and_one_chunk(
    tmp_path: Path, write: object, layout: str
) -> None:
    assert callable(write)
    command = [sys.executable, "-c", PROBE, str(write(tmp_path)), str(tmp_path / "out"), layout]
    metadata = json.loads(
        subprocess.run(command, capture_output=True, check=True, timeout=120).stdout
    )
    for file in tmp_path.rglob("*"):
        if file.is_file():
            file.unlink()
    assert metadata["copied"] <= metadata["planned"]
    assert metadata["all"] <= (400 << 20) + CHUNK_BYTES
