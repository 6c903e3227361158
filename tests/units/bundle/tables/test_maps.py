from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from bundle.errors import RowOutOfRange
from bundle.format.manifest import Segment
from bundle.tables.maps import MappedRows

WIDTH = 12


def scattered(root: Path, segments: int, files: int) -> tuple[list[Segment], np.ndarray]:
    """Writes segments of one to five rows into files in turn, amid other bytes, the later rows
    often in front.
    """
    random = np.random.default_rng(5)
    rows = random.integers(1, 6, segments)
    stored = random.integers(0, 256, (rows.sum(), WIDTH), np.uint8)
    firsts = np.concatenate([[0], np.cumsum(rows)])
    contents = [bytearray() for _ in range(files)]
    pages = []
    for number in random.permutation(segments):
        file = int(number) % files
        contents[file] += os.urandom(int(random.integers(0, 9)))
        first = int(firsts[number])
        end = int(firsts[number + 1])
        first_byte = len(contents[file])
        pages.append(
            Segment(
                file=f"f{file}",
                offset=first_byte,
                first_row=first,
                rows=end - first,
                crc32c=0,
                blocks=(),
            )
        )
        contents[file] += stored[first:end].tobytes()
    for file, content in enumerate(contents):
        (root / f"f{file}").write_bytes(content)
    return sorted(pages, key=lambda page: page.first_row), stored


def test_segments_of_one_file_share_one_map(tmp_path: Path) -> None:
    pages, _ = scattered(tmp_path, 3000, 2)
    mapped = MappedRows(tmp_path, pages, WIDTH)
    maps = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line
    ]
    assert len(maps) == 2
    mapped.close()
    with pytest.raises(RowOutOfRange, match="closed"):
        mapped.take(np.array([0]))
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
