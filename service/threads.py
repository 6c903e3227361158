"""How many threads each library of a serving process gets: callers run in parallel, not the operations of one call."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass

from service.cores import usable_cores

_BLAS, _TENSORFLOW_WITHIN, _TENSORFLOW_BETWEEN = (
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


@dataclass(frozen=True)
class Threads:
    """Of one serving process.

    Attributes:
      compute: that answer calls, beside the event loop's, each with its own LiteRT interpreters of one thread and
        searches of one thread.
      blas: of numpy's products of matrices, which exact searches are; empty: numpy's choice.
      tensorflow_within: of one operation of a SavedModel.
      tensorflow_between: of all operations of all calls together.
    """

    compute: int
    blas: str
    tensorflow_within: str
    tensorflow_between: str


def limit_blas(environment: MutableMapping[str, str] = os.environ) -> None:
    """Has numpy start no threads of its own, unless the environment says so. To be called before numpy is imported."""
    environment.setdefault(_BLAS, "1")


def set_threads(
    workers: int, threads: int, environment: MutableMapping[str, str] = os.environ, cores: int | None = None
) -> Threads:
    """Chooses the threads of a process, and tells TensorFlow by its variables; what these say already stays.

    To be called before TensorFlow is loaded, which reads them then.

    Args:
      workers: processes that share the cores.
      threads: that compute in each; 0: an equal share of the cores.
      environment: of the process.
      cores: that all may use; None: counted.
    """
    compute = threads or max(1, (cores or usable_cores()) // workers)
    return Threads(
        compute,
        blas=environment.get(_BLAS, ""),
        tensorflow_within=environment.setdefault(_TENSORFLOW_WITHIN, "1"),
        tensorflow_between=environment.setdefault(_TENSORFLOW_BETWEEN, str(compute)),
    )
