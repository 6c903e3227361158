"""Tables whose rows are converted when they are copied: written, recorded, verified, rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format.manifest import Table
from bundle.tables.reader import TableReader
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from export.errors import VerificationFailed
from export.tables.plan import ExportPlan, WriteOptions, plan_tables
from export.tables.segments import Receipt, check_sources, copy_rows, manifest_table, sources_of
from export.verify.table_rows import verify_tables
from tests.units.export.checkpoint.tensor_bundles import write_bundle

ROWS = 5000
DIM = 6
VALUES = np.random.default_rng(3).standard_normal((ROWS, DIM)).astype(np.float32)
BRICKS = [
    [(2000, ROWS - 2000), (0, -1)],
    [(0, 2000), (0, 3)],
    [(0, 900), (3, 3)],
    [(900, 1100), (3, 3)],
]


def planned(directory: Path, values: NDArray[Any], dtype: str) -> ExportPlan:
    write_bundle(directory / "ckpt", {"t": values}, boxes={"t": BRICKS})
    checkpoint = open_checkpoint(directory)
    options = WriteOptions(1500, dtype)
    return plan_tables(
        checkpoint,
        recognize(checkpoint, {"t": "t"}),
        directory / "out",
        write_options={"t": options},
    )


def copied(plan: ExportPlan) -> Table:
    receipts = [
        Receipt.model_validate_json(copy_rows(task).model_dump_json())
        for task in reversed(plan.tasks)
    ]
    check_sources(sources_of(plan), receipts)
    return manifest_table(plan.tables[0], receipts)


def verify(directory: Path, table: Table, rows: int | None = None) -> None:
    verify_tables(open_checkpoint(directory), directory / "out", {"t": table}, rows)


def alter(path: Path, offset: int, change: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[offset] = (data[offset] + change) % 256
    path.write_bytes(data)


@pytest.mark.parametrize("source", ["f4", "f8", "i8", ml_dtypes.bfloat16])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_converted_table_has_the_recorded_error_and_is_verified(
    tmp_path: Path, source: Any, dtype: str
) -> None:
    values = (VALUES * 100).astype(source)
    table = copied(planned(tmp_path, values, dtype))
    assert (table.dtype, len(table.segments), len(table.scales)) == (
        dtype,
        4,
        4 if dtype == "int8" else 0,
    )
    apart = TableReader(tmp_path / "out", table).gather(np.arange(ROWS)) - values.astype(np.float64)
    assert np.abs(apart).max() == pytest.approx(table.error.max_abs if table.error else 0, rel=1e-6)
    verify(tmp_path, table)
    verify(tmp_path, table, 300)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("row", [0, 1499, 1500, 4999])
def test_verify_tables_finds_any_value_that_is_one_step_off(
    tmp_path: Path, dtype: str, row: int
) -> None:
    table = copied(planned(tmp_path, VALUES, dtype))
    segment = table.segments[row // 1500]
    alter(
        tmp_path / "out" / segment.file,
        (row - segment.first_row) * table.row_bytes + 2 * (table.row_bytes // DIM),
    )
    with pytest.raises(
        VerificationFailed,
        match=f"row {row} is not what the checkpoint's becomes as {dtype}, .*column 2",
    ):
        verify(tmp_path, table, 300)


def test_verify_tables_finds_a_scale_of_another_row(tmp_path: Path) -> None:
    table = copied(planned(tmp_path, VALUES, "int8"))
    path = tmp_path / "out" / table.scales[1].file
    scales = np.fromfile(path, "<f4")
    scales[[0, 1]] = scales[[1, 0]]
    scales.tofile(path)
    with pytest.raises(VerificationFailed, match="row 1500 is not what"):
        verify(tmp_path, table, 300)


def test_verify_tables_rejects_a_damaged_scale_in_full_and_an_error_recorded_too_small(
    tmp_path: Path,
) -> None:
    table = copied(planned(tmp_path, VALUES, "int8"))
    assert table.error is not None
    lying = table.model_copy(
        update={"error": table.error.model_copy(update={"max_abs": table.error.max_abs / 2})}
    )
    with pytest.raises(VerificationFailed, match="the manifest states"):
        verify(tmp_path, lying)
    # This changes the last bit of a scale, too little to be seen in the values.
    alter(tmp_path / "out" / table.scales[2].file, 4 * 77)
    verify(tmp_path, table, 300)
    with pytest.raises(
        VerificationFailed, match=r"scales-00002-of-00004.bin' does not match its digests"
    ):
        verify(tmp_path, table)


def test_verify_tables_int8_rows_of_zeros_and_of_almost_nothing_are_zeros(tmp_path: Path) -> None:
    values = np.zeros((5000, DIM), np.float32)
    values[1] = 1e-37
    values[2] = -1e-44
    values[3] = VALUES[3]
    table = copied(planned(tmp_path, values, "int8"))
    verify(tmp_path, table)
    alter(tmp_path / "out" / table.segments[0].file, 0)
    verify(tmp_path, table, 4999)  # it has no scale
    alter(tmp_path / "out" / table.segments[0].file, 3 * DIM)
    with pytest.raises(VerificationFailed, match=r"row 3 is not what .* as int8, .*column 0"):
        verify(tmp_path, table, 4999)


@pytest.mark.parametrize(
    ("dtype", "trained", "stored", "right"),
    [
        ("bfloat16", 1.00390625, 1.0, True),  # between 1 and 1.0078125, ties to even
        ("bfloat16", 1.00390625, 1.0078125, False),
        ("bfloat16", 1.01171875, 1.015625, True),
        ("bfloat16", 1.01171875, 1.0078125, False),
        ("bfloat16", -1.00390625, -1.0078125, False),
        ("float16", 65519, 65504, True),  # the largest
        ("float16", 65519, np.inf, False),
        ("float16", 65519, 65472, False),
        ("float16", 1 + 2**-11, 1, True),
        ("float16", 1 + 2**-11, 1 + 2**-10, False),
        ("float16", 1, np.nan, False),
        ("float16", 0, 2**-24, False),
    ],
)
def test_verify_tables_takes_the_nearest_value_alone_with_ties_to_even(
    tmp_path: Path, dtype: str, trained: float, stored: float, right: bool
) -> None:
    values = np.zeros((5000, DIM), np.float32)
    values[4, 2] = trained
    table = copied(planned(tmp_path, values, dtype))
    kind: Any = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}[dtype]
    path = tmp_path / "out" / table.segments[0].file
    rows = np.fromfile(path, "<u2").reshape(-1, DIM)
    rows[4, 2] = np.array(stored, kind).view(np.uint16)
    rows.tofile(path)
    if right:
        verify(tmp_path, table, 4999)
        return
    with pytest.raises(VerificationFailed, match=f"row 4 is not .* as {dtype}, first in column 2"):
        verify(tmp_path, table, 4999)


@pytest.mark.parametrize(("share", "right"), [(1 - 5e-7, True), (1 - 2e-6, False)])
def test_verify_tables_holds_rows_to_the_recorded_error(
    tmp_path: Path, share: float, right: bool
) -> None:
    table = copied(planned(tmp_path, VALUES, "float16"))
    assert table.error is not None
    error = table.error.model_copy(update={"max_abs": table.error.max_abs * share})
    less = table.model_copy(update={"error": error})
    if right:
        verify(tmp_path, less)
        return
    apart = np.abs(VALUES.astype(np.float16).astype(np.float64) - VALUES).max(axis=1)
    message = (
        f"row {apart.argmax()} differs from the checkpoint by {apart.max():.6g}, the manifest "
        "states"
    )
    with pytest.raises(VerificationFailed, match=message):
        verify(tmp_path, less)
