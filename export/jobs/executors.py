"""Tasks on processes of this machine; on Ray, they run by `ray_executor`."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from export.errors import ExportError
from export.jobs.attempts import Result, Task, attempt

_ENCODERS_MAX = 4
"""The default maximum number of processes that encode an index: each holds up to half a GB."""


def encoder_count(setting: int) -> int:
    """Returns how many processes encode an index by the setting of the workers; 0 means one for
    each core, but no more than `_ENCODERS_MAX`.
    """
    return setting or min(_ENCODERS_MAX, worker_count(0))


def worker_count(setting: int) -> int:
    """Returns how many workers a setting means; 0 means one for each core that this process may
    use.
    """
    return setting or len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class LocalExecutor:
    """Processes of this machine.

    One worker, or one task, runs in this process. Several run in fresh processes: a forked one
    would inherit the locks of TensorFlow's threads.
    """

    workers: int = 0

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        on_done: Callable[[Task, Result], None] | None = None,
    ) -> list[Result]:
        """Runs independent tasks, several at a time. One whose storage fails in a way that may pass
        is tried again.

        Args:
          function: A top-level function that another process can import.
          tasks: The tasks, which can be pickled.
          on_done: Called here with each task and its result, as they finish: for progress and
            journals. While it has not returned, at most workers + 1 tasks are finished or running
            beside it, so that what it waits for bounds what lies on the disk.
        Returns:
          The results, in the order of the tasks.
        Raises:
          ExportError: The first one that a task raised, or a worker died; no task is running any
            more.
        """
        results: dict[int, Result] = {}

        def record(index: int, result: Result) -> None:
            results[index] = result
            if on_done is not None:
                on_done(tasks[index], result)

        workers = min(worker_count(self.workers), len(tasks))
        if workers < 2:
            for position, task in enumerate(tasks):
                record(position, attempt(function, task))
        else:
            with _pool(workers) as pool:
                waiting = iter(enumerate(tasks))
                running: dict[Future[Result], int] = {}
                while len(results) < len(tasks):
                    # One more than there are workers, so that none waits for this process.
                    for position, task in islice(waiting, workers + 1 - len(running)):
                        running[pool.submit(attempt, function, task)] = position
                    for done in wait(running, return_when=FIRST_COMPLETED).done:
                        record(running.pop(done), done.result())
        return [results[index] for index in range(len(tasks))]


class _OwnWorkers(SpawnContext):
    """Starts fresh processes and remembers them: this process may have started others elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[multiprocessing.process.BaseProcess] = []

    def Process(self, *arguments: Any, **options: Any) -> SpawnProcess:  # type: ignore[override] # noqa: N802
        process = SpawnProcess(*arguments, **options)
        self.started.append(process)
        return process


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Opens a pool of fresh processes. None is left when the block ends, even by an error."""
    context = _OwnWorkers()
    pool = ProcessPoolExecutor(workers, context, initializer=_begin_worker)
    try:
        yield pool
    except BaseException as problem:
        for worker in context.started:
            # A task may take minutes, so no task is waited for. The next run removes the files that
            # it left unfinished.
            if worker.is_alive():
                worker.terminate()
        if isinstance(problem, BrokenProcessPool):
            raise ExportError(
                f"one of {workers} table workers was killed, as happens when memory runs out; set "
                "ROWCAST_EXPORT_WORKERS or ROWCAST_EXPORT_BUDGET_BYTES lower and run the export "
                "again: it resumes"
            ) from problem
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
    """Makes a worker end with its parent, which may be killed."""
    # The parent, which an interrupt reaches too, ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    # `sys.exit` would end this thread alone, and the main thread may be in the middle of a task.
    os._exit(1)
