"""Tasks on a Ray cluster of two nodes: the same results as on local processes, whatever dies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from export.attempts import ATTEMPTS_MAX
from export.errors import CheckpointError, DestinationError
from export.ray_executor import RayExecutor
from tests.export import task_functions

pytest.importorskip("ray")
NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
    nodes.add_node(**NODE)
    yield nodes
    nodes.shutdown()


@pytest.fixture
def executor(cluster: Any) -> RayExecutor:
    return RayExecutor(cluster.address)


def test_ray_results_come_in_the_order_of_the_tasks_from_other_processes(executor: RayExecutor) -> None:
    done: list[tuple[int, Any]] = []
    results = executor.run(task_functions.process_id, range(9), lambda task, result: done.append((task, result)))
    assert [number for number, _ in results] == list(range(9))
    assert sorted(done) == list(enumerate(results))
    assert os.getpid() not in {process for _, process in results}


def test_ray_failures_of_tasks_come_back_as_themselves(executor: RayExecutor, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^three is not read$"):
        executor.run(task_functions.refuse_three, range(5))
    passes, broken = tmp_path / "passes", tmp_path / "broken"
    assert executor.run(task_functions.fail_storage, [str(passes)]) == [3]
    with pytest.raises(DestinationError, match="cannot be written: Input/output error"):
        executor.run(task_functions.fail_storage, [str(broken)])
    assert len(broken.read_text()) == ATTEMPTS_MAX
