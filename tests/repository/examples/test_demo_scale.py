"""`make demo-scale` as plain processes: every response is that of one process, while a replica is
killed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.nightly
@pytest.mark.slow
def test_demo_gives_the_responses_of_one_process() -> None:
    command = [sys.executable, "-m", "examples.quickstart.demo_scale", "--plain"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1].split()
    assert last[0] == last[5], done.stdout
    assert "killed process" in done.stdout
