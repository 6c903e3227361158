"""A writer of a segment that may be the one of an older version."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.errors import OlderVersionUnreadable
from bundle.format.checksums import crc32c
from bundle.tables.older_file import OlderFile
from bundle.tables.reader import SegmentWriter

Content = NDArray[np.uint8]

CONTENT: Content = np.random.default_rng(5).integers(0, 256, 600_001, np.uint8)
PIECES = 7


@pytest.fixture
def older(tmp_path: Path) -> Path:
    path = tmp_path / "older"
    CONTENT.tofile(path)
    return path


def pieces(content: Content) -> Iterator[tuple[int, Content]]:
    """Yields offsets and bytes that together are the content."""
    parts = np.array_split(content, PIECES)
    yield from zip(accumulate(map(len, parts), initial=0), parts, strict=False)


def written(path: Path, content: Content, older: Path, placed: bool) -> SegmentWriter:
    """Writes a file in the order of its bytes, or in the opposite one."""
    with SegmentWriter(path, size=content.size if placed else None, older=older) as writer:
        for offset, piece in reversed([*pieces(content)]) if placed else pieces(content):
            if placed:
                writer.write_at(offset, piece)
            else:
                writer.write(piece)
    digest = writer.close()
    assert (digest.bytes, digest.crc32c) == (content.size, crc32c(content))
    np.testing.assert_array_equal(np.fromfile(path, np.uint8), content)
    assert {name.name for name in path.parent.iterdir()} == {"older", path.name}
    return writer


def other(position: int, size: int = CONTENT.size) -> Content:
    """Returns the content with one byte changed, and another size."""
    content = np.resize(CONTENT, size)
    content[position] ^= 1
    return content


@pytest.mark.parametrize("placed", [False, True])
def test_segment_that_equals_the_older_one_is_a_link_to_it(
    tmp_path: Path, older: Path, placed: bool
) -> None:
    writer = written(tmp_path / "new", CONTENT, older, placed)
    assert writer.is_reused
    assert (tmp_path / "new").samefile(older)
    # A run that was killed before it noted the segment writes it again.
    rewritten = written(tmp_path / "new", CONTENT, older, placed)
    assert rewritten.is_reused
    older.unlink()
    np.testing.assert_array_equal(np.fromfile(tmp_path / "new", np.uint8), CONTENT)


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize(
    "content",
    [other(0), other(300_000), other(600_000), CONTENT[:-1], other(700_000, 700_001)],
    ids=["first byte", "a byte", "last byte", "shorter", "longer"],
)
def test_segment_that_differs_from_the_older_one_is_written_beside_it(
    tmp_path: Path, older: Path, content: Content, placed: bool
) -> None:
    assert not written(tmp_path / "new", content, older, placed).is_reused
    assert (tmp_path / "new").stat().st_nlink == 1
    np.testing.assert_array_equal(np.fromfile(older, np.uint8), CONTENT)
    # Also where a link to the older file has the name, of a run that was killed.
    (tmp_path / "new").unlink()
    (tmp_path / "new").hardlink_to(older)
    assert not written(tmp_path / "new", content, older, placed).is_reused
    np.testing.assert_array_equal(np.fromfile(older, np.uint8), CONTENT)


def test_segment_is_written_if_the_older_one_is_gone_from_the_start_or_at_the_end(
    tmp_path: Path, older: Path
) -> None:
    with SegmentWriter(tmp_path / "new", older=older) as writer:
        writer.write(CONTENT)
        older.unlink()
    assert (writer.is_reused, writer.link_problem) == (False, os.strerror(errno.ENOENT))
    np.testing.assert_array_equal(np.fromfile(tmp_path / "new", np.uint8), CONTENT)

    with SegmentWriter(tmp_path / "newer", older=older) as writer:
        writer.write(CONTENT)
    assert (writer.is_reused, writer.link_problem) == (False, "")
    np.testing.assert_array_equal(np.fromfile(tmp_path / "newer", np.uint8), CONTENT)


def test_segment_is_written_if_another_file_takes_the_name_of_the_older_one(
    tmp_path: Path, older: Path
) -> None:
    with SegmentWriter(tmp_path / "new", older=older) as writer:
        writer.write(CONTENT)
        (tmp_path / "another").write_bytes(b"another")
        (tmp_path / "another").rename(older)
    assert not writer.is_reused
    np.testing.assert_array_equal(np.fromfile(tmp_path / "new", np.uint8), CONTENT)
    assert {path.name for path in tmp_path.iterdir()} == {"older", "new"}


def test_segment_is_not_linked_to_a_file_on_another_file_system(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs two file systems")
    older = memory / f"rowcast-older-{os.getpid()}"
    CONTENT.tofile(older)
    try:
        with SegmentWriter(tmp_path / "new", older=older) as writer:
            for _, piece in pieces(CONTENT):
                writer.write(piece)
    finally:
        older.unlink()
    assert (writer.is_reused, writer.link_problem) == (False, os.strerror(errno.EXDEV))
    np.testing.assert_array_equal(np.fromfile(tmp_path / "new", np.uint8), CONTENT)


def test_segment_whose_older_one_cannot_be_read_is_not_left_behind(tmp_path: Path) -> None:
    # Its first page is never mapped: reading it is an input/output error.
    with (
        pytest.raises(OlderVersionUnreadable, match=r"/proc/self/mem .* cannot be read"),
        SegmentWriter(tmp_path / "new", older=Path("/proc/self/mem")) as writer,
    ):
        writer.write(CONTENT)
    assert [*tmp_path.iterdir()] == []


def test_older_file_that_was_cut_short_is_unreadable(tmp_path: Path, older: Path) -> None:
    opened = OlderFile(older)
    assert opened.matches(0, CONTENT)
    os.truncate(older, 1000)
    with (
        (tmp_path / "new").open("wb") as file,
        pytest.raises(OlderVersionUnreadable, match="it was cut short while it was read"),
    ):
        opened.copy_matched(file.fileno())
    opened.close()
