from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.process import until

HANGING_TEST = """
import subprocess, time
import pytest

@pytest.fixture(scope="session")
def server():
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()

def test_hangs(server):
    open({started!r}, "w").write(str(server.pid))
    time.sleep(600)
"""


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("processes", ["0", "1"])
def test_what_a_fixture_started_ends_with_the_run_however_that_ends(
    signal_number: signal.Signals, processes: str, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    (tmp_path / "test_hanging.py").write_text(HANGING_TEST.format(started=str(started)))
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_configure\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", processes, "--rootdir", str(tmp_path)]
    run = subprocess.Popen(
        [*command, str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )
    until(lambda: started.exists() and started.read_text() != "")
    server = psutil.Process(int(started.read_text()))

    run.send_signal(signal_number)

    assert run.wait() != 0
    until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)
