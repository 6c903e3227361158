"""Verifies a published bundle again, by itself or against its checkpoint or recipe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bundle.features.reader import open_features
from bundle.format.manifest import Manifest
from bundle.storage.catalog import read_manifest
from export.checkpoint.reader import Checkpoint
from export.corpora.changes import read_changes
from export.errors import UsageError
from export.front_end_choice import open_job
from export.recipe.schema import ExportJob
from export.verify.checks import (
    OF_BUNDLE,
    OF_MODEL,
    CheckedBundle,
    Findings,
    check_bundle,
    raising_verification_failed,
)
from export.verify.recipe_examples import examples_of
from export.verify.reference_inputs import Reference
from export.verify.reference_model import checkpoint_rows, finite_results
from export.verify.stated_layouts import StatedLayout
from export.verify.table_effects import converted
from export.verify.table_orders import check_table_orders
from export.verify.table_rows import SAMPLE_ROWS
from export.verify.trained_ids import trained_rows


class Verified(NamedTuple):
    """A bundle, and what its checks found in order."""

    bundle: Path
    manifest: Manifest
    findings: Findings


def verify_bundle(
    bundle: Path, checkpoint: Checkpoint | None = None, *, full: bool = False
) -> Verified:
    """Verifies a bundle, and with a checkpoint its rows.

    Args:
      bundle: The bundle's directory.
      checkpoint: The checkpoint that the tables come from; None: rows are not compared.
      full: Whether every row is compared, not a sample.

    Raises:
      UsageError: The directory holds no bundle.
      VerificationFailed: A file cannot be read, differs from its checksum or does not open, or a
        row is not the checkpoint's.
    """
    checked = _checked_bundle(bundle, checkpoint, full=full)
    return Verified(bundle, checked.manifest, check_bundle(checked, OF_BUNDLE))


def verify_against_recipe(
    bundle: Path,
    job: ExportJob,
    base: Path,
    *,
    full: bool = False,
    with_changes: Path | None = None,
) -> Verified:
    """Verifies a bundle against the checkpoint, the model and the corpora of its recipe.

    Args:
      bundle: The bundle's directory.
      job: The recipe that the bundle was exported by.
      base: The recipe's folder.
      full: Whether every row is compared, not a sample.
      with_changes: The changes file that the bundle was exported with, or a backup of it, as it is
        now; None: it was exported with none.

    Raises:
      UsageError: The directory holds no bundle, or the recipe is of another model, or has not the
        bundle's towers, or the changes are not those that it was exported with.
      VerificationFailed: `verify_bundle` fails; or a tower or a candidate is not the model's, or an
        index finds less than its manifest says.
      ExportError: The checkpoint or the model code is not what it was.
    """
    front_end, job, checkpoint = open_job(job, base)
    checked = _checked_bundle(bundle, checkpoint, full=full)
    manifest = checked.manifest
    if job.model != manifest.model or set(manifest.towers) != set(job.towers):
        raise UsageError(
            f"the recipe is of model {job.model!r} with towers {', '.join(sorted(job.towers))}; "
            f"the bundle is of {manifest.model!r} with "
            f"{', '.join(sorted(manifest.towers)) or 'none'}; give the recipe that it was exported "
            "by"
        )
    # What needs no model is checked before its code runs, which may take minutes.
    findings = check_bundle(checked, OF_BUNDLE)

    traced = front_end.partition(job, base, checkpoint)
    spec = traced.spec
    examples = examples_of(job, base, spec, manifest.features)
    sources = {name: table.source for name, table in manifest.tables.items()}
    with TemporaryDirectory(prefix="rowcast-") as directory, raising_verification_failed():
        trained = trained_rows(job, base, spec, manifest.features)
        inventory = traced.original.find_tables(trained)
        original = traced.original.reference(inventory, Path(directory, "dense"))
        read_rows = checkpoint_rows(checkpoint, sources)
        features = open_features(bundle, manifest)
        reference = Reference(
            job,
            base,
            spec,
            original,
            read_rows,
            examples,
            features,
            converted(manifest.tables),
        )
        reference, expected = finite_results(reference)
        check_table_orders(reference, expected)

        changes = None
        if with_changes is not None:
            changes = read_changes(with_changes, job.model, manifest.changes_included)
        checked = replace(checked, reference=reference, expected=expected, changes=changes)
        of_model = check_bundle(checked, OF_MODEL)
        features.close()
    findings = replace(findings, examples=of_model.examples, recall=of_model.recall)
    return Verified(bundle, manifest, findings)


def _checked_bundle(bundle: Path, checkpoint: Checkpoint | None, *, full: bool) -> CheckedBundle:
    """Returns a published bundle as its checks take it, without the original model."""
    with raising_verification_failed():
        # `rowcast-export run` publishes SavedModels, too, so a user may expect to verify one.
        if (bundle / "saved_model.pb").is_file():
            raise UsageError(
                f"{bundle} is a SavedModel, no bundle; assets.extra/rowcast.json in it records how "
                "it was proved before it was published"
            )
        manifest = read_manifest(bundle)

    # Layouts were judged before the tables were copied; the report repeats the manifest.
    table_checks = manifest.verification.tables
    return CheckedBundle(
        bundle,
        manifest,
        checkpoint,
        rows=None if full else SAMPLE_ROWS,
        layouts={
            name: StatedLayout(check.stated_layout, check.padding, check.trained_ids)
            for name, check in table_checks.items()
        },
    )
