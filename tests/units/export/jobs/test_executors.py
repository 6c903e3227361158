"""Where tasks run, in this process, in local processes and on a Ray cluster: results in order,
failures, tasks that are tried again, and workers that die.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from export.errors import CheckpointError, DestinationError, ExportError, UsageError
from export.jobs import attempts
from export.jobs.executors import LocalExecutor
from export.jobs.ray_executor import RayExecutor
from tests.units.export import task_functions

NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of two nodes."""
    pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
    nodes.add_node(**NODE)
    yield nodes
    nodes.shutdown()


@pytest.fixture
def executor(request: pytest.FixtureRequest) -> Any:
    if request.param == "ray":
        return RayExecutor(request.getfixturevalue("cluster").address)
    return LocalExecutor(request.param)


RAY = pytest.param("ray", marks=[pytest.mark.slow, pytest.mark.nightly])


@pytest.mark.parametrize("executor", [1, 2, RAY], indirect=True)
def test_results_come_in_the_order_of_the_tasks_and_failures_with_their_type(
    executor: Any, request: pytest.FixtureRequest
) -> None:
    done: list[tuple[int, Any]] = []
    results = executor.run(
        task_functions.process_id, range(9), lambda task, result: done.append((task, result))
    )
    assert [number for number, _ in results] == list(range(9))
    assert sorted(done) == list(enumerate(results))
    here = {process for _, process in results} == {os.getpid()}
    assert here == (request.node.callspec.params["executor"] == 1)
    with pytest.raises(CheckpointError, match="three is not read"):
        executor.run(task_functions.reject_three, range(5))


@pytest.mark.parametrize(
    "executor", [1, pytest.param(2, marks=pytest.mark.nightly), RAY], indirect=True
)
def test_task_whose_storage_fails_is_tried_again_if_that_may_help(
    executor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other processes pause as they do for users.
    monkeypatch.setattr(attempts, "PAUSES_S", [0.0] * len(attempts.PAUSES_S))
    for name in "ab":
        (tmp_path / name).mkdir()
    marks = [str(tmp_path / name / "passes") for name in "ab"]
    assert executor.run(task_functions.fail_storage, marks) == [3, 3]
    for name, tries in (("full", 1), ("broken", attempts.ATTEMPTS_MAX)):
        with pytest.raises(DestinationError, match="cannot be written"):
            executor.run(task_functions.fail_storage, [str(tmp_path / name)])
        assert len((tmp_path / name).read_text()) == tries


def test_failure_ends_only_the_workers_of_the_run() -> None:
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    other.start()
    try:
        with pytest.raises(CheckpointError, match="three is not read"):
            LocalExecutor(2).run(task_functions.reject_three, range(5))
        with pytest.raises(ExportError, match="ROWCAST_EXPORT_WORKERS"):
            LocalExecutor(2).run(task_functions.die, range(5))
        assert multiprocessing.active_children() == [other]
    finally:
        other.kill()
        other.join()


@pytest.mark.parametrize(("number", "to_group"), [(signal.SIGKILL, False), (signal.SIGINT, True)])
def test_executor_that_is_ended_leaves_no_worker(
    tmp_path: Path, number: signal.Signals, to_group: bool
) -> None:
    """An orphan would write into the files of the next run. The pipe ends when the last worker has
    let go of it.
    """
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    code = (
        "import sys; from tests.units.export.task_functions import hold_two; hold_two(sys.argv[1])"
    )
    command = [sys.executable, "-c", code, str(pipe)]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as parent:
        lines = b""
        while lines.count(b"\n") < 2:
            lines += read_within(reader, 300)
        if to_group:
            os.killpg(parent.pid, number)
        else:
            parent.send_signal(number)
        assert read_within(reader, 300) == b""
    assert parent.returncode != 0
    os.close(reader)


def read_within(reader: int, limit_s: float) -> bytes:
    """Reads what comes next; b"" when every writer is gone."""
    assert select.select([reader], [], [], limit_s)[0], "a worker lives on"
    return os.read(reader, 1000)


@pytest.mark.nightly
@pytest.mark.slow
def test_ray_worker_that_is_killed_is_replaced_a_limited_number_of_times(
    cluster: Any, tmp_path: Path
) -> None:
    executor = RayExecutor(cluster.address)
    marks = [str(tmp_path / str(number)) for number in range(3)]
    assert executor.run(task_functions.die_once, marks) == marks
    with pytest.raises(ExportError, match=rf"lost {attempts.ATTEMPTS_MAX} times"):
        executor.run(task_functions.die, [0])


PROCESS_FILE = "/proc/self/comm"
"""The same path, and another file for each process."""


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shared": [PROCESS_FILE]}, f"does not see file {PROCESS_FILE}"),
        ({"memory_bytes": 1 << 50}, "no Ray node offers more than"),
        ({"shared": ["/etc/passwd", "/is/not/here"]}, ""),
    ],
)
def test_ray_node_that_cannot_do_the_tasks_is_an_error(
    cluster: Any, options: dict[str, Any], words: str
) -> None:
    executor = RayExecutor(cluster.address, **options)
    if not words:
        assert executor.run(task_functions.square, [3]) == [9]
        return
    with pytest.raises(UsageError, match=words):
        executor.run(task_functions.square, [1])


def test_ray_cluster_that_cannot_be_reached_is_an_error(unused_address: str) -> None:
    with pytest.raises(UsageError, match=f"no Ray cluster can be used at {unused_address}"):
        RayExecutor(unused_address).run(task_functions.square, [1])


@pytest.fixture
def unused_address() -> str:
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"
