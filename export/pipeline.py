"""The order of steps, resume, manifest and commit at the end; no arithmetic, no I/O of its own.

prepare: recipe, checkpoint, trace, plan          touches nothing
Assembly: vocabularies, candidates, examples, tables, towers, replay, vectors, indexes, rows, commit

What the user wrote by hand is read first: a mistake in it is told before the first table is copied.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from bundle import manifest, paths
from bundle.features import FeatureReader
from bundle.manifest import Manifest
from bundle.tables import TableReader
from bundle.vocabularies import Vocabulary
from export import candidates, executors, indexes, replay, table_effects
from export.checkpoint.reader import Checkpoint
from export.checkpoint.specs import Inventory
from export.compiled import compile_tower
from export.conversions import ErrorLimits
from export.corpora.files import locate_corpus
from export.dense_copy import local_prefix
from export.destinations import Destination, open_destination
from export.errors import UsageError
from export.examples import Examples
from export.feature_pages import describe_features, model_vocabularies
from export.model_checks import check_page, examples_of
from export.model_tables import recognise_tables
from export.oracle import Replay, checkpoint_rows, replay_original
from export.plan import ExportPlan, Writing, plan_tables
from export.progress import Progress
from export.roots import open_job
from export.run_settings import ExportSettings
from export.savedmodels import write_saved_model
from export.settings import ExportJob, TablePart
from export.space import check_space
from export.staged_tables import Draft, Published, copy_tables, created, provenance, staged
from export.subset import ALL, NOTHING, LeftOut, Wanted, choose_towers, left_out, reduced
from export.towers import ModelSpec, check_limits, describe_tower
from export.tracing import TracedModel, trace_towers
from export.verify import verify_tables
from export.vocabularies import write_model_vocabulary, write_vocabulary
from export.weights import find_weights
from runtime.tower_inputs import tower_inputs
from runtime.towers import open_tower

_ENCODERS = 4
"""Processes that encode blocks of an index unless told otherwise: each holds up to half a GB."""


@dataclass(frozen=True)
class Prepared:
    """A job that is known to be possible as far as can be told without writing."""

    job: ExportJob
    base: Path
    checkpoint: Checkpoint
    inventory: Inventory
    traced: TracedModel
    pages: dict[str, manifest.Feature]
    destination: Destination
    version: int
    plan: ExportPlan
    left_out: LeftOut


def prepare(
    job: ExportJob, base: Path, settings: ExportSettings, version: int | None = None, wanted: Wanted = ALL
) -> Prepared:
    """Opens the checkpoint, cuts the model and plans the tables; writes nothing.

    Args:
      job: the recipe.
      base: its folder, which its paths are relative to.
      settings: how the job runs.
      version: of the bundle; None: the next free one.
      wanted: the towers or tables that are exported.

    Raises:
      ExportError: the job cannot be done as asked; names what and the cure.
    """
    checkpoint, job = open_job(job, base)
    _check_indexes(job)
    traced, missing = trace_towers(job, base), NOTHING
    if wanted:
        towers = choose_towers(traced.spec, wanted)
        job, missing = reduced(job, traced.spec, towers), left_out(traced.spec, towers)
        traced = trace_towers(job, base)
    _check_files(job, base)
    pages = describe_features(traced.spec, job)
    inventory = recognise_tables(checkpoint, traced, job, base)
    read = {id(variable): variable for tower in traced.towers for variable in tower.variables}
    find_weights(read.values(), traced.root, checkpoint, job.checkpoint.object_path)
    destination = open_destination(job.output.root, base, settings.scratch)
    number = version or destination.next_version(job.model)
    unknown = set(job.tables) - set(traced.spec.tables)
    if unknown:
        known = ", ".join(sorted(traced.spec.tables))
        raise UsageError(f"tables.{min(unknown)}: no tower reads a table of that name; they read {known}")
    exported = [table for table in inventory.tables if (table.slot_of or table.name) in traced.spec.tables]
    plan = plan_tables(
        checkpoint,
        inventory,
        destination.root / job.model / f".staging-{number}",
        tables=[table.name for table in exported],
        writing=_writing(job, [table.name for table in exported]),
        budget_bytes=settings.budget_bytes,
        workers=executors.worker_count(settings.workers),
    )
    check_limits(job, traced.spec, [table.spec.name for table in plan.tables if table.dtype != table.spec.dtype])
    destination.refuse_links(plan)
    check_space(plan, destination.root)
    return Prepared(job, base, checkpoint, inventory, traced, pages, destination, number, plan, missing)


def _writing(job: ExportJob, tables: Iterable[str]) -> dict[str, Writing]:
    parts = {name: job.tables.get(name, TablePart()) for name in tables}
    link = job.output.tables == "link"
    return {
        name: Writing(
            part.shard_rows, part.dtype, ErrorLimits(part.max_abs_error, part.rms_error, part.cosine_min), link
        )
        for name, part in parts.items()
    }


def _check_files(job: ExportJob, base: Path) -> None:
    """Finds files that the recipe names and that are not there, before anything is written."""
    named = {f"vocabularies.{name}.file": part.file for name, part in job.vocabularies.items()}
    if job.verify.examples is not None:
        named["verify.examples"] = job.verify.examples
    for key, file in named.items():
        if not (base / file).is_file():
            raise UsageError(f"{key}: file {base / file} does not exist")
    for name, part in job.candidates.items():
        locate_corpus(base, name, part)


def _check_indexes(job: ExportJob) -> None:
    for name, part in job.indexes.items():
        if part.corpus not in job.candidates:
            known = ", ".join(sorted(job.candidates)) or "no candidates"
            raise UsageError(f"indexes.{name}.corpus names {part.corpus!r}; the recipe has {known}")
        for role, tower in (("query", part.query_tower), ("candidate", part.candidate_tower)):
            known = ", ".join(sorted(each for each, spec in job.towers.items() if spec.role == role)) or "none"
            if tower not in job.towers or job.towers[tower].role != role:
                raise UsageError(
                    f"indexes.{name}.{role}_tower names {tower!r}; the recipe's towers with role = {role!r}: {known}"
                )


def run(prepared: Prepared, settings: ExportSettings, progress: Progress) -> Published:
    """Writes, verifies and publishes a bundle; resumes where an earlier run of the same job stopped.

    Raises:
      VerificationFailed: what was written is wrong; all of it is removed.
      ExportError: nothing is published; what is finished stays staged for the next run.
    """
    job, base = prepared.job, prepared.base
    inputs = [part.file for part in job.vocabularies.values()]
    inputs += [job.verify.examples] if job.verify.examples is not None else []
    inputs += [job.checkpoint.layout] if job.checkpoint.layout is not None else []
    inputs += [source] if (source := job.code.factory.rpartition(":")[0]).endswith(".py") else []
    told = [job.model_dump_json(), prepared.inventory.fingerprint, installed_version("rowcast")]
    files = [base / file for file in inputs]
    files += [file.path for name, part in job.candidates.items() for file in locate_corpus(base, name, part)]
    with staged(prepared.destination, job.model, prepared.version, told, files) as draft:
        return Assembly(prepared, settings, progress, draft).publish()


class Assembly:
    """The steps of one bundle. Each leaves files in the staging directory and a line in its journal."""

    def __init__(self, prepared: Prepared, settings: ExportSettings, progress: Progress, draft: Draft) -> None:
        self.prepared, self.settings, self.progress, self.draft = prepared, settings, progress, draft
        self.job, self.stage, self.directory = prepared.job, draft.stage, draft.stage.directory
        self.notes: list[str] = list(prepared.plan.notes)

    def publish(self) -> Published:
        """Runs the steps in order and commits."""
        begun, spec = created(self.stage), self.prepared.traced.spec
        with self.progress.step("vocabularies"):
            vocabularies = self._write_vocabularies()
        with self.progress.rows("candidates") as moved:
            corpora = self._write_candidates(moved)
            examples = examples_of(self.job, self.prepared.base, spec, self.prepared.pages)
        with self.progress.step("tables", self.prepared.plan.moved_bytes) as moved:
            tables = copy_tables(self.prepared.plan, self.stage, self.settings, moved)
        readers = {name: TableReader(self.directory, table) for name, table in tables.items()}
        opened = {name: Vocabulary.open(self.directory / page.file) for name, page in vocabularies.items()}
        features = FeatureReader(self.prepared.pages, readers, opened)
        with self.progress.step("towers"):
            forms = self._write_towers()
        changed = table_effects.converted(tables)
        replayed = self._replay(spec, examples, features, frozenset(changed))
        sources = {name: table.source for name, table in tables.items()}
        read_rows = checkpoint_rows(self.prepared.checkpoint, sources)
        trained = table_effects.trained_features(self.prepared.pages, readers, tables, opened, read_rows)
        with self.progress.step("replay"):
            expected = replay_original(replayed, read_rows)
            effects = table_effects.measure_effects(replayed, trained, self.directory, forms, expected)
            verified = replay.compare_forms(replayed, self.directory, forms, expected)
            towers = {name: describe_tower(tower, self.job, verified[name]) for name, tower in spec.towers.items()}
        embedded = sum(corpora[part.corpus].size for part in self.job.indexes.values())
        with self.progress.rows("vectors", embedded) as moved:
            self._write_vectors(features, towers, corpora, moved)
        with self.progress.step("indexes"):
            found_indexes = self._write_indexes(replayed, trained, towers, corpora)
        with self.progress.step("rows compared"):
            rows = None if self.settings.full else self.job.verify.rows
            checks = verify_tables(self.prepared.checkpoint, self.directory, tables, rows)
        page = Manifest(
            model=self.job.model,
            version=self.prepared.version,
            created=begun,
            provenance=provenance(self.prepared.inventory, self.job.code.factory),
            tables=tables,
            vocabularies=vocabularies,
            features=self.prepared.pages,
            towers=towers,
            candidates=corpora,
            indexes=found_indexes,
            verification=manifest.Verification(
                tables=checks, examples=examples.n, tolerance=replay.TOLERANCE, table_effect=effects
            ),
            files=self._files(),
        )
        with self.progress.step("page checked"):
            check_page(replayed, self.directory, page, expected, read_rows)
        features.close()
        return Published(self.draft.publish(page, self.progress), page, tuple(self.notes))

    @property
    def _vocabularies(self) -> tuple[str, ...]:
        """Names of the recipe's and of the model's."""
        return (*self.job.vocabularies, *model_vocabularies(self.prepared.traced.spec))

    def _write_vocabularies(self) -> dict[str, manifest.Vocabulary]:
        pages = {}
        held = model_vocabularies(self.prepared.traced.spec)
        for name in self._vocabularies:
            file = paths.vocabulary(name)
            finished, part = self.stage.finished(file), self.job.vocabularies.get(name)
            if finished is not None:
                size = int(finished.payload)
            elif part is not None:
                size = write_vocabulary(self.prepared.base / part.file, part.dtype, self.directory / file)
            else:
                size = write_model_vocabulary(name, held[name], self.directory / file)
            if finished is None:
                self.stage.finish(file, size)
            text = part.dtype == "string" if part is not None else isinstance(held[name][0], str)
            pages[name] = manifest.Vocabulary(file=file, size=size, dtype="string" if text else "int64")
        for name, feature in self.prepared.pages.items():
            if isinstance(feature, manifest.EmbeddedFeature) and isinstance(feature.ids, manifest.VocabularyIds):
                last = feature.ids.first_row + pages[feature.ids.vocabulary].size
                rows = self.prepared.traced.spec.tables[feature.table].rows
                if last > rows:
                    raise UsageError(
                        f"features.{name}.ids: vocabulary {feature.ids.vocabulary!r} reaches row {last - 1}, table "
                        f"{feature.table!r} has {rows} rows; the vocabulary is not the one that was trained with"
                    )
        return pages

    def _write_towers(self) -> list[replay.WrittenForm]:
        forms = []
        for tower in self.prepared.traced.towers:
            name = tower.spec.name
            saved = paths.saved_model(name)
            if self.stage.finished(saved) is None:
                shutil.rmtree(self.directory / saved, ignore_errors=True)  # an interrupted run's
                write_saved_model(
                    tower,
                    self.prepared.traced.root,
                    self.prepared.checkpoint.prefix,
                    self.job.checkpoint.object_path,
                    self.directory / saved,
                )
                self.stage.finish(saved)
            forms.append(replay.WrittenForm(name, "saved_model", "f32", saved))
            for precision in self.job.towers[name].precisions:
                path = paths.compiled_tower(name, precision)
                finished = self.stage.finished(path)
                if finished is None:
                    reason = compile_tower(self.directory / saved, precision, self.directory / path).reason
                    self.stage.finish(path, reason)
                else:
                    reason = str(finished.payload)
                if reason:
                    cure = tower.spec.half_cure
                    self.notes.append(f"tower {name!r} is not compiled for LiteRT ({precision}): {reason}{cure}")
                else:
                    forms.append(replay.WrittenForm(name, "litert", precision, path))
        return forms

    def _replay(
        self, model: ModelSpec, examples: Examples, features: FeatureReader, changed: frozenset[str] = frozenset()
    ) -> Replay:
        return Replay(self.job, self.prepared.base, model, self._local_prefix, examples, features, changed)

    @cached_property
    def _local_prefix(self) -> Path:
        return local_prefix(self.prepared.checkpoint, self.prepared.inventory, self.directory / ".dense")

    def _write_candidates(self, moved: Callable[[int], None]) -> dict[str, manifest.Corpus]:
        pages = {}
        for name, part in self.job.candidates.items():
            step = paths.candidate_store(name)
            finished = self.stage.finished(step)
            if finished is None:
                pages[name] = candidates.write_candidates(
                    self.directory, name, part, self.prepared.pages, self.prepared.base, moved
                )
                self.stage.finish(step, pages[name].model_dump(mode="json"))
            else:
                pages[name] = manifest.Corpus.model_validate(finished.payload)
        for name, index in self.job.indexes.items():
            indexes.choose(index, name, pages[index.corpus].size)  # its mistakes too are told before tables are copied
        return pages

    def _write_vectors(
        self,
        features: FeatureReader,
        towers: Mapping[str, manifest.Tower],
        corpora: Mapping[str, manifest.Corpus],
        moved: Callable[[int], None],
    ) -> None:
        for name, part in self.job.indexes.items():
            step = paths.index_vectors(name)
            if self.stage.finished(step) is None:
                corpus, tower = corpora[part.corpus], towers[part.candidate_tower]
                candidates.write_vectors(self.directory, name, part.corpus, corpus, tower, features, moved)
                self.stage.finish(step)

    def _write_indexes(
        self,
        replayed: Replay,
        trained: FeatureReader,
        towers: Mapping[str, manifest.Tower],
        corpora: Mapping[str, manifest.Corpus],
    ) -> dict[str, manifest.Index]:
        pages = {}
        for name, part in self.job.indexes.items():
            step = paths.index_directory(name)
            finished = self.stage.finished(step)
            if finished is None:
                tower = towers[part.query_tower]
                queries = self._queries(tower, replayed, replayed.features)
                encoders = self.settings.workers or min(_ENCODERS, executors.worker_count(0))
                run = executors.LocalExecutor(encoders).run
                page = indexes.build_index(self.directory, name, part, queries, run)
                if any(replayed.converted_tables(each) for each in (part.query_tower, part.candidate_tower)):
                    aside = self.directory / ".vectors"
                    made_of, corpus = towers[part.candidate_tower], corpora[part.corpus]
                    candidates.write_vectors(self.directory, name, part.corpus, corpus, made_of, trained, aside=aside)
                    right = self._queries(tower, replayed, trained)
                    recall = indexes.recall_of_tables(self.directory, name, part, page, queries, right, aside)
                    page = page.model_copy(update={"recall_of_tables": recall})
                    aside.unlink()
                pages[name] = page
                self.stage.finish(step, pages[name].model_dump(mode="json"))
            else:
                pages[name] = manifest.Index.model_validate(finished.payload)
        return pages

    def _queries(self, tower: manifest.Tower, replayed: Replay, features: FeatureReader) -> NDArray[Any]:
        """Returns the examples' vectors, as `features` reads their rows."""
        values = replay.feature_values(replayed, features)
        inputs = tower_inputs(tower.inputs, values, replayed.examples.n)
        return open_tower(self.directory, tower, "f32").run(inputs)[tower.result]

    def _files(self) -> tuple[manifest.File, ...]:
        """Lists every file but table shards, whose digests stand with their tables."""
        named = [
            *(paths.vocabulary(name) for name in self._vocabularies),
            *(paths.saved_model(name) for name in self.job.towers),
            *(paths.compiled_tower(name, form) for name, part in self.job.towers.items() for form in part.precisions),
            *(paths.candidate_store(name) for name in self.job.candidates),
            *(place for name in self.job.indexes for place in (paths.index_vectors(name), paths.index_directory(name))),
        ]
        finished = [self.stage.finished(step) for step in named]
        return tuple(file for step in finished if step is not None for file in step.files)
