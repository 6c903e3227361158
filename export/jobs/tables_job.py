"""Only the tables of a checkpoint, without model code: a bundle without towers, whose tables answer
lookups by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bundle.format import manifest, paths
from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.inventory.specs import Inventory, Statements
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.errors import NotConvertible, UsageError
from export.jobs.destinations import Destination
from export.jobs.progress import Progress
from export.jobs.staged import Published, provenance, staged
from export.jobs.table_steps import checked, copy_tables, plan_copy, staged_subject
from export.recipe.settings import ExportSettings
from export.tables.key_indexes import write_key_indexes
from export.tables.plan import AS_STORED, ExportPlan, Writing, check_exportable
from export.verify.stated_layouts import judge_layouts
from export.verify.table_rows import SAMPLE_ROWS
from export.verify.trained_ids import trained_rows_of_tables
from object_store.locations import Location

NOTHING_SAID = Statements()
_CANDIDATES_SHOWN = 8
"""Variables that a note lists."""


@dataclass(frozen=True)
class TablesJob:
    """What the user asked for.

    Attributes:
      model: name of the bundle's model.
      version: of the bundle; None: the next free one.
      said: what the user says of tables where metadata does not; others that are identified are
        exported too.
      names: of the tables that are exported; () is all.
      how: how each is written.
      dtypes: (table, dtype of its rows in the bundle) where it is not that of `how`.
      accept_stated: whether tables are published whose layout is stated and not verified.
      trained_ids: (table, file of rows that training read), by which layouts are proved.
    """

    model: str = "tables"
    version: int | None = None
    said: Statements = NOTHING_SAID
    names: tuple[str, ...] = ()
    how: Writing = AS_STORED
    dtypes: tuple[tuple[str, str], ...] = ()
    accept_stated: bool = False
    trained_ids: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class PreparedTables:
    """A job that is known to be possible as far as that can be checked without writing.

    Attributes:
      wanted: names of the tables.
      notes: what is left out unasked, and why.
    """

    job: TablesJob
    checkpoint: Checkpoint
    inventory: Inventory
    wanted: tuple[str, ...]
    notes: tuple[str, ...]
    destination: Destination
    version: int
    plan: ExportPlan


def prepare_tables(
    checkpoint_path: Location, destination: Destination, job: TablesJob, settings: ExportSettings
) -> PreparedTables:
    """Opens the checkpoint and plans its tables; writes nothing.

    What is a table but cannot be exported is left out, and listed in the notes; not so a table that
    the user named.

    Args:
      checkpoint_path: directory, prefix or .index file.
      destination: of the bundle.
      job: what the user asked for.
      settings: how the job runs.

    Raises:
      NotConvertible: no table is identified; lists the candidates.
      ExportError: the job cannot be done as asked.
    """
    if not paths.is_name(job.model):
        raise UsageError(
            f"--model {job.model!r} is no name: letters, digits, '_', '.', '-', beginning with a "
            "letter or digit"
        )
    checkpoint = open_checkpoint(checkpoint_path)
    inventory = recognise(checkpoint, job.said)
    if job.trained_ids:
        known = [*(table.name for table in inventory.tables), *job.said.layouts]
        trained = trained_rows_of_tables(job.trained_ids, known)
        inventory = recognise(checkpoint, job.said, trained)
    notes = _left_out(inventory, job)
    wanted = _wanted(inventory, notes, job.names)
    for name, _ in job.dtypes:
        if name not in wanted:
            raise UsageError(
                f"--dtype {name}=...: no table of that name is exported; these are: "
                f"{', '.join(wanted)}"
            )
    number = job.version or destination.next_version(job.model)
    writing = {
        table.name: _how(job, table.name) for table in inventory.tables if table.name in wanted
    }
    plan = plan_copy(
        checkpoint,
        inventory,
        destination,
        destination.staging(job.model, number),
        writing,
        settings,
    )
    said = (*notes.values(), *_may_be_missing(inventory, plan, job))
    return PreparedTables(job, checkpoint, inventory, wanted, said, destination, number, plan)


def export_tables(
    prepared: PreparedTables, settings: ExportSettings, progress: Progress
) -> Published:
    """Writes, verifies and publishes the tables; resumes where an earlier run of the same job
    stopped.

    Raises:
      ExportError: whatever stops the job; nothing is published.
    """
    job = prepared.job
    plan = prepared.plan
    number = prepared.version
    judged = judge_layouts(
        prepared.checkpoint,
        prepared.inventory,
        prepared.wanted,
        recorded=(),
        accepted=job.accept_stated,
        remedy="give ids that occur in training (--trained-ids NAME=FILE), export with a recipe "
        "that has verify.expected, or accept the statement with --accept-stated-layouts",
    )
    with staged(prepared.destination, job.model, number, reuse=settings.reuse) as staged_version:
        stage = staged_version.stage
        begun = staged_version.begun(job, prepared.inventory.fingerprint)
        with progress.step("tables", plan.moved_bytes) as moved:
            tables, reused = copy_tables(plan, stage, settings, moved, staged_version.uploads)
            keys = write_key_indexes(
                prepared.checkpoint, [table.spec for table in plan.tables], stage
            )
        written = manifest.Manifest(
            model=job.model,
            version=number,
            created=begun,
            provenance=provenance(prepared.inventory, ""),
            tables=tables,
            keys=keys,
            features={name: _feature(name, keyed=name in keys) for name in prepared.wanted},
            towers={},
            verification=manifest.Verification(tables={}, examples=0, tolerance="no towers"),
            files=tuple(file for index in keys.values() for file in stage.digests(index.file)),
        )
        with progress.step("checks"):
            rows = None if settings.full else SAMPLE_ROWS
            subject = staged_subject(
                prepared.checkpoint, plan, staged_version, written, rows, judged
            )
            written = checked(subject)
        notes = (*prepared.notes, *prepared.plan.notes, *reused.notes)
        directory = staged_version.publish(written, progress)
        return Published(directory, written, notes, staged_version.reused(written, reused))


def _feature(table: str, *, keyed: bool) -> manifest.EmbeddedFeature:
    ids = manifest.KeyedIds(keys=table) if keyed else manifest.IdentityIds()
    return manifest.EmbeddedFeature(kind="single", table=table, role="context", ids=ids)


def _wanted(
    inventory: Inventory, notes: Mapping[str, str], names: Sequence[str]
) -> tuple[str, ...]:
    """Returns the tables that are exported; rejects a checkpoint without any, and a name that it
    does not have.
    """
    if names:
        return tuple(inventory.table(name).name for name in names)
    wanted = tuple(table.name for table in inventory.tables if table.name not in notes)
    if not wanted:
        reasons = "; ".join(["no table is identified", *notes.values()])
        raise NotConvertible(
            f"checkpoint {inventory.checkpoint}: {reasons}; {inventory.naming_help()}"
        )
    return wanted


def _may_be_missing(inventory: Inventory, plan: ExportPlan, job: TablesJob) -> list[str]:
    """Says which variables are not exported that may be tables: no record tells their class, but
    they are at least as large as a table that is exported.

    Keras 3 writes an Embedding that is an attribute of a model before `layers` in the alphabet
    under the attribute's name, without its class, and the others into the list of layers.
    """
    if job.names:
        return []
    smallest = min((table.bytes for table in plan.tables), default=0)
    large = sorted(
        (entry for entry in inventory.candidates if entry.bytes >= smallest),
        key=lambda entry: (-entry.bytes, entry.key),
    )
    if not large:
        return []
    shown = [f"{entry.key} {list(entry.shape)}" for entry in large[:_CANDIDATES_SHOWN]]
    more = f" and {len(large) - len(shown)} more" if len(large) > len(shown) else ""
    return [
        f"not exported, since the checkpoint does not say whether it is a table: {', '.join(shown)}"
        f"{more}; --table NAME=KEY exports one"
    ]


def _how(job: TablesJob, name: str) -> Writing:
    return replace(job.how, dtype=dict(job.dtypes).get(name, job.how.dtype))


def _left_out(inventory: Inventory, job: TablesJob) -> dict[str, str]:
    """Returns why tables are not exported, by their names; without those that the user named, which
    are rejected later.
    """
    asked = {*job.said.named, *job.said.mod, *job.said.layouts, *job.names}
    why = {
        each.name: f"{each.name!r} is not exported: {each.reason}" for each in inventory.rejected
    }
    for table in inventory.tables:
        try:
            check_exportable(table, _how(job, table.name))
        except NotConvertible as problem:
            if table.name not in asked:
                why[table.name] = f"not exported: {problem}"
    return why
