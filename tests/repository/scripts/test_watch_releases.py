"""`scripts/watch_releases`, with a folder of wheels as pip's index."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "watch_releases"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The script and a result of an earlier release; rowcast itself cannot be installed there."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "docs" / "reference").mkdir(parents=True)
    shutil.copy(SCRIPT, tmp_path / "scripts")
    earlier = {
        "release": "1.0",
        "python": "3.11",
        "result": "works: 3 passed",
        "date": "2026-11-01",
    }
    results = {"faiss-cpu": earlier, "scann": earlier}
    (tmp_path / "scripts" / "releases.json").write_text(json.dumps(results))
    for version in ("1.10.post1", "1.9"):
        wheel = tmp_path / f"faiss_cpu-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(
                f"faiss_cpu-{version}.dist-info/METADATA",
                f"Metadata-Version: 2.1\nName: faiss_cpu\nVersion: {version}\n",
            )
    # The only Python that the script finds is this one.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3.11").symlink_to(sys.executable)
    return tmp_path


@pytest.mark.nightly
def test_newest_release_is_tried_and_stands_on_the_page(checkout: Path) -> None:
    environment = {
        "PATH": str(checkout / "bin"),
        "HOME": os.environ["HOME"],
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(checkout),
    }
    command = [sys.executable, str(checkout / "scripts" / "watch_releases")]
    for upstream in ("faiss-cpu", "scann"):
        command += ["--only", upstream]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    refused, unreachable = done.stdout.splitlines()
    assert refused.startswith("faiss-cpu 1.10.post1: refused: pip: ERROR: ")
    assert unreachable == "scann: not reachable"
    page = (checkout / "docs" / "reference" / "tested-with.md").read_text()
    assert "| `faiss-cpu` |  | 1.10.post1 | 3.11 | refused: pip: ERROR: " in page
    assert "| `scann` |  | 1.0 | 3.11 | works: 3 passed | 2026-11-01 |" in page
    assert "| `jax` |  | | | not run | |" in page
