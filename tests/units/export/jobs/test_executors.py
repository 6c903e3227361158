"""Where tasks run: results in order, progress, failures, and workers that die."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError, DestinationError, ExportError
from export.graphs.loading import load_tensorflow
from export.jobs.attempts import ATTEMPTS_MAX
from export.jobs.executors import LocalExecutor, encoder_count, worker_count
from export.tables.plan import plan_tables
from tests.units.export import task_functions
from tests.units.export.checkpoint.tensor_bundles import write_bundle


@pytest.mark.parametrize("workers", [1, 2])
def test_local_results_come_in_the_order_of_the_tasks(workers: int) -> None:
    done: list[tuple[int, int]] = []
    results = LocalExecutor(workers).run(
        task_functions.square, range(7), lambda task, result: done.append((task, result))
    )
    assert results == [0, 1, 4, 9, 16, 25, 36]
    assert sorted(done) == [(number, number * number) for number in range(7)]


@pytest.mark.slow
def test_local_table_workers_of_a_process_with_tensorflow_have_none(tmp_path: Path) -> None:
    load_tensorflow()
    write_bundle(tmp_path / "c", {name: np.ones((1 << 18, 64), np.float32) for name in ("a", "b")})
    checkpoint = open_checkpoint(tmp_path / "c")
    plan = plan_tables(checkpoint, recognize(checkpoint, {"a": "a", "b": "b"}), tmp_path / "out")
    for process, loaded, peak_bytes in LocalExecutor(2).run(
        task_functions.copy_and_look, plan.all_tasks
    ):
        assert process != os.getpid()
        assert not loaded
        assert peak_bytes <= plan.peak_memory_bytes < 400 << 20
    assert "tensorflow" in sys.modules


@pytest.mark.parametrize(
    ("workers", "function", "what", "message"),
    [
        (1, task_functions.reject_three, CheckpointError, "three is not read"),
        (2, task_functions.reject_three, CheckpointError, "three is not read"),
        (2, task_functions.die, ExportError, "ROWCAST_EXPORT_WORKERS"),
    ],
)
def test_local_failure_of_a_task_is_the_failure_of_the_run(
    workers: int, function: Callable[[int], int], what: type[Exception], message: str
) -> None:
    with pytest.raises(what, match=message):
        LocalExecutor(workers).run(function, range(5))


def test_local_failure_ends_only_the_workers_of_the_run() -> None:
    with subprocess.Popen(["sleep", "60"]) as unrelated:
        context = multiprocessing.get_context("spawn")
        other_process = context.Process(target=time.sleep, args=(60,))
        other_process.start()
        try:
            with pytest.raises(CheckpointError, match="three is not read"):
                LocalExecutor(2).run(task_functions.reject_three, range(5))
            assert other_process.is_alive()
            assert multiprocessing.active_children() == [other_process]
        finally:
            other_process.kill()
            other_process.join()
            unrelated.kill()


@pytest.mark.parametrize("workers", [1, 2])
def test_local_executor_waits_until_results_are_taken(workers: int, tmp_path: Path) -> None:
    ahead: list[int] = []

    def take(_task: object, _result: object) -> None:
        time.sleep(0.2)  # long enough for idle workers to run ahead
        ahead.append(len(list(tmp_path.iterdir())) - len(ahead))

    tasks = [str(tmp_path / f"{number:02}") for number in range(12)]
    LocalExecutor(workers).run(task_functions.touch, tasks, take)
    assert len(ahead) == len(tasks)
    assert max(ahead) <= workers + 1


@pytest.mark.slow
def test_local_task_whose_storage_fails_is_tried_again_if_that_may_help(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    marks = [str(tmp_path / name / "passes") for name in "ab"]
    assert LocalExecutor(2).run(task_functions.fail_storage, marks) == [3, 3]
    for name, tries in (("full", 1), ("broken", ATTEMPTS_MAX)):
        with pytest.raises(DestinationError, match="cannot be written"):
            LocalExecutor(1).run(task_functions.fail_storage, [str(tmp_path / name)])
        assert len((tmp_path / name).read_text()) == tries


@pytest.mark.parametrize(("number", "to_group"), [(signal.SIGKILL, False), (signal.SIGINT, True)])
def test_local_executor_that_is_ended_leaves_no_worker(
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
            lines += read_within(reader, 60)
        if to_group:
            os.killpg(parent.pid, number)
        else:
            parent.send_signal(number)
        assert read_within(reader, 60) == b""
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


@pytest.mark.parametrize(("workers", "tasks"), [(1, 3), (4, 1)])
def test_one_worker_or_one_task_runs_in_this_process(workers: int, tasks: int) -> None:
    def where(_: int) -> int:
        return os.getpid()

    assert LocalExecutor(workers).run(where, range(tasks)) == [os.getpid()] * tasks
    assert LocalExecutor(workers).run(where, []) == []
