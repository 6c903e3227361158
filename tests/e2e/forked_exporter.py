"""`rowcast-export` as users call it, in processes forked from one that has imported TensorFlow."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

PATIENCE_S = 400


def printed_by_export(
    arguments: Sequence[str], directory: Path, variables: Mapping[str, str] | None = None
) -> str:
    """Runs a command that must succeed; returns what it prints to stdout.

    Args:
      arguments: Of `rowcast-export`.
      directory: Where it runs.
      variables: Of its environment, beside those of this process.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.units.export.preloaded"])
    with TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in ("stdout", "stderr")]
        given = (list(arguments), directory, dict(variables or {}), files)
        process = context.Process(target=_export, args=given)
        process.start()
        process.join(PATIENCE_S)
        stdout, stderr = (Path(file).read_text() for file in files)
        assert process.exitcode == 0, stderr[-4000:]
    process.close()
    return stdout


def _export(
    arguments: list[str], directory: Path, variables: dict[str, str], files: list[str]
) -> None:
    from export.cli.main import main

    for stream, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream)
    os.environ |= variables
    os.chdir(directory)
    sys.argv = ["rowcast-export", *arguments]
    main()
