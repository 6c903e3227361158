"""What every job that writes tables does: stages, copies them with a journal, says what they come from."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version as installed_version

from bundle.errors import BundleError, DestinationExists, FeatureError, VersionBusy
from bundle.format import manifest, paths
from bundle.storage import staging
from export.checkpoint.datafiles import check_unchanged, stamps_of
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import Checkpoint
from export.errors import (
    CheckpointError,
    DestinationError,
    ExportError,
    UsageError,
    VerificationFailed,
)
from export.jobs import executors
from export.jobs.destinations import Destination, published_bytes
from export.jobs.leases import Lease
from export.jobs.progress import Progress
from export.jobs.space import check_space
from export.recipe.settings import ExportSettings
from export.steps import key_of, versions
from export.tables.key_indexes import check_key_indexes
from export.tables.links import link_files, linked_table
from export.tables.plan import ExportPlan
from export.tables.shards import Receipt, carry_out, check_sources, manifest_table
from export.tables.tasks import RestTask, TableTask
from export.verify.table_rows import verify_tables
from runtime.object_store import Place, is_url

SMALL_JOB_BYTES = 256 << 20
"""What a second worker could take off the first must be more, unless more are asked for: to start them takes longer."""

_WITNESSES_MAX = 8

_CURES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "; free some space, then run again: it resumes"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "; choose a root that can be written"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "; choose a root that is a directory, or is not there yet"),
}


@dataclass(frozen=True)
class Published:
    """A committed bundle."""

    directory: Place
    page: manifest.Manifest
    notes: tuple[str, ...]
    """What the user should know: towers that LiteRT cannot run, and why."""


@contextmanager
def told_as_export_errors() -> Iterator[None]:
    """Turns errors of the bundle and of the disk into those that carry an exit code."""
    try:
        yield
    except (DestinationExists, VersionBusy) as problem:
        raise DestinationError(str(problem)) from problem
    except FeatureError as problem:
        raise UsageError(f"an example or candidate does not fit: {problem}") from problem
    except BundleError as problem:
        raise ExportError(str(problem)) from problem
    except OSError as problem:
        cure = _CURES.get(problem.errno or 0, "")
        raise DestinationError(
            f"{problem.filename or 'the destination'}: {problem.strerror or problem}{cure}"
        ) from problem


@dataclass(frozen=True)
class Draft:
    """A version that is being made: where it is staged and where it goes."""

    stage: staging.Staging
    destination: Destination
    lease: Lease | None

    def publish(self, page: manifest.Manifest, progress: Progress) -> Place:
        """Publishes it; errors as of `Destination.publish`."""
        sent = self.destination.store is not None
        with progress.step(*(("upload", published_bytes(page)) if sent else ("commit",))) as moved:
            return self.destination.publish(self.stage, page, self.lease, moved)


@contextmanager
def staged(destination: Destination, model: str, version: int) -> Iterator[Draft]:
    """Opens the staging directory of a version. Whatever fails, what is finished stays there for the next run."""
    with (
        told_as_export_errors(),
        staging.Staging(destination.root, model, version) as stage,
        destination.held(model, version) as lease,
    ):
        try:
            yield Draft(stage, destination, lease)
        except VerificationFailed as problem:
            kept = f"nothing is published; {stage.directory} keeps what is finished, and the next run redoes the rest"
            raise VerificationFailed(f"{problem}; {kept}") from problem


def created(stage: staging.Staging, key: str) -> str:
    """Returns when the job of a key was begun: journaled, so that a resumed run writes the same page."""
    finished = stage.finished("created", key)
    if finished is not None:
        return str(finished.payload)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    stage.finish("created", key, now, [])
    return now


def copy_tables(
    plan: ExportPlan, stage: staging.Staging, settings: ExportSettings, moved: Callable[[int], None]
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

    def note(task: TableTask | RestTask, receipt: Receipt) -> None:
        stage.finish(task.step, keys[task.step], receipt.model_dump(mode="json"), receipt.files(task))
        receipts.append(receipt)
        moved(task.bytes)

    for task in plan.work:
        finished = stage.finished(task.step, keys[task.step])
        if finished is None:
            pending.append(replace(task, attempts=str(stage.attempts)) if isinstance(task, TableTask) else task)
        else:
            receipts.append(Receipt.model_validate(finished.payload))
            moved(task.bytes)
    unwritten = sum(task.bytes for task in pending if isinstance(task, TableTask))
    check_space(plan, stage.directory, plan.bytes - unwritten)

    sizes = sorted(task.bytes for task in pending)
    small = sum(sizes[:-1]) <= SMALL_JOB_BYTES
    executor = executors.open_executor(settings.executor, settings.workers or (1 if small else 0))
    memory_bytes = max((task.memory_bytes for task in pending), default=0)
    executor.run(carry_out, pending, note, memory_bytes=memory_bytes, shared=_shared(plan, stage))
    try:
        check_sources(plan, receipts)
    except CheckpointError as problem:
        for task in plan.work:
            stage.forget(task.step)
        raise CheckpointError(f"{problem}; the tables are copied again by the next run") from problem
    check_unchanged(stamps_of(part for table in plan.tables for part in table.slices))
    link_files(plan, stage.directory)
    tables = {
        table.spec.name: linked_table(table, plan.links) if table.linked else manifest_table(table, receipts)
        for table in plan.tables
    }
    for table in plan.tables:
        table.limits.check(table.spec.name, tables[table.spec.name].error)
    return tables


def compare_tables(
    checkpoint: Checkpoint,
    plan: ExportPlan,
    stage: staging.Staging,
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


def _apart_from_place(task: TableTask | RestTask) -> TableTask | RestTask:
    """Returns a task without what decides no byte of its shard."""
    plain = replace(task, directory="", attempts=None) if isinstance(task, TableTask) else task
    return replace(plain, block_bytes=0)


def _shared(plan: ExportPlan, stage: staging.Staging) -> list[str]:
    """Names files by which a worker on another machine tells that it sees this run, and its source."""
    token = stage.attempts / "seen"
    token.write_text(secrets.token_hex())
    sources = dict.fromkeys(part.file for table in plan.tables for part in table.slices)
    return [str(token), *[source for source in sources if not is_url(source)][:_WITNESSES_MAX]]


def provenance(inventory: Inventory, model_code: str) -> manifest.Provenance:
    """Says what is exported, by what."""
    return manifest.Provenance(
        checkpoint=inventory.checkpoint,
        step=inventory.step,
        fingerprint=inventory.fingerprint,
        model_code=model_code,
        exporter=f"rowcast {installed_version('rowcast')}",
        libraries=versions(),
    )
