"""Where tasks run: on processes of this machine. Tasks are top-level functions with plain arguments."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from export.errors import ExportError

Task = TypeVar("Task")
Result = TypeVar("Result")


def worker_count(wanted: int) -> int:
    """Returns how many workers a setting means: 0 is one for each core that this process may use."""
    return wanted or len(os.sched_getaffinity(0))


def run_tasks(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    workers: int,
    on_done: Callable[[Task, Result], None] | None = None,
) -> list[Result]:
    """Runs independent tasks, each once.

    One worker, or one task, runs in this process. Several run in fresh processes: a forked one would inherit the locks
    of TensorFlow's threads.

    Args:
      function: top-level and importable, so that another process finds it.
      tasks: picklable.
      workers: processes at a time; 0: one for each core.
      on_done: called here with each task and its result, as they finish: for progress and journals.
    Returns:
      The results, in the order of the tasks.
    Raises:
      ExportError: what a task raised first, or a worker that died; no task is running any more.
    """
    workers = min(worker_count(workers), len(tasks))
    if workers <= 1:
        results = []
        for task in tasks:
            results.append(function(task))
            if on_done is not None:
                on_done(task, results[-1])
        return results
    return _run_pool(function, tasks, workers, on_done)


def _run_pool(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    workers: int,
    on_done: Callable[[Task, Result], None] | None,
) -> list[Result]:
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_begin_worker)
    try:
        places: dict[Future[Result], int] = {
            pool.submit(_run_interruptible, function, task): place for place, task in enumerate(tasks)
        }
        results: dict[int, Result] = {}
        for future in as_completed(places):
            place = places[future]
            results[place] = future.result()
            if on_done is not None:
                on_done(tasks[place], results[place])
    except BrokenProcessPool as problem:
        raise ExportError(
            f"one of {workers} table workers was killed, as happens when memory runs out; set ROWCAST_EXPORT_WORKERS "
            "or ROWCAST_EXPORT_BUDGET_BYTES lower and run the export again"
        ) from problem
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return [results[place] for place in range(len(tasks))]


def _begin_worker() -> None:
    """Makes a worker end with its parent, which may be killed: an orphan would write into files of the next run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt ends tasks; idle workers are ended by the parent
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _run_interruptible(function: Callable[[Task], Result], task: Task) -> Result:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return function(task)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
