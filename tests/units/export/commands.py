"""The command line as the tests call it: in this process, with what it printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.units.export.movies_job import visible


@dataclass(frozen=True)
class CommandResult:
    code: Any
    out: str
    err: str

    @property
    def message(self) -> str:
        """The one error, which is all that is no progress: a line or, with --json, an object."""
        lines = [line for line in self.err.splitlines() if not line.startswith("  ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        if lines[0].startswith("{"):
            error = json.loads(lines[0])["error"]
            assert error["exit_code"] == self.code
            text: str = error["message"]
            return text
        assert lines[0].startswith("rowcast-export: ")
        return lines[0]

    @property
    def json(self) -> dict[str, Any]:
        assert self.code == 0, self.err
        parsed: dict[str, Any] = json.loads(self.out)
        return parsed


Command = Callable[..., CommandResult]


def rejected(
    command: Command, project: Path, code: int, *expected: str, subcommand: str = "run"
) -> None:
    done = command(subcommand, project)
    assert done.code == code, done.err
    for words in expected:
        assert words in done.message
    assert done.out == ""
    assert visible(project.parent / "bundles") == []
