from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bundle.errors import VersionBusy
from bundle.storage import lock

ROOT = Path(__file__).parents[4]
HOLDER = """
import pathlib, sys
from bundle.storage import lock
lock.acquire(pathlib.Path(sys.argv[1]), "version 1")
print("locked", flush=True)
input()
"""


def test_acquire_of_a_held_lock_is_rejected_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    descriptor = lock.acquire(path, "version 1")
    with pytest.raises(VersionBusy, match="version 1 is being written by another run"):
        lock.acquire(path, "version 1")
    lock.release(path, descriptor)
    assert not path.exists()
    lock.release(path, lock.acquire(path, "version 1"))


def test_acquire_of_a_lock_whose_holder_was_killed_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(VersionBusy):
            lock.acquire(path, "version 1")
        holder.send_signal(signal.SIGKILL)
    lock.release(path, lock.acquire(path, "version 1"))
