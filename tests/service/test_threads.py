"""Threads of a process and its libraries."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from service.threads import Threads, limit_blas, set_threads


@pytest.mark.parametrize(
    ("workers", "threads", "cores", "compute"), [(1, 0, 8, 8), (4, 0, 8, 2), (3, 0, 8, 2), (16, 0, 8, 1), (2, 5, 8, 5)]
)
def test_compute_threads_are_a_share_of_the_cores_unless_told(
    workers: int, threads: int, cores: int, compute: int
) -> None:
    assert set_threads(workers, threads, {}, cores) == Threads(compute, "", "1", str(compute))


def test_what_the_environment_says_stays_and_the_rest_is_told_to_the_libraries() -> None:
    environment = {"TF_NUM_INTRAOP_THREADS": "3"}
    limit_blas(environment)
    assert set_threads(1, 0, environment, 4) == Threads(4, "1", "3", "4")
    assert environment == {
        "OPENBLAS_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "3",
        "TF_NUM_INTEROP_THREADS": "4",
    }
    told = {"OPENBLAS_NUM_THREADS": "8"}
    limit_blas(told)
    assert set_threads(1, 0, told, 4).blas == "8"


def test_process_starts_no_threads_before_it_serves() -> None:
    program = (
        "import sys, os, threading; sys.argv[1:] = ['--version-of-nothing'];"
        "from service.main import main\ntry: main()\nexcept SystemExit: pass\n"
        "import service.process, numpy; numpy.ones((600, 600)) @ numpy.ones((600, 600))\n"
        "print(len(os.listdir('/proc/self/task')))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, env=environment)
    assert int(done.stdout) == 1


def test_process_imports_nothing_that_few_need() -> None:
    program = "import sys, service.main, service.start, service.command_line, service.process; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    dear = {"fastapi", "rich", "pyarrow", "grpc", "tensorflow", "fsspec"}
    assert dear.isdisjoint(done.stdout.split())
