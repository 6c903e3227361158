"""The file of bound ports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.ports_file import write_ports


def test_ports_are_written_whole_and_nothing_is_left_beside(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    path.write_text("old")
    write_ports(path, 8080, 9090)
    assert json.loads(path.read_text()) == {"http": 8080, "grpc": 9090}
    assert list(tmp_path.iterdir()) == [path]


def test_ports_file_that_cannot_be_written_is_named_with_its_option(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "ports.json"
    with pytest.raises(OSError, match=f"--ports-file {path} cannot be written: No such file"):
        write_ports(path, 8080, 9090)
