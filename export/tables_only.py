"""Only the tables of a checkpoint, without model code: a bundle without towers, whose tables answer lookups by row."""

from __future__ import annotations

from collections.abc import Mapping

from bundle import manifest, paths
from export import executors
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.recognition import recognise
from export.checkpoint.slot_tables import with_slots
from export.checkpoint.specs import Inventory, Statements
from export.destinations import Destination
from export.errors import NotConvertible, UsageError
from export.plan import check_exportable, plan_tables
from export.progress import Progress
from export.settings import ExportSettings
from export.staged_tables import Published, copy_tables, created, provenance, staged
from export.verify import SAMPLE_ROWS, verify_tables
from runtime.remote import Place


def export_tables(
    checkpoint_path: Place,
    destination: Destination,
    model: str,
    version: int | None,
    said: Statements,
    keep_slots: bool,
    settings: ExportSettings,
    progress: Progress,
) -> Published:
    """Copies, verifies and publishes every table that the checkpoint's metadata identifies or the user names.

    What is a table but cannot be exported is left out, and told in the notes; not so a table that the user named.

    Args:
      checkpoint_path: directory, prefix or .index file.
      destination: of the bundle.
      model: name of the bundle's model.
      version: of the bundle; None: the next free one.
      said: what the user says of tables where metadata does not; others that are identified are exported too.
      keep_slots: whether the slot variables of tables are exported as well.
      settings: how the job runs.
      progress: shows the steps.

    Raises:
      NotConvertible: no table is identified; lists the candidates.
      ExportError: anything else that stops the job; nothing is published.
    """
    if not paths.is_name(model):
        raise UsageError(
            f"--model {model!r} is no name: letters, digits, '_', '.', '-', beginning with a letter or digit"
        )
    checkpoint = open_checkpoint(checkpoint_path)
    inventory = recognise(checkpoint, said)
    notes = _left_out(inventory, said)
    wanted = _wanted(inventory, notes)
    inventory = with_slots(checkpoint, inventory, wanted) if keep_slots else inventory
    number = version or destination.next_version(model)
    plan = plan_tables(
        checkpoint,
        inventory,
        destination.root / model / f".staging-{number}",
        tables=[table.name for table in inventory.tables if (table.slot_of or table.name) in wanted],
        budget_bytes=settings.budget_bytes,
        workers=executors.worker_count(settings.workers),
    )
    told = ["tables", inventory.fingerprint, repr(said), repr(keep_slots)]
    with staged(destination, model, number, told, []) as draft:
        stage = draft.stage
        begun = created(stage)
        with progress.step("tables", plan.moved_bytes) as moved:
            tables = copy_tables(plan, stage, settings, moved)
        with progress.step("rows compared"):
            checks = verify_tables(checkpoint, stage.directory, tables, None if settings.full else SAMPLE_ROWS)
        page = manifest.Manifest(
            model=model,
            version=number,
            created=begun,
            provenance=provenance(inventory, ""),
            tables=tables,
            features={name: manifest.EmbeddedFeature(kind="single", table=name, role="context") for name in wanted},
            towers={},
            verification=manifest.Verification(tables=checks, examples=0, tolerance="no towers"),
            files=(),
        )
        notes |= {table.name: f"table {table.name!r}: {table.note}" for table in inventory.tables if table.note}
        return Published(draft.publish(page, progress), page, tuple(notes.values()))


def _wanted(inventory: Inventory, notes: Mapping[str, str]) -> list[str]:
    """Returns the tables that are exported; refuses a checkpoint without any."""
    wanted = [table.name for table in inventory.tables if table.name not in notes]
    if not wanted:
        reasons = "; ".join(["no table is identified", *notes.values()])
        raise NotConvertible(f"checkpoint {inventory.checkpoint}: {reasons}; {inventory.naming_help()}")
    return wanted


def _left_out(inventory: Inventory, said: Statements) -> dict[str, str]:
    """Returns why tables are not exported, by their names; one that the user named is refused later instead."""
    why = {each.name: f"{each.name!r} is not exported: {each.reason}" for each in inventory.refused}
    asked = {*said.named, *said.mod, *(table.name for table in said.layouts)}
    for table in inventory.tables:
        try:
            check_exportable(table)
        except NotConvertible as problem:
            if table.name not in asked:
                why[table.name] = f"not exported: {problem}"
    return why
