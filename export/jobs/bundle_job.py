"""The steps of a bundle, their order, its manifest and its commit.

prepare (export/jobs/preparation.py): recipe, checkpoint, trace, plan          touches nothing
run: vocabularies, corpora, examples, tables, towers, parity, vectors, indexes, rows, commit

What the user wrote by hand is read first: a mistake in it is reported before the first table is
copied.
"""

from __future__ import annotations

from dataclasses import replace

from bundle.format import manifest, paths
from export.bounds import TOLERANCE
from export.corpora.changes import read_changes
from export.jobs import provided_files, tower_steps
from export.jobs.bundle_context import BundleContext
from export.jobs.index_steps import IndexSteps
from export.jobs.preparation import Prepared, prepare
from export.jobs.progress import Progress
from export.jobs.staged import Published, open_staged, provenance
from export.jobs.table_steps import copy_tables, publish_checked, staged_bundle
from export.recipe.settings import ExportSettings
from export.steps import Written
from export.verify.recipe_examples import examples_of
from export.verify.stated_layouts import judge_recipe
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
    model = prepared.traced.spec
    inventory = prepared.inventory
    # A stated layout that nothing proves stops the job before anything is written.
    layouts = judge_recipe(job, prepared.checkpoint, inventory, model, prepared.entries)
    staging = open_staged(
        prepared.destination,
        job.model,
        prepared.version,
        reuse=settings.reuse,
        signer=settings.signer,
        loads=settings.load,
    )
    with staging as staged_version:
        notes = list(prepared.notes)
        changes = None
        changes_included = None
        if settings.with_changes is not None:
            changes = read_changes(settings.with_changes, job.model)
            changes_included = changes.last
            notes += changes.notes({"corpora": job.corpora, "contexts": job.contexts})
        context = BundleContext(prepared, settings, staged_version, notes, changes)
        # A resumed run takes the time of the first one, so that both write the same manifest.
        created = staged_version.start_time(job, inventory.fingerprint)

        with progress.step("vocabularies"):
            vocabularies = provided_files.write_vocabularies(context)
        with progress.step("corpora", unit="rows") as moved:
            corpora = provided_files.write_corpora(context, moved)
            contexts = provided_files.write_contexts(context, moved)
            lists = provided_files.write_lists(context, corpora)
            examples = examples_of(job, prepared.base, model, prepared.entries)
            warm_up = provided_files.write_warm_up(context, examples)

        tables = copy_tables(prepared.checkpoint, prepared.plan, staged_version, settings, progress)
        features = tower_steps.open_features(context, tables, vocabularies)
        with progress.step("towers"):
            forms = tower_steps.write_towers(context)
        with progress.step("parity"):
            towers = tower_steps.compare_towers(context, forms, features, tables.entries, examples)

        key_indexes = [entry.file for entry in tables.keys.values()]
        id_files = [*key_indexes, *(entry.file for entry in vocabularies.values())]
        steps = IndexSteps(
            context,
            towers.reference,
            features.trained,
            towers.entries,
            corpora,
            tables.entries,
            [Written(file) for file in id_files],
        )
        with progress.step("vectors", steps.vector_count, unit="rows") as moved:
            steps.write_vectors(moved)
        with progress.step("indexes"):
            indexes = steps.write_indexes()
        with progress.step("stages"):
            stages = steps.measure_stages(indexes)

        # What the recipe chooses beside the rows of tables.
        entries = dict(tables.entries)
        for name, section in job.tables.items():
            if name in entries:
                update = {"unavailable": section.unavailable}
                entries[name] = entries[name].model_copy(update=update)
        # The journal has the checksums: no file is read again. Rows of tables have theirs in the
        # entries of the tables.
        written = [*staged_version.steps, *key_indexes, *tower_steps.forms_of(towers.entries)]
        complete = manifest.Manifest(
            model=job.model,
            version=prepared.version,
            created=created,
            provenance=provenance(inventory, job.code.factory),
            tables=entries,
            vocabularies=vocabularies,
            keys=tables.keys,
            features=prepared.entries,
            unread_inputs=prepared.unread_inputs,
            towers=towers.entries,
            corpora=corpora,
            contexts=contexts,
            indexes=indexes,
            lists=lists,
            stages=stages,
            warm_up=warm_up,
            changes_included=changes_included,
            # The checks add the tables that they compared: they read the bundle by this manifest.
            verification=manifest.Verification(
                tables={},
                examples=examples.n,
                hostile_examples=towers.hostile_examples,
                tolerance=TOLERANCE,
                table_effect=towers.effects,
            ),
            files=tuple(file for step in written for file in context.stage.files(step)),
        )
        # These steps read rows, so they run again if a check finds that rows are wrong.
        owners = steps.vector_owners
        steps_from_rows = [
            *map(paths.index_vectors, owners.values()),
            *[index.directory for index in indexes.values()],
            *[paths.index_codes(name) for name, index in indexes.items() if index.codes],
        ]
        bundle = staged_bundle(
            prepared.checkpoint,
            prepared.plan,
            staged_version,
            complete,
            None if settings.full else job.verify.rows,
            layouts,
            steps_from_rows,
        )
        # Stores hold the files of the recipe with these changes, so checks need both.
        bundle = replace(bundle, reference=towers.reference, changes=changes)
        recorded = features_behind(job.verify.expected, model.towers)
        published = publish_checked(staged_version, bundle, tables, notes, progress, recorded)
        features.served.close()
        return published
