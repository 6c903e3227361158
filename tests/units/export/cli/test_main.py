"""The command line: results on stdout, progress and one line of error on stderr."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from export.checkpoint import reader
from tests.units.export.commands import Command


def test_rowcast_export_without_arguments_lists_the_commands(command: Command) -> None:
    done = command()
    assert (done.code, done.err) == (0, "")
    assert "inspect" in done.out
    assert command("--version").out == f"rowcast-export {version('rowcast')}\n"


def test_package_that_is_missing_is_named_with_the_command_that_installs_it() -> None:
    program = (
        "import sys; sys.modules['pydantic_settings'] = None; from export.cli.main import "
        "main; main()"
    )
    command = [sys.executable, "-c", program, "run", "recipe.toml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    output = " ".join(done.stderr.split())
    assert "pydantic_settings is not installed" in output
    assert "pip install '.[export]'" in output


def test_command_that_is_interrupted_tells_how_to_go_on(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reader, "open_checkpoint", interrupt)
    done = command("inspect", tmp_path)
    assert done.code == 130
    assert done.message == "rowcast-export: interrupted; run the same command again to resume"


def test_arguments_that_cannot_be_meant_name_the_help_of_their_command(command: Command) -> None:
    done = command("inspect")
    assert done.code == 2
    assert done.message.endswith("(see `rowcast-export inspect --help`)")
    done = command("nothing")
    assert done.message == (
        "rowcast-export: No such command 'nothing' (see `rowcast-export --help`)"
    )
