"""Tasks on a Ray cluster of two nodes: the same results as on local processes, whatever dies."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.format import manifest
from bundle.storage.staging import Staging
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError, DestinationError, ExportError, UsageError
from export.jobs.attempts import ATTEMPTS_MAX
from export.jobs.ray_executor import RayExecutor
from export.jobs.table_steps import copy_tables
from export.recipe.settings import ExportSettings
from export.tables.plan import WriteOptions, plan_tables
from tests.units.export import task_functions
from tests.units.export.checkpoint.tensor_bundles import write_bundle

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


@pytest.mark.slow
def test_ray_results_come_in_the_order_of_the_tasks_from_other_processes(
    executor: RayExecutor,
) -> None:
    done: list[tuple[int, Any]] = []
    results = executor.run(
        task_functions.process_id, range(9), lambda task, result: done.append((task, result))
    )
    assert [number for number, _ in results] == list(range(9))
    assert sorted(done) == list(enumerate(results))
    assert os.getpid() not in {process for _, process in results}


@pytest.mark.slow
def test_ray_failure_of_a_task_is_raised_with_its_own_type(
    executor: RayExecutor, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"^three is not read$"):
        executor.run(task_functions.reject_three, range(5))
    passes = tmp_path / "passes"
    broken = tmp_path / "broken"
    assert executor.run(task_functions.fail_storage, [str(passes)]) == [3]
    with pytest.raises(DestinationError, match="cannot be written: Input/output error"):
        executor.run(task_functions.fail_storage, [str(broken)])
    assert len(broken.read_text()) == ATTEMPTS_MAX


@pytest.mark.nightly
@pytest.mark.slow
def test_ray_worker_that_is_killed_is_replaced_a_limited_number_of_times(
    executor: RayExecutor, tmp_path: Path
) -> None:
    marks = [str(tmp_path / str(number)) for number in range(3)]
    assert executor.run(task_functions.die_once, marks) == marks
    with pytest.raises(
        ExportError, match=rf"lost {ATTEMPTS_MAX} times.*ROWCAST_EXPORT_BUDGET_BYTES"
    ):
        executor.run(task_functions.die, [0])


@pytest.mark.nightly
@pytest.mark.slow
def test_ray_worker_that_sees_other_files_is_an_error(cluster: Any) -> None:
    process_file = "/proc/self/comm"  # the same path, and another file for each process
    with pytest.raises(
        UsageError,
        match=rf"node {socket.gethostname()} does not see file {process_file} as the exporter does",
    ):
        RayExecutor(cluster.address, shared=[process_file]).run(task_functions.square, [1])
    assert RayExecutor(cluster.address, shared=["/etc/passwd", "/is/not/here"]).run(
        task_functions.square, [3]
    ) == [9]


@pytest.mark.nightly
@pytest.mark.slow
def test_ray_task_that_fits_on_no_node_is_an_error(cluster: Any) -> None:
    with pytest.raises(UsageError, match="no Ray node offers more than"):
        RayExecutor(cluster.address, memory_bytes=1 << 50).run(task_functions.square, [1])


def test_ray_cluster_that_cannot_be_reached_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(UsageError, match=f"no Ray cluster can be used at {where}: .*refused"):
        RayExecutor(where).run(task_functions.square, [1])


@pytest.mark.nightly
@pytest.mark.slow
def test_ray_node_that_dies_in_the_middle_leaves_the_same_tables(
    cluster: Any, tmp_path: Path
) -> None:
    values = np.random.default_rng(5).standard_normal((4000, 2000)).astype(np.float32)
    write_bundle(
        tmp_path / "ckpt",
        {"t": values},
        boxes={"t": [[(0, 1000), (0, -1)], [(1000, 3000), (0, -1)]]},
    )
    checkpoint = open_checkpoint(tmp_path)
    pages: list[dict[str, manifest.Table]] = []
    staged: list[dict[str, bytes]] = []
    node = cluster.add_node(**NODE)
    calls = itertools.count(1)

    def lose_node(_: int) -> None:
        if next(calls) == 30:
            cluster.remove_node(node, allow_graceful=False)

    for where, moved in (("local", lambda _: None), (cluster.address, lose_node)):
        with Staging(tmp_path / "bundles", "tables", len(pages) + 1) as stage:
            plan = plan_tables(
                checkpoint,
                recognize(checkpoint, {"t": "t"}),
                stage.directory,
                write_options={"t": WriteOptions(segment_rows=37)},
            )
            tables = copy_tables(plan, stage, ExportSettings(executor=where), moved).entries
            pages.append(tables)
            staged.append(
                {
                    segment.file: (stage.directory / segment.file).read_bytes()
                    for segment in tables["t"].segments
                }
            )
    assert node not in cluster.list_all_nodes()
    assert pages[0] == pages[1]
    assert staged[0] == staged[1]
    assert b"".join(staged[0].values()) == values.tobytes()
