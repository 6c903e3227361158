"""Where tasks run: on processes of this machine, or on Ray. Tasks are top-level functions with plain arguments."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Protocol

from export.errors import ExportError
from export.jobs.attempts import ATTEMPTS_MAX, Result, Task, attempt
from export.jobs.ray_executor import RayExecutor


class Executor(Protocol):
    """Runs independent tasks, several at a time, until each has succeeded once."""

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        on_done: Callable[[Task, Result], None] | None = None,
    ) -> list[Result]:
        """Runs tasks.

        One whose worker or machine dies is tried again, and so is one whose storage fails in a way that may pass.

        Args:
          function: top-level and importable, so that another process finds it.
          tasks: picklable.
          on_done: called here with each task and its result, as they finish: for progress and journals.
        Returns:
          The results, in the order of the tasks.
        Raises:
          ExportError: what a task raised first, or a worker that died again and again; no task is running any more.
        """


def open_executor(where: str, workers: int, memory_bytes: int = 0, shared: Sequence[str] = ()) -> Executor:
    """Returns what runs tasks.

    Args:
      where: as `ExportSettings.executor` says it.
      workers: tasks at a time; 0: one for each core, of this machine or of the cluster.
      memory_bytes, shared: as of `RayExecutor`; one machine sees one file system, and its plan is made for its workers.
    """
    return LocalExecutor(workers) if where == "local" else RayExecutor(where, workers, memory_bytes, shared)


def worker_count(wanted: int) -> int:
    """Returns how many workers a setting means: 0 is one for each core that this process may use."""
    return wanted or len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class LocalExecutor:
    """Processes of this machine.

    One worker, or one task, runs in this process. Several run in fresh processes: a forked one would inherit the locks
    of TensorFlow's threads.
    """

    workers: int = 0

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        on_done: Callable[[Task, Result], None] | None = None,
    ) -> list[Result]:
        """Runs tasks: see `Executor`."""
        results: dict[int, Result] = {}
        workers = min(worker_count(self.workers), len(tasks))
        if workers == 1:
            for place, task in enumerate(tasks):
                results[place] = attempt(function, task)
                if on_done is not None:
                    on_done(task, results[place])
        deaths = 0
        while len(results) < len(tasks):
            left = {place: task for place, task in enumerate(tasks) if place not in results}
            try:
                for place, result in _in_pool(workers, function, left):
                    results[place], deaths = result, 0
                    if on_done is not None:
                        on_done(tasks[place], result)
            except BrokenProcessPool as problem:
                deaths += 1
                if deaths == ATTEMPTS_MAX:
                    raise _killed(workers) from problem
        return [results[place] for place in range(len(tasks))]


def _in_pool(
    workers: int, function: Callable[[Task], Result], tasks: Mapping[int, Task]
) -> Iterator[tuple[int, Result]]:
    """Yields results as they come; raises BrokenProcessPool once a process died and the rest of them was yielded."""
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_begin_worker)
    try:
        running = {pool.submit(_run_interruptible, function, task): place for place, task in tasks.items()}
        broken: BrokenProcessPool | None = None
        for done in as_completed(running):
            problem = done.exception()
            if isinstance(problem, BrokenProcessPool):
                broken = problem
            else:
                yield running[done], done.result()
        if broken is not None:
            raise broken
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _killed(workers: int) -> ExportError:
    return ExportError(
        f"one of {workers} table workers was killed {ATTEMPTS_MAX} times in a row, as happens when memory runs out; "
        "set ROWCAST_EXPORT_WORKERS or ROWCAST_EXPORT_BUDGET_BYTES lower and run the export again"
    )


def _begin_worker() -> None:
    """Makes a worker end with its parent, which may be killed."""
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
        return attempt(function, task)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
