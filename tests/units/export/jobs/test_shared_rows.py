"""Nightly exports of one model: a version writes the rows that changed since the one before it, and
reads like the table that was trained.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.format.checksums import crc32c
from bundle.format.manifest import Segment, Table
from bundle.storage import catalog
from bundle.storage.integrity import check_files
from bundle.tables.maps import MappedRows
from bundle.tables.row_deltas import DeltaWriter
from bundle.tables.segments import RowRange
from export.checkpoint.inventory.specs import StatedTable, Statements
from export.checkpoint.reader import open_checkpoint
from export.errors import VerificationFailed
from export.jobs.destinations import Destination
from export.jobs.progress import Progress
from export.jobs.staged import Published
from export.jobs.tables_job import TablesJob, export_tables, prepare_tables
from export.recipe.settings import ExportSettings
from export.tables.plan import WriteOptions
from export.verify.published import verify_bundle
from tests.hostile.manifest_edits import rewrite, setting
from tests.units.export.checkpoint.tensor_bundles import write_bundle

pytestmark = pytest.mark.slow

Values = NDArray[Any]
ROWS = 100_000
DIM = 8
SEGMENT_ROWS = 70_000
"""Of two ranges of a delta, the second one short."""
LONGEST_CHAIN = 10


class Layout(NamedTuple):
    """How a variable holds the rows of a table.

    Attributes:
      stated: What the user states of it; None: the rows lie in their order.
      variable: Returns the variable that holds rows.
    """

    stated: dict[str, Any] | None
    variable: Callable[[Values], Values]


def mod(lanes: int) -> Layout:
    order = np.concatenate([np.arange(lane, ROWS, lanes) for lane in range(lanes)])
    return Layout({"kind": "mod", "partitions": lanes}, lambda values: values[order])


def sparse_core(cores: int, rotation: int) -> Layout:
    core_rows = ceil_div(ROWS, cores) + 3
    rows = np.arange(ROWS)
    positions = (rows + rotation) % cores * core_rows + 2 + rows // cores

    def variable(values: Values) -> Values:
        stored = np.zeros((cores * core_rows, DIM + 1), values.dtype)
        stored[positions, :DIM] = values
        return stored

    stated = {"kind": "sparse_core", "rows": ROWS, "dim": DIM, "cores": cores}
    stated |= {"core_rows": core_rows, "offset": 2, "rotation": rotation}
    return Layout(stated, variable)


def padded(values: Values) -> Values:
    return np.pad(values, ((0, 5), (0, 2)))


LAYOUTS = {
    "plain": Layout(None, lambda values: values),
    "padded": Layout({"kind": "plain", "rows": ROWS, "dim": DIM}, padded),
    "mod": mod(7),
    "many lanes": mod(1_999),
    "sparse core": sparse_core(16, 5),
}


class Model:
    """A table that is trained every day and exported every night."""

    def __init__(self, directory: Path, layout: str = "plain", dtype: str | None = None) -> None:
        self.root = directory / "bundles"
        self.checkpoint = directory / "ckpt"
        self._layout = LAYOUTS[layout]
        statements = Statements({"t": "t"})
        if self._layout.stated is not None:
            statements = Statements(layouts={"t": StatedTable(key="t", **self._layout.stated)})
        self.job = TablesJob(
            statements=statements,
            names=("t",),
            accept_stated=True,
            writing=WriteOptions(segment_rows=SEGMENT_ROWS, dtype=dtype),
        )

    def publish(self, values: Values, progress: Progress | None = None) -> Published:
        write_bundle(self.checkpoint, {"t": self._layout.variable(values)})
        settings = ExportSettings(workers=1)
        destination = Destination(self.root, None)
        prepared = prepare_tables(self.checkpoint, destination, self.job, settings)
        return export_tables(prepared, settings, progress or Progress())

    def bundle(self, version: int) -> Path:
        return self.root / "tables" / str(version)

    def table(self, version: int) -> Table:
        return catalog.read_manifest(self.bundle(version)).tables["t"]

    def verify(self, version: int, *, full: bool) -> int:
        checkpoint = open_checkpoint(self.checkpoint)
        findings = verify_bundle(self.bundle(version), checkpoint, full=full).findings
        return findings.tables["t"].rows_compared

    def added_bytes(self, version: int) -> int:
        """Returns the bytes of the files of tables that no version before has."""
        older = {path.stat().st_ino for path in self.files(version - 1)}
        added = [path for path in self.files(version) if path.stat().st_ino not in older]
        return sum(path.stat().st_size for path in added)

    def files(self, version: int) -> list[Path]:
        return [path for path in (self.bundle(version) / "tables").rglob("*") if path.is_file()]


def stored_as(dtype: str | None, values: Values) -> tuple[Values, Values | None]:
    """Returns what a table stores of rows: [n, row_bytes] uint8, and of their scales."""
    scales = None
    stored: Values = values
    if dtype == "bfloat16":
        stored = values.astype(ml_dtypes.bfloat16)
    if dtype == "int8":
        largest = np.abs(values).max(axis=1, keepdims=True)
        scales = (largest / np.float32(127)).astype(np.float32)
        stored = np.rint(values / scales).astype(np.int8)
    if scales is not None:
        scales = scales.view(np.uint8)
    return np.ascontiguousarray(stored).view(np.uint8), scales


class Chain:
    """A segment as it must be after each night.

    Attributes:
      deltas: The number of rows in each of its deltas.
    """

    def __init__(self) -> None:
        self._base: Values | None = None
        self._newest: Values | None = None
        self.deltas: list[int] = []

    def add(self, content: Values) -> None:
        below = self._newest
        if len(self.deltas) == LONGEST_CHAIN or 2 * sum(self.deltas) > len(content):
            below = self._base
            self.deltas = []
        self._newest = content
        changed = len(content)
        if below is not None:
            changed = int((below != content).any(axis=1).sum())
        if changed * 4 > len(content):
            self._base = content
            self.deltas = []
        elif changed:
            self.deltas.append(changed)


def assert_reads(bundle: Path, segments: tuple[Segment, ...], expected: Values) -> None:
    mapped = MappedRows(bundle, segments, expected.shape[1])
    np.testing.assert_array_equal(mapped.read(RowRange(0, ROWS)), expected)
    for segment in segments:
        content = expected[segment.first_row : segment.first_row + segment.rows]
        assert segment.result == crc32c(np.ascontiguousarray(content))


def trained(random: np.random.Generator, values: Values, night: int) -> Values:
    """Returns the table after another day: none, some, many or all of its rows have changed."""
    shares = [0.02, 0.2, 0.0, 0.001, 0.3]
    count = int(shares[night % len(shares)] * ROWS)
    changed = random.choice(ROWS, count, replace=False)
    if night % 2:
        # Neighbors, so that some ranges and segments keep all their rows.
        changed = np.arange(count) + int(random.integers(0, ROWS - count + 1))
    values = values.copy()
    values[changed] = random.standard_normal((count, DIM)).astype(np.float32)
    return values


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        ("plain", None),
        ("padded", "bfloat16"),
        ("mod", None),
        ("many lanes", "int8"),
        ("sparse core", "bfloat16"),
    ],
)
def test_every_version_reads_like_the_table_that_was_trained(
    tmp_path: Path, layout: str, dtype: str | None
) -> None:
    model = Model(tmp_path, layout, dtype)
    random = np.random.default_rng(len(layout))
    values = random.standard_normal((ROWS, DIM)).astype(np.float32)
    nights: list[Values] = []
    bounds = [0, SEGMENT_ROWS, ROWS]
    chains = [Chain() for _ in bounds[1:]]
    for night in range(5):
        if night:
            values = trained(random, values, night - 1)
        nights.append(values)
        published = model.publish(values)
        assert published.notes == () or "stated" in " ".join(published.notes)
        stored, _ = stored_as(dtype, values)
        for chain, first, end in zip(chains, bounds, bounds[1:], strict=False):
            chain.add(stored[first:end])
        written = [
            [delta.rows for delta in part.deltas] for part in model.table(night + 1).segments
        ]
        assert written == [chain.deltas for chain in chains]

    # All of them, once the last one is written: nobody writes to a file that they share.
    for version, trained_values in enumerate(nights, 1):
        stored, scales = stored_as(dtype, trained_values)
        bundle = model.bundle(version)
        check_files(bundle, catalog.read_manifest(bundle), "full")
        assert_reads(bundle, model.table(version).segments, stored)
        if scales is not None:
            assert_reads(bundle, model.table(version).scales, scales)
    assert model.verify(len(nights), full=True) == ROWS
    assert model.verify(len(nights), full=False) > 1_000
    with pytest.raises(VerificationFailed, match=r"differs|is not what"):
        model.verify(2, full=True)


def test_eleventh_delta_replaces_ten(tmp_path: Path) -> None:
    model = Model(tmp_path)
    random = np.random.default_rng(7)
    values = random.standard_normal((ROWS, DIM)).astype(np.float32)
    chain = Chain()
    for night in range(13):
        values = values.copy()
        values[random.choice(SEGMENT_ROWS, 1_000, replace=False)] += 1
        chain.add(values[:SEGMENT_ROWS].view(np.uint8))
        reused = model.publish(values).reused
        first, second = model.table(night + 1).segments
        assert [delta.rows for delta in first.deltas] == chain.deltas
        assert second.deltas == ()
        if night:
            assert reused.segments == 1
            assert reused.changed_rows == first.deltas[-1].rows
            assert reused.written_bytes == model.added_bytes(night + 1)
            assert reused.written_bytes <= 1.3 * reused.changed_rows * DIM * 4
        assert_reads(model.bundle(night + 1), (first, second), values.view(np.uint8))
    assert len(first.deltas) == 2


def test_deltas_that_hold_more_than_half_as_many_rows_are_replaced(tmp_path: Path) -> None:
    model = Model(tmp_path)
    random = np.random.default_rng(8)
    values = random.standard_normal((ROWS, DIM)).astype(np.float32)
    chain = Chain()
    lengths = []
    for night in range(9):
        values = values.copy()
        changed = np.arange(SEGMENT_ROWS // 5)
        if night > 4:
            changed = random.choice(SEGMENT_ROWS, changed.size, replace=False)
        values[changed] += 1
        chain.add(values[:SEGMENT_ROWS].view(np.uint8))
        model.publish(values)
        segments = model.table(night + 1).segments
        assert [delta.rows for delta in segments[0].deltas] == chain.deltas
        assert_reads(model.bundle(night + 1), segments, values.view(np.uint8))
        lengths.append(len(chain.deltas))
    # First, one delta replaces three; then the base is written anew.
    assert lengths == [0, 1, 2, 3, 1, 2, 3, 0, 1]


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.fixture(scope="module")
def three_nights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Values]:
    """A directory with three versions, and the table of the last one."""
    model = Model(tmp_path_factory.mktemp("nights"))
    values = np.random.default_rng(9).standard_normal((ROWS, DIM)).astype(np.float32)
    for _ in range(3):
        values[::100] += 1
        model.publish(values)
    return model.root.parent, values


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("", lambda path: flip(path, 5_000)),
        ("", Path.unlink),
        (".delta-1", lambda path: flip(path, 70)),
        (".delta-1", lambda path: flip(path, 5_000)),
        (".delta-1", cut),
        (".delta-2", Path.unlink),
    ],
)
def test_segment_is_written_whole_where_the_older_one_is_damaged(
    three_nights: tuple[Path, Values], tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    directory, values = three_nights
    model = Model(Path(shutil.copytree(directory, tmp_path / "nights")))
    first, _ = model.table(3).segments
    damage(model.bundle(3) / f"{first.file}{file}")
    values = values.copy()
    # The row of the byte that was flipped changes again.
    values[:200] += 1
    model.publish(values)
    bundle = model.bundle(4)
    check_files(bundle, catalog.read_manifest(bundle), "full")
    whole, shared = model.table(4).segments
    assert whole.deltas == ()
    assert len(shared.deltas) == 2
    assert_reads(bundle, (whole, shared), values.view(np.uint8))


def test_delta_of_another_segment_is_not_shared(tmp_path: Path) -> None:
    model = Model(tmp_path)
    values = np.random.default_rng(4).standard_normal((ROWS, DIM)).astype(np.float32)
    model.publish(values)
    values[::100] += 1
    model.publish(values)
    base = "tables.t.segments.0.crc32c"
    rewrite(model.bundle(2), setting(base, model.table(2).segments[0].crc32c ^ 1))
    model.publish(values)
    assert [len(segment.deltas) for segment in model.table(3).segments] == [0, 1]
    assert_reads(model.bundle(3), model.table(3).segments, values.view(np.uint8))


def test_result_of_a_delta_that_is_not_that_of_the_rows_is_found(tmp_path: Path) -> None:
    model = Model(tmp_path)
    values = np.random.default_rng(5).standard_normal((ROWS, DIM)).astype(np.float32)
    model.publish(values)
    changed = np.arange(SEGMENT_ROWS, ROWS, 100)
    values[changed] += 1
    model.publish(values)
    segment = model.table(2).segments[1]
    (delta,) = segment.deltas
    path = model.bundle(2) / delta.file
    path.unlink()
    with DeltaWriter(path, DIM * 4, segment.rows, segment.crc32c) as writer:
        writer.add(changed - SEGMENT_ROWS, values[changed].view(np.uint8))
        digest = writer.close(delta.result ^ 1)
    wrong = {"result": delta.result ^ 1, "crc32c": digest.crc32c, "blocks": digest.blocks}
    edited = delta.model_copy(update=wrong).model_dump(mode="json")
    rewrite(model.bundle(2), setting("tables.t.segments.1.deltas.0", edited))
    with pytest.raises(VerificationFailed, match="with its deltas does not match"):
        model.verify(2, full=True)


def test_rows_that_were_added_are_written_with_their_segment(tmp_path: Path) -> None:
    model = Model(tmp_path)
    random = np.random.default_rng(6)
    values = random.standard_normal((ROWS, DIM)).astype(np.float32)
    model.publish(values[:-1_000])
    values[::100] += 1
    reused = model.publish(values).reused
    assert [len(segment.deltas) for segment in model.table(2).segments] == [1, 0]
    assert reused.bytes == SEGMENT_ROWS * DIM * 4
    assert_reads(model.bundle(2), model.table(2).segments, values.view(np.uint8))


def test_files_that_cannot_be_linked_are_written_and_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(tmp_path)
    values = np.random.default_rng(8).standard_normal((ROWS, DIM)).astype(np.float32)
    model.publish(values)

    def rejected(*_: Any) -> None:
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))

    monkeypatch.setattr(os, "link", rejected)
    published = model.publish(values)
    assert published.notes == (
        "segments were written whole, because those of the older version cannot be shared: Too "
        "many links",
    )
    assert published.reused.segments == 0
    assert published.reused.written_bytes == model.added_bytes(2) == ROWS * DIM * 4
    assert_reads(model.bundle(2), model.table(2).segments, values.view(np.uint8))


class Interrupted(Progress):
    """Interrupts a job once its tables are copied."""

    @contextmanager
    def step(self, name: str, *_: Any) -> Iterator[Callable[[int], None]]:
        if name != "tables":
            raise KeyboardInterrupt
        yield lambda _: None


def test_stopped_run_resumes_with_the_deltas_that_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(tmp_path)
    values = np.random.default_rng(11).standard_normal((ROWS, DIM)).astype(np.float32)
    for _ in range(2):
        model.publish(values)
        values[::100] += 1
    model.job = replace(model.job, version=3)
    with pytest.raises(KeyboardInterrupt):
        model.publish(values, Interrupted())
    staged = tmp_path / "bundles/tables/.staging-3/tables"
    inodes = {path.name: path.stat().st_ino for path in staged.rglob("rows-*")}
    assert sum("delta-2" in name for name in inodes) == 2
    # The older version is needed no more, and no space for what is staged.
    shutil.rmtree(model.bundle(2))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    reused = model.publish(values).reused
    assert {path.name: path.stat().st_ino for path in model.files(3)} == inodes
    assert reused.changed_rows == ROWS // 100
    assert_reads(model.bundle(3), model.table(3).segments, values.view(np.uint8))
