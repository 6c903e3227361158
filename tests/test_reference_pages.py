"""The pages of docs/reference that come from code."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_reference_pages_are_what_the_script_writes() -> None:
    command = [sys.executable, str(ROOT / "scripts/generate_reference"), "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
