"""Only the tables of a checkpoint, without model code: a bundle without towers, whose tables are
looked up by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bundle.format import manifest, paths
from bundle.shown_values import shown_first
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Inventory, Statements
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.checkpoint.trained_rows import NO_ROWS, TrainedRows
from export.errors import NotConvertible, UsageError
from export.jobs.destinations import Destination
from export.jobs.progress import Progress
from export.jobs.staged import Published, open_staged, provenance
from export.jobs.table_steps import copy_tables, plan_copy, publish_checked, staged_bundle
from export.recipe.settings import ExportSettings
from export.tables.plan import AS_STORED, ExportPlan, WriteOptions, check_exportable
from export.verify.stated_layouts import judge_layouts
from export.verify.table_rows import SAMPLE_ROWS
from export.verify.trained_ids import check_trained_tables, trained_rows_of_tables
from object_store.locations import Location

NO_STATEMENTS = Statements()
_LISTED_CANDIDATES_MAX = 8
"""The maximum number of variables that a note lists."""


@dataclass(frozen=True)
class TablesJob:
    """What the user requested.

    Attributes:
      model: The name of the bundle's model.
      version: The version of the bundle; None: the next free one.
      statements: What the user states of tables where metadata does not. Other tables that are
        identified are exported, too.
      names: The names of the tables that are exported; (): all.
      writing: How each table is written.
      dtypes: (table, dtype of its rows in the bundle) where it is not that of `writing`.
      accept_stated: Whether tables are published whose layout is stated and not verified.
      trained_ids: (table, file of rows that training read), by which layouts are proved.
    """

    model: str = "tables"
    version: int | None = None
    statements: Statements = NO_STATEMENTS
    names: tuple[str, ...] = ()
    writing: WriteOptions = AS_STORED
    dtypes: tuple[tuple[str, str], ...] = ()
    accept_stated: bool = False
    trained_ids: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class PreparedTables:
    """A job that is known to be possible as far as that can be checked without writing.

    Attributes:
      job: What the user requested.
      checkpoint: The open checkpoint.
      inventory: The tables that the checkpoint holds.
      names: The names of the tables that are exported.
      notes: The tables and variables that are left out, and why.
      destination: Where the bundle goes.
      version: The version of the bundle.
      plan: How the tables are copied.
    """

    job: TablesJob
    checkpoint: Checkpoint
    inventory: Inventory
    names: tuple[str, ...]
    notes: tuple[str, ...]
    destination: Destination
    version: int
    plan: ExportPlan


def prepare_tables(
    checkpoint_path: Location, destination: Destination, job: TablesJob, settings: ExportSettings
) -> PreparedTables:
    """Opens the checkpoint and plans its tables; writes nothing.

    A table that cannot be exported is left out, and listed in the notes, unless the user named it.

    Args:
      checkpoint_path: A directory, prefix or .index file.
      destination: Where the bundle goes.
      job: What the user requested.
      settings: How the job runs.

    Raises:
      NotConvertible: No table is identified; the message lists the candidates.
      ExportError: The job cannot be done as requested.
    """
    if not paths.is_name(job.model):
        raise UsageError(
            f"--model {job.model!r} is no name: letters, digits, '_', '.', '-', beginning with a "
            "letter or digit"
        )
    checkpoint = open_checkpoint(checkpoint_path)
    trained: Mapping[str, TrainedRows] = NO_ROWS
    if job.trained_ids:
        # Without what the user states, which may be right only by these ids.
        table_names = [table.name for table in recognize(checkpoint).tables]
        table_names += [*job.statements.named, *job.statements.layouts]
        trained = trained_rows_of_tables(job.trained_ids, table_names)
    inventory = recognize(checkpoint, job.statements, trained)
    check_trained_tables(
        job.trained_ids, [*(table.name for table in inventory.tables), *job.statements.layouts]
    )
    # A table that the user named must be exported; others may be left out with a note.
    left_out = _left_out(inventory, job)
    names = _exported_names(inventory, left_out, job.names)
    for name, _ in job.dtypes:
        if name not in names:
            raise UsageError(
                f"--dtype {name}=...: no table of that name is exported; these are: "
                f"{', '.join(names)}"
            )
    version = job.version or destination.next_version(job.model)
    writing = {
        table.name: _writing_of(job, table.name)
        for table in inventory.tables
        if table.name in names
    }
    plan = plan_copy(
        checkpoint,
        inventory,
        destination,
        destination.staging(job.model, version),
        writing,
        settings,
    )
    notes = (*left_out.values(), *_possible_tables(inventory, plan, job))
    return PreparedTables(job, checkpoint, inventory, names, notes, destination, version, plan)


def export_tables(
    prepared: PreparedTables, settings: ExportSettings, progress: Progress
) -> Published:
    """Writes, verifies and publishes the tables; resumes where an earlier run of the same job
    stopped.

    Raises:
      ExportError: The job cannot be done; nothing is published.
    """
    job = prepared.job
    plan = prepared.plan
    version = prepared.version
    # Without a model, only ids that training read can prove a stated layout.
    layouts = judge_layouts(
        prepared.checkpoint,
        prepared.inventory,
        prepared.names,
        recorded=(),
        accepted=job.accept_stated,
        remedy="give ids that occur in training (--trained-ids NAME=FILE), export with a recipe "
        "that has verify.expected, or accept the statement with --accept-stated-layouts",
    )
    # No service loads it first: nothing is computed with tables alone, and the checks open them by
    # the code that a service opens them with.
    with open_staged(
        prepared.destination, job.model, version, reuse=settings.reuse, signer=settings.signer
    ) as staged_version:
        stage = staged_version.stage
        created = staged_version.start_time(job, prepared.inventory.fingerprint)
        tables = copy_tables(prepared.checkpoint, plan, staged_version, settings, progress)
        keys = tables.keys
        written = manifest.Manifest(
            model=job.model,
            version=version,
            created=created,
            provenance=provenance(prepared.inventory, ""),
            tables=tables.entries,
            keys=keys,
            features={name: _feature(name, keyed=name in keys) for name in prepared.names},
            towers={},
            verification=manifest.Verification(tables={}, examples=0, tolerance="no towers"),
            files=tuple(file for index in keys.values() for file in stage.files(index.file)),
        )
        rows = None if settings.full else SAMPLE_ROWS
        bundle = staged_bundle(prepared.checkpoint, plan, staged_version, written, rows, layouts)
        notes = (*prepared.notes, *plan.notes)
        return publish_checked(staged_version, bundle, tables, notes, progress)


def _feature(table: str, *, keyed: bool) -> manifest.EmbeddedFeature:
    ids: manifest.IdRule = manifest.IDENTITY
    if keyed:
        ids = manifest.KeyedIds(keys=table)
    return manifest.EmbeddedFeature(kind="single", table=table, role="context", ids=ids)


def _exported_names(
    inventory: Inventory, left_out: Mapping[str, str], names: Sequence[str]
) -> tuple[str, ...]:
    """Returns the names of the tables that are exported.

    Args:
      inventory: The tables of the checkpoint.
      left_out: Why tables cannot be exported, by their names.
      names: The tables that the user named; (): all that can be exported.

    Raises:
      NotConvertible: The checkpoint has no table that can be exported.
      UsageError: It has no table of a name.
    """
    if names:
        return tuple(inventory.table(name).name for name in names)
    exported = tuple(table.name for table in inventory.tables if table.name not in left_out)
    if not exported:
        reasons = "; ".join(["no table is identified", *left_out.values()])
        raise NotConvertible(
            f"checkpoint {inventory.checkpoint}: {reasons}; {inventory.naming_help()}"
        )
    return exported


def _possible_tables(inventory: Inventory, plan: ExportPlan, job: TablesJob) -> list[str]:
    """Lists the variables that may be tables and are not exported: the checkpoint does not record
    their class, but they are at least as large as a table that is exported.

    Keras 3 writes an Embedding that is an attribute of a model before `layers` in the alphabet
    under the attribute's name, without its class, and the others into the list of layers.
    """
    if job.names:
        return []
    # Smaller variables are most likely biases and the like.
    smallest = min((table.bytes for table in plan.tables), default=0)
    large = sorted(
        (entry for entry in inventory.candidates if entry.bytes >= smallest),
        key=lambda entry: (-entry.bytes, entry.key),
    )
    if not large:
        return []
    variables = [f"{entry.key} {list(entry.shape)}" for entry in large]
    return [
        "not exported, since the checkpoint does not say whether it is a table: "
        f"{shown_first(variables, _LISTED_CANDIDATES_MAX)}; --table NAME=KEY exports one"
    ]


def _writing_of(job: TablesJob, name: str) -> WriteOptions:
    return replace(job.writing, dtype=dict(job.dtypes).get(name, job.writing.dtype))


def _left_out(inventory: Inventory, job: TablesJob) -> dict[str, str]:
    """Returns why tables are not exported, by their names; without those that the user named, which
    are rejected later.
    """
    statements = job.statements
    named = {*statements.named, *statements.mod, *statements.layouts, *job.names}
    reasons = {
        table.name: f"{table.name!r} is not exported: {table.reason}"
        for table in inventory.rejected
    }
    for table in inventory.tables:
        try:
            check_exportable(table, _writing_of(job, table.name))
        except NotConvertible as problem:
            if table.name not in named:
                reasons[table.name] = f"not exported: {problem}"
    return reasons
