"""docs/tutorials/first-model.ipynb, the page first-model.md as a notebook: its cells run in their
order, and print what the page shows.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TITLE = re.compile(r"The [A-Z][a-z]+ [A-Z][a-z]+")
NUMBER = re.compile(r"-?\d[\d.,]*(?:e-?\d+)?")


def run_shell(lines: str, folder: Path) -> str:
    """Runs the lines of a `%%bash` cell; returns what they print."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", lines],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def run_cell(source: str, folder: Path, names: dict[str, Any]) -> str:
    """Runs a cell as a kernel does; returns what its commands print."""
    magic, _, text = source.partition("\n")
    if magic.startswith("%%writefile "):
        (folder / magic.split()[1]).write_text(text)
        return ""
    if magic == "%%bash":
        return run_shell(text, folder)
    exec(source, names)
    return ""


def words(lines: Sequence[str]) -> list[list[str]]:
    """Returns the words of lines: numbers and titles differ from one training to the next."""
    masked = [NUMBER.sub("", TITLE.sub("", line)) for line in lines]
    split = [re.findall(r"[A-Za-z_]+", line) for line in masked]
    return [line for line in split if line]


@pytest.mark.nightly
@pytest.mark.slow
def test_notebook_leads_from_training_to_recommendations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("ROWCAST_HTTP_PORT", str(port))
    monkeypatch.setenv("ROWCAST_GRPC_PORT", "0")
    monkeypatch.setenv("ROWCAST_CLIENT_URL", f"http://localhost:{port}")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "docs/tutorials/first-model.ipynb").read_text())

    names: dict[str, Any] = {}
    try:
        for cell in notebook["cells"]:
            if cell["cell_type"] != "code":
                continue
            source = cell["source"].replace("localhost:8080", f"localhost:{port}")
            printed = words(run_cell(source, tmp_path, names).splitlines())
            for output in cell["outputs"]:
                page_lines = words(output["text"].splitlines())
                assert [line for line in page_lines if line not in printed] == [], source
    finally:
        if "service" in names:
            names["service"].kill()
    assert names["service"].returncode == 0, "the service drained"
