"""The steps that write tables, each a shard of one, and the comparison with the checkpoint that ends them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from bundle.format import manifest, paths
from bundle.storage.staging import Staging
from export.checkpoint.datafiles import check_unchanged, stamps_of
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import Checkpoint
from export.errors import CheckpointError, VerificationFailed
from export.jobs.destinations import Destination
from export.jobs.executors import LocalExecutor, worker_count
from export.jobs.ray_executor import RayExecutor
from export.jobs.space import check_plan_fits
from export.recipe.settings import ExportSettings
from export.steps import key_of
from export.tables.key_indexes import check_key_indexes
from export.tables.links import link_files
from export.tables.plan import ExportPlan, Writing, plan_tables
from export.tables.shards import Receipt, carry_out, check_sources, manifest_table
from export.tables.tasks import RestTask, TableTask
from export.verify.table_rows import verify_tables
from runtime.object_store import is_url

SMALL_JOB_BYTES = 256 << 20
"""What a second worker could take off the first must be more, unless more are asked for: to start them takes longer."""
CHECKERS = 4
"""Files of an earlier run that are read at a time, to see whether they are whole."""
_WITNESSES_MAX = 8


def plan_copy(
    checkpoint: Checkpoint,
    inventory: Inventory,
    destination: Destination,
    staging: Path,
    writing: Mapping[str, Writing],
    settings: ExportSettings,
) -> ExportPlan:
    """Plans tables, each with how it is written, into a staging directory.

    Raises:
      ExportError: a table cannot be written so, or the plan does not fit the destination.
    """
    workers, budget = worker_count(settings.workers), settings.budget_bytes
    plan = plan_tables(
        checkpoint,
        inventory,
        staging,
        tables=list(writing),
        writing=writing,
        budget_bytes=budget,
        workers=workers,
    )
    destination.refuse_links(plan)
    check_plan_fits(plan, destination.root)
    return plan


def copy_tables(
    plan: ExportPlan, stage: Staging, settings: ExportSettings, moved: Callable[[int], None]
) -> dict[str, manifest.Table]:
    """Copies the planned tables but for the shards that an earlier run finished.

    Args:
      plan: the tables.
      stage: where they are written.
      settings: where tasks run, and how many at a time.
      moved: takes the bytes that were written since its last call.

    Raises:
      VerificationFailed: converted rows break a limit.
      ExportError: a source is damaged, or a shard cannot be written.
    """
    receipts: list[Receipt] = []
    pending: list[TableTask | RestTask] = []
    keys = {task.step: key_of(plan.fingerprint, _apart_from_place(task)) for task in plan.work}
    with ThreadPoolExecutor(CHECKERS) as pool:
        for task, finished in zip(
            plan.work,
            pool.map(lambda task: stage.finished(task.step, keys[task.step]), plan.work),
            strict=True,
        ):
            if finished is None:
                pending.append(
                    replace(task, attempts=str(stage.attempts))
                    if isinstance(task, TableTask)
                    else task
                )
            else:
                receipts.append(Receipt.model_validate(finished.payload))
                moved(task.bytes)

    def note(task: TableTask | RestTask, receipt: Receipt) -> None:
        stage.finish(
            task.step, keys[task.step], receipt.model_dump(mode="json"), receipt.files(task)
        )
        receipts.append(receipt)
        moved(task.bytes)

    sources = (part.file for table in plan.tables for part in table.slices)
    memory_bytes = max((task.memory_bytes for task in pending), default=0)
    executor = executor_of(settings, stage, [task.bytes for task in pending], memory_bytes, sources)
    executor.run(carry_out, pending, note)
    try:
        check_sources(plan, receipts)
    except CheckpointError as problem:
        for task in plan.work:
            stage.forget(task.step)
        raise CheckpointError(
            f"{problem}; the tables are copied again by the next run"
        ) from problem
    check_unchanged(stamps_of(part for table in plan.tables for part in table.slices))
    link_files(plan, stage.directory)
    tables = {table.spec.name: manifest_table(table, receipts, plan.links) for table in plan.tables}
    for table in plan.tables:
        table.limits.check(table.spec.name, tables[table.spec.name].error)
    return tables


def compare_tables(
    checkpoint: Checkpoint,
    plan: ExportPlan,
    stage: Staging,
    tables: Mapping[str, manifest.Table],
    keys: Mapping[str, manifest.KeyIndex],
    sample: int | None,
    made_of_rows: Sequence[str] = (),
) -> dict[str, manifest.TableCheck]:
    """Compares staged tables and their key indexes with the checkpoint; what differs is made again by the next run.

    Rows of a linked table lie in the checkpoint's own file: only its checksums, of all rows, would tell anything.

    Args:
      sample: rows of each table that are compared; None: all.
      made_of_rows: steps that read them.
    Raises:
      VerificationFailed: a row or a key differs.
    """
    checks: dict[str, manifest.TableCheck] = {}
    linked = {table.spec.name for table in plan.tables if table.linked}
    for name, table in tables.items():
        try:
            checks |= verify_tables(checkpoint, stage.directory, {name: table}, sample)
            if name in linked and sample is not None and sample < table.rows:
                checks[name] = manifest.TableCheck(rows_compared=0, rows=table.rows)
            own = {name: keys[name]} if name in keys else {}
            check_key_indexes(checkpoint, stage.directory, tables, own, sample is None)
        except VerificationFailed:
            wrong = [task.step for task in plan.tasks if task.table == name]
            for step in (*wrong, paths.key_index(name), *made_of_rows):
                stage.forget(step)
            raise
    return checks


def executor_of(
    settings: ExportSettings,
    stage: Staging,
    sizes: Sequence[int],
    memory_bytes: int,
    sources: Iterable[str],
) -> LocalExecutor | RayExecutor:
    """Returns what runs tasks: unasked, a small job has a single worker.

    Args:
      settings: where, and how many at a time.
      stage: of this run, which workers must see as well as some of their sources.
      sizes: bytes that each task moves.
      memory_bytes: what one holds.
      sources: files that they read.
    """
    token = stage.attempts / "seen"
    token.write_text(secrets.token_hex())
    shared = [
        str(token),
        *[source for source in dict.fromkeys(sources) if not is_url(source)][:_WITNESSES_MAX],
    ]
    workers = settings.workers or (1 if sum(sorted(sizes)[:-1]) <= SMALL_JOB_BYTES else 0)
    where = settings.executor
    return (
        LocalExecutor(workers)
        if where == "local"
        else RayExecutor(where, workers, memory_bytes, shared)
    )


def _apart_from_place(task: TableTask | RestTask) -> TableTask | RestTask:
    """Returns a task without what decides no byte of its shard."""
    plain = replace(task, directory="", attempts=None) if isinstance(task, TableTask) else task
    return replace(plain, block_bytes=0)
