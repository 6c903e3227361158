"""The programs of the benchmarks run, small: never how fast. A soak exits with 0 if nothing was
wrong.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

ROOT = Path(__file__).parents[3]

PROGRAMS = {
    "benchmarks --against . --scale 0.0002 --rounds 1 --seconds 0.05 --callers 2 --workers 1": "cc",
    "benchmarks.fresh --scale 0.0002 --workers 1 --new 4 --seconds 0.1 --load 0.05 --blocks 1 "
    "--block-seconds 1 --changed 60 --cpu-seconds 0.2": "cc",
    "benchmarks.retrieval --size 2000 --rounds 1 --seconds 0.05 --only": "scann",
    "benchmarks.retrieval.recall --size 2000 --queries 4 --built-at 10 --k 10": "scann",
    "benchmarks.exporter --only copies --gib 0.0625 --rounds 1": "",
    "benchmarks.exporter --only delta --gib 0.0625": "",
    "benchmarks.exporter --only tensorflow --gib 0.0625 --rounds 1": "tensorflow",
    "benchmarks.exporter.layout_proofs --wrong 30": "",
    "benchmarks.scale --scale 0.0002 --shards 2 --rounds 1 --seconds 0.05": "aiohttp_cors",
    "benchmarks.soak.commands --rounds 1 --block-s 0.1": "cc",
    "benchmarks.soak.neighbors --seconds 0.5": "",
    "benchmarks.soak.proxies --proxy nginx --hostile slow_headers": "nginx",
    "benchmarks.soak.proxies --proxy haproxy --hostile slow_headers": "haproxy",
    "benchmarks.soak.scale --moments 5 --seed 17": "",
    "benchmarks.soak.scale_on_ray --moments 1 --seed 0 --headless-s 2": "aiohttp_cors",
    "benchmarks.soak.random_models 2 --first 2": "tensorflow",
    "benchmarks.soak.export --kills 7 --seed 3": "ray",
}
"""Module and options of each program, and the command or the package that it needs; `aiohttp_cors`
comes with ray[serve] alone.
"""

COMMANDS = {"cc", "nginx", "haproxy"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_runs(program: str) -> None:
    needed = PROGRAMS[program]
    if needed in COMMANDS and shutil.which(needed) is None:
        pytest.skip(f"{needed} is not installed")
    if needed and needed not in COMMANDS:
        pytest.importorskip(needed)

    command = [sys.executable, "-m", *program.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, errors="replace", check=False)

    assert done.returncode == 0, done.stdout + done.stderr
