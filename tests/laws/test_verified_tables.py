"""Rows of an exported table are those of the checkpoint, or the nearest of another dtype, and
verification finds every row that is not.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from bundle.format.checksums import crc32c
from bundle.storage.catalog import read_manifest
from bundle.tables.reader import TableReader
from export.checkpoint.inventory.specs import Statements
from export.checkpoint.reader import open_checkpoint
from export.errors import VerificationFailed
from export.jobs.destinations import Destination
from export.jobs.progress import Progress
from export.jobs.tables_job import TablesJob, export_tables, prepare_tables
from export.recipe.settings import ExportSettings
from export.tables.plan import WriteOptions
from export.verify.published import verify_bundle
from export.verify.table_rows import SAMPLE_ROWS
from tests.hostile.manifest_edits import rewrite, setting
from tests.units.export.checkpoint.tensor_bundles import write_bundle

KEY = "t/embeddings"
SETTINGS = ExportSettings(workers=1)
STORED: dict[str, Any] = {
    "float32": np.float32,
    "float64": np.float64,
    "int64": np.int64,
    "bfloat16": ml_dtypes.bfloat16,
}
BITS: dict[str, Any] = {"float32": "<u4", "float16": "<u2", "bfloat16": "<u2", "int8": "<i1"}
EDGES = [0, 1e-37, -1e-44, 1.00390625, 1.01171875, -1.00390625, 1 + 2**-11, 65519, -65519]
"""Values that lie half way between two of a narrower dtype, or at its ends."""


@dataclass(frozen=True)
class Case:
    """A table in a checkpoint, and how it is exported.

    Attributes:
      values: [rows, dim] as training stored them.
      dtype: The dtype of the rows in the bundle.
      segment_rows: The rows of each segment.
      cut: The first row of the second slice of a TensorBundle.
      chunk_rows: The rows of each chunk of an HDF5 file; 0: the checkpoint is a TensorBundle.
    """

    values: NDArray[Any]
    dtype: str
    segment_rows: int
    cut: int
    chunk_rows: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows = draw(st.integers(1, 60))
    dim = draw(st.integers(1, 5))
    stored = draw(st.sampled_from(sorted(STORED)))
    numbers = st.floats(-1000, 1000, width=32) | st.sampled_from(EDGES).map(np.float32)
    values = draw(arrays.arrays(np.float32, (rows, dim), elements=numbers))
    chunked = draw(st.booleans()) and stored != "bfloat16"
    return Case(
        values.astype(STORED[stored]),
        draw(st.sampled_from(sorted(BITS))),
        draw(st.integers(1, 70)),
        draw(st.integers(0, rows)),
        draw(st.integers(1, rows)) if chunked else 0,
    )


def write_checkpoint(directory: Path, case: Case) -> Path:
    if case.chunk_rows:
        path = directory / "t.weights.h5"
        with h5py.File(path, "w") as file:
            chunks = (case.chunk_rows, case.values.shape[1])
            file.create_dataset(KEY, data=case.values, chunks=chunks, compression="lzf")
        return path
    rows = len(case.values)
    boxes: Any = {}
    if 0 < case.cut < rows:
        boxes = {KEY: [[(0, case.cut), (0, -1)], [(case.cut, rows - case.cut), (0, -1)]]}
    write_bundle(directory / "ckpt", {KEY: case.values}, boxes=boxes)
    return directory / "ckpt"


def exported(checkpoint: Path, root: Path, **writing: Any) -> Path:
    """Exports the table; returns its bundle."""
    job = TablesJob(statements=Statements({"t": KEY}), writing=WriteOptions(**writing))
    prepared = prepare_tables(checkpoint, Destination(root, None), job, SETTINGS)
    return Path(str(export_tables(prepared, SETTINGS, Progress()).directory))


@contextmanager
def published(case: Case) -> Iterator[tuple[Path, Path]]:
    """Yields the checkpoint and the bundle."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        checkpoint = write_checkpoint(directory, case)
        options = {"segment_rows": case.segment_rows, "dtype": case.dtype}
        yield checkpoint, exported(checkpoint, directory / "out", **options)


def compare(checkpoint: Path, bundle: Path, *, full: bool = True) -> int:
    """Verifies the bundle; returns the number of rows that were compared."""
    findings = verify_bundle(bundle, open_checkpoint(checkpoint), full=full).findings
    return findings.tables["t"].rows_compared


def seal(bundle: Path) -> None:
    """Gives the segments and scales the digests that fit, so that only their values are wrong."""
    table = read_manifest(bundle).tables["t"]
    for part, segments in (("segments", table.segments), ("scales", table.scales)):
        for number, segment in enumerate(segments):
            digest = crc32c((bundle / segment.file).read_bytes())
            rewrite(bundle, setting(f"tables.t.{part}.{number}.crc32c", digest))
            rewrite(bundle, setting(f"tables.t.{part}.{number}.blocks", [digest]))


def rows_of(bundle: Path) -> NDArray[np.float32]:
    table = read_manifest(bundle).tables["t"]
    reader = TableReader(bundle, table)
    rows = reader.gather(np.arange(table.rows))
    reader.close()
    return rows


def exportable(case: Case) -> bool:
    """Returns whether the dtype holds all values."""
    return case.dtype != "float16" or bool(np.abs(case.values.astype(np.float64)).max() < 65520)


@settings(max_examples=settings().max_examples // 4)  # each one is an export
@given(cases(), st.data())
def test_exported_rows_are_the_nearest_and_one_that_is_a_step_off_is_found(
    case: Case, data: st.DataObject
) -> None:
    assume(exportable(case))
    row = data.draw(st.integers(0, len(case.values) - 1), "row")
    column = data.draw(st.integers(0, case.values.shape[1] - 1), "column")
    with published(case) as (checkpoint, bundle):
        assert compare(checkpoint, bundle) == len(case.values)
        table = read_manifest(bundle).tables["t"]
        difference = np.abs(rows_of(bundle) - case.values.astype(np.float64)).max()
        recorded = table.error.max_abs if table.error else 0
        assert recorded == pytest.approx(difference, rel=1e-6)

        # A row of almost nothing has no scale: it is zeros, whatever its integers are.
        if case.dtype == "int8" and np.abs(case.values[row].astype(np.float64)).max() < 1e-30:
            return
        segment = table.segments[row // case.segment_rows]
        values = np.fromfile(bundle / segment.file, BITS[case.dtype]).reshape(-1, table.dim)
        values[row - segment.first_row, column] ^= 1
        values.tofile(bundle / segment.file)
        with pytest.raises(VerificationFailed, match=r"digests|checksum"):
            compare(checkpoint, bundle)
        seal(bundle)
        with pytest.raises(VerificationFailed, match=rf"row {row} .*column {column}"):
            compare(checkpoint, bundle, full=False)


def test_error_that_is_recorded_too_small_is_found(tmp_path: Path) -> None:
    values = np.random.default_rng(3).standard_normal((100, 6)).astype(np.float32)
    checkpoint = write_checkpoint(tmp_path, Case(values, "float16", 40, 0, 0))
    bundle = exported(checkpoint, tmp_path / "out", segment_rows=40, dtype="float16")
    for share in (1 - 5e-7, 1 - 2e-6):
        recorded = np.abs(rows_of(bundle) - values.astype(np.float64)).max() * share
        rewrite(bundle, setting("tables.t.error.max_abs", float(recorded)))
        if share > 1 - 1e-6:
            compare(checkpoint, bundle)
        else:
            with pytest.raises(VerificationFailed, match="the manifest states"):
                compare(checkpoint, bundle)


def test_checkpoint_without_checksums_that_was_overwritten_later_is_found(tmp_path: Path) -> None:
    values = np.random.default_rng(3).standard_normal((100, 6)).astype(np.float32)
    checkpoint = write_checkpoint(tmp_path, Case(values, "float32", 40, 0, 10))
    bundle = exported(checkpoint, tmp_path / "out", segment_rows=40)
    before = checkpoint.stat()
    with h5py.File(checkpoint, "r+") as file:
        file[KEY][99, 3] += 1
    os.utime(checkpoint, ns=(before.st_atime_ns, before.st_mtime_ns))
    for full in (False, True):
        with pytest.raises(VerificationFailed, match="'t'"):
            compare(checkpoint, bundle, full=full)


def test_scale_of_another_row_is_found(tmp_path: Path) -> None:
    values = np.random.default_rng(3).standard_normal((100, 6)).astype(np.float32)
    checkpoint = write_checkpoint(tmp_path, Case(values, "int8", 40, 0, 0))
    bundle = exported(checkpoint, tmp_path / "out", segment_rows=40, dtype="int8")
    path = bundle / read_manifest(bundle).tables["t"].scales[1].file
    scales = np.fromfile(path, "<f4")
    scales[[0, 1]] = scales[[1, 0]]
    scales.tofile(path)
    seal(bundle)
    with pytest.raises(VerificationFailed, match="row 40 is not what"):
        compare(checkpoint, bundle)


@pytest.mark.parametrize("chunk_rows", [0, 500])
def test_sample_of_a_large_table_has_the_ends_of_files_and_no_long_gap(
    tmp_path: Path, chunk_rows: int
) -> None:
    rows = 2 * SAMPLE_ROWS
    values = np.arange(rows, dtype=np.float32).reshape(rows, 1)
    case = Case(values, "float32", 3001, 5003, chunk_rows)
    checkpoint = write_checkpoint(tmp_path, case)
    original = exported(checkpoint, tmp_path / "out", segment_rows=case.segment_rows)
    assert compare(checkpoint, original, full=False) == SAMPLE_ROWS
    slices = [] if chunk_rows else [(5002, 5003), (5003, 5004)]
    ends = [(row, row + 1) for row in (0, 3000, 3001, rows - 1)]
    for number, (first, end) in enumerate([*ends, *slices, (4000, 4020)]):
        bundle = Path(shutil.copytree(original, tmp_path / str(number)))
        for segment in read_manifest(bundle).tables["t"].segments:
            stored = np.fromfile(bundle / segment.file, "<f4")
            stored[max(0, first - segment.first_row) : max(0, end - segment.first_row)] += 0.5
            stored.tofile(bundle / segment.file)
        seal(bundle)
        with pytest.raises(VerificationFailed, match=r"row \d+ differs"):
            compare(checkpoint, bundle, full=False)


@pytest.mark.parametrize(
    ("trained", "stored", "equal"),
    [(np.nan, -np.nan, True), (np.nan, 1.0, False), (1.0, np.nan, False), (0.0, -0.0, False)],
)
def test_value_that_is_no_number_equals_any_other_such_value_alone(
    tmp_path: Path, trained: float, stored: float, equal: bool
) -> None:
    values = np.array([[1.0, trained], [2.0, np.inf]], np.float32)
    checkpoint = write_checkpoint(tmp_path, Case(values, "float32", 9, 0, 0))
    bundle = exported(checkpoint, tmp_path / "out", allow_non_finite=True)
    path = bundle / read_manifest(bundle).tables["t"].segments[0].file
    np.array([[1.0, stored], [2.0, np.inf]], np.float32).tofile(path)
    seal(bundle)
    if equal:
        assert compare(checkpoint, bundle) == 2
        rewrite(bundle, setting("tables.t.non_finite", None))
    with pytest.raises(VerificationFailed, match="row 0"):
        compare(checkpoint, bundle)
