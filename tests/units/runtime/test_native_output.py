from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.native_output import silenced

OWN = """
import os
from runtime.native_output import silenced
own = os.fdopen(os.dup(2), "w", buffering=1)
with silenced():
    os.write(2, b"dropped\\n")
    print("own line", file=own)
os.write(2, b"native line\\n")
"""
TOWER = """
import sys
from pathlib import Path
import numpy as np
from runtime.litert import CompiledTower
tower = CompiledTower(Path(sys.argv[1]))
inputs = {
    each.name: np.zeros([size or 2 for size in each.shape], each.dtype)
    for each in tower.inputs
}
print(len(tower.run(inputs)["norm"]))
"""


def ran(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_silenced_drops_native_lines_and_keeps_own_ones() -> None:
    assert ran(OWN).stderr == "own line\nnative line\n"


def test_silenced_gives_stderr_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), silenced():
        raise KeyError
    os.write(2, b"native line\n")
    assert capfd.readouterr().err == "native line\n"


def test_compiled_tower_first_run_writes_nothing_to_stderr(towers: Path) -> None:
    done = ran(TOWER, str(towers / "query" / "compiled-f32.tflite"))
    assert (done.stdout, done.stderr) == ("2\n", "")
