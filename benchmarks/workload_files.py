"""Bundles and request bodies of the workloads, written by the code of a checkout.

A bundle, and a request, of another version may have another form, so each version writes its own:
`PYTHONPATH=. python -P .../benchmarks/workload_files.py ROOT SCALE`, in the checkout's directory.
This file imports nothing of its own checkout.
"""

from __future__ import annotations

import importlib
import inspect
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGES = ("benchmarks", "tests.bench")
"""Where versions have the modules `workloads` and `requests`, newest first."""
QUERIES_PER_REQUEST = 16
_BODIES = "bodies.pickle"


@dataclass(frozen=True)
class WorkloadFiles:
    """What a checkout wrote.

    Attributes:
      root: The directory of the bundles.
      bodies: Encoded requests by the name of what encodes them; `several` has 16 queries in each
        message, and older versions do not write it.
    """

    root: Path
    bodies: dict[str, list[bytes]]


def bodies_of(requests: Any, ranking: Any, retrieval: Any) -> dict[str, list[bytes]]:
    """Encodes the requests of both workloads.

    Args:
      requests: The module `requests` of a checkout.
      ranking, retrieval: Its workloads.
    """
    bodies = {
        "rank_json": requests.rank_json(ranking),
        "rank_messages": requests.rank_messages(ranking),
        "retrieve_json": requests.retrieve_json(retrieval),
        "retrieve_messages": requests.retrieve_messages(retrieval),
    }
    if "queries" in inspect.signature(requests.retrieve_messages).parameters:
        bodies["several"] = requests.retrieve_messages(retrieval, QUERIES_PER_REQUEST)
    return bodies


def read(root: Path) -> WorkloadFiles:
    """Returns what the program has written below a directory."""
    return WorkloadFiles(root, pickle.loads((root / _BODIES).read_bytes()))


def _module(name: str) -> Any:
    """Imports a module of the benchmark from the checkout that is the current directory."""
    for package in PACKAGES:
        if Path(package.replace(".", "/"), f"{name}.py").exists():
            return importlib.import_module(f"{package}.{name}")
    raise ModuleNotFoundError(f"{Path.cwd()} has no module {name} of a benchmark")


def main() -> None:
    """Writes both workloads."""
    root = Path(sys.argv[1])
    scale = float(sys.argv[2])
    root.mkdir(parents=True)
    workloads = _module("workloads")
    ranking = workloads.write_ranking(root, scale)
    retrieval = workloads.write_retrieval(root, scale)
    bodies = bodies_of(_module("requests"), ranking, retrieval)
    (root / _BODIES).write_bytes(pickle.dumps(bodies))


if __name__ == "__main__":
    main()
