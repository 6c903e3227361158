"""The order of steps, resume, manifest and commit at the end; no arithmetic, no I/O of its own.

prepare (export/jobs/preparation.py): recipe, checkpoint, trace, plan          touches nothing
Assembly: vocabularies, candidates, examples, tables, towers, replay, vectors, indexes, rows, commit

What the user wrote by hand is read first: a mistake in it is told before the first table is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from bundle.features.reader import FeatureReader
from bundle.format import manifest, paths
from bundle.format.manifest import Manifest
from bundle.tables.key_index import KeyIndex
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import Vocabulary
from export.corpora import candidates, indexes
from export.corpora.files import locate_corpus
from export.errors import UsageError
from export.graph.specs import ModelSpec, WrittenForm
from export.jobs import executors
from export.jobs.preparation import Prepared, prepare
from export.jobs.progress import Progress
from export.jobs.staged import Draft, Published, compare_tables, copy_tables, created, provenance, staged
from export.model.dense_copy import local_prefix
from export.model.manifest_features import model_vocabularies
from export.model.vocabularies import write_model_vocabulary, write_vocabulary
from export.recipe.schema import CorpusPart
from export.recipe.settings import ExportSettings
from export.steps import content_of, key_of, versions
from export.tables.key_indexes import write_key_indexes
from export.towers.files import TowerFiles
from export.towers.manifest_towers import describe_tower
from export.verify import parity, table_effects
from export.verify.examples import Examples
from export.verify.model_checks import check_page, examples_of
from export.verify.part_checks import check_parts, unverified
from export.verify.reference_model import Replay, Results, checkpoint_rows, replay_finite
from runtime.tower_inputs import tower_inputs
from runtime.towers import open_tower

__all__ = ["Assembly", "Prepared", "prepare", "run"]

_ENCODERS = 4
"""Processes that encode blocks of an index unless told otherwise: each holds up to half a GB."""


def run(prepared: Prepared, settings: ExportSettings, progress: Progress) -> Published:
    """Writes, verifies and publishes a bundle; resumes where an earlier run of the same job stopped.

    Raises:
      VerificationFailed: what was written is wrong; what was compared with the checkpoint before stays staged.
      ExportError: nothing is published; what is finished stays staged for the next run.
    """
    with staged(prepared.destination, prepared.job.model, prepared.version) as draft:
        return Assembly(prepared, settings, progress, draft).publish()


class Assembly:
    """The steps of one bundle. Each leaves files in the staging directory and a line in its journal."""

    def __init__(self, prepared: Prepared, settings: ExportSettings, progress: Progress, draft: Draft) -> None:
        self.prepared, self.settings, self.progress, self.draft = prepared, settings, progress, draft
        self.job, self.stage, self.directory = prepared.job, draft.stage, draft.stage.directory
        self.notes: list[str] = list(prepared.notes)

    def publish(self) -> Published:
        """Runs the steps in order and commits."""
        spec = self.prepared.traced.spec
        begun = created(self.stage, key_of(self.job, self.prepared.inventory.fingerprint))
        with self.progress.step("vocabularies"):
            vocabularies = self._write_vocabularies()
        with self.progress.rows("candidates") as moved:
            corpora, contexts = self._write_candidates(moved), self._write_stores("contexts", self.job.contexts, moved)
            examples = examples_of(self.job, self.prepared.base, spec, self.prepared.pages)
        with self.progress.step("tables", self.prepared.plan.moved_bytes) as moved:
            tables = copy_tables(self.prepared.plan, self.stage, self.settings, moved)
            specs = [table.spec for table in self.prepared.plan.tables]
            keys = write_key_indexes(self.prepared.checkpoint, specs, self.stage)
        readers = {name: TableReader(self.directory, table) for name, table in tables.items()}
        opened = {name: Vocabulary.open(self.directory / page.file) for name, page in vocabularies.items()}
        indexed = {name: KeyIndex(self.directory / page.file, page.size) for name, page in keys.items()}
        features = FeatureReader(self.prepared.pages, readers, opened, indexed)
        with self.progress.step("towers"):
            forms = self._write_towers()
        changed = table_effects.converted(tables)
        replayed = self._replay(spec, examples, features, frozenset(changed))
        sources = {name: table.source for name, table in tables.items()}
        read_rows = checkpoint_rows(self.prepared.checkpoint, sources)
        trained = table_effects.trained_features(self.prepared.pages, readers, tables, opened, indexed, read_rows)
        with self.progress.step("replay"):
            replayed, expected = replay_finite(replayed, read_rows)
            effects = table_effects.measure_effects(replayed, trained, self.directory, forms, expected)
            towers = self._verified_towers(replayed, forms, expected)
        embedded = sum(corpora[part.corpus].size for part in self.job.indexes.values())
        with self.progress.rows("vectors", embedded) as moved:
            self._write_vectors(features, towers, corpora, tables, moved)
        with self.progress.step("indexes"):
            found_indexes = self._write_indexes(replayed, trained, towers, corpora)
        with self.progress.step("rows compared"):
            rows = None if self.settings.full else self.job.verify.rows
            made_of_rows = [step for name in self.job.indexes for step in _index_steps(name)]
            plan, checkpoint = self.prepared.plan, self.prepared.checkpoint
            checks = compare_tables(checkpoint, plan, self.stage, tables, keys, rows, made_of_rows)
        page = Manifest(
            model=self.job.model,
            version=self.prepared.version,
            created=begun,
            provenance=provenance(self.prepared.inventory, self.job.code.factory),
            tables=tables,
            vocabularies=vocabularies,
            keys=keys,
            features=self.prepared.pages,
            towers=towers,
            candidates=corpora,
            contexts=contexts,
            indexes=found_indexes,
            verification=manifest.Verification(
                tables=checks, examples=examples.n, tolerance=parity.TOLERANCE, table_effect=effects
            ),
            files=self._files(forms),
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
            part = self.job.vocabularies.get(name)
            key = key_of(part.dtype, content_of([self.prepared.base / part.file])) if part else key_of(held[name])
            finished = self.stage.finished(file, key)
            if finished is not None:
                size = int(finished.payload)
            elif part is not None:
                size = write_vocabulary(self.prepared.base / part.file, part.dtype, self.directory / file)
            else:
                size = write_model_vocabulary(name, held[name], self.directory / file)
            if finished is None:
                self.stage.finish(file, key, size)
            text = part.dtype == "string" if part is not None else isinstance(held[name][0], str)
            pages[name] = manifest.Vocabulary(file=file, size=size, dtype="string" if text else "int64")
        for name, feature in self.prepared.pages.items():
            if isinstance(feature, manifest.EmbeddedFeature) and isinstance(feature.ids, manifest.VocabularyIds):
                last = feature.ids.first_row + pages[feature.ids.vocabulary].size
                rows = feature.indicator or self.prepared.traced.spec.tables[feature.table].rows
                if last > rows:
                    raise UsageError(
                        f"features.{name}.ids: vocabulary {feature.ids.vocabulary!r} reaches row {last - 1}, table "
                        f"{feature.table!r} has {rows} rows; the vocabulary is not the one that was trained with"
                    )
        return pages

    def _write_towers(self) -> list[WrittenForm]:
        prepared = self.prepared
        root, checkpoint, path = prepared.traced.root, prepared.checkpoint, self.job.checkpoint.object_path
        files = TowerFiles(self.stage, root, checkpoint, path, self.notes)
        forms: list[WrittenForm] = []
        for tower in prepared.traced.towers:
            name = tower.spec.name
            parts = prepared.splits[name].parts if name in prepared.splits else ()
            forms += files.write(tower, parts, self.job.towers[name].precisions)
        return forms

    def _verified_towers(
        self, replayed: Replay, forms: Sequence[WrittenForm], expected: Results
    ) -> dict[str, manifest.Tower]:
        verified = parity.compare_forms(replayed, self.directory, forms, expected)
        values = parity.feature_values(replayed, replayed.features)
        towers = {}
        for name, spec in replayed.model.towers.items():
            of_parts = [form for form in forms if form.tower == name and form.part]
            split = self.prepared.splits[name].parts if of_parts else ()
            pages = [part.spec for part in split]
            parts = tuple(unverified(page, [form for form in of_parts if form.part == page.name]) for page in pages)
            tower = describe_tower(spec, self.job, verified[name], parts)
            if parts:
                proved = check_parts(replayed, self.directory, name, tower, values, expected[name])
                tower = tower.model_copy(update={"parts": proved})
            towers[name] = tower
        return towers

    def _replay(
        self, model: ModelSpec, examples: Examples, features: FeatureReader, changed: frozenset[str] = frozenset()
    ) -> Replay:
        return Replay(self.job, self.prepared.base, model, self._local_prefix, examples, features, changed)

    @cached_property
    def _local_prefix(self) -> Path:
        return local_prefix(self.prepared.checkpoint, self.prepared.inventory, self.directory / ".dense")

    def _write_candidates(self, moved: Callable[[int], None]) -> dict[str, manifest.Corpus]:
        pages = self._write_stores("candidates", self.job.candidates, moved)
        for name, index in self.job.indexes.items():
            indexes.choose(index, name, pages[index.corpus].size)  # its mistakes too are told before tables are copied
        return pages

    def _write_stores(
        self, room: candidates.Room, parts: Mapping[str, CorpusPart], moved: Callable[[int], None]
    ) -> dict[str, manifest.Corpus]:
        pages = {}
        for name, part in parts.items():
            step, features, base = candidates.store_file(room, name), self.prepared.pages, self.prepared.base
            read = [file.path for file in locate_corpus(base, name, part, room)]
            key = key_of(part, content_of(read), features)
            finished = self.stage.finished(step, key)
            if finished is None:
                pages[name] = candidates.write_candidates(self.directory, name, part, features, base, moved, room)
                self.stage.finish(step, key, pages[name].model_dump(mode="json"))
            else:
                pages[name] = manifest.Corpus.model_validate(finished.payload)
        return pages

    def _write_vectors(
        self,
        features: FeatureReader,
        towers: Mapping[str, manifest.Tower],
        corpora: Mapping[str, manifest.Corpus],
        tables: Mapping[str, manifest.Table],
        moved: Callable[[int], None],
    ) -> None:
        for name, part in self.job.indexes.items():
            step, corpus, tower = paths.index_vectors(name), corpora[part.corpus], towers[part.candidate_tower]
            read = {
                feature: (page, tables.get(getattr(page, "table", "")))
                for feature, page in self.prepared.pages.items()
                if any(feature in each.sources for each in tower.inputs)
            }
            files = [file for form in tower.forms for file in self.stage.files(form.path) if form.precision == "f32"]
            written = [self.stage.files(paths.vocabulary(each)) for each in self._vocabularies]
            content = [*files, *self.stage.files(corpus.file), *(file for each in written for file in each)]
            key = key_of(part.corpus, read, content)
            if self.stage.finished(step, key) is None:
                candidates.write_vectors(self.directory, name, part.corpus, corpus, tower, features, moved)
                self.stage.finish(step, key)

    def _write_indexes(
        self,
        replayed: Replay,
        trained: FeatureReader,
        towers: Mapping[str, manifest.Tower],
        corpora: Mapping[str, manifest.Corpus],
    ) -> dict[str, manifest.Index]:
        pages = {}
        for name, part in self.job.indexes.items():
            step, tower = paths.index_directory(name), towers[part.query_tower]
            queries = self._queries(tower, replayed, replayed.features)
            converted = any(replayed.converted_tables(each) for each in (part.query_tower, part.candidate_tower))
            right = self._queries(tower, replayed, trained) if converted else queries
            real = self.job.verify.examples is not None
            key = key_of(part, self.stage.files(paths.index_vectors(name)), queries, right, real, versions())
            finished = self.stage.finished(step, key)
            if finished is None:
                encoders = self.settings.workers or min(_ENCODERS, executors.worker_count(0))
                run = executors.LocalExecutor(encoders).run
                page = indexes.build_index(self.directory, name, part, queries, run, representative=real)
                if converted:
                    aside = self.directory / ".vectors"
                    made_of, corpus = towers[part.candidate_tower], corpora[part.corpus]
                    candidates.write_vectors(self.directory, name, part.corpus, corpus, made_of, trained, aside=aside)
                    recall = indexes.recall_of_tables(self.directory, name, part, page, queries, right, aside)
                    page = page.model_copy(update={"recall_of_tables": recall})
                    aside.unlink()
                pages[name] = page
                self.stage.finish(step, key, pages[name].model_dump(mode="json"))
            else:
                pages[name] = manifest.Index.model_validate(finished.payload)
            if not real:
                self.notes.append(
                    f"index {name!r}: recall on invented queries, which is not representative: name real ones as "
                    "verify.examples"
                )
        return pages

    def _queries(self, tower: manifest.Tower, replayed: Replay, features: FeatureReader) -> NDArray[Any]:
        """Returns the examples' vectors, as `features` reads their rows."""
        values = parity.feature_values(replayed, features)
        inputs = tower_inputs(tower.inputs, values, replayed.examples.n)
        return open_tower(self.directory, tower, "f32").run(inputs)[tower.result]

    def _files(self, forms: Sequence[WrittenForm]) -> tuple[manifest.File, ...]:
        """Lists every file but table shards, whose digests stand with their tables."""
        named = [
            *(paths.vocabulary(name) for name in self._vocabularies),
            *(paths.key_index(table.spec.name) for table in self.prepared.plan.tables),
            *(form.path for form in forms),
            *(candidates.store_file("candidates", name) for name in self.job.candidates),
            *(candidates.store_file("contexts", name) for name in self.job.contexts),
            *(step for name in self.job.indexes for step in _index_steps(name)),
        ]
        return tuple(file for step in named for file in self.stage.files(step))


def _index_steps(name: str) -> tuple[str, str]:
    return paths.index_vectors(name), paths.index_directory(name)
