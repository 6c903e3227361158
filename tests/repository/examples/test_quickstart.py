"""The quick start as a user runs it: the committed bundle is served and called over both
transports.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_quickstart_prints_recommendations_with_titles_over_both_transports() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.quickstart"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "gRPC Retrieve" in done.stdout
    assert "HTTP :recommend" in done.stdout
    assert done.stdout.count("Sci-Fi") >= 5
    assert "TensorFlow in the service: no" in done.stdout


def test_quickstart_bundle_is_at_most_a_megabyte() -> None:
    files = (ROOT / "examples/quickstart/bundles").rglob("*")
    assert sum(file.stat().st_size for file in files if file.is_file()) < 1_000_000
