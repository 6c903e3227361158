"""Measures search costs in a process of its own, in which searches use one thread, as in a service.

OpenBLAS reads the number of its threads when NumPy is imported. An export uses all cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict

from bundle.format.indexes import Distance, Engine
from bundle.format.search_costs import SearchCosts
from export.corpora.recall import load_written
from export.corpora.search_costs import measure_costs
from export.errors import ExportError
from runtime.vectors import VectorFile

if TYPE_CHECKING:  # faiss is loaded where an index has codes
    from runtime.codes import VectorCodes

_THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_SHOWN_CHARACTERS = 2000
"""The characters shown of what a failed process wrote last."""


class CostTask(BaseModel):
    """A written tree whose searches are to be measured.

    Attributes:
      name: The name of the index.
      engine: The engine of the index.
      distance: The distance of the index.
      directories: The directories of the engine's files, one for each partition.
      vectors: The file of the vectors.
      size: The number of vectors.
      dim: Their dim.
      codes: The files of the codes and of their codebook; None: the index has none.
      queries: [q][dim], of which some are searched for.
      leaves: The number of leaves of the tree.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    engine: Engine
    distance: Distance
    directories: tuple[Path, ...]
    vectors: Path
    size: int
    dim: int
    codes: tuple[Path, Path] | None
    queries: list[list[float]]
    leaves: int


def measure_in_process(task: CostTask) -> SearchCosts:
    """Has a process measure what searches cost, and waits for it.

    Args:
      task: The index.

    Raises:
      ExportError: The process failed.
    """
    # -P: a module beside the export has no say in what is imported.
    command = [sys.executable, "-P", "-m", __name__]
    environment = os.environ | _THREADS
    content = task.model_dump_json()
    process = subprocess.run(
        command, input=content, env=environment, capture_output=True, text=True, check=False
    )
    if process.returncode:
        last_messages = process.stderr[-_SHOWN_CHARACTERS:]
        raise ExportError(
            f"index {task.name!r}: the process that measures its searches ended with "
            f"{process.returncode}: {last_messages}; run the export again: it resumes"
        )
    return SearchCosts.model_validate_json(process.stdout)


def measure(task: CostTask) -> SearchCosts:
    """Measures what searches cost.

    Args:
      task: The index.
    """
    vectors = VectorFile(task.vectors, task.dim)
    index = load_written(task.engine, task.directories, task.distance, vectors, task.name)
    codes: VectorCodes | None = None
    if task.codes is not None:
        # faiss takes time and memory to load, and most indexes have no codes.
        from runtime.codes import VectorCodes

        codes = VectorCodes.load(*task.codes, task.size, task.dim, task.distance)
    queries = np.array(task.queries, np.float32)
    return measure_costs(index, vectors.mapped, codes, queries, task.leaves)


def main() -> None:
    """Reads a task from standard input, and writes the costs to standard output."""
    task = CostTask.model_validate_json(sys.stdin.read())
    costs = measure(task)
    sys.stdout.write(costs.model_dump_json())


if __name__ == "__main__":
    main()
