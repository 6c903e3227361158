"""Only the tables of a checkpoint, without model code: a bundle without towers, whose tables answer lookups by row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bundle import manifest, paths, staging
from export import executors
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.recognition import recognise
from export.errors import UsageError
from export.plan import plan_tables
from export.progress import Progress
from export.settings import ExportSettings
from export.staged_tables import Published, copy_tables, created, provenance, staged
from export.verify import SAMPLE_ROWS, verify_tables


def export_tables(
    checkpoint_path: Path,
    root: Path,
    model: str,
    version: int | None,
    named: Mapping[str, str],
    settings: ExportSettings,
    progress: Progress,
) -> Published:
    """Copies, verifies and publishes every table that the checkpoint's metadata identifies or the user names.

    Args:
      checkpoint_path: directory, prefix or .index file.
      root: directory of the bundles.
      model: name of the bundle's model.
      version: of the bundle; None: the next free one.
      named: table -> variable, where metadata does not say; with it, tables that were not named are exported too.
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
    inventory = recognise(checkpoint, named)
    number = version or staging.next_version(root, model)
    plan = plan_tables(
        checkpoint,
        inventory,
        root / model / f".staging-{number}",
        budget_bytes=settings.budget_bytes,
        workers=executors.worker_count(settings.workers),
    )
    told = ["tables", inventory.fingerprint, *(f"{name}={key}" for name, key in sorted(named.items()))]
    with staged(root, model, number, told, []) as stage:
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
            features={name: manifest.EmbeddedFeature(kind="single", table=name, role="context") for name in tables},
            towers={},
            verification=manifest.Verification(tables=checks, examples=0, tolerance="no towers"),
            files=(),
        )
        notes = tuple(f"{each.name} is not exported: {each.reason}" for each in inventory.refused)
        return Published(stage.commit(page), page, notes)
