"""The command line: results on stdout, progress and one line of error on stderr."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

from tests.export.commands import Command


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
    told = " ".join(done.stderr.split())
    assert "pydantic_settings is not installed" in told
    assert "pip install '.[export]'" in told
