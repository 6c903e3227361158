"""`rowcast-export` on a checkpoint, in this process."""

from __future__ import annotations

import gc
import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from export.cli.main import main
from object_store.remote_path import RemotePath
from tests.units.export.commands import CommandResult
from tests.units.object_store.memory_stores import uploaded

Write: TypeAlias = Callable[[Path], Path]
"""Writes a checkpoint into an empty directory; returns the path to open."""
Case: TypeAlias = tuple[Any, ...]
"""What writes a checkpoint that is broken, and words of the error; `{path}` is the opened path."""


def run(*arguments: object) -> CommandResult:
    out = io.StringIO()
    err = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["rowcast-export", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    gc.enable()  # a process that goes on looks for garbage
    return CommandResult(ended.value.code, out.getvalue(), err.getvalue())


def inspected(path: object, *options: object) -> dict[str, Any]:
    """Returns what is listed of a checkpoint."""
    return run("inspect", path, *options, "--json").json


def rejected(path: object, *options: object, code: int = 3) -> str:
    """Returns why a checkpoint or what is stated of it is rejected."""
    done = run("inspect", path, *options, "--json")
    assert done.code == code, done
    return done.message


def in_a_store(directory: Path) -> RemotePath:
    """Copies a directory into an object store."""
    return uploaded(directory, RemotePath(f"memory://{directory}/store"))
