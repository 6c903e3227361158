"""The steps that write tables, one segment each, and the checks of what they wrote."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from bundle.format import manifest, paths
from bundle.storage.staging import Staging
from export.checkpoint.datafiles import check_unchanged, stamps_of
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import Checkpoint
from export.errors import CheckpointError, UsageError
from export.jobs.destinations import Destination
from export.jobs.executors import LocalExecutor, worker_count
from export.jobs.progress import Progress
from export.jobs.ray_executor import RayExecutor
from export.jobs.space import check_plan_fits
from export.jobs.staged import Published, StagedVersion
from export.jobs.store_comparison import compare_with_stored
from export.jobs.uploads import FinishedStep, Uploads, without_objects
from export.recipe.settings import ExportSettings
from export.steps import Step
from export.tables.finite_rows import check_finite
from export.tables.key_indexes import write_key_indexes
from export.tables.links import link_files
from export.tables.older_versions import ReusedSegments, compare_with_newest, reused_segments
from export.tables.plan import ExportPlan, WriteOptions, plan_tables
from export.tables.segments import (
    Receipt,
    Source,
    carry_out,
    check_sources,
    manifest_table,
    sources_of,
)
from export.tables.task_keys import KeyedTask, is_current
from export.tables.tasks import SumTask, TableTask
from export.tables.unpacking import with_sums
from export.tables.zip_sums import check_zip_sums
from export.verify.checks import STAGED, CheckedBundle, check_bundle
from export.verify.stated_layouts import StatedLayout
from export.verify.unverified import unverified
from object_store.locations import is_url

SMALL_JOB_BYTES = 256 << 20
"""If all tasks but the largest move at most this, one worker runs them, unless a number of workers
is set: to start a second one takes longer.
"""
CHECKERS = 4
"""The number of files of an earlier run that are read at a time, to see whether they are whole."""
STREAMED_SEGMENT_BYTES = 256 << 20
"""The size of a segment that goes to a store: several lie on the local disk at a time."""
_WITNESSES_MAX = 8
"""The maximum number of sources that a worker on another machine must see."""


def plan_copy(
    checkpoint: Checkpoint,
    inventory: Inventory,
    destination: Destination,
    staging: Path,
    writing: Mapping[str, WriteOptions],
    settings: ExportSettings,
    read_again: Collection[str] = (),
) -> ExportPlan:
    """Plans tables, each with how it is written, into a staging directory.

    Args:
      checkpoint: The open checkpoint.
      inventory: The tables that `recognize` found in it.
      destination: Where the bundle goes.
      staging: Where it is staged.
      writing: How each table is written, by its name.
      settings: How the job runs.
      read_again: Tables that later steps read as a whole. They stay on the local disk until the
        bundle is published, though it goes to a store.

    Raises:
      ExportError: A table cannot be written in this way, or the plan does not fit the destination.
    """
    workers = worker_count(settings.workers)
    budget = settings.budget_bytes
    # A bundle for a store is streamed through a local disk that may be much smaller.
    if destination.store is not None:
        writing = {
            name: replace(
                options, segment_bytes=STREAMED_SEGMENT_BYTES, streamed=name not in read_again
            )
            for name, options in writing.items()
        }
    plan = plan_tables(
        checkpoint,
        inventory,
        staging,
        tables=list(writing),
        write_options=writing,
        budget_bytes=budget,
        workers=workers,
    )
    destination.reject_links(plan)
    if plan.links and settings.sign_key is not None:
        raise UsageError(
            "tables that are linked lie in files of the checkpoint, of which a bundle holds only "
            'parts; to sign it, copy them (tables = "copy")'
        )
    if settings.reuse:
        if destination.store is None:
            plan = compare_with_newest(plan, staging.parent)
        else:
            plan = compare_with_stored(plan, destination.store / staging.parent.name)
    destination.reject_objects(plan)
    check_plan_fits(plan, destination.root)
    return plan


class CopiedTables(NamedTuple):
    """Tables that were copied.

    Attributes:
      entries: Their entries in the manifest, by name.
      keys: The entries of the indexes of their keys, where rows are found by keys.
      reused: The segments that they take from older versions.
    """

    entries: dict[str, manifest.Table]
    keys: dict[str, manifest.KeyIndex]
    reused: ReusedSegments


def copy_tables(
    checkpoint: Checkpoint,
    plan: ExportPlan,
    staged_version: StagedVersion,
    settings: ExportSettings,
    progress: Progress,
) -> CopiedTables:
    """Copies the planned tables but for the segments that an earlier run finished, and indexes
    their keys.

    Args:
      checkpoint: The checkpoint that holds the tables.
      plan: The tables.
      staged_version: The version that is being made.
      settings: Where tasks run, and how many at a time.
      progress: Shows the step.

    Raises:
      VerificationFailed: Converted rows break a limit.
      NotConvertible: Rows are not finite, and not allowed to be.
      ExportError: A source is damaged, or a segment cannot be written.
    """
    stage = staged_version.stage
    sources = [part.file for table in plan.tables for part in table.slices]
    streamed = {table.spec.name for table in plan.tables if table.options.streamed}
    with progress.step("tables", plan.moved_bytes) as moved:
        for table in plan.tables:
            if any(part.crc32 is not None for part in table.slices):
                name = table.spec.name
                Step(f"checksums/{name}").run(stage, check_zip_sums, name, table.slices)
        # Decoded arrays are only read by the tasks of tables, so they are never sent.
        unpacking = TaskRun(stage, settings, sources, moved)
        crcs = {
            str(stage.directory / receipt.segment.file): receipt.segment.crc32c
            for receipt in unpacking.run(plan.unpacked)
            if receipt.segment is not None
        }
        copying = TaskRun(stage, settings, sources, moved, staged_version.uploads, streamed)
        receipts = copying.run_checked(with_sums(plan.all_tasks, crcs), sources_of(plan))
        # A checkpoint that was written to meanwhile may have given rows of two trainings.
        check_unchanged(stamps_of(part for table in plan.tables for part in table.slices))
        link_files(plan, stage.directory)
        entries = {
            table.spec.name: manifest_table(table, receipts, plan.links) for table in plan.tables
        }
        for table in plan.tables:
            entry = entries[table.spec.name]
            table.options.limits.check(table.spec.name, entry.error)
            # Linked rows were not read; a note of the plan says so.
            if not table.linked:
                check_finite(
                    table.spec.name,
                    entry.non_finite,
                    allowed=table.options.allow_non_finite,
                    converted=entry.error is not None,
                )
        # Rows of a dump are found by its keys, not by their numbers.
        keys = write_key_indexes(checkpoint, [table.spec for table in plan.tables], stage)
    return CopiedTables(entries, keys, reused_segments(receipts))


@dataclass(frozen=True)
class TaskRun:
    """Table tasks of one run.

    Attributes:
      stage: Where they write.
      settings: Where they run, and how many at a time.
      sources: Files that they read.
      moved: Takes the bytes that were written since its last call.
      uploads: Sends each segment to a store as soon as it is written; None if the bundle stays
        here.
      streamed: The tables whose segments are removed here once they are sent.
    """

    stage: Staging
    settings: ExportSettings
    sources: Sequence[str]
    moved: Callable[[int], None]
    uploads: Uploads | None = None
    streamed: Collection[str] = ()

    def run(self, tasks: Sequence[TableTask | SumTask]) -> list[Receipt]:
        """Runs tasks but for those that an earlier run finished with the same contents.

        Raises:
          ExportError: A source is damaged, or a segment cannot be written or sent.
        """
        keys = {task.step: Step(task.step).key(self.stage, KeyedTask(task)) for task in tasks}
        finished, unsent = self._resume(tasks, keys)
        receipts = list(finished.values())
        pending: list[TableTask | SumTask] = []
        # A segment that is finished but was not sent before the run ended is sent now.
        for task in tasks:
            if task.step in finished:
                self.moved(task.bytes)
                if task.step in unsent:
                    self._send(task, keys[task.step], finished[task.step])
            elif isinstance(task, TableTask):
                pending.append(replace(task, attempts=str(self.stage.attempts)))
            else:
                pending.append(task)

        def record(task: TableTask | SumTask, receipt: Receipt) -> None:
            payload = receipt.model_dump(mode="json")
            self.stage.finish(task.step, keys[task.step], payload, receipt.files(task))
            receipts.append(receipt)
            self.moved(task.bytes)
            self._send(task, keys[task.step], receipt)

        if pending:
            memory_bytes = max(task.memory_bytes for task in pending)
            sizes = [task.bytes for task in pending]
            executor = executor_of(self.settings, self.stage, sizes, memory_bytes, self.sources)
            executor.run(carry_out, pending, record)
        return receipts

    def run_checked(
        self, tasks: Sequence[TableTask | SumTask], sources: Sequence[Source]
    ) -> list[Receipt]:
        """Runs tasks that together read whole variables, and checks what they read.

        Args:
          tasks: The tasks.
          sources: The variables that they read.

        Raises:
          ExportError: As in `run`, or a variable does not match its checksum.
        """
        receipts = self.run(tasks)
        if self.uploads is not None:
            self.uploads.finish()

        try:
            check_sources(sources, receipts)
        except CheckpointError as problem:
            # The checksum is of the whole variable: any of the tasks may have read the damage.
            for task in tasks:
                self.stage.forget(task.step)
            raise CheckpointError(
                f"{problem}; the tables are copied again by the next run"
            ) from problem
        return receipts

    def _send(self, task: TableTask | SumTask, key: str, receipt: Receipt) -> None:
        if self.uploads is None or not isinstance(task, TableTask):
            return
        payload = receipt.model_dump(mode="json")
        written = tuple(receipt.files(task))
        keep = task.table not in self.streamed
        self.uploads.send(FinishedStep(task.step, key, payload, written, keep))

    def _resume(
        self, tasks: Sequence[TableTask | SumTask], keys: Mapping[str, str]
    ) -> tuple[dict[str, Receipt], set[str]]:
        """Finds the tasks that an earlier run finished, and whose results are still there.

        Returns:
          The receipts of those tasks by their steps, and the steps whose files are to be sent.
        """
        # The journal compares the checksums of the files, so they are read.
        with ThreadPoolExecutor(CHECKERS) as pool:
            entries = pool.map(lambda task: self.stage.finished(task.step, keys[task.step]), tasks)
            steps = {task.step: step for task, step in zip(tasks, entries, strict=True) if step}
        sent_steps = set(steps)
        if self.uploads is not None:
            sent_steps = self.uploads.resume({step: entry.payload for step, entry in steps.items()})

        receipts: dict[str, Receipt] = {}
        for task in tasks:
            entry = steps.get(task.step)
            if entry is None:
                continue
            # A segment that was removed after it was sent, and is not in the store, is written
            # again; so is one that is in the store alone, but that a later step needs here.
            if isinstance(task, TableTask) and task.offset is None and not entry.files:
                in_store = task.step in sent_steps and task.table in self.streamed
                if not in_store:
                    continue
            receipt = Receipt.model_validate(without_objects(entry.payload))
            if is_current(task, receipt):
                receipts[task.step] = receipt

        segments = {task.step for task in tasks if isinstance(task, TableTask)}
        return receipts, segments & set(receipts) - sent_steps


def staged_bundle(
    checkpoint: Checkpoint,
    plan: ExportPlan,
    staged_version: StagedVersion,
    complete: manifest.Manifest,
    rows: int | None,
    judged: Mapping[str, StatedLayout],
    steps_from_rows: Sequence[str] = (),
) -> CheckedBundle:
    """Returns a staged bundle as its checks take it; the next run writes tables again in which they
    find a mistake.

    Args:
      checkpoint: The checkpoint that the tables were copied from.
      plan: The plan of the tables.
      staged_version: The version that is being made.
      complete: The manifest of the bundle.
      rows: The number of rows that are compared of each table; None: all.
      judged: How the stated layouts of tables are known.
      steps_from_rows: Steps that read rows of tables: they run again with any table.
    """
    open_table = None
    if staged_version.uploads is not None:
        open_table = staged_version.uploads.open_table

    def steps_of(name: str) -> list[str]:
        key = complete.tables[name].source.key
        steps = [task.step for task in plan.tasks if task.table == name]
        steps += [task.step for task in plan.unpacked if task.key == key]
        return [*steps, paths.key_index(name), *steps_from_rows]

    return CheckedBundle(
        staged_version.stage.directory,
        complete,
        checkpoint,
        rows,
        layouts=judged,
        linked={table.spec.name for table in plan.tables if table.linked},
        open_table=open_table,
        steps_of=steps_of,
    )


def publish_checked(
    staged_version: StagedVersion,
    bundle: CheckedBundle,
    tables: CopiedTables,
    notes: Sequence[str],
    progress: Progress,
    recorded: Collection[str] = (),
) -> Published:
    """Checks a staged bundle, and publishes it with a manifest that says what was compared, and
    what was not.

    Args:
      staged_version: The version that is being made.
      bundle: The staged bundle.
      tables: Its tables.
      notes: What the user should know of it.
      progress: Shows the steps.
      recorded: The features whose towers were compared with outputs that training recorded.

    Raises:
      VerificationFailed: A file differs from its source; the message names it, and the error has
        the steps to be done again.
      ExportError: It cannot be published.
    """
    with progress.step("checks"):
        compared = check_bundle(bundle, STAGED).tables
        complete = _verified(bundle.manifest, tables=dict(compared))
        complete = _verified(complete, unverified=unverified(complete, recorded))
    directory, load_notes = staged_version.publish(complete, progress)
    return Published(
        directory,
        complete,
        (*notes, *tables.reused.notes, *load_notes),
        staged_version.reused(complete, tables.reused),
    )


def _verified(complete: manifest.Manifest, **update: object) -> manifest.Manifest:
    verification = complete.verification.model_copy(update=update)
    return complete.model_copy(update={"verification": verification})


def executor_of(
    settings: ExportSettings,
    stage: Staging,
    sizes: Sequence[int],
    memory_bytes: int,
    sources: Iterable[str],
) -> LocalExecutor | RayExecutor:
    """Returns the executor of tasks. If no number of workers is set, a small job has one worker.

    Args:
      settings: Where tasks run, and how many at a time.
      stage: The staging directory, which workers must see as well as some of their sources.
      sizes: The bytes that each task moves.
      memory_bytes: The memory that one task takes.
      sources: The files that tasks read.
    """
    workers = settings.workers
    # What other workers could take over from the one that has the largest task.
    shared_bytes = sum(sizes) - max(sizes, default=0)
    if not workers and shared_bytes <= SMALL_JOB_BYTES:
        workers = 1
    if settings.executor == "local":
        return LocalExecutor(workers)
    # A worker on another machine shows by these files that it sees the same disks.
    token = stage.attempts / "seen"
    token.write_text(secrets.token_hex())
    files = [source for source in dict.fromkeys(sources) if not is_url(source)]
    shared = [str(token), *files[:_WITNESSES_MAX]]
    return RayExecutor(settings.executor, workers, memory_bytes, shared)
