from __future__ import annotations

import mmap
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bundle.storage import residency

PAGES = 40 * 1024
"""A size whose residency is estimated by samples."""


def mapped(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def uncached(path: Path, size: int) -> None:
    """Writes a file, and has the kernel forget its residency."""
    with path.open("wb") as file:
        file.truncate(size)
        file.write(b"\x01" * min(size, 1 << 20))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.parametrize("size", [1, mmap.PAGESIZE, 10 * mmap.PAGESIZE + 1, PAGES * mmap.PAGESIZE])
def test_pages_brought_in_are_resident(tmp_path: Path, size: int) -> None:
    uncached(tmp_path / "f", size)
    data = mapped(tmp_path / "f")
    if residency.resident_bytes(data) == size:
        pytest.skip("this disk's pages are not dropped, or not reported")
    done = 0
    while piece := residency.bring_in(data, done):
        done += piece
    assert done == size
    assert residency.resident_bytes(data) == size


def _linux() -> tuple[int, ...]:
    return tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])


_CUT = """
import mmap, sys
import numpy as np
from bundle.storage import residency
with open(sys.argv[1], "r+b") as file:
    data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    file.truncate(mmap.PAGESIZE)
print(residency.bring_in(data, 0) == data.size)
"""


def test_warm_of_a_file_that_was_cut_short_does_not_end_the_process(tmp_path: Path) -> None:
    uncached(tmp_path / "f", 10 * mmap.PAGESIZE)
    command = [sys.executable, "-c", _CUT, str(tmp_path / "f")]
    finished = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[4]
    )
    if finished.returncode == -signal.SIGBUS and _linux() < (5, 14):
        pytest.skip("this kernel has to touch the pages")
    assert (finished.returncode, finished.stdout) == (0, "True\n"), finished.stderr
