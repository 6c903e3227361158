"""Where tasks run, in this process, in local processes and on a Ray cluster: results in order,
failures, tasks that are tried again, and workers that die.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.storage.catalog import read_manifest
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError, DestinationError, ExportError, UsageError
from export.graphs.loading import load_tensorflow
from export.jobs.attempts import ATTEMPTS_MAX
from export.jobs.destinations import Destination
from export.jobs.executors import LocalExecutor, encoder_count, worker_count
from export.jobs.progress import Progress
from export.jobs.ray_executor import RayExecutor
from export.jobs.tables_job import TablesJob, export_tables, prepare_tables
from export.recipe.settings import ExportSettings
from export.tables.plan import WriteOptions, plan_tables
from tests.units.export import task_functions
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.object_store.memory_stores import SleepingClock

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


EVERYWHERE = [1, 2, pytest.param("ray", marks=pytest.mark.slow)]
everywhere = pytest.mark.parametrize("executor", EVERYWHERE, indirect=True)


@everywhere
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "executor", [2, pytest.param("ray", marks=pytest.mark.nightly)], indirect=True
)
def test_task_whose_storage_fails_is_tried_again_if_that_may_help(
    executor: Any, tmp_path: Path
) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    marks = [str(tmp_path / name / "passes") for name in "ab"]
    assert executor.run(task_functions.fail_storage, marks) == [3, 3]
    for name, tries in (("full", 1), ("broken", ATTEMPTS_MAX)):
        with pytest.raises(DestinationError, match="cannot be written"):
            executor.run(task_functions.fail_storage, [str(tmp_path / name)])
        assert len((tmp_path / name).read_text()) == tries


def test_attempts_pause_longer_and_longer_within_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SleepingClock(monkeypatch)
    with pytest.raises(DestinationError):
        LocalExecutor(1).run(task_functions.fail_storage, [str(tmp_path / "broken")])
    assert 10 < clock.passed_s < 22


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


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_wait_until_results_are_taken(workers: int, tmp_path: Path) -> None:
    ahead: list[int] = []

    def take(_task: object, _result: object) -> None:
        time.sleep(0.2)  # long enough for idle workers to run ahead
        ahead.append(len(list(tmp_path.iterdir())) - len(ahead))

    tasks = [str(tmp_path / f"{number:02}") for number in range(12)]
    LocalExecutor(workers).run(task_functions.touch, tasks, take)
    assert len(ahead) == len(tasks)
    assert max(ahead) <= workers + 1


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


@pytest.mark.parametrize(
    ("cores", "wanted", "workers", "encoders"),
    [(2, 0, 2, 2), (4, 0, 4, 4), (9, 0, 9, 4), (9, 6, 6, 6), (2, 1, 1, 1)],
)
def test_setting_of_0_means_a_worker_per_core_and_at_most_4_encoders(
    monkeypatch: pytest.MonkeyPatch, cores: int, wanted: int, workers: int, encoders: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert (worker_count(wanted), encoder_count(wanted)) == (workers, encoders)


@pytest.mark.slow
def test_workers_that_copy_tables_have_no_tensorflow_and_hold_what_the_plan_says(
    tmp_path: Path,
) -> None:
    load_tensorflow()
    write_bundle(tmp_path / "c", {name: np.ones((1 << 18, 64), np.float32) for name in "ab"})
    checkpoint = open_checkpoint(tmp_path / "c")
    plan = plan_tables(checkpoint, recognize(checkpoint, {"a": "a", "b": "b"}), tmp_path / "out")
    for process, loaded, peak_bytes in LocalExecutor(2).run(
        task_functions.copy_and_look, plan.all_tasks
    ):
        assert process != os.getpid()
        assert not loaded
        assert peak_bytes <= plan.peak_memory_bytes < 400 << 20


@pytest.mark.nightly
@pytest.mark.slow
def test_ray_worker_that_is_killed_is_replaced_a_limited_number_of_times(
    cluster: Any, tmp_path: Path
) -> None:
    executor = RayExecutor(cluster.address)
    marks = [str(tmp_path / str(number)) for number in range(3)]
    assert executor.run(task_functions.die_once, marks) == marks
    with pytest.raises(ExportError, match=rf"lost {ATTEMPTS_MAX} times"):
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


class Watched(Progress):
    """Calls a function whenever something of the tables was copied."""

    def __init__(self, watch: Callable[[], object]) -> None:
        super().__init__()
        self._watch = watch

    @contextmanager
    def step(self, name: str, *arguments: Any) -> Iterator[Callable[[int], None]]:
        with super().step(name, *arguments) as moved:

            def moved_and_watched(more: int) -> None:
                moved(more)
                if name == "tables":
                    self._watch()

            yield moved_and_watched


@pytest.mark.nightly
@pytest.mark.slow
def test_ray_node_that_dies_in_the_middle_leaves_the_same_tables(
    cluster: Any, tmp_path: Path
) -> None:
    values = np.random.default_rng(5).standard_normal((4000, 2000)).astype(np.float32)
    boxes: Any = {"t/embeddings": [[(0, 1000), (0, -1)], [(1000, 3000), (0, -1)]]}
    write_bundle(tmp_path / "ckpt", {"t/embeddings": values}, boxes=boxes)
    node = cluster.add_node(**NODE)
    calls = itertools.count(1)

    def lose_node() -> None:
        if next(calls) == 30:
            cluster.remove_node(node, allow_graceful=False)

    tables = []
    for where, watch in (("local", int), (cluster.address, lose_node)):
        settings = ExportSettings(executor=where, reuse=False)
        job = TablesJob(writing=WriteOptions(segment_rows=37))
        prepared = prepare_tables(tmp_path, Destination(tmp_path / "out", None), job, settings)
        bundle = Path(str(export_tables(prepared, settings, Watched(watch)).directory))
        tables.append(read_manifest(bundle).tables)
        segments = tables[-1]["t"].segments
        assert b"".join((bundle / part.file).read_bytes() for part in segments) == values.tobytes()
    assert node not in cluster.list_all_nodes()
    assert tables[0] == tables[1]
