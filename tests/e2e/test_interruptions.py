"""Programs that are interrupted while they import end without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HOOK = """
import os, signal, sys

class Interrupting:
    def find_spec(name, path=None, target=None):
        if name == os.environ["INTERRUPTED_AT"]:
            os.killpg(0, signal.SIGINT)

sys.meta_path.insert(0, Interrupting)
"""
CTL = "import rowcast.programs; rowcast.programs.serve()", "ctl", "--root", "{root}", "status"
SERVE = (
    "import rowcast.programs; rowcast.programs.serve()",
    "--root",
    "{root}",
    *[part for name in ("http", "grpc", "health", "admin") for part in (f"--{name}-port", "0")],
)
EXPORT = "import rowcast.programs; rowcast.programs.export()", "check", "recipe.toml"
CLIENT = "import rowcast_client.entry; rowcast_client.entry.main()", "models"


@pytest.mark.parametrize(
    ("command", "module", "code"),
    [
        (CTL, "typer", -2),
        (CTL, "http.client", 130),
        (SERVE, "pydantic", -2),
        (SERVE, "uvicorn.supervisors", -2),
        (SERVE, "service.app", 0),
        (EXPORT, "typer", -2),
        (CLIENT, "typer", -2),
    ],
    ids=["ctl", "ctl that runs", "settings", "supervisor", "worker", "export", "client"],
)
def test_program_that_is_interrupted_while_it_imports_ends_without_a_traceback(
    tmp_path: Path, command: tuple[str, ...], module: str, code: int
) -> None:
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK)
    path = os.pathsep.join([str(hook), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", *[part.format(root=tmp_path) for part in command]],
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": path, "INTERRUPTED_AT": module},
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, done.stderr
