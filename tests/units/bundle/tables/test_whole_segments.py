"""Whole files of segments with deltas: written once, checked, mapped in place of both."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from bundle.errors import DigestMismatch
from bundle.features.columns import Column, OutputBlock
from bundle.features.reader import open_features
from bundle.format import paths
from bundle.format.manifest import Manifest
from bundle.storage import catalog
from bundle.tables.reader import TableReader
from bundle.tables.row_deltas import open_deltas
from bundle.tables.segments import RowRange
from bundle.tables.sharding import table_of_rows
from bundle.tables.whole_segments import (
    UnmergedSegment,
    remove_others,
    unmerged_segments,
    with_whole_files,
    write_whole,
)
from tests.bundles.deltas import add_deltas


def unmerged(manifest: Manifest) -> list[UnmergedSegment]:
    return [segment for table in manifest.tables.values() for segment in unmerged_segments(table)]


def rows_by_table(bundle: Path) -> dict[str, np.ndarray]:
    return {
        name: TableReader(bundle, table).take(np.arange(table.rows))
        for name, table in catalog.read_manifest(bundle).tables.items()
    }


@pytest.mark.parametrize("is_compiled", [True, False])
def test_rows_are_the_same_before_and_after_whole_files_are_mapped(
    sample_bundle: Path, is_compiled: bool
) -> None:
    expected = rows_by_table(sample_bundle)
    manifest = add_deltas(sample_bundle)
    assert {table.dtype for table in manifest.tables.values()} >= {"int8", "bfloat16"}
    readers = {}
    for name, table in manifest.tables.items():
        readers[name] = TableReader(sample_bundle, table, is_compiled)
        np.testing.assert_array_equal(readers[name].take(np.arange(table.rows)), expected[name])
        # All that is mapped, deltas included, since lookups read them.
        mapped_bytes = sum(size for _, size in table.extents())
        assert sum(readers[name].warm()) == mapped_bytes
        assert 0 < readers[name].resident_bytes() <= mapped_bytes
    for segment in unmerged(manifest):
        assert write_whole(sample_bundle, segment)
        assert not write_whole(sample_bundle, segment)

    for name, table in manifest.tables.items():
        readers[name].replace_files(sample_bundle, with_whole_files(sample_bundle, table))
        assert not any(unmerged_segments(readers[name].table))
    # Nothing is read from the base and the deltas any more.
    shutil.rmtree(sample_bundle / "tables")
    for name, reader in readers.items():
        np.testing.assert_array_equal(reader.take(np.arange(reader.rows)), expected[name])
        reopened = TableReader(sample_bundle, reader.table, is_compiled)
        np.testing.assert_array_equal(reopened.take(np.arange(reader.rows)), expected[name])


def test_a_range_of_rows_is_mapped_where_it_lies_in_whole_files(sample_bundle: Path) -> None:
    expected = rows_by_table(sample_bundle)
    manifest = add_deltas(sample_bundle)
    for segment in unmerged(manifest):
        write_whole(sample_bundle, segment)
    for name, table in manifest.tables.items():
        wanted = RowRange(table.rows // 3, table.rows // 2)
        part = table_of_rows(table, wanted)
        reader = TableReader(sample_bundle, with_whole_files(sample_bundle, part))
        assert not any(unmerged_segments(reader.table))
        rows = reader.take(np.arange(part.rows))
        np.testing.assert_array_equal(rows, expected[name][wanted.first : wanted.end])


def test_files_that_were_replaced_are_let_go_of_by_features_that_read_them(
    sample_bundle: Path,
) -> None:
    manifest = add_deltas(sample_bundle)
    for segment in unmerged(manifest):
        write_whole(sample_bundle, segment)
    tables = {
        name: with_whole_files(sample_bundle, table) for name, table in manifest.tables.items()
    }
    features = open_features(sample_bundle, manifest.model_copy(update={"tables": tables}))
    values = np.empty((2, 4), np.float32)

    def read() -> bytes:
        columns = {"user": Column(np.array([20, 21]))}
        features.write([OutputBlock(values, ("user",), (4,))], columns, 2)
        return values.tobytes()

    expected = read()
    maps = Path("/proc/self/maps")
    whole = str(sample_bundle / paths.WHOLE)
    assert whole in maps.read_text()
    for name, table in features.tables.items():
        table.replace_files(sample_bundle, manifest.tables[name])
    features.forget_files()
    assert whole not in maps.read_text()
    assert read() == expected


@pytest.mark.parametrize("number", [0, 1, 2])
def test_damage_of_a_base_or_a_delta_is_named_and_nothing_is_written(
    sample_bundle: Path, number: int
) -> None:
    unmerged_segment = unmerged(add_deltas(sample_bundle))[0]
    segment, row_bytes = unmerged_segment
    file = segment.file
    rows = (sample_bundle / file).read_bytes()
    if number:
        file = segment.deltas[number - 1].file
        delta = open_deltas(sample_bundle, segment, row_bytes)[number - 1]
        rows = delta.ranges[0].stored.tobytes()
    # All rows: those that a later delta replaces are read by nobody.
    content = (sample_bundle / file).read_bytes()
    (sample_bundle / file).write_bytes(content.replace(rows, bytes(len(rows))))
    with pytest.raises(DigestMismatch, match=f"'{file}' differs from its checksum"):
        write_whole(sample_bundle, unmerged_segment)
    assert not [path for path in (sample_bundle / paths.WHOLE).rglob("*") if path.is_file()]


def test_a_base_that_was_cut_short_is_damage(sample_bundle: Path) -> None:
    segment = unmerged(add_deltas(sample_bundle))[0]
    path = sample_bundle / segment.segment.file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DigestMismatch, match="was cut short"):
        write_whole(sample_bundle, segment)


def test_files_that_are_unfinished_too_short_or_of_another_bundle_are_no_whole_files(
    sample_bundle: Path,
) -> None:
    manifest = add_deltas(sample_bundle)
    segments = unmerged(manifest)
    for segment in segments:
        write_whole(sample_bundle, segment)
    short = sample_bundle / segments[0].file
    short.write_bytes(short.read_bytes()[:-1])
    unfinished = short.with_name(f".{short.name}-0123456789abcdef")
    unfinished.write_bytes(b"rows")
    stale = short.with_name("rows-00000-of-00009.bin.01234567")
    stale.write_bytes(b"rows")
    remove_others(sample_bundle, manifest)
    assert not unfinished.exists()
    assert not stale.exists()

    table = next(
        table for table in manifest.tables.values() if segments[0].segment in table.segments
    )
    unfinished_segments = unmerged_segments(with_whole_files(sample_bundle, table))
    assert [segment.file for segment in unfinished_segments] == [segments[0].file]
    assert write_whole(sample_bundle, segments[0])
    assert not any(unmerged_segments(with_whole_files(sample_bundle, table)))
