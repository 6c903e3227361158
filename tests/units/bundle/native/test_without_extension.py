"""Where there is no C compiler NumPy reads and combines rows, hashes texts and marks candidates,
and the same tests pass.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bundle import native

ROOT = Path(__file__).parents[4]
TESTS = (
    ["tests/laws/test_features.py", "tests/laws/test_fingerprints.py", "tests/laws/test_tables.py"],
    ["tests/laws/test_keys.py", "tests/laws/test_stores.py"],
    ["tests/cases/test_requests.py", "-k", "overflow"],
)
CODE = """
import sys
sys.modules["bundle.native._rows"] = None  # as if it had not been built

import pytest
from bundle import native

assert native.Rows is None
sys.exit(pytest.main([*sys.argv[1:], "-q", "-p", "no:xdist"]))
"""


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(native.Rows is None, reason="all tests run without the extension")
@pytest.mark.parametrize("selection", TESTS)
def test_reads_without_the_extension_pass_the_same_tests(selection: list[str]) -> None:
    # pytest-xdist names its workers in the environment, which the process would inherit.
    environment = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    run = subprocess.run(
        [sys.executable, "-c", CODE, *selection],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
