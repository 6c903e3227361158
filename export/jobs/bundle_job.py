"""The steps of a bundle, their order, its manifest and its commit; no arithmetic, no I/O of its own.

prepare (export/jobs/preparation.py): recipe, checkpoint, trace, plan          touches nothing
run: vocabularies, candidates, examples, tables, towers, parity, vectors, indexes, rows, commit

What the user wrote by hand is read first: a mistake in it is reported before the first table is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from bundle.features.reader import FeatureReader
from bundle.format import manifest, paths
from bundle.format.manifest import Manifest
from bundle.tables.key_index import KeyIndex
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import Vocabulary
from export.corpora import candidates, indexes
from export.corpora.files import locate_corpus
from export.corpora.reading import CorpusReader
from export.errors import UsageError
from export.jobs import executors
from export.jobs.preparation import Prepared, prepare
from export.jobs.progress import Progress
from export.jobs.staged import Draft, Published, provenance, staged
from export.jobs.table_steps import compare_tables, copy_tables
from export.model.dense_copy import local_prefix
from export.model.manifest_features import model_vocabularies
from export.model.vocabularies import write_model_vocabulary, write_vocabulary
from export.model.weights import TrainedModel
from export.recipe.schema import CorpusPart, IndexPart
from export.recipe.settings import ExportSettings
from export.steps import Step, content_of, versions
from export.tables.key_indexes import write_key_indexes
from export.towers.files import TowerFiles
from export.verify import table_effects
from export.verify.forms import TOLERANCE
from export.verify.model_checks import check_manifest, examples_of
from export.verify.parity import check_towers, query_vectors
from export.verify.reference_inputs import Reference
from export.verify.reference_model import checkpoint_rows, finite_results

__all__ = ["Prepared", "prepare", "run"]

_STORES = {"candidates": paths.candidate_store, "contexts": paths.context_store}


def run(prepared: Prepared, settings: ExportSettings, progress: Progress) -> Published:
    """Writes, verifies and publishes a bundle; resumes where an earlier run of the same job stopped.

    Raises:
      VerificationFailed: what was written is wrong; what was compared with the checkpoint before stays staged.
      ExportError: nothing is published; what is finished stays staged for the next run.
    """
    with staged(prepared.destination, prepared.job.model, prepared.version) as draft:
        return _Bundle(prepared, settings, progress, draft).publish()


class _Bundle:
    """One bundle while it is made."""

    def __init__(
        self, prepared: Prepared, settings: ExportSettings, progress: Progress, draft: Draft
    ) -> None:
        self.prepared, self.settings, self.progress, self.draft = (
            prepared,
            settings,
            progress,
            draft,
        )
        self.job, self.stage, self.directory = prepared.job, draft.stage, draft.stage.directory
        self.notes: list[str] = list(prepared.notes)

    def publish(self) -> Published:
        """Does the steps in order and commits."""
        prepared, checkpoint, progress = self.prepared, self.prepared.checkpoint, self.progress
        spec, plan = prepared.traced.spec, prepared.plan
        begun = self.draft.begun(self.job, prepared.inventory.fingerprint)
        with progress.step("vocabularies"):
            vocabularies = self._write_vocabularies()
        with progress.step("candidates", unit="rows") as moved:
            corpora, contexts = (
                self._write_candidates(moved),
                self._write_stores("contexts", self.job.contexts, moved),
            )
            examples = examples_of(self.job, prepared.base, spec, prepared.entries)
        with progress.step("tables", plan.moved_bytes) as moved:
            tables = copy_tables(plan, self.stage, self.settings, moved)
            keys = write_key_indexes(checkpoint, [table.spec for table in plan.tables], self.stage)
        readers = {name: TableReader(self.directory, table) for name, table in tables.items()}
        opened = {
            name: Vocabulary.open(self.directory / entry.file)
            for name, entry in vocabularies.items()
        }
        indexed = {
            name: KeyIndex(self.directory / entry.file, entry.size) for name, entry in keys.items()
        }
        features = FeatureReader(prepared.entries, readers, opened, indexed)
        with progress.step("towers"):
            towers = self._write_towers()
        read_rows = checkpoint_rows(
            checkpoint, {name: table.source for name, table in tables.items()}
        )
        own = readers | table_effects.trained_tables(tables, read_rows)
        trained = FeatureReader(prepared.entries, own, opened, indexed)
        with progress.step("parity"):
            prefix = local_prefix(checkpoint, prepared.inventory, self.directory / ".dense")
            changed = table_effects.converted(tables)
            reference = Reference(
                self.job, prepared.base, spec, prefix, read_rows, examples, features, changed
            )
            reference, expected = finite_results(reference)
            effects = table_effects.measure_effects(
                reference, trained, self.directory, towers, expected
            )
            towers = check_towers(reference, self.directory, towers, expected)
        embedded = sum(corpora[part.corpus].size for part in self.job.indexes.values())
        with progress.step("vectors", embedded, unit="rows") as moved:
            for name, part in self.job.indexes.items():
                corpus, tower = corpora[part.corpus], towers[part.candidate_tower]
                self._write_vectors(
                    name, part, features, tower, corpus, tables, vocabularies, moved
                )
        with progress.step("indexes"):
            found_indexes = {
                name: self._write_index(
                    name, part, reference, trained, towers, corpora[part.corpus]
                )
                for name, part in self.job.indexes.items()
            }
        with progress.step("rows compared"):
            rows = None if self.settings.full else self.job.verify.rows
            made_of_rows = [step for name in self.job.indexes for step in _index_steps(name)]
            checks = compare_tables(checkpoint, plan, self.stage, tables, keys, rows, made_of_rows)
        forms = [form.path for tower in towers.values() for form in tower.forms]
        forms += [
            form.path for tower in towers.values() for part in tower.parts for form in part.forms
        ]
        written = [*self.draft.steps, *(entry.file for entry in keys.values()), *forms]
        complete = Manifest(
            model=self.job.model,
            version=prepared.version,
            created=begun,
            provenance=provenance(prepared.inventory, self.job.code.factory),
            tables={
                name: table.model_copy(update=self._choices(name)) for name, table in tables.items()
            },
            vocabularies=vocabularies,
            keys=keys,
            features=prepared.entries,
            towers=towers,
            candidates=corpora,
            contexts=contexts,
            indexes=found_indexes,
            verification=manifest.Verification(
                tables=checks, examples=examples.n, tolerance=TOLERANCE, table_effect=effects
            ),
            files=tuple(file for step in written for file in self.stage.files(step)),
        )
        with progress.step("manifest checked"):
            check_manifest(reference, self.directory, complete)
        features.close()
        return Published(self.draft.publish(complete, progress), complete, tuple(self.notes))

    def _write_vocabularies(self) -> dict[str, manifest.Vocabulary]:
        entries = {}
        for name, part in self.job.vocabularies.items():
            file, source = paths.vocabulary(name), self.prepared.base / part.file
            write = partial(write_vocabulary, source, part.dtype, self.directory / file)
            size = self.draft.do(Step(file, (part.dtype, content_of([source])), int, write))
            entries[name] = manifest.Vocabulary(file=file, size=size, dtype=part.dtype)
        for name, keys in model_vocabularies(self.prepared.traced.spec).items():
            file = paths.vocabulary(name)
            size = self.draft.do(
                Step(
                    file,
                    (keys,),
                    int,
                    partial(write_model_vocabulary, name, keys, self.directory / file),
                )
            )
            text = isinstance(keys[0], str)
            entries[name] = manifest.Vocabulary(
                file=file, size=size, dtype="string" if text else "int64"
            )
        for name, feature in self.prepared.entries.items():
            if isinstance(feature, manifest.EmbeddedFeature) and isinstance(
                feature.ids, manifest.VocabularyIds
            ):
                last = feature.ids.first_row + entries[feature.ids.vocabulary].size
                rows = feature.indicator or self.prepared.traced.spec.tables[feature.table].rows
                if last > rows:
                    raise UsageError(
                        f"features.{name}.ids: vocabulary {feature.ids.vocabulary!r} reaches row {last - 1}, table "
                        f"{feature.table!r} has {rows} rows; the vocabulary is not the one that was trained with"
                    )
        return entries

    def _write_candidates(self, moved: Callable[[int], None]) -> dict[str, manifest.Corpus]:
        stores = self._write_stores("candidates", self.job.candidates, moved)
        entries = {name: self._write_filters(name, corpus) for name, corpus in stores.items()}
        for name, index in self.job.indexes.items():
            indexes.choose(
                index, name, entries[index.corpus].size
            )  # its mistakes, too, are reported before copies
        return entries

    def _choices(self, table: str) -> dict[str, str]:
        """Returns what the recipe chooses for a table beside its rows."""
        part = self.job.tables.get(table)
        return {} if part is None else {"unavailable": part.unavailable}

    def _write_stores(
        self, key: str, parts: Mapping[str, CorpusPart], moved: Callable[[int], None]
    ) -> dict[str, manifest.Corpus]:
        entries, features, store = {}, self.prepared.entries, _STORES[key]
        for name, part in parts.items():
            files = locate_corpus(self.prepared.base, name, part, key)
            corpus = CorpusReader(files, name, part.stored, features)
            inputs = (part.stored, content_of(file.path for file in files), features)
            write = partial(candidates.write_candidates, self.directory, store(name), corpus, moved)
            entries[name] = self.draft.do(Step(store(name), inputs, manifest.Corpus, write))
        return entries

    def _write_filters(self, name: str, corpus: manifest.Corpus) -> manifest.Corpus:
        filters, store = {}, self.stage.files(corpus.file)
        for number, attribute in enumerate(dict.fromkeys(self.job.candidates[name].filters)):
            write = partial(
                candidates.write_filter, self.directory, name, number, corpus, attribute
            )
            step = Step(
                paths.attribute_index(name, number),
                (attribute, store),
                manifest.AttributeIndex,
                write,
            )
            filters[attribute] = self.draft.do(step)
        return corpus.model_copy(update={"filters": filters})

    def _write_towers(self) -> dict[str, manifest.Tower]:
        prepared, splits = self.prepared, self.prepared.splits
        trained = TrainedModel(
            prepared.traced.root, prepared.checkpoint, self.job.checkpoint.object_path
        )
        files = TowerFiles(self.stage, trained, self.notes)
        return {
            name: files.write(tower, splits[name].parts if name in splits else (), self.job)
            for name, tower in ((tower.spec.name, tower) for tower in prepared.traced.towers)
        }

    def _write_vectors(
        self,
        name: str,
        part: IndexPart,
        features: FeatureReader,
        tower: manifest.Tower,
        corpus: manifest.Corpus,
        tables: Mapping[str, manifest.Table],
        vocabularies: Mapping[str, manifest.Vocabulary],
        moved: Callable[[int], None],
    ) -> None:
        taken = {source for each in tower.inputs for source in each.sources}
        read = {
            feature: (entry, tables.get(getattr(entry, "table", "")))
            for feature, entry in self.prepared.entries.items()
            if feature in taken
        }
        made = [form.path for form in tower.forms if form.precision == "f32"]
        made += [corpus.file, *(entry.file for entry in vocabularies.values())]
        content = [file for path in made for file in self.stage.files(path)]
        write = partial(
            candidates.write_vectors,
            self.directory,
            name,
            part.corpus,
            corpus,
            tower,
            features,
            moved,
        )
        self.draft.do(Step(paths.index_vectors(name), (part.corpus, read, content), int, write))

    def _write_index(
        self,
        name: str,
        part: IndexPart,
        reference: Reference,
        trained: FeatureReader,
        towers: Mapping[str, manifest.Tower],
        corpus: manifest.Corpus,
    ) -> manifest.Index:
        tower, made_of = towers[part.query_tower], towers[part.candidate_tower]
        queries = query_vectors(reference, self.directory, tower, reference.features)
        converted = any(
            reference.converted_tables(each) for each in (part.query_tower, part.candidate_tower)
        )
        right = query_vectors(reference, self.directory, tower, trained) if converted else queries
        real = self.job.verify.examples is not None
        if not real:
            self.notes.append(
                f"index {name!r}: recall on invented queries, which is not representative: name real ones as "
                "verify.examples"
            )

        def once(place: str, make: Callable[[], None]) -> None:
            Step(place, ("partition", *inputs), type(None), make).run(self.stage)

        def write() -> manifest.Index:
            execute = executors.LocalExecutor(executors.encoder_count(self.settings.workers)).run
            built = indexes.build_index(
                self.directory, name, part, queries, execute, once, representative=real
            )
            if converted:
                aside = self.directory / ".vectors"
                candidates.write_vectors(
                    self.directory, name, part.corpus, corpus, made_of, trained, aside=aside
                )
                recall = indexes.recall_of_tables(
                    self.directory, name, part, built, queries, right, aside
                )
                built = built.model_copy(update={"recall_of_tables": recall})
                aside.unlink()
            return built

        inputs = (
            part,
            self.stage.files(paths.index_vectors(name)),
            queries,
            right,
            real,
            versions(),
        )
        return self.draft.do(Step(paths.index_directory(name), inputs, manifest.Index, write))


def _index_steps(name: str) -> tuple[str, str]:
    return paths.index_vectors(name), paths.index_directory(name)
