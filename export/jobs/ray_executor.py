"""Runs tasks on Ray; no other module imports it. Tasks read and write files themselves, only
receipts come back.
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
_REACHED_WITHIN_S = 10
_STOPPED_WITHIN_S = 10
_HEAD_BYTES = 64
_OBJECT_STORE_BYTES = 100 << 20
"""Nothing of size passes through it; unasked, Ray takes a third of the memory."""


@dataclass(frozen=True)
class RayExecutor:
    """Workers of a Ray cluster that sees the same files.

    Attributes:
      where: HOST:PORT or ray://HOST:PORT of a cluster, or LOCAL: one that is begun here and ended
        with the run.
      workers: tasks at a time; 0: two for each core of the cluster, so that none waits for the
        next.
      memory_bytes: what one task holds.
      shared: files that every machine must see alike; what is no file here is not asked for.
    """

    where: str
    workers: int = 0
    memory_bytes: int = 0
    shared: Sequence[str] = ()

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        on_done: Callable[[Task, Result], None] | None = None,
    ) -> list[Result]:
        """Runs tasks as `LocalExecutor` does; those of a worker or node that died, again."""
        if not tasks:
            return []
        seen = {path: head for path in self.shared if (head := _sight(path)) is not None}
        with self._connected() as ray:
            _check_room(ray, self.memory_bytes)
            remote = ray.remote(_attempt_there).options(
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
                        running[remote.remote(function, task, seen)] = index
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
        # Always by an address: without one Ray takes any cluster it finds, be it dead.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if self.where == LOCAL:
                cores = self.workers or len(os.sched_getaffinity(0))
                exporter_options = {
                    "num_cpus": cores,
                    "include_dashboard": False,
                    "object_store_memory": _OBJECT_STORE_BYTES,
                }
                ray.init(address="local", **exporter_options, **quiet)
            else:
                _check_reached(self.where)
                ray.init(address=self.where, **quiet)
        except (OSError, RuntimeError, ray.exceptions.RayError) as problem:
            raise UsageError(
                f"no Ray cluster can be used at {self.where}: {_first_line(problem)}; give the "
                "address that "
                "`ray start --head` printed, the same releases of Ray and Python everywhere, and "
                "RAY_AUTH_MODE=token if the cluster asks for tokens"
            ) from problem
        try:
            yield ray
        finally:
            ray.shutdown()


def _attempt_there(
    function: Callable[[Task], Result], task: Task, seen: Mapping[str, bytes]
) -> Result:
    """Runs on a worker, once it was found to see the files that the exporter sees."""
    for path, head in seen.items():
        if _sight(path) != head:
            raise UsageError(
                f"Ray node {socket.gethostname()} does not see file {path} as the exporter does; "
                "put the "
                "checkpoint and the root where all machines find them under the same path, or give "
                "URLs"
            )
    return attempt(function, task)


def _sight(path: str) -> bytes | None:
    try:
        with Path(path).open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return None


def _check_reached(where: str) -> None:
    host, _, port = where.removeprefix("ray://").rpartition(":")
    socket.create_connection((host, int(port)), _REACHED_WITHIN_S).close()


def _check_room(ray: Any, memory_bytes: int) -> None:
    # Ray would wait for such a machine for ever.
    room = max(
        (node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"]), default=0
    )
    if memory_bytes > room:
        raise UsageError(
            f"a task holds up to {memory_bytes} bytes, no Ray node gives more than {int(room)}; "
            "set ROWCAST_EXPORT_BUDGET_BYTES lower"
        )


def _result(ray: Any, done: Any) -> Any:
    """Returns what a task returned, or raises what it raised, as itself."""
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
            f"({type(problem).__name__}), as happens "
            "when memory runs out; set ROWCAST_EXPORT_BUDGET_BYTES lower and run the export again"
        ) from problem


def _stop(ray: Any, running: list[Any]) -> None:
    """Ends tasks and their workers; what is unfinished, the next run removes."""
    for task in running:
        ray.cancel(task, force=True)
    if running:
        ray.wait(running, num_returns=len(running), timeout=_STOPPED_WITHIN_S)


def _first_line(problem: BaseException) -> str:
    return next(iter(str(problem).strip().splitlines()), type(problem).__name__)
