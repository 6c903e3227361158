"""Tables of any checkpoint: whatever holds their rows, and however these are cut, laid out,
converted or linked, the bundle has the rows that were trained, and verification finds a value that
is one step off. A flipped bit publishes nothing.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, get_args

import ml_dtypes
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rich.console import Console

from bundle.arithmetic import ceil_div
from bundle.format.checksums import crc32c
from bundle.format.manifest import Table
from bundle.storage.catalog import read_manifest
from bundle.tables.reader import TableReader
from export.checkpoint.inventory.specs import StatedTable, Statements
from export.checkpoint.layouts import Kind
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError, VerificationFailed
from export.jobs.destinations import open_destination
from export.jobs.progress import Progress
from export.jobs.tables_job import TablesJob, export_tables, prepare_tables
from export.recipe.settings import ExportSettings
from export.tables.conversions import DTYPES, INTEGERS, UNCHANGED_DTYPES
from export.tables.plan import WriteOptions
from export.verify.published import verify_bundle
from export.verify.table_rows import SAMPLE_ROWS
from tests.hostile.manifest_edits import rewrite, setting
from tests.laws.stored_arrays import StoredArray
from tests.laws.trained_stacks import Place
from tests.laws.zarr_files import write_zarr
from tests.units.export.checkpoint.dump_files import sok_dump
from tests.units.export.checkpoint.tensor_bundles import Box, write_bundle

Values = NDArray[Any]
NUMPY: dict[str, Any] = {name: name for name in ("float32", "float64", "float16", *INTEGERS)}
NUMPY["bfloat16"] = ml_dtypes.bfloat16
SOURCES = (*UNCHANGED_DTYPES, "float64", *INTEGERS)
BITS = {"float32": "<u4", "float16": "<u2", "bfloat16": "<u2", "int8": "<i1"}
SETTINGS = ExportSettings(workers=1, full=True)


def write_slices(directory: Path, values: Values, draw: Any, lanes: int = 0) -> None:
    """Saves the variable in slices of rows, of columns or of both, in one or two files; those that
    TF1 dealt to lanes in a slice for each.
    """
    rows, dim = values.shape
    sizes = [len(range(lane, rows, lanes)) for lane in range(lanes)]
    row = draw(st.integers(0, rows))
    column = draw(st.sampled_from([0, 0, dim // 2]))
    boxes: list[Box] = [
        [(first, end - first), (column_first, column_end - column_first)]
        for first, end in ((0, row), (row, rows))
        for column_first, column_end in ((0, column), (column, dim))
        if first < end and column_first < column_end
    ]
    if lanes:
        firsts = accumulate(sizes[:-1], initial=0)
        boxes = [[(first, size), (0, dim)] for first, size in zip(firsts, sizes, strict=True)]
    cut = {} if len(boxes) == 1 else {"t": draw(st.permutations(boxes))}
    variables = {"other": np.zeros(3, np.float32), "t": values}
    write_bundle(directory / "ckpt", variables, boxes=cut, files=draw(st.integers(1, 2)))


def write_chunks(directory: Path, values: Values, draw: Any, _lanes: int) -> None:
    """Saves the variable in chunks, which no checksum covers."""
    chunk_rows = draw(st.integers(1, len(values)))
    write_array(directory, values, chunk_rows, draw(st.sampled_from(["raw", "blosc"])))


def write_array(directory: Path, values: Values, chunk_rows: int, encoding: str = "raw") -> None:
    """Saves the variable as an array of zarr, with chunks of whole rows."""
    array = StoredArray(values, (), (chunk_rows, values.shape[1]), encoding)
    write_zarr(directory, {"t": array}, driver="zarr", packed=False)


def write_dump(directory: Path, values: Values, _draw: Any, _lanes: int) -> None:
    """Dumps the table with its keys, which are its rows turned around."""
    sok_dump(directory, "t", np.arange(len(values))[::-1], values)


STORAGES: dict[str, Callable[[Path, Values, Any, int], None]] = {
    "slices": write_slices,
    "chunks": write_chunks,
    "dump": write_dump,
}
DTYPES_OF = {"slices": SOURCES, "chunks": SOURCES, "dump": ("float32",)}


class Stated(NamedTuple):
    """Where a variable holds the rows of a table, what the layout file says of it, and to how many
    lanes TF1 dealt the rows; 0: to none.
    """

    variable: Values
    layout: dict[str, Any] | None
    lanes: int = 0


def laid_out(kind: str, values: Values, draw: Any) -> Stated:
    """Lays the rows out; what belongs to no table is zeros."""
    rows, dim = values.shape
    if kind == "plain":
        padding = draw(st.sampled_from([(0, 0), (0, 0), (0, 0), (3, 0), (2, 1)]))
        variable = np.pad(values, ((0, padding[0]), (0, padding[1])))
        return Stated(variable, {"kind": kind, "rows": rows, "dim": dim} if any(padding) else None)
    lanes = draw(st.integers(1, min(5, rows)))
    order = [row for lane in range(lanes) for row in range(lane, rows, lanes)]
    if kind == "mod":
        return Stated(values[order], {"kind": kind, "partitions": lanes}, lanes)
    offset = draw(st.integers(0, 3))
    rotation = draw(st.integers(0, lanes - 1))
    core_rows = offset + ceil_div(rows, lanes) + draw(st.integers(0, 2))
    place = Place(lanes, core_rows, offset, rotation)
    variable = np.zeros((lanes * core_rows, dim + draw(st.integers(0, 2))), values.dtype)
    variable[place.stored_rows(rows), :dim] = values
    return Stated(variable, {"kind": kind, "rows": rows, "dim": dim, **vars(place)})


def random_values(draw: Any, source: str, rows: int, dim: int) -> Values:
    """Values of every size that embeddings have, exact ties and almost ties among them, and rows of
    zeros.
    """
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    values = random.standard_normal((rows, dim)) * 10.0 ** random.uniform(-6, 3, (rows, 1))
    values[::5] = np.round(values[::5] * 64) / 64
    values[::11] = 0
    # In float32, these are in the middle of two numbers of float16, or of bfloat16.
    values[::13] = (1 + 2.0 ** -random.choice([8, 11], dim)) * (
        1 + random.choice([-1e-9, 1e-9], dim)
    )
    return values.astype(NUMPY[source])


def assert_nearest(stored: Values, exact: Values) -> None:
    """Each value is the nearest that its dtype holds, and of two the even one."""
    actual = stored.astype(np.float64)
    is_even = stored.view(f"u{stored.itemsize}") % 2 == 0
    apart = np.abs(actual - exact)
    for end in (-np.inf, np.inf):
        neighbor = np.nextafter(stored, stored.dtype.type(end)).astype(np.float64)
        further = np.abs(neighbor - exact)
        assert ((apart < further) | ((apart == further) & is_even)).all()


def assert_rows(directory: Path, table: Table, values: Values) -> None:
    """The table has the rows, and the manifest says how far they are from the trained ones."""
    exact = values.astype(np.float64)
    reader = TableReader(directory, table)
    actual = reader.gather(np.arange(len(values)))
    reader.close()
    if table.dtype == values.dtype.name:
        np.testing.assert_array_equal(actual, values.astype(np.float32))
        assert table.error is None
        return
    if table.dtype == "int8":
        largest = np.abs(exact).max(axis=1, keepdims=True)
        assert (np.abs(actual - exact) <= largest / 127 * 0.50001 + 1e-37).all()
    else:
        assert_nearest(actual.astype(NUMPY[table.dtype]), exact)
    assert table.error is not None
    differences = np.abs(actual - exact)
    assert table.error.max_abs == pytest.approx(differences.max(), rel=1e-5)
    assert table.error.rms == pytest.approx(np.sqrt(np.square(differences).mean()), rel=1e-4)
    lengths = np.linalg.norm(exact, axis=1) * np.linalg.norm(actual.astype(np.float64), axis=1)
    cosines = np.where(exact.any(axis=1), 0.0, 1.0)
    np.divide((exact * actual).sum(axis=1), lengths, out=cosines, where=lengths > 0)
    assert table.error.cosine_min == pytest.approx(cosines.min(), abs=1e-5)
    assert table.error.cosine_mean == pytest.approx(cosines.mean(), abs=1e-5)


def exported(directory: Path, layout: dict[str, Any] | None, **options: Any) -> Table:
    statements = Statements({"t": "t"})
    if layout is not None:
        statements = Statements(layouts={"t": StatedTable(key="t", **layout)})
    job = TablesJob(
        statements=statements, names=("t",), accept_stated=True, writing=WriteOptions(**options)
    )
    destination = open_destination(str(directory / "out"), directory, directory)
    prepared = prepare_tables(directory / "c", destination, job, SETTINGS)
    export_tables(prepared, SETTINGS, Progress(Console(quiet=True)))
    return read_manifest(directory / "out/tables/1").tables["t"]


def compare(directory: Path, *, full: bool = False) -> int:
    """Verifies the bundle; returns the number of rows that were compared."""
    checkpoint = open_checkpoint(directory / "c")
    findings = verify_bundle(directory / "out/tables/1", checkpoint, full=full).findings
    return findings.tables["t"].rows_compared


def seal(bundle: Path) -> None:
    """Gives the segments and scales the digests that fit, so that only their values are wrong."""
    table = read_manifest(bundle).tables["t"]
    for part, segments in (("segments", table.segments), ("scales", table.scales)):
        for number, segment in enumerate(segments):
            digest = crc32c((bundle / segment.file).read_bytes())
            rewrite(bundle, setting(f"tables.t.{part}.{number}.crc32c", digest))
            rewrite(bundle, setting(f"tables.t.{part}.{number}.blocks", [digest]))


def change(bundle: Path, row: int, column: int, by: Callable[[Any], Any]) -> None:
    """Changes the bits of a value, or of a row's scale, which is at column -1."""
    table = read_manifest(bundle).tables["t"]
    parts = table.segments if column >= 0 else table.scales
    bits = BITS[table.dtype if column >= 0 else "float32"]
    (part,) = (part for part in parts if part.first_row <= row < part.first_row + part.rows)
    stored = np.fromfile(bundle / part.file, bits).reshape(part.rows, -1)
    stored[row - part.first_row, column] = by(stored[row - part.first_row, column])
    stored.tofile(bundle / part.file)
    seal(bundle)


def check_that_a_step_is_found(directory: Path, table: Table, rows: Values, draw: Any) -> None:
    """Verifies the bundle, states a smaller error, then moves a value by a step, or a scale by
    many.

    Args:
      directory: Of the checkpoint and the bundle.
      table: The table as it was published.
      rows: The rows of which a value is changed.
      draw: What draws.
    """
    bundle = directory / "out/tables/1"
    assert compare(directory) == table.rows
    if table.error is not None and table.error.max_abs:
        rewrite(bundle, setting("tables.t.error.max_abs", table.error.max_abs * (1 - 2e-6)))
        with pytest.raises(VerificationFailed, match="the manifest states"):
            compare(directory, full=True)
        rewrite(bundle, setting("tables.t.error.max_abs", table.error.max_abs))
    if rows.size:
        row = int(draw(st.sampled_from(rows.tolist())))
        column = draw(st.integers(-(table.dtype == "int8"), table.dim - 1))
        step = 1 if column >= 0 else 1 << 20
        change(bundle, row, column, lambda bits: bits ^ step)
        with pytest.raises(VerificationFailed, match=f"row {row} "):
            compare(directory)


CONVERSIONS = [
    (source, target)
    for source in SOURCES
    for target in (None, *DTYPES)
    if target is not None or source not in INTEGERS
]
"""The dtype of a variable, and the one that the user states."""


def test_any_table_has_the_rows_that_were_trained() -> None:
    drawn: Counter[str] = Counter()

    @settings(max_examples=4, phases=[Phase.generate])
    @given(st.data())
    def check(source: str, target: str | None, data: st.DataObject) -> None:
        storages = [storage for storage in STORAGES if source in DTYPES_OF[storage]]
        # Rows that lie in order are linked, and the others copied.
        links = ["linked"] * (target is None)
        storage = data.draw(st.sampled_from([*links, *storages]))
        kind = "plain"
        link = storage == "linked"
        if link:
            storage = "slices"
        elif storage != "dump":
            kind = data.draw(st.sampled_from(get_args(Kind)))
        rows = data.draw(st.integers(1, 60))
        values = random_values(data.draw, source, rows, data.draw(st.integers(1, 9)))
        lost = data.draw(st.sampled_from([0, 1])) * (target is None and source != "float64")
        if lost and source not in INTEGERS:
            values[rows // 2 :: 7, 0] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
        stated = Stated(values, None)
        if storage != "dump":
            stated = laid_out(kind, values, data.draw)
        segment_rows = data.draw(st.none() | st.integers(1, rows))
        block_bytes = data.draw(st.sampled_from([1, 12, 100, 1 << 20]))

        with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
            directory = Path(name)
            (directory / "c").mkdir()
            patch.setattr("export.tables.plan.block_bytes", lambda *_, **__: block_bytes)
            STORAGES[storage](directory / "c", stated.variable, data.draw, stated.lanes)
            options = {"segment_rows": segment_rows, "dtype": target, "link": link}
            table = exported(directory, stated.layout, allow_non_finite=bool(lost), **options)
            assert table.dtype == (target or source.replace("64", "32"))
            is_linked = not any("rows-" in segment.file for segment in table.segments)
            # Segments of chunks end where a chunk does.
            if storage != "chunks" and not is_linked and segment_rows is not None:
                assert {segment.rows for segment in table.segments[:-1]} <= {segment_rows}
            finite = np.isfinite(values.astype(np.float64)).all(axis=1)
            if not is_linked and not finite.all():
                assert table.non_finite is not None
                assert table.non_finite.rows == (~finite).sum()
                assert table.non_finite.first_row == np.argmin(finite)
            assert_rows(directory / "out/tables/1", table, values)
            if not is_linked and data.draw(st.booleans()):
                # Of integers that are zeros, any scale is right.
                changed = np.flatnonzero(finite & values.astype(bool).any(axis=1))
                check_that_a_step_is_found(directory, table, changed, data.draw)
            if is_linked:
                # The links outlive the checkpoint.
                for file in (directory / "c").iterdir():
                    file.unlink()
                assert_rows(directory / "out/tables/1", table, values)
        drawn.update([storage, kind, f"linked {is_linked}", f"non-finite {bool(table.non_finite)}"])

    for source, target in CONVERSIONS:
        check(source, target)
    names = {*STORAGES, *get_args(Kind), "linked True", "non-finite True"}
    assert names - set(drawn) == set(), "never drawn"


@settings(max_examples=25, phases=[Phase.generate])
@given(st.data())
def test_flipped_bit_of_any_slice_publishes_nothing(data: st.DataObject) -> None:
    rows = data.draw(st.integers(2, 40))
    values = random_values(data.draw, "float32", rows, 4)
    stated = laid_out(data.draw(st.sampled_from(get_args(Kind))), values, data.draw)
    with TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "c").mkdir()
        write_slices(directory / "c", stated.variable, data.draw, stated.lanes)
        files = [file for file in (directory / "c").glob("*.data-*") if file.stat().st_size > 20]
        path = data.draw(st.sampled_from(sorted(files)))
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(13, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        before = path.stat()
        path.write_bytes(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        link = data.draw(st.booleans())
        segment_rows = data.draw(st.none() | st.integers(1, rows))
        with pytest.raises((CheckpointError, VerificationFailed)):
            exported(directory, stated.layout, segment_rows=segment_rows, link=link)
        assert not (directory / "out/tables/1").exists()


def test_checkpoint_without_checksums_that_was_overwritten_later_is_found(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    write_array(tmp_path / "c", np.ones((100, 6), np.float32), chunk_rows=10)
    exported(tmp_path, None, segment_rows=40)
    path = tmp_path / "c/t/9.0"
    before = path.stat()
    rows = np.fromfile(path, "<f4")
    rows[-3] += 1
    rows.tofile(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    for full in (False, True):
        with pytest.raises(VerificationFailed, match="'t'"):
            compare(tmp_path, full=full)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_sample_of_a_large_table_has_the_ends_of_files_and_no_long_gap(
    tmp_path: Path, is_chunked: bool
) -> None:
    rows = 2 * SAMPLE_ROWS
    values = np.arange(rows, dtype=np.float32).reshape(rows, 1)
    (tmp_path / "c").mkdir()
    if is_chunked:
        write_array(tmp_path / "c", values, chunk_rows=500)
    else:
        boxes: dict[str, Any] = {"t": [[(0, 5003), (0, -1)], [(5003, rows - 5003), (0, -1)]]}
        write_bundle(tmp_path / "c/ckpt", {"t": values}, boxes=boxes)
    exported(tmp_path, None, segment_rows=3001)
    assert compare(tmp_path) == SAMPLE_ROWS
    bundle = tmp_path / "out/tables/1"
    original = shutil.copytree(bundle, tmp_path / "original")
    slices = [] if is_chunked else [[5002], [5003]]
    ends = [[row] for row in (0, 3000, 3001, rows - 1)]
    for changed in (*ends, *slices, range(4000, 4020)):
        for row in changed:
            change(bundle, row, 0, lambda bits: bits ^ (1 << 22))
        with pytest.raises(VerificationFailed, match=r"row \d+ differs"):
            compare(tmp_path)
        shutil.copytree(original, bundle, dirs_exist_ok=True)


@pytest.mark.parametrize(
    ("trained", "stored", "equal"),
    [(np.nan, -np.nan, True), (np.nan, 1.0, False), (1.0, np.nan, False), (0.0, -0.0, False)],
)
def test_value_that_is_no_number_equals_any_other_such_value_alone(
    tmp_path: Path, trained: float, stored: float, equal: bool
) -> None:
    (tmp_path / "c").mkdir()
    write_bundle(tmp_path / "c/ckpt", {"t": np.array([[1, trained], [2, np.inf]], np.float32)})
    exported(tmp_path, None, allow_non_finite=True)
    bundle = tmp_path / "out/tables/1"
    change(bundle, 0, 1, lambda _: np.float32(stored).view(np.uint32))
    if equal:
        assert compare(tmp_path) == 2
        rewrite(bundle, setting("tables.t.non_finite", None))
    with pytest.raises(VerificationFailed, match="row 0"):
        compare(tmp_path)
