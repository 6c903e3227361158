"""Tasks that other machines run from a file: the job's own command takes up what is whole, and copies the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bundle.storage import staging
from export.checkpoint.inventory.specs import TableSpec
from export.checkpoint.layouts import Mod, Plain, SparseCore
from export.jobs.task_files import read_task_file, write_task_file
from export.tables.plan import ExportPlan, TablePlan
from export.tables.tasks import RestTask, TableTask
from tests.export.commands import Command
from tests.export.exporting import aside, facts
from tests.export.killed_jobs import TABLES, Job, tables_job


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return tables_job(tmp_path / "checkpoint", 400)


def planned(command: Command, job: Job, root: Path) -> Path:
    """Writes the file of tasks."""
    done = command(*job.arguments(root), "--tasks", root.parent / "tasks.json")
    assert done.code == 0, done.err
    assert not root.exists()
    return root.parent / "tasks.json"


def parts(root: Path) -> dict[str, int]:
    """The shards that tasks left, each with its inode."""
    found = staging.parts(root / "tables" / ".staging-1")
    return {path.relative_to(found).as_posix(): path.stat().st_ino for path in found.rglob("*.bin")}


def published(command: Command, job: Job, root: Path) -> dict[str, int]:
    """Runs the job; returns the shards of its bundle, each with its inode."""
    assert command(*job.arguments(root)).code == 0
    assert aside(root) == []
    bundle = root / "tables" / "1"
    return {path.relative_to(bundle).as_posix(): path.stat().st_ino for path in bundle.rglob("*.bin")}


def test_run_task_all_tasks_are_taken_up_and_the_bundle_is_that_of_one_machine(
    command: Command, job: Job, tmp_path: Path
) -> None:
    published(command, job, tmp_path / "alone" / "bundles")
    root = tmp_path / "several" / "bundles"
    root.parent.mkdir()
    file = planned(command, job, root)
    for number in range(3):
        assert command("run-task", file, number, "--of", 3).code == 0
    left = parts(root)
    assert len(left) == TABLES
    assert published(command, job, root) == left
    assert facts(root / "tables" / "1") == facts(tmp_path / "alone" / "bundles" / "tables" / "1")


def damaged(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("happens", [damaged, Path.unlink])
def test_run_task_shard_that_is_not_whole_is_copied_by_the_job(
    command: Command, job: Job, tmp_path: Path, happens: Callable[[Path], None]
) -> None:
    root = tmp_path / "bundles"
    file = planned(command, job, root)
    for number in range(TABLES - 1):
        assert command("run-task", file, number).code == 0
    left = parts(root)
    spoilt = min(left)
    happens(staging.parts(root / "tables" / ".staging-1") / spoilt)
    shards = published(command, job, root)
    assert {path for path, inode in shards.items() if left.get(path) == inode} == set(left) - {spoilt}


def test_run_task_again_leaves_what_is_whole(command: Command, job: Job, tmp_path: Path) -> None:
    file = planned(command, job, tmp_path / "bundles")
    assert command("run-task", file, 0).code == 0
    left = parts(tmp_path / "bundles")
    assert command("run-task", file, 0).code == 0
    assert parts(tmp_path / "bundles") == left


def test_run_task_of_another_plan_is_not_taken_up(command: Command, job: Job, tmp_path: Path) -> None:
    root = tmp_path / "bundles"
    file = planned(command, job, root)
    assert command("run-task", file, 0, "--of", 1).code == 0
    left = parts(root)
    tables_job(tmp_path / "checkpoint", 500)  # the checkpoint is saved anew
    assert set(left.values()).isdisjoint(published(command, job, root).values())


def test_run_task_of_what_is_no_task_exits_2(command: Command, job: Job, tmp_path: Path) -> None:
    file = planned(command, job, tmp_path / "bundles")
    assert "there are 5, from 0" in command("run-task", file, 5).told
    (tmp_path / "other").write_text('{"exporter": "0.0.1"}')
    done = command("run-task", tmp_path / "other", 0)
    assert done.code == 2
    assert "was written by rowcast 0.0.1" in done.told
    assert "nothing cannot be read: No such file" in command("run-task", tmp_path / "nothing", 0).told
    (tmp_path / "noise").write_text("noise")
    assert "noise is no file of tasks" in command("run-task", tmp_path / "noise", 0).told


def test_task_file_keeps_tasks_of_every_layout(tmp_path: Path) -> None:
    tasks = tuple(
        TableTask("s", "t", 3, "k", "float32", 0, 5, layout, (5, 3), (), None, "float32", str(tmp_path / "d"), "f", 9)
        for layout in (Plain(), Mod((0, 3)), SparseCore(4, 8, 0, 1))
    )
    rest = (RestTask("s", "k", 3, 4, ((0, 3), (5, 6)), (), 77),)
    spec = TableSpec("t", "k", 5, 3, "float32", Plain(), (5, 3), "named", "", 0, 0, 60)
    write_task_file(ExportPlan("c", (TablePlan(spec, (), tasks),), rest, 0, 1), tmp_path / "tasks.json")
    assert read_task_file(tmp_path / "tasks.json").tasks == (*tasks, *rest)
