from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundle.format import paths
from bundle.format.indexes import Codes
from bundle.format.manifest import File, Manifest, WarmUpRequests
from bundle.storage.catalog import read_manifest
from bundle.storage.integrity import check_files
from bundle.tables.reader import TableReader
from bundle.tables.sharding import (
    ShardNumber,
    manifest_of_router,
    manifest_of_shard,
    row_range,
    sharded_tables,
    table_of_rows,
)
from tests.bundles.tables import write_int8_table

GOLDEN = Path(__file__).parents[3] / "differential/bundle/root/movies/1"
SHARDS = st.integers(1, 40).flatmap(lambda total: st.tuples(st.integers(1, total), st.just(total)))


@given(rows=st.integers(1, 1000), total=st.integers(1, 40))
def test_row_ranges_of_all_shards_hold_every_row_once_in_similar_numbers(
    rows: int, total: int
) -> None:
    ranges = [row_range(rows, ShardNumber(number, total)) for number in range(1, total + 1)]
    assert [row for row_range in ranges for row in range(row_range.first, row_range.end)] == list(
        range(rows)
    )
    assert (
        max(row_range.rows for row_range in ranges) - min(row_range.rows for row_range in ranges)
        <= 1
    )


@given(SHARDS)
def test_shard_number_parses_its_own_text(shard: tuple[int, int]) -> None:
    assert ShardNumber.parse(str(ShardNumber(*shard))) == shard


@pytest.mark.parametrize(
    "text", ["", "1", "0/4", "5/4", "1/0", "a/b", "1/4/2", "-1/4", "1 / 4", "01/4"]
)
def test_shard_number_of_any_other_text_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is no shard"):
        ShardNumber.parse(text)


@pytest.mark.parametrize("total", [1, 2, 3, 7, 60])
def test_ranges_of_a_table_hold_its_rows_and_scales(tmp_path: Path, total: int) -> None:
    values = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    table = write_int8_table(tmp_path, "t", values, [13, 30], [40])
    whole = TableReader(tmp_path, table).gather(np.arange(50))
    parts = []
    for number in range(1, total + 1):
        wanted = row_range(50, ShardNumber(number, total))
        if wanted.rows:
            parts.append(
                TableReader(tmp_path, table_of_rows(table, wanted)).gather(np.arange(wanted.rows))
            )
    assert np.concatenate(parts).tobytes() == whole.tobytes()


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_stored_rows_are_the_bytes_of_the_bundle(
    committed_bundle: Path, native: bool, dtype: str
) -> None:
    manifest = read_manifest(committed_bundle)
    table = next(entry for entry in manifest.tables.values() if entry.dtype == dtype)
    reader = TableReader(committed_bundle, table, native)
    rows = np.array([table.rows - 1, 0, 0])
    values, scales = reader.take_stored(rows)
    expected = np.concatenate([reader.read(row, 1) for row in rows])
    assert values.tobytes() == expected.tobytes()
    assert scales.shape == (3, 4 if dtype == "int8" else 0)


def test_router_holds_vectors_that_an_index_of_its_own_shares_with_a_sharded_one() -> None:
    manifest = read_manifest(GOLDEN)
    (index,) = manifest.indexes.values()
    codes = Codes.of("apart")
    apart = index.model_copy(
        update={"partitions": 2, "directory": "indexes/apart/scann", "codes": codes}
    )
    (vectors,) = (file for file in manifest.files if file.path == index.vectors)
    written = [vectors.model_copy(update={"path": path}) for path in (codes.file, codes.codebook)]
    manifest = manifest.model_copy(update={"files": (*manifest.files, *written)})
    changed = manifest.model_copy(update={"indexes": {"whole": index, "apart": apart}})
    only = manifest.model_copy(update={"indexes": {"apart": apart}})

    def router_files(entry: Manifest) -> set[str]:
        return {file.path for file in manifest_of_router(entry, 1).files}

    assert index.vectors in router_files(changed)
    assert index.vectors not in router_files(only)
    shards = [manifest_of_shard(changed, ShardNumber(number, 2), 1) for number in (1, 2)]
    assert all(codes.file in {file.path for file in shard.files} for shard in shards)
    assert not {codes.file, codes.codebook} & router_files(changed)
    assert all(index.vectors in {file.path for file in shard.files} for shard in shards)


@pytest.mark.parametrize("partitions", [1, 2, 3, 5])
@pytest.mark.parametrize("total", [1, 2, 4])
def test_each_part_of_an_index_is_held_by_the_router_or_by_one_shard(
    partitions: int, total: int
) -> None:
    manifest = read_manifest(GOLDEN)
    (index,) = manifest.indexes.values()
    index = index.model_copy(update={"partitions": partitions})
    (file,) = (file for file in manifest.files if file.path == index.vectors)
    parts = [f"{directory}/part" for directory in index.directories]
    files = (*manifest.files, *(file.model_copy(update={"path": path}) for path in parts))
    manifest = manifest.model_copy(update={"indexes": {"movies": index}, "files": files})
    router = manifest_of_router(manifest, 1)
    shards = [
        manifest_of_shard(manifest, ShardNumber(1 + index, total), 1) for index in range(total)
    ]
    holders = [[file.path for file in contents.files] for contents in (router, *shards)]
    for path in parts:
        assert sum(path in paths for paths in holders) == 1
    assert all(path in holders[0] for path in parts) == (partitions == 1)
    assert (index.vectors in holders[0]) == (partitions == 1)
    assert list(router.indexes) == (["movies"] if partitions == 1 else [])
    for shard in shards:
        assert list(shard.indexes) == ([] if partitions == 1 else ["movies"])


def test_check_files_of_a_shard_reads_only_the_files_that_it_holds(committed_bundle: Path) -> None:
    manifest = read_manifest(committed_bundle)
    router = manifest_of_router(manifest, 1)
    assert not router.tables
    assert router.features == manifest.features
    shards = [manifest_of_shard(manifest, ShardNumber(number, 2), 1) for number in (1, 2)]
    for table in manifest.tables.values():
        for segment in table.segments:
            (committed_bundle / segment.file).rename(committed_bundle / f"{segment.file}.away")
    check_files(committed_bundle, router, "full")
    for shard in shards:
        with pytest.raises(Exception, match="missing"):
            check_files(committed_bundle, shard, "full")
    for table in manifest.tables.values():
        for segment in table.segments:
            (committed_bundle / f"{segment.file}.away").rename(committed_bundle / segment.file)
    for shard in shards:
        assert set(shard.tables) == set(manifest.tables)
        check_files(committed_bundle, shard, "full")
    assert set(sharded_tables(manifest, 1 << 40)) == set()
    assert manifest_of_router(manifest, 1 << 40).tables == manifest.tables


def test_requests_for_the_warm_up_are_computed_by_routers() -> None:
    manifest = read_manifest(GOLDEN)
    file = File(path=paths.WARM_UP_REQUESTS, bytes=1, crc32c=0)
    entry = WarmUpRequests(file=file.path, size=1)
    manifest = manifest.model_copy(update={"warm_up": entry, "files": (*manifest.files, file)})
    router = manifest_of_router(manifest, 1)
    shard = manifest_of_shard(manifest, ShardNumber(1, 2), 1)
    assert (router.warm_up, shard.warm_up) == (entry, None)
    assert file in router.files
    assert file not in shard.files
