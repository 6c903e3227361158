"""The compute threads: so many, made at start, each taking up the task that was handed in first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from service import logs

log = logs.logger(__name__)

Task = Callable[[], object]


class ComputeThreads:
    """Threads with one queue of tasks. Unlike `ThreadPoolExecutor`, it makes no future of a task."""

    def __init__(self, count: int) -> None:
        """Starts so many."""
        self.count = count
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._closed = False
        for number in range(count):
            threading.Thread(target=self._run, name=f"rowcast-compute_{number}", daemon=True).start()

    def submit(self, task: Task) -> None:
        """Hands in what nobody waits for; what it raises is logged."""
        self._tasks.put(task)

    def close(self) -> None:
        """Ends the threads, each after the task that it is at; further ones are never begun."""
        self._closed = True
        for _ in range(self.count):
            self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None and not self._closed:
            try:
                task()
            except Exception:
                log.exception("task_failed")
            del task  # and with it the request and the answer, until the next one comes
