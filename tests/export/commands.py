"""The command line as the tests call it: in this process, with what it printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.export.exporting import visible


@dataclass(frozen=True)
class Done:
    code: Any
    out: str
    err: str

    @property
    def told(self) -> str:
        """The one line that is no progress."""
        lines = [line for line in self.err.splitlines() if not line.startswith("  ")]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("rowcast-export: ")
        assert "Traceback" not in self.err
        return lines[0]

    @property
    def page(self) -> dict[str, Any]:
        assert self.code == 0, self.err
        page: dict[str, Any] = json.loads(self.out)
        return page


Command = Callable[..., Done]


def refused(command: Command, project: Path, code: int, *told: str, subcommand: str = "run") -> None:
    done = command(subcommand, project)
    assert done.code == code, done.err
    for words in told:
        assert words in done.told
    assert done.out == ""
    assert visible(project.parent / "bundles") == []
