"""Runs tasks on Ray; no other module imports Ray. Tasks read and write files themselves, and only
their receipts come back.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from export.errors import ExportError, UsageError
from export.jobs.attempts import ATTEMPTS_MAX, Result, Task, attempt

LOCAL = "ray-local"
_CONNECT_TIMEOUT_S = 10
_STOP_TIMEOUT_S = 10
_HEAD_BYTES = 64
"""The size of the beginning of a file by which a worker shows that it sees the same file."""
_OBJECT_STORE_BYTES = 100 << 20
"""The object store holds only receipts; by default, Ray reserves a third of the memory for it."""


@dataclass(frozen=True)
class RayExecutor:
    """Workers of a Ray cluster that sees the same files.

    Attributes:
      address: HOST:PORT or ray://HOST:PORT of a cluster, or LOCAL: a cluster of this machine, which
        starts and ends with the run.
      workers: The number of tasks at a time; 0: two for each core of the cluster, so that no core
        waits for its next task.
      memory_bytes: The memory that one task takes; 0: it is not known.
      shared: Files that every machine must see alike. A path that is no file here is not compared.
    """

    address: str
    workers: int = 0
    memory_bytes: int = 0
    shared: Sequence[str] = ()

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        on_done: Callable[[Task, Result], None] | None = None,
    ) -> list[Result]:
        """Runs tasks as `LocalExecutor` does, and runs tasks again whose worker or node died."""
        if not tasks:
            return []
        heads = {}
        for path in self.shared:
            head = _head(path)
            if head is not None:
                heads[path] = head
        with self._connected() as ray:
            _check_memory(ray, self.memory_bytes)
            remote = ray.remote(_attempt_on_worker).options(
                num_cpus=1, memory=self.memory_bytes or None, max_retries=ATTEMPTS_MAX - 1
            )
            # Twice as many tasks as cores are submitted, so that none waits for this process.
            window = self.workers or 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
            waiting = iter(enumerate(tasks))
            running: dict[Any, int] = {}
            results: dict[int, Result] = {}
            try:
                while True:
                    for index, task in islice(waiting, window - len(running)):
                        running[remote.remote(function, task, heads)] = index
                    if not running:
                        return [results[index] for index in range(len(tasks))]
                    for done in ray.wait(list(running), num_returns=1)[0]:
                        position = running.pop(done)
                        results[position] = _result(ray, done)
                        if on_done is not None:
                            on_done(tasks[position], results[position])
            finally:
                _stop(ray, list(running))

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        quiet_options = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if self.address == LOCAL:
                cores = self.workers or len(os.sched_getaffinity(0))
                local_options = {
                    "num_cpus": cores,
                    "include_dashboard": False,
                    "object_store_memory": _OBJECT_STORE_BYTES,
                }
                # Without an address, Ray would take any cluster that it finds, even a dead one.
                ray.init(address="local", **local_options, **quiet_options)
            else:
                _check_reachable(self.address)
                ray.init(address=self.address, **quiet_options)
        except (OSError, RuntimeError, ray.exceptions.RayError) as problem:
            raise UsageError(
                f"no Ray cluster can be used at {self.address}: {_first_line(problem)}; give the "
                "address that `ray start --head` printed, install the same releases of Ray and "
                "Python everywhere, and set RAY_AUTH_MODE=token if the cluster requires tokens"
            ) from problem
        try:
            yield ray
        finally:
            ray.shutdown()


def _attempt_on_worker(
    function: Callable[[Task], Result], task: Task, heads: Mapping[str, bytes]
) -> Result:
    """Runs a task on a worker that sees the same files as the exporter.

    Args:
      function: The function that carries out the task.
      task: The task.
      heads: The beginnings of files as the exporter reads them, by path.

    Raises:
      UsageError: The worker does not see one of these files, or sees another one.
    """
    for path, head in heads.items():
        if _head(path) != head:
            raise UsageError(
                f"Ray node {socket.gethostname()} does not see file {path} as the exporter does; "
                "put the checkpoint and the root where all machines find them under the same path, "
                "or give URLs"
            )
    return attempt(function, task)


def _head(path: str) -> bytes | None:
    """Returns the beginning of a file; None if it cannot be read here."""
    try:
        with Path(path).open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return None


def _check_reachable(address: str) -> None:
    """Checks that a cluster accepts connections.

    Raises:
      OSError: It does not.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()


def _check_memory(ray: Any, memory_bytes: int) -> None:
    """Checks that a node of the cluster has the memory of a task.

    Raises:
      UsageError: No node has as much.
    """
    # Ray would wait forever for a node with more memory.
    largest_bytes = max(
        (node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"]), default=0
    )
    if memory_bytes > largest_bytes:
        raise UsageError(
            f"a task takes up to {memory_bytes} bytes of memory, and no Ray node offers more than "
            f"{int(largest_bytes)}; set ROWCAST_EXPORT_BUDGET_BYTES lower"
        )


def _result(ray: Any, done: Any) -> Any:
    """Returns the result of a task, or raises the error that the task raised, as it was.

    Raises:
      ExportError: The task failed, or its worker or node was lost in each attempt.
    """
    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as problem:
        cause = problem.cause
        if isinstance(cause, ExportError):
            raise cause from problem
        raise ExportError(
            f"a Ray worker failed: {_first_line(cause)}; is the same release of rowcast installed "
            "on every node?"
        ) from problem
    except ray.exceptions.RayError as problem:
        raise ExportError(
            f"a task was lost {ATTEMPTS_MAX} times with its Ray worker or node "
            f"({type(problem).__name__}), as happens when memory runs out; set "
            "ROWCAST_EXPORT_BUDGET_BYTES lower and run the export again"
        ) from problem


def _stop(ray: Any, running: list[Any]) -> None:
    """Ends tasks and their workers. The next run removes the files that they left unfinished."""
    for task in running:
        ray.cancel(task, force=True)
    if running:
        ray.wait(running, num_returns=len(running), timeout=_STOP_TIMEOUT_S)


def _first_line(problem: BaseException) -> str:
    return next(iter(str(problem).strip().splitlines()), type(problem).__name__)
