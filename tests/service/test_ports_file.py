"""The file of bound ports."""

from __future__ import annotations

import json
from pathlib import Path

from service.ports_file import write_ports


def test_ports_are_written_whole_and_nothing_is_left_beside(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    path.write_text("old")
    write_ports(path, 8080, 9090)
    assert json.loads(path.read_text()) == {"http": 8080, "grpc": 9090}
    assert list(tmp_path.iterdir()) == [path]
