"""The program of a half-installed environment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_package_that_is_missing_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    program = "import sys; sys.modules['uvicorn'] = None; from service.cli.main import main; main()"
    command = [sys.executable, "-c", program, "--root", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (
        done.stderr.splitlines()[-1]
        == "rowcast-serve: uvicorn is not installed; run `pip install 'rowcast[serve]'`"
    )
    assert "Traceback" not in done.stderr


def test_demo_rejects_a_root_since_it_serves_a_copy_of_its_own() -> None:
    command = [sys.executable, "-P", "-m", "service.cli.main", "--demo", "--root", "bundles"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "rowcast-serve: --root has no meaning for --demo; omit one of them\n"


def test_python_that_cannot_be_run_again_is_a_reason_in_the_log(tmp_path: Path) -> None:
    program = "import sys; sys.executable = '/nowhere/python'; "
    program += "from service.cli.main import main; main()"
    command = [sys.executable, "-c", program, "--root", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    *_, last = map(json.loads, done.stderr.splitlines())
    assert (done.returncode, last["event"]) == (2, "cannot_start")
    assert last["problem"] == "/nowhere/python cannot be run: No such file or directory"
