"""Tasks that other machines carry out by themselves: a file of them, and beside the staged version what they left.

`--tasks` writes the file, `run-task` runs its tasks wherever the file, the checkpoint and the root are seen, and the
job's own command takes up what is whole. Nothing of it is needed: what is missing or damaged is copied then.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass, replace
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError

from bundle.format.checksums import digest
from bundle.storage import files, staging
from export.errors import DestinationError, UsageError
from export.jobs.executors import LocalExecutor
from export.tables.plan import ExportPlan
from export.tables.shards import Receipt, carry_out
from export.tables.tasks import RestTask, TableTask

_TASKS = TypeAdapter(tuple[TableTask | RestTask, ...], config=ConfigDict(defer_build=True))
_TASK = TypeAdapter(TableTask | RestTask, config=ConfigDict(defer_build=True))


@dataclass(frozen=True)
class TaskFile:
    """A file of tasks.

    Attributes:
      directory: where they leave shards and receipts.
      tasks: in the order of the plan.
    """

    directory: Path
    tasks: tuple[TableTask | RestTask, ...]


def write_task_file(plan: ExportPlan, file: Path | None) -> None:
    """Writes the tasks of a plan to a file, which is replaced at once if it is there; None: to none.

    Raises:
      DestinationError: it cannot be written.
      UsageError: the plan has no task.
    """
    if file is None:
        return
    staged = next((task.directory for task in plan.work if isinstance(task, TableTask)), None)
    if staged is None:
        raise UsageError("there is no task to write to a file: no table is copied")
    page = {
        "exporter": installed_version("rowcast"),
        "directory": str(staging.parts(Path(staged))),
        "tasks": _TASKS.dump_python(plan.work, mode="json"),
    }
    try:
        _write(file, orjson.dumps(page))
    except OSError as problem:
        raise DestinationError(f"file of tasks {file} cannot be written: {problem.strerror}") from problem


def chosen(told: TaskFile, number: int, of: int) -> range:
    """Returns the tasks of one of `of` machines, from 0; one task if `of` is 0.

    Raises:
      UsageError: there is no such task.
    """
    if number >= (of or len(told.tasks)):
        raise UsageError(f"number {number} was given; there are {of or len(told.tasks)}, from 0")
    return range(number, len(told.tasks) if of else number + 1, of or 1)


def read_task_file(file: Path) -> TaskFile:
    """Reads a file of tasks.

    Raises:
      UsageError: there is none, or it is of another release.
    """
    try:
        page: dict[str, Any] = orjson.loads(file.read_bytes())
        if page["exporter"] != installed_version("rowcast"):
            raise UsageError(f"{file} was written by rowcast {page['exporter']}; plan anew, or use that release")
        return TaskFile(Path(page["directory"]), _TASKS.validate_python(page["tasks"], strict=False))
    except OSError as problem:
        raise UsageError(f"file of tasks {file} cannot be read: {problem.strerror}; --tasks writes one") from problem
    except (ValueError, KeyError, TypeError, ValidationError) as problem:
        raise UsageError(f"{file} is no file of tasks; the option --tasks writes one") from problem


def run_task(told: TaskFile, number: int) -> None:
    """Runs one task and leaves its receipt, unless that is there already.

    Raises:
      ExportError: as `carry_out`.
    """
    task = told.tasks[number]
    if _receipt(told.directory, task) is not None:
        return
    here = replace(task, directory=str(told.directory)) if isinstance(task, TableTask) else task
    place = _place(told.directory, task)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        (receipt,) = LocalExecutor(1).run(carry_out, [here])
        _write(place, receipt.model_dump_json().encode())
    except OSError as problem:
        raise DestinationError(f"{place.parent} cannot be written: {problem.strerror}") from problem


def take_up(staged: Path, task: TableTask | RestTask) -> Receipt | None:
    """Moves what `run_task` left of a task to where the job's own worker would have written it.

    Returns:
      Its receipt; None if it was not run, was run of another plan, or its files are not whole.
    """
    directory = staging.parts(staged)
    receipt = _receipt(directory, task)
    if receipt is None:
        return None
    for file in receipt.files(task):
        (staged / file.path).parent.mkdir(parents=True, exist_ok=True)
        (directory / file.path).rename(staged / file.path)
    return receipt


def _receipt(directory: Path, task: TableTask | RestTask) -> Receipt | None:
    try:
        receipt = Receipt.model_validate_json(_place(directory, task).read_bytes())
        for file in receipt.files(task):
            with (directory / file.path).open("rb") as stream:
                found = digest(stream)
            if (found.bytes, found.crc32c) != (file.bytes, file.crc32c):
                return None
    except (OSError, ValidationError):
        return None
    return receipt


def task_key(task: TableTask | RestTask) -> str:
    """Returns a digest of what a task reads and writes: one of another plan, or of a changed source, has another."""
    plain = replace(task, directory="", attempts=None) if isinstance(task, TableTask) else task
    content = installed_version("rowcast").encode() + _TASK.dump_json(replace(plain, block_bytes=0))
    return hashlib.sha256(content).hexdigest()


def _place(directory: Path, task: TableTask | RestTask) -> Path:
    return directory / "receipts" / f"{task_key(task)}.json"


def _write(file: Path, content: bytes) -> None:
    attempt = file.with_name(f".{file.name}-{secrets.token_hex(8)}")
    with attempt.open("xb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    attempt.rename(file)
    files.sync(file.parent)
