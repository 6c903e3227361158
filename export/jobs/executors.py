"""Where tasks run: on processes of this machine, or on Ray. Tasks are top-level functions with plain arguments."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Generic, Protocol

from export.errors import ExportError
from export.jobs.attempts import ATTEMPTS_MAX, Result, StorageFailed, Task, attempt
from export.jobs.ray_executor import RayExecutor


class Executor(Protocol):
    """Runs independent tasks, several at a time, until each has succeeded once."""

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        on_done: Callable[[Task, Result], None] | None = None,
        *,
        memory_bytes: int = 0,
        shared: Sequence[str] = (),
    ) -> list[Result]:
        """Runs tasks.

        One whose worker or machine dies is tried again, and so is one whose storage fails in a way that may pass.

        Args:
          function: top-level and importable, so that another process finds it.
          tasks: picklable.
          on_done: called here with each task and its result, as they finish: for progress and journals.
          memory_bytes: what one task holds, for those who place tasks.
          shared: files that every machine must see alike; what is no file here is not asked for.
        Returns:
          The results, in the order of the tasks.
        Raises:
          ExportError: what a task raised first, or a worker that died again and again; no task is running any more.
        """


def open_executor(where: str, workers: int) -> Executor:
    """Returns what runs tasks.

    Args:
      where: as `ExportSettings.executor` says it.
      workers: tasks at a time; 0: one for each core, of this machine or of the cluster.
    """
    return LocalExecutor(workers) if where == "local" else RayExecutor(where, workers)


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
        *,
        memory_bytes: int = 0,  # noqa: ARG002 - the plan was made for so many workers
        shared: Sequence[str] = (),  # noqa: ARG002 - one machine sees one file system
    ) -> list[Result]:
        """Runs tasks: see `Executor`."""
        run = _Run(function, tasks, on_done)
        workers = min(worker_count(self.workers), len(tasks))
        while run.left:
            if workers == 1:
                run.here()
            else:
                run.in_pool(workers)
        return [run.results[place] for place in range(len(tasks))]


class _Run(Generic[Task, Result]):
    """Tasks by their places; those that are left, how often each was begun, and what they returned."""

    def __init__(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        on_done: Callable[[Task, Result], None] | None,
    ) -> None:
        self.function, self.tasks, self.on_done = function, tasks, on_done
        self.left = deque(range(len(tasks)))
        self.begun: Counter[int] = Counter()
        self.results: dict[int, Result] = {}

    def here(self) -> None:
        """Runs the next task in this process."""
        place = self._next()
        self._take(place, lambda: attempt(self.function, self.tasks[place]))

    def in_pool(self, workers: int) -> None:
        """Runs tasks in other processes, until all are done or one of the processes dies."""
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_begin_worker)
        running: dict[Future[Result], int] = {}
        whole = True
        try:
            while running or (self.left and whole):
                # No more are given to the pool than it runs: those, and no others, may have killed a worker.
                while self.left and whole and len(running) < workers:
                    place = self._next()
                    try:
                        running[pool.submit(_run_interruptible, self.function, self.tasks[place])] = place
                    except BrokenProcessPool as problem:
                        whole = False
                        self._again(place, _killed(workers), problem)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    place = running.pop(future)
                    try:
                        self._take(place, future.result)
                    except BrokenProcessPool as problem:
                        whole = False
                        self._again(place, _killed(workers), problem)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _next(self) -> int:
        place = self.left.popleft()
        self.begun[place] += 1
        return place

    def _take(self, place: int, result: Callable[[], Result]) -> None:
        try:
            self.results[place] = result()
        except StorageFailed as problem:
            self._again(place, problem.told, problem)
            return
        if self.on_done is not None:
            self.on_done(self.tasks[place], self.results[place])

    def _again(self, place: int, told: ExportError, problem: Exception) -> None:
        if self.begun[place] >= ATTEMPTS_MAX:
            raise told from problem
        self.left.append(place)


def _killed(workers: int) -> ExportError:
    return ExportError(
        f"one of {workers} table workers was killed {ATTEMPTS_MAX} times at one task, as happens when memory runs out; "
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
