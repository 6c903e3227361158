"""Files of rows hold what was written into them, link to an equal older file, and are divided among
shards.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.errors import OlderVersionUnreadable, RowOutOfRange
from bundle.format import manifest as entries
from bundle.format.checksums import BLOCK_BYTES, crc32c
from bundle.format.indexes import Codes
from bundle.format.paths import WARM_UP_REQUESTS
from bundle.storage.catalog import read_manifest
from bundle.tables.maps import MappedRows
from bundle.tables.older_file import OlderFile
from bundle.tables.reader import SYNC_BYTES, SegmentWriter, TableReader
from bundle.tables.sharding import (
    ShardNumber,
    manifest_of_router,
    manifest_of_shard,
    row_range,
    table_of_rows,
)
from tests.bundles.tables import write_int8_table
from tests.laws.test_tables import write_segments

Content = NDArray[np.uint8]
CONTENT: Content = np.random.default_rng(5).integers(0, 256, 600_001, np.uint8)


def pieces(content: Content, count: int, placed: bool) -> Iterator[tuple[int, Content]]:
    """Yields offsets and bytes of the content; the last ones first, if they are placed."""
    cuts = np.linspace(0, content.size, count + 1).astype(int).tolist()
    parts = [(first, content[first:end]) for first, end in pairwise(cuts)]
    yield from reversed(parts) if placed else parts


def written(
    path: Path, content: Content, *, count: int = 7, placed: bool = False, older: Path | None = None
) -> SegmentWriter:
    with SegmentWriter(path, size=content.size if placed else None, older=older) as writer:
        for offset, piece in pieces(content, count, placed):
            if placed:
                writer.write_at(offset, piece)
            else:
                writer.write(piece)
    digest = writer.close()
    assert (digest.bytes, digest.crc32c) == (content.size, crc32c(content))
    starts = range(0, content.size, BLOCK_BYTES)
    assert digest.blocks == tuple(crc32c(content[start : start + BLOCK_BYTES]) for start in starts)
    assert path.read_bytes() == content.tobytes()
    return writer


@pytest.mark.parametrize("placed", [False, True])
def test_a_segment_is_whole_and_so_is_its_digest(tmp_path: Path, placed: bool) -> None:
    data = np.random.default_rng(3).integers(0, 256, 2 * SYNC_BYTES + 5, np.uint8)
    written(tmp_path / "deep" / "t", data, placed=placed)


@settings(max_examples=settings().max_examples // 4)
@given(
    placed=st.booleans(),
    count=st.integers(1, 9),
    changed=st.none() | st.integers(0, CONTENT.size - 1),
    size=st.sampled_from([CONTENT.size, CONTENT.size - 1, CONTENT.size + 100_000]),
    was_killed=st.booleans(),
)
def test_a_segment_is_a_link_to_the_older_file_if_and_only_if_they_are_equal(
    tmp_path_factory: pytest.TempPathFactory,
    placed: bool,
    count: int,
    changed: int | None,
    size: int,
    was_killed: bool,
) -> None:
    directory = tmp_path_factory.mktemp("segments")
    CONTENT.tofile(directory / "older")
    if was_killed:  # a run had linked the older file already
        (directory / "new").hardlink_to(directory / "older")
    content = np.resize(CONTENT, size)
    if changed is not None:
        content[min(changed, size - 1)] ^= 1
    writer = written(
        directory / "new", content, count=count, placed=placed, older=directory / "older"
    )
    is_equal = content.tobytes() == CONTENT.tobytes()
    assert writer.is_reused == is_equal
    assert (directory / "new").samefile(directory / "older") == is_equal
    assert (directory / "older").read_bytes() == CONTENT.tobytes()
    assert {path.name for path in directory.iterdir()} == {"older", "new"}


@pytest.mark.parametrize("trouble", ["removed", "replaced", "absent", "on another file system"])
def test_a_segment_is_written_where_it_cannot_link_the_older_file(
    tmp_path: Path, trouble: str
) -> None:
    older = tmp_path / "older"
    if trouble == "on another file system":
        older = Path("/dev/shm") / f"rowcast-older-{os.getpid()}"
        if not older.parent.is_dir() or older.parent.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("needs two file systems")
    if trouble != "absent":
        CONTENT.tofile(older)
    try:
        with SegmentWriter(tmp_path / "new", older=older) as writer:
            writer.write(CONTENT)
            if trouble == "removed":
                older.unlink()
            if trouble == "replaced":
                (tmp_path / "other").write_bytes(b"another")
                (tmp_path / "other").rename(older)
    finally:
        older.unlink(missing_ok=True)
    problems = {"removed": errno.ENOENT, "on another file system": errno.EXDEV}
    if trouble in problems:
        assert writer.link_problem == os.strerror(problems[trouble])
    assert not writer.is_reused
    assert (tmp_path / "new").read_bytes() == CONTENT.tobytes()


def test_an_older_file_that_cannot_be_read_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    # Its first page is never mapped: reading it is an input/output error.
    with (
        pytest.raises(OlderVersionUnreadable, match="/proc/self/mem"),
        SegmentWriter(tmp_path / "new", older=Path("/proc/self/mem")) as writer,
    ):
        writer.write(CONTENT)
    assert [*tmp_path.iterdir()] == []
    CONTENT.tofile(tmp_path / "older")
    opened = OlderFile(tmp_path / "older")
    assert opened.matches(0, CONTENT)
    os.truncate(tmp_path / "older", 1000)
    with (
        (tmp_path / "new").open("wb") as file,
        pytest.raises(OlderVersionUnreadable, match="cut short"),
    ):
        opened.copy_matched(file.fileno())
    opened.close()


def test_writers_fill_their_ranges_of_one_file_and_leave_the_rest_alone(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"-" * 12)
    with SegmentWriter(path, offset=2) as writer:
        writer.write(b"ab")
        writer.write(b"c")
    with SegmentWriter(path, size=4, offset=7) as placed:
        placed.write_at(2, b"fg")
        placed.write_at(0, b"de")
    with pytest.raises(KeyError), SegmentWriter(path, offset=1) as writer:  # noqa: PT012
        writer.write(b"-")
        raise KeyError
    assert path.read_bytes() == b"--abc--defg-"
    with pytest.raises(KeyError), SegmentWriter(tmp_path / "own") as writer:  # noqa: PT012
        writer.write(b"abc")
        raise KeyError
    assert not (tmp_path / "own").exists()


def test_segments_of_one_file_share_one_map(tmp_path: Path) -> None:
    rows = np.zeros((3000, 12), np.uint8)
    segments = write_segments(tmp_path, "rows", rows, [*range(1, 3000)], 5)
    mapped = MappedRows(tmp_path, segments, 12)
    maps = Path("/proc/self/maps").read_text()
    assert sum(str(tmp_path) in line for line in maps.splitlines()) == 1
    mapped.close()
    with pytest.raises(RowOutOfRange, match="closed"):
        mapped.take(np.array([0]))
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("compiled", [True, False])
def test_a_table_is_warmed_and_reads_no_row_outside_of_it(tmp_path: Path, compiled: bool) -> None:
    values = np.random.default_rng(0).normal(size=(5000, 64)).astype(np.float32)
    table = write_int8_table(tmp_path, "t", values, [13, 30], [40])
    reader = TableReader(tmp_path, table, compiled)
    assert sum(reader.warm()) == table.bytes
    assert reader.resident_bytes() == table.bytes
    for row in (-1, 5000, 1 << 40, -(1 << 63), (1 << 63) - 1):
        with pytest.raises(RowOutOfRange, match=str(row)):
            reader.gather(np.array([0, row]))
    for first, count in ((-1, 1), (0, 5001), (5000, 1), (3, -1)):
        with pytest.raises(RowOutOfRange):
            reader.read(first, count)
    rows = np.array([4999, 0, 0])
    stored, scales = reader.take_stored(rows)
    assert stored.tobytes() == b"".join(reader.read(row, 1).tobytes() for row in rows.tolist())
    factors = scales.view("<f4").reshape(3, 1)
    assert (stored.view(np.int8).reshape(3, 64) * factors == reader.gather(rows)).all()
    warming = reader.warm()
    next(warming)
    reader.close()
    assert [*warming] == []
    assert reader.resident_bytes() == 0


@given(rows=st.integers(1, 1000), total=st.integers(1, 40))
def test_ranges_of_all_shards_hold_every_row_once_in_similar_numbers(rows: int, total: int) -> None:
    ranges = [row_range(rows, ShardNumber(number, total)) for number in range(1, total + 1)]
    held_rows = [row for part in ranges for row in range(part.first, part.end)]
    assert held_rows == [*range(rows)]
    assert max(part.rows for part in ranges) - min(part.rows for part in ranges) <= 1
    for number in range(1, total + 1):
        assert ShardNumber.parse(f"{number}/{total}") == (number, total)


@pytest.mark.parametrize(
    "text", ["", "1", "0/4", "5/4", "1/0", "a/b", "1/4/2", "-1/4", "1 / 4", "01/4"]
)
def test_any_other_text_is_no_shard(text: str) -> None:
    with pytest.raises(ValueError, match="is no shard"):
        ShardNumber.parse(text)


@pytest.mark.parametrize("total", [1, 2, 3, 7, 60])
def test_shards_of_a_table_hold_its_rows_and_scales(tmp_path: Path, total: int) -> None:
    values = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    table = write_int8_table(tmp_path, "t", values, [13, 30], [40])
    whole = TableReader(tmp_path, table).gather(np.arange(50))
    parts = []
    for number in range(1, total + 1):
        held_rows = row_range(50, ShardNumber(number, total))
        if held_rows.rows:
            part = TableReader(tmp_path, table_of_rows(table, held_rows))
            parts.append(part.gather(np.arange(held_rows.rows)))
    assert np.concatenate(parts).tobytes() == whole.tobytes()


@pytest.mark.parametrize("partitions", [1, 2, 5])
@pytest.mark.parametrize("total", [1, 2, 4])
def test_every_file_is_read_by_the_router_or_by_the_shards_that_need_it(
    partitions: int, total: int
) -> None:
    golden = Path(__file__).parents[1] / "differential/bundle/root/movies/1"
    manifest = read_manifest(golden)
    (index,) = manifest.indexes.values()
    # As if the index had partitions, codes and requests for the warm-up.
    codes = Codes.of("movies")
    index = index.model_copy(update={"partitions": partitions, "codes": codes})
    parts = [f"{directory}/part" for directory in index.directories]
    shared = [index.vectors, codes.file, codes.codebook]
    added = [*parts, codes.file, codes.codebook, WARM_UP_REQUESTS]
    update = {
        "indexes": {"movies": index},
        "warm_up": entries.WarmUpRequests(file=WARM_UP_REQUESTS, size=1),
        "files": (
            *(file for file in manifest.files if not file.path.startswith(index.directory)),
            *(entries.File(path=path, bytes=1, crc32c=0) for path in added),
        ),
    }
    manifest = manifest.model_copy(update=update)

    router = manifest_of_router(manifest, 1)
    shards = [
        manifest_of_shard(manifest, ShardNumber(number, total), 1) for number in range(1, total + 1)
    ]
    is_whole = partitions == 1
    at_router = {file.path for file in router.files}
    at_shards = [{file.path for file in shard.files} for shard in shards]
    assert at_router.union(*at_shards) == {file.path for file in manifest.files}
    assert (router.features, router.tables, router.warm_up) == (
        manifest.features,
        {},
        manifest.warm_up,
    )
    assert WARM_UP_REQUESTS not in set.union(*at_shards)
    for path in parts:
        assert sum(path in paths for paths in (at_router, *at_shards)) == 1
        assert (path in at_router) == is_whole
    for path in shared:
        assert (path in at_router) == is_whole
        assert any(path in paths for paths in at_shards) != is_whole
    assert [*router.indexes] == ["movies"] * is_whole
    assert all(set(shard.tables) == set(manifest.tables) for shard in shards)
    assert all([*shard.indexes] == ["movies"] * (not is_whole) for shard in shards)
