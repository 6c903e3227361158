"""Tasks on processes of this machine; on Ray, they run by `ray_executor`."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass

from export.errors import ExportError
from export.jobs.attempts import Result, Task, attempt

_ENCODERS = 4


def encoder_count(wanted: int) -> int:
    """Returns how many processes encode an index by the same setting: each holds up to half a GB, so 0 is 4 at most."""
    return wanted or min(_ENCODERS, worker_count(0))


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
        """Runs independent tasks, several at a time. One whose storage fails in a way that may pass is tried again.

        Args:
          function: top-level and importable, so that another process finds it.
          tasks: picklable.
          on_done: called here with each task and its result, as they finish: for progress and journals.
        Returns:
          The results, in the order of the tasks.
        Raises:
          ExportError: what a task raised first, or a worker died; no task is running any more.
        """
        results: dict[int, Result] = {}

        def note(place: int, result: Result) -> None:
            results[place] = result
            if on_done is not None:
                on_done(tasks[place], result)

        workers = min(worker_count(self.workers), len(tasks))
        if workers < 2:
            for place, task in enumerate(tasks):
                note(place, attempt(function, task))
        else:
            with _pool(workers) as pool:
                running = {
                    pool.submit(attempt, function, task): place for place, task in enumerate(tasks)
                }
                for done in as_completed(running):
                    note(running[done], done.result())
        return [results[place] for place in range(len(tasks))]


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Opens a pool of fresh processes, of which none is left when the block ends, however it does."""
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_begin_worker
    )
    try:
        yield pool
    except BaseException as problem:
        for worker in multiprocessing.active_children():
            worker.terminate()
        if isinstance(problem, BrokenProcessPool):
            raise ExportError(
                f"one of {workers} table workers was killed, as happens when memory runs out; set "
                "ROWCAST_EXPORT_WORKERS or ROWCAST_EXPORT_BUDGET_BYTES lower and run the export again: it resumes"
            ) from problem
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
    """Makes a worker end with its parent, which may be killed."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the parent, which an interrupt reaches too, ends its workers
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)
