"""`python -m benchmarks.soak.damaged_checkpoints [SECONDS]`: damages checkpoints of every layout
for as many seconds.

Each trial runs in a child, so that a crash of a native library is reported with the seed that
made it.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tests.hostile.damage import case_files, trial
from tests.hostile.mutations import Files
from tests.hostile.ordeal import TooSlow

SECONDS = 600
TRIALS_OF_A_CHILD = 200
SHOW = Console(highlight=False, soft_wrap=True, markup=False)


def written(root: Path, names: Sequence[str]) -> dict[str, Files]:
    """Returns what TensorFlow and Keras write, by case: those of these names, or all."""
    command = [sys.executable, "-m", "tests.differential.write_checkpoints", str(root), *names]
    subprocess.run(
        command, env=os.environ | {"TF_USE_LEGACY_KERAS": "1"}, check=True, capture_output=True
    )
    return {case.name: case_files(case) for case in sorted(root.iterdir())}


def run_child(first: int, cases: dict[str, Files]) -> int:
    """Runs trials in a child; returns how many failed."""
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            SHOW.print(
                f"seeds {first} to {first + TRIALS_OF_A_CHILD}: ended by signal "
                f"{os.WTERMSIG(status)}"
            )
        return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1
    failed = 0
    for seed in range(first, first + TRIALS_OF_A_CHILD):
        name = sorted(cases)[seed % len(cases)]
        with tempfile.TemporaryDirectory() as directory:
            try:
                trial(seed, cases[name], Path(directory))
            except (Exception, TooSlow):  # noqa: BLE001 - any is a failure of the reader
                failed += 1
                SHOW.print(f"seed {seed}, {name}:\n{traceback.format_exc()}")
    os._exit(min(failed, 100))


def main() -> int:
    """Returns the exit status: 1 if a trial ended in anything but values or a typed error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", nargs="?", type=int, default=SECONDS, help="default 600")
    parser.add_argument("--case", action="append", default=[], help="a layout; repeatable")
    options = parser.parse_args()
    first = seed = random.SystemRandom().randrange(1 << 40)
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        cases = written(Path(directory), options.case)
        began = time.monotonic()
        while time.monotonic() - began < options.seconds:
            failed += run_child(seed, cases)
            seed += TRIALS_OF_A_CHILD
    SHOW.print(
        f"{seed - first} damaged checkpoints of {len(cases)} kinds, from seed {first}: {failed} "
        "failed"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
