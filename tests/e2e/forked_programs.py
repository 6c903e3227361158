"""Programs as users call them, in processes forked from one that has imported what they need."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

MODULES = {"rowcast-export": "export.cli.main", "rowcast-serve": "service.cli.main"}


def printed_by_export(
    arguments: Sequence[str], directory: Path, variables: Mapping[str, str] | None = None
) -> str:
    """Runs a command of `rowcast-export` that must succeed; returns what it prints to stdout."""
    code, stdout, stderr = run_forked(["rowcast-export", *arguments], directory, variables or {})
    assert code == 0, stderr[-4000:]
    return stdout


def run_forked(
    line: Sequence[object], directory: Path, variables: Mapping[str, str]
) -> tuple[int | None, str, str]:
    """Runs a command; returns its exit code and what it prints to stdout and stderr.

    Args:
      line: A program and its arguments.
      directory: Where it runs.
      variables: Of its environment, beside those of this process.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.units.export.preloaded"])
    with TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in ("stdout", "stderr")]
        given = ([*map(str, line)], directory, dict(variables), files)
        process = context.Process(target=_run, args=given)
        process.start()
        process.join()
        stdout, stderr = (Path(file).read_text() for file in files)
    code = process.exitcode
    process.close()
    return code, stdout, stderr


def _run(line: list[str], directory: Path, variables: dict[str, str], files: list[str]) -> None:
    module = MODULES[line[0]]
    for stream, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream)
    os.environ |= variables
    os.chdir(directory)
    sys.argv = line
    importlib.import_module(module).main()
