"""The steps of a bundle, their order, its manifest and its commit.

prepare (export/jobs/preparation.py): recipe, checkpoint, trace, plan          touches nothing
run: vocabularies, corpora, examples, tables, towers, parity, vectors, indexes, rows, commit

What the user wrote by hand is read first: a mistake in it is reported before the first table is
copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bundle.errors import DigestMismatch
from bundle.features.reader import FeatureReader
from bundle.format import manifest, paths
from bundle.format.manifest import Manifest
from bundle.storage.integrity import check_file
from bundle.tables.key_index import KeyIndex
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import Vocabulary
from export.corpora.changes import read_changes
from export.errors import VerificationFailed
from export.front_end.interface import ReadRows
from export.jobs.bundle_context import BundleContext
from export.jobs.index_steps import IndexSteps
from export.jobs.preparation import Prepared, prepare
from export.jobs.progress import Progress
from export.jobs.provided_files import (
    write_contexts,
    write_corpora,
    write_lists,
    write_vocabularies,
    write_warm_up,
)
from export.jobs.staged import Published, open_staged, provenance
from export.jobs.table_steps import check_staged, copy_tables, staged_bundle
from export.recipe.settings import ExportSettings
from export.report_text import NEEDS_TENSORFLOW, count_text
from export.tables.key_indexes import write_key_indexes
from export.tables.older_versions import ReusedSegments
from export.towers.files import TowerFiles
from export.verify import table_effects
from export.verify.eager_results import notes_on_eager_results
from export.verify.examples import Examples
from export.verify.forms import TOLERANCE
from export.verify.hostile_forms import compare_on_hostile_numbers
from export.verify.parity import check_towers, feature_values
from export.verify.recipe_examples import examples_of
from export.verify.reference_inputs import Reference
from export.verify.reference_model import checkpoint_rows, finite_results
from export.verify.score_distributions import with_score_distributions
from export.verify.stated_layouts import StatedLayout, judge_recipe
from export.verify.table_orders import check_table_orders
from export.verify.trained_numbers import compare_with_training
from export.verify.unverified import features_behind

__all__ = ["Prepared", "prepare", "run"]


def run(prepared: Prepared, settings: ExportSettings, progress: Progress) -> Published:
    """Writes, verifies and publishes a bundle; resumes where an earlier run of the same job
    stopped.

    Args:
      prepared: The job.
      settings: How it runs.
      progress: Shows the steps.

    Raises:
      VerificationFailed: A file that was written is wrong; the files that passed their checks stay
        staged.
      ExportError: Nothing is published; what is finished stays staged for the next run.
    """
    job = prepared.job
    # A stated layout that nothing proves stops the job before anything is written.
    layouts = judge_recipe(
        job, prepared.checkpoint, prepared.inventory, prepared.traced.spec, prepared.entries
    )
    staging = open_staged(prepared.destination, job.model, prepared.version, reuse=settings.reuse)
    with staging as staged_version:
        notes = list(prepared.notes)
        changes = None
        if settings.with_changes is not None:
            changes = read_changes(settings.with_changes, job.model)
            notes += changes.notes({"corpora": job.corpora, "contexts": job.contexts})
        context = BundleContext(prepared, settings, staged_version, notes, changes)
        return _BundleSteps(context, progress).publish(layouts)


@dataclass(frozen=True)
class _Provided:
    """What came from the user's own files: entries of the manifest, and the examples."""

    corpora: dict[str, manifest.Corpus]
    contexts: dict[str, manifest.Corpus]
    lists: dict[str, manifest.CandidateList]
    warm_up: manifest.WarmUpRequests | None
    examples: Examples


@dataclass(frozen=True)
class _Tables:
    """Tables that were copied.

    Attributes:
      entries: Their entries in the manifest.
      keys: The entries of the indexes of their keys, where rows are found by keys.
      reused: The segments that they take from older versions.
    """

    entries: dict[str, manifest.Table]
    keys: dict[str, manifest.KeyIndex]
    reused: ReusedSegments


@dataclass(frozen=True)
class _Features:
    """The features of the bundle, read by the code that a service reads them with.

    Attributes:
      served: From the rows of the bundle.
      trained: From the rows of the checkpoint, where tables were converted.
      read_rows: Reads rows of a table from the checkpoint.
    """

    served: FeatureReader
    trained: FeatureReader
    read_rows: ReadRows


@dataclass(frozen=True)
class _Towers:
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


class _BundleSteps:
    """The steps of a bundle."""

    def __init__(self, context: BundleContext, progress: Progress) -> None:
        self.context = context
        self.progress = progress
        self.job = context.job
        self.prepared = context.prepared
        self.spec = context.prepared.traced.spec
        self.directory = context.directory
        self.notes = context.notes

    def publish(self, layouts: Mapping[str, StatedLayout]) -> Published:
        """Does the steps in order and commits.

        Args:
          layouts: How the stated layouts of tables are known.
        """
        staged_version = self.context.staged
        # A resumed run takes the time of the first one, so that both write the same manifest.
        created = staged_version.start_time(self.job, self.prepared.inventory.fingerprint)

        with self.progress.step("vocabularies"):
            vocabularies = write_vocabularies(self.context)
        provided = self._write_provided()
        tables = self._copy_tables()
        features = self._open_features(tables, vocabularies)
        towers = self._write_towers(tables, features, provided.examples)
        id_files = [entry.file for entry in vocabularies.values()]
        id_files += [entry.file for entry in tables.keys.values()]
        steps = IndexSteps(
            self.context,
            towers.reference,
            features.trained,
            towers.entries,
            provided.corpora,
            tables.entries,
            id_files,
        )
        with self.progress.step("vectors", steps.vector_count, unit="rows") as moved:
            steps.write_vectors(moved)
        with self.progress.step("indexes"):
            indexes = steps.write_indexes()
        with self.progress.step("stages"):
            stages = steps.measure_stages(indexes)

        complete = Manifest(
            model=self.job.model,
            version=self.prepared.version,
            created=created,
            provenance=provenance(self.prepared.inventory, self.job.code.factory),
            tables=self._with_recipe(tables.entries),
            vocabularies=vocabularies,
            keys=tables.keys,
            features=self.prepared.entries,
            unread_inputs=self.prepared.unread_inputs,
            towers=towers.entries,
            corpora=provided.corpora,
            contexts=provided.contexts,
            indexes=indexes,
            lists=provided.lists,
            stages=stages,
            warm_up=provided.warm_up,
            changes_included=self._included_changes(),
            # The checks add the tables that they compared: they read the bundle by this manifest.
            verification=manifest.Verification(
                tables={},
                examples=provided.examples.n,
                hostile_examples=towers.hostile_examples,
                tolerance=TOLERANCE,
                table_effect=towers.effects,
            ),
            files=self._files(tables, towers),
        )
        complete = self._check(complete, steps, towers.reference, layouts)
        features.served.close()
        return Published(
            staged_version.publish(complete, self.progress),
            complete,
            (*self.notes, *tables.reused.notes),
            staged_version.reused(complete, tables.reused),
        )

    def _write_provided(self) -> _Provided:
        """Converts the user's own files beside the vocabularies."""
        with self.progress.step("corpora", unit="rows") as moved:
            corpora = write_corpora(self.context, moved)
            contexts = write_contexts(self.context, moved)
            lists = write_lists(self.context, corpora)
            examples = examples_of(self.job, self.prepared.base, self.spec, self.prepared.entries)
            warm_up = write_warm_up(self.context)
        return _Provided(corpora, contexts, lists, warm_up, examples)

    def _copy_tables(self) -> _Tables:
        """Copies the rows of tables out of the checkpoint, and indexes their keys."""
        context = self.context
        plan = self.prepared.plan
        with self.progress.step("tables", plan.moved_bytes) as moved:
            entries, reused = copy_tables(
                plan, context.stage, context.settings, moved, context.staged.uploads
            )
            # Rows of a dump are found by its keys, not by their numbers.
            specs = [table.spec for table in plan.tables]
            keys = write_key_indexes(self.prepared.checkpoint, specs, context.stage)
        return _Tables(entries, keys, reused)

    def _open_features(
        self, tables: _Tables, vocabularies: Mapping[str, manifest.Vocabulary]
    ) -> _Features:
        """Opens the features of the bundle."""
        entries = self.prepared.entries
        readers: dict[str, TableReader] = {
            name: self.context.staged.open_table(table) for name, table in tables.entries.items()
        }
        opened_vocabularies = {
            name: Vocabulary.open(self.directory / entry.file)
            for name, entry in vocabularies.items()
        }
        opened_keys = {
            name: KeyIndex(self.directory / entry.file, entry.size)
            for name, entry in tables.keys.items()
        }
        sources = {name: table.source for name, table in tables.entries.items()}
        read_rows = checkpoint_rows(self.prepared.checkpoint, sources)
        trained_tables = table_effects.trained_tables(tables.entries, read_rows)
        # The towers are compared on rows that were written, read as a service reads them: a mistake
        # in either shows as a difference from the model. What the conversion of rows changes is
        # measured apart, by rows as they were trained.
        served = FeatureReader(entries, readers, opened_vocabularies, opened_keys)
        trained = FeatureReader(entries, readers | trained_tables, opened_vocabularies, opened_keys)
        return _Features(served, trained, read_rows)

    def _write_towers(self, tables: _Tables, features: _Features, examples: Examples) -> _Towers:
        """Writes the towers in all their forms, and compares them with the model."""
        with self.progress.step("towers"):
            entries = self._write_forms()
        with self.progress.step("parity"):
            original = self.prepared.traced.original.reference(
                self.prepared.inventory, self.directory / ".dense"
            )
            reference = Reference(
                self.job,
                self.prepared.base,
                self.spec,
                original,
                features.read_rows,
                examples,
                features.served,
                table_effects.converted(tables.entries),
            )
            # The model may accept fewer of the synthetic examples than were made.
            reference, expected = finite_results(reference)
            check_table_orders(reference, expected)
            self.notes += notes_on_eager_results(reference, expected)
            if examples.with_known_ids is not None and reference.examples.with_known_ids is None:
                self.notes.append(
                    "the model rejects invented ids that its tables lack, so what becomes of "
                    "unknown ids is not verified: name real examples as verify.examples"
                )
            values = feature_values(reference, reference.features)
            compared = compare_on_hostile_numbers(
                reference, self.directory, entries, values, self.prepared.traced.towers
            )
            self._check_left_out(entries, compared.towers)
            entries = compared.towers
            self.notes += compared.notes
            self.notes += compare_with_training(
                reference,
                features.trained,
                self.directory,
                entries,
                values,
                self.prepared.traced.towers,
            )
            effects = table_effects.measure_effects(
                reference, features.trained, self.directory, entries, expected
            )
            entries = check_towers(reference, self.directory, entries, expected)
            entries = with_score_distributions(entries, expected, self.job.verify)
            self.notes += _notes_of_tensorflow(entries)
        return _Towers(entries, reference, effects, compared.examples)

    def _write_forms(self) -> dict[str, manifest.Tower]:
        """Writes the forms of all towers, and of the parts that rankers are divided into."""
        splits = self.prepared.splits
        files = TowerFiles(self.context.stage, self.prepared.traced.original, self.notes)
        entries = {}
        for tower in self.prepared.traced.towers:
            name = tower.spec.name
            parts = splits[name].parts if name in splits else ()
            entries[name] = files.write(tower, parts, self.job)
        return entries

    def _with_recipe(self, entries: Mapping[str, manifest.Table]) -> dict[str, manifest.Table]:
        """Returns the entries of tables with what the recipe chooses beside their rows."""
        chosen = dict(entries)
        for name, section in self.job.tables.items():
            if name in chosen:
                update = {"unavailable": section.unavailable}
                chosen[name] = chosen[name].model_copy(update=update)
        return chosen

    def _check_left_out(
        self, towers: Mapping[str, manifest.Tower], remaining: Mapping[str, manifest.Tower]
    ) -> None:
        """Checks that forms which differ from the model are as they were written: a damaged file
        says nothing about its form.

        Raises:
          VerificationFailed: A file has other bytes than were written.
        """
        left_out = set(_forms_of(towers)) - set(_forms_of(remaining))
        for path in sorted(left_out):
            for file in self.context.stage.files(path):
                try:
                    check_file(self.directory, file)
                except DigestMismatch as problem:
                    raise VerificationFailed(
                        f"file {file.path!r} changed after it was written: {problem}"
                    ) from problem

    def _included_changes(self) -> int | None:
        """Returns the number of the last change that the bundle contains; None: it has none."""
        if self.context.changes is None:
            return None
        return self.context.changes.sequence

    def _files(self, tables: _Tables, towers: _Towers) -> tuple[manifest.File, ...]:
        """Returns the files of the bundle with their checksums, in the order of the steps."""
        # The journal has the checksums: no file is read again. Rows of tables have theirs in the
        # entries of the tables.
        key_indexes = [entry.file for entry in tables.keys.values()]
        steps = [*self.context.staged.steps, *key_indexes, *_forms_of(towers.entries)]
        return tuple(file for step in steps for file in self.context.stage.files(step))

    def _check(
        self,
        complete: Manifest,
        steps: IndexSteps,
        reference: Reference,
        layouts: Mapping[str, StatedLayout],
    ) -> Manifest:
        """Checks the staged bundle; returns its manifest with what was verified."""
        rows: int | None = self.job.verify.rows
        if self.context.settings.full:
            # All rows are compared.
            rows = None
        owners = steps.vector_owners
        # These steps read rows, so they run again if a check finds that rows are wrong.
        steps_from_rows = [
            *map(paths.index_vectors, owners.values()),
            *map(paths.index_directory, owners),
            *[paths.index_codes(name) for name, index in complete.indexes.items() if index.codes],
        ]
        with self.progress.step("checks"):
            bundle = staged_bundle(
                self.prepared.checkpoint,
                self.prepared.plan,
                self.context.staged,
                complete,
                rows,
                layouts,
                steps_from_rows,
            )
            # Stores hold the files of the recipe with these changes, so checks need both.
            bundle = replace(bundle, reference=reference, changes=self.context.changes)
            recorded = features_behind(self.job.verify.expected, self.spec.towers)
            return check_staged(bundle, recorded)


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
        f"{NEEDS_TENSORFLOW}: pip install '.[serve,savedmodel]'"
    ]


def _forms_of(towers: Mapping[str, manifest.Tower]) -> list[str]:
    """Returns the paths of the forms of towers, and of their parts."""
    forms = [form.path for tower in towers.values() for form in tower.forms]
    parts = [part for tower in towers.values() for part in tower.parts]
    return [*forms, *[form.path for part in parts for form in part.forms]]
