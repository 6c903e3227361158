"""The steps that write towers in all their forms, and that compare them with the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bundle.errors import DigestMismatch
from bundle.features.reader import FeatureReader
from bundle.format import manifest
from bundle.storage.integrity import check_file
from bundle.tables.key_index import KeyIndex
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import Vocabulary
from export.errors import VerificationFailed
from export.front_end.interface import ReadRows
from export.jobs.bundle_context import BundleContext
from export.jobs.table_steps import CopiedTables
from export.report_text import NEEDS_TENSORFLOW, count_text
from export.towers.division import Split
from export.towers.files import TowerFiles
from export.verify import table_effects
from export.verify.examples import Examples
from export.verify.extensions import checked_extensions
from export.verify.hostile_comparisons import compare_on_hostile_numbers, compare_with_training
from export.verify.parity import check_towers, feature_values
from export.verify.reference_inputs import Reference
from export.verify.reference_model import checkpoint_rows, finite_results
from export.verify.repeated_runs import notes_on_eager_results
from export.verify.score_distributions import with_score_distributions
from export.verify.table_orders import check_table_orders


@dataclass(frozen=True)
class BundleFeatures:
    """The features of the bundle, read by the code that a service reads them with.

    Attributes:
      served: From the rows of the bundle.
      trained: From the rows of the checkpoint, where tables were converted.
      read_rows: Reads rows of a table from the checkpoint.
    """

    served: FeatureReader
    trained: FeatureReader
    read_rows: ReadRows


def open_features(
    context: BundleContext,
    tables: CopiedTables,
    vocabularies: Mapping[str, manifest.Vocabulary],
) -> BundleFeatures:
    """Opens the features of the bundle, whose tables and vocabularies are written."""
    entries = context.prepared.entries
    readers: dict[str, TableReader] = {
        name: context.staged.open_table(table) for name, table in tables.entries.items()
    }
    opened_vocabularies = {
        name: Vocabulary.open(context.directory / entry.file)
        for name, entry in vocabularies.items()
    }
    opened_keys = {
        name: KeyIndex(context.directory / entry.file, entry.size)
        for name, entry in tables.keys.items()
    }
    sources = {name: table.source for name, table in tables.entries.items()}
    read_rows = checkpoint_rows(context.prepared.checkpoint, sources)
    trained_tables = table_effects.trained_tables(tables.entries, read_rows)
    # The towers are compared on rows that were written, read as a service reads them: a mistake in
    # either shows as a difference from the model. What the conversion of rows changes is measured
    # apart, by rows as they were trained.
    served = FeatureReader(entries, readers, opened_vocabularies, opened_keys)
    trained = FeatureReader(entries, readers | trained_tables, opened_vocabularies, opened_keys)
    return BundleFeatures(served, trained, read_rows)


def write_towers(context: BundleContext) -> dict[str, manifest.Tower]:
    """Writes the forms of all towers, and of the parts that rankers are divided into; returns their
    entries in the manifest, before they are compared.
    """
    splits = context.prepared.splits
    traced = context.prepared.traced
    files = TowerFiles(context.stage, traced.original, context.notes)
    entries = {}
    for tower in traced.towers:
        name = tower.spec.name
        entries[name] = files.write(tower, splits.get(name, Split()), context.job)
    return entries


@dataclass(frozen=True)
class ComparedTowers:
    """Towers that were compared with the model.

    Attributes:
      entries: Their entries in the manifest.
      reference: The model, the examples, and the features as a service reads them.
      effects: What converted tables do to the towers that read them.
      hostile_examples: The number of examples with hostile numbers of each tower.
    """

    entries: dict[str, manifest.Tower]
    reference: Reference
    effects: dict[str, Any]
    hostile_examples: dict[str, int]


def compare_towers(
    context: BundleContext,
    entries: Mapping[str, manifest.Tower],
    features: BundleFeatures,
    tables: Mapping[str, manifest.Table],
    examples: Examples,
) -> ComparedTowers:
    """Compares written towers with the model.

    Args:
      context: The bundle while it is made.
      entries: The towers in the manifest, as `write_towers` returned them.
      features: The features of the bundle.
      tables: The tables in the manifest, written.
      examples: The examples of the recipe.

    Raises:
      VerificationFailed: A tower differs from the model by more than the recipe allows.
    """
    prepared = context.prepared
    traced = prepared.traced
    notes = context.notes
    directory = context.directory
    reference = Reference(
        context.job,
        prepared.base,
        traced.spec,
        traced.original.reference(prepared.inventory, directory / ".dense"),
        features.read_rows,
        examples,
        features.served,
        table_effects.converted(tables),
    )
    # The model may accept fewer of the synthetic examples than were made.
    reference, expected = finite_results(reference)
    check_table_orders(reference, expected)
    notes += notes_on_eager_results(reference, expected)
    if examples.with_known_ids is not None and reference.examples.with_known_ids is None:
        notes.append(
            "the model rejects invented ids that its tables lack, so what becomes of unknown ids "
            "is not verified: name real examples as verify.examples"
        )
    values = feature_values(reference, reference.features)
    compared = compare_on_hostile_numbers(reference, directory, entries, values, traced.towers)
    # A damaged file says nothing about its form, so those that are left out are whole.
    for path in sorted(set(forms_of(entries)) - set(forms_of(compared.towers))):
        for file in context.stage.files(path):
            try:
                check_file(directory, file)
            except DigestMismatch as problem:
                raise VerificationFailed(
                    f"file {file.path!r} changed after it was written: {problem}"
                ) from problem

    towers = compared.towers
    notes += compared.notes
    notes += compare_with_training(
        reference, features.trained, directory, towers, values, traced.towers
    )
    effects = table_effects.measure_effects(
        reference, features.trained, directory, towers, expected
    )
    towers = check_towers(reference, directory, towers, expected)
    towers, extension_notes = checked_extensions(reference, directory, towers)
    notes += extension_notes
    towers = with_score_distributions(towers, expected, context.job.verify)
    notes += _notes_of_tensorflow(towers)
    return ComparedTowers(towers, reference, effects, compared.examples)


def _notes_of_tensorflow(towers: Mapping[str, manifest.Tower]) -> list[str]:
    """Returns a note about the towers whose served form TensorFlow runs; no note without any."""
    names = [
        name
        for name, tower in towers.items()
        if not any((form.kind, form.precision) == ("litert", tower.serve) for form in tower.forms)
    ]
    if not names:
        return []
    return [
        f"TensorFlow runs {count_text(len(names), 'tower')} ({', '.join(names)}), and "
        f"{NEEDS_TENSORFLOW}: pip install 'rowcast[serve,savedmodel]'"
    ]


def forms_of(towers: Mapping[str, manifest.Tower]) -> list[str]:
    """Returns the paths of the forms of towers, and of their parts."""
    forms = [form.path for tower in towers.values() for form in tower.forms]
    parts = [part for tower in towers.values() for part in tower.all_parts]
    return [*forms, *[form.path for part in parts for form in part.forms]]
