"""The steps of a bundle, their order, its manifest and its commit; no arithmetic, no I/O of its
own.

prepare (export/jobs/preparation.py): recipe, checkpoint, trace, plan          touches nothing
run: vocabularies, corpora, examples, tables, towers, parity, vectors, indexes, rows, commit

What the user wrote by hand is read first: a mistake in it is reported before the first table is
copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from bundle.changes.records import Change
from bundle.features.reader import FeatureReader
from bundle.format import manifest, paths
from bundle.format.manifest import Manifest
from bundle.tables.key_index import KeyIndex
from bundle.tables.vocabularies import Vocabulary
from export.corpora import candidates, indexes, lists
from export.corpora.changes import LoggedChanges, fold, read_changes
from export.corpora.files import locate_corpus
from export.corpora.reading import CorpusReader
from export.corpora.recall import (
    note_of_cold_users,
    recall_of_cold_users,
    recall_of_tables,
    sample_rows,
)
from export.corpora.stages import StageJudge
from export.errors import UsageError
from export.front_end.specs import FeatureSpec
from export.id_graphs.limits import limits_of
from export.jobs import executors
from export.jobs.preparation import Prepared, prepare
from export.jobs.progress import Progress
from export.jobs.staged import Draft, Published, provenance, staged
from export.jobs.table_steps import checked, copy_tables, staged_subject
from export.jobs.warm_up import WarmUpWriter
from export.model_code.values import named_vocabularies
from export.recipe.schema import CorpusSection, IndexSection
from export.recipe.settings import ExportSettings
from export.steps import LIBRARIES, Step, StepKey
from export.tables.key_indexes import write_key_indexes
from export.tables.vocabularies import write_model_vocabulary, write_vocabulary
from export.towers.files import TowerFiles
from export.verify import table_effects
from export.verify.failing_forms import without_failing_forms
from export.verify.forms import TOLERANCE
from export.verify.parity import (
    check_towers,
    feature_values,
    query_vectors,
    with_empty_bags,
)
from export.verify.recipe_examples import examples_of
from export.verify.reference_inputs import Reference
from export.verify.reference_model import checkpoint_rows, finite_results
from export.verify.score_distributions import with_score_distributions
from export.verify.stated_layouts import StatedLayout, judge_recipe
from export.verify.unverified import features_behind
from runtime.scann import CONFIG
from runtime.towers import find_form
from runtime.vectors import VectorFile

__all__ = ["Prepared", "prepare", "run"]

_STORES = {"corpora": paths.corpus_store, "contexts": paths.context_store}


def run(prepared: Prepared, settings: ExportSettings, progress: Progress) -> Published:
    """Writes, verifies and publishes a bundle; resumes where an earlier run of the same job
    stopped.

    Raises:
      VerificationFailed: what was written is wrong; what was compared with the checkpoint before
        stays staged.
      ExportError: nothing is published; what is finished stays staged for the next run.
    """
    judged = judge_recipe(
        prepared.job,
        prepared.checkpoint,
        prepared.inventory,
        prepared.traced.spec,
        prepared.entries,
    )
    model = prepared.job.model
    with staged(prepared.destination, model, prepared.version, reuse=settings.reuse) as draft:
        return _Bundle(prepared, judged, settings, progress, draft).publish()


class _Bundle:
    """One bundle while it is made."""

    def __init__(
        self,
        prepared: Prepared,
        judged: Mapping[str, StatedLayout],
        settings: ExportSettings,
        progress: Progress,
        draft: Draft,
    ) -> None:
        self.prepared = prepared
        self.judged = judged
        self.settings = settings
        self.progress = progress
        self.draft = draft
        self.job = prepared.job
        self.stage = draft.stage
        self.directory = draft.stage.directory
        self.notes: list[str] = list(prepared.notes)
        self.changes: LoggedChanges | None = None
        if settings.with_changes is not None:
            self.changes = read_changes(settings.with_changes, self.job.model)
            stores = {"corpora": self.job.corpora, "contexts": self.job.contexts}
            self.notes += self.changes.notes(stores)

    def publish(self) -> Published:
        """Does the steps in order and commits."""
        prepared = self.prepared
        progress = self.progress
        spec = prepared.traced.spec
        plan = prepared.plan
        begun = self.draft.begun(self.job, prepared.inventory.fingerprint)
        with progress.step("vocabularies"):
            vocabularies = self._write_vocabularies()
        with progress.step("corpora", unit="rows") as moved:
            corpora = self._write_corpora(moved)
            contexts = self._write_stores("contexts", self.job.contexts, moved)
            lists = self._write_lists(corpora)
            examples = examples_of(self.job, prepared.base, spec, prepared.entries)
            warm_up = self._write_warm_up()
        with progress.step("tables", plan.moved_bytes) as moved:
            tables, reused = copy_tables(plan, self.stage, self.settings, moved, self.draft.uploads)
            keys = write_key_indexes(
                prepared.checkpoint, [table.spec for table in plan.tables], self.stage
            )
        readers = {name: self.draft.open_table(table) for name, table in tables.items()}
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
            prepared.checkpoint, {name: table.source for name, table in tables.items()}
        )
        own = readers | table_effects.trained_tables(tables, read_rows)
        trained = FeatureReader(prepared.entries, own, opened, indexed)
        with progress.step("parity"):
            original = prepared.traced.original.reference(
                prepared.inventory, self.directory / ".dense"
            )
            changed = table_effects.converted(tables)
            reference = Reference(
                self.job, prepared.base, spec, original, read_rows, examples, features, changed
            )
            reference, expected = finite_results(reference)
            if examples.known is not None and reference.examples.known is None:
                self.notes.append(
                    "the model rejects invented ids that its tables lack, so what becomes of "
                    "unknown ids is not verified: name real examples as verify.examples"
                )
            values = feature_values(reference, reference.features)
            towers, left_out = without_failing_forms(reference, self.directory, towers, values)
            self.notes += left_out
            effects = table_effects.measure_effects(
                reference, trained, self.directory, towers, expected
            )
            checked_towers = check_towers(reference, self.directory, towers, expected)
            towers = with_score_distributions(checked_towers, expected, self.job.verify)
        shared = {name: self._shares_vectors_of(part) for name, part in self.job.indexes.items()}
        embedded = sum(corpora[self.job.indexes[name].corpus].size for name in {*shared.values()})
        found_by = [
            *[entry.file for entry in vocabularies.values()],
            *[entry.file for entry in keys.values()],
        ]
        with progress.step("vectors", embedded, unit="rows") as moved:
            for name in dict.fromkeys(shared.values()):
                part = self.job.indexes[name]
                corpus = corpora[part.corpus]
                tower = towers[part.candidate_tower]
                self._write_vectors(name, part, features, tower, corpus, tables, found_by, moved)
        with progress.step("indexes"):
            found_indexes = {
                name: self._write_index(
                    name, part, reference, trained, towers, corpora[part.corpus]
                )
                for name, part in self.job.indexes.items()
            }
        with progress.step("stages"):
            stages = self._judge_stages(reference, towers, corpora, found_indexes)
        written = [
            *self.draft.steps,
            *[entry.file for entry in keys.values()],
            *_forms_of(towers),
        ]
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
            unread_inputs=prepared.unread_inputs,
            towers=towers,
            corpora=corpora,
            contexts=contexts,
            indexes=found_indexes,
            lists=lists,
            stages=stages,
            warm_up=warm_up,
            changes_included=None if self.changes is None else self.changes.sequence,
            verification=manifest.Verification(
                tables={},
                examples=examples.n,
                tolerance=TOLERANCE,
                table_effect=effects,
            ),
            files=tuple(file for step in written for file in self.stage.files(step)),
        )
        with progress.step("checks"):
            rows = None if self.settings.full else self.job.verify.rows
            made_of_rows = [
                *map(paths.index_vectors, shared.values()),
                *map(paths.index_directory, shared),
                *(paths.index_codes(name) for name, each in found_indexes.items() if each.codes),
            ]
            subject = staged_subject(
                prepared.checkpoint, plan, self.draft, complete, rows, self.judged, made_of_rows
            )
            recorded = features_behind(self.job.verify.expected, spec.towers)
            complete = checked(
                replace(subject, reference=reference, changes=self.changes), recorded
            )
        features.close()
        return Published(
            self.draft.publish(complete, progress),
            complete,
            (*self.notes, *reused.notes),
            self.draft.reused(complete, reused),
        )

    def _write_vocabularies(self) -> dict[str, manifest.Vocabulary]:
        entries = {}
        features = self.prepared.entries.values()
        rules = [one.ids for one in features if isinstance(one, manifest.EmbeddedFeature)]
        read = {table.vocabulary for rule in rules for table in manifest.lookup_tables_of(rule)}
        of_code = named_vocabularies(self.job) - read
        for name, part in self.job.vocabularies.items():
            if name in of_code:
                continue  # a model that looks up its keys brings them itself
            file = paths.vocabulary(name)
            source = self.prepared.base / part.file
            write = partial(write_vocabulary, source, part.dtype, self.directory / file)
            key = StepKey(file, {"dtype": part.dtype}, files=[source])
            size = self.draft.do(Step(key, int, write))
            entries[name] = manifest.Vocabulary(file=file, size=size, dtype=part.dtype)
        for name, keys in self.prepared.traced.spec.vocabularies.items():
            file = paths.vocabulary(name)
            write = partial(write_model_vocabulary, name, keys, self.directory / file)
            size = self.draft.do(Step(StepKey(file, {"keys": keys}), int, write))
            text = isinstance(keys[0], str)
            entries[name] = manifest.Vocabulary(
                file=file, size=size, dtype="string" if text else "int64"
            )
        for name, feature in self.prepared.entries.items():
            if isinstance(feature, manifest.EmbeddedFeature):
                self._check_reach(name, feature, entries)
        return entries

    def _check_reach(
        self,
        name: str,
        feature: manifest.EmbeddedFeature,
        vocabularies: Mapping[str, manifest.Vocabulary],
    ) -> None:
        """Rejects a vocabulary whose last keys have no row in the table of a feature."""
        if not isinstance(feature.ids, manifest.GraphIds):
            return
        spec = self.prepared.traced.spec.features[name]
        is_stated = isinstance(spec, FeatureSpec) and not spec.has_rule
        if not is_stated and any("Select" in node.op for node in feature.ids.nodes):
            return  # a condition of the model may replace rows behind the table
        tables = feature.ids.tables
        last = limits_of(feature.ids, [vocabularies[one.vocabulary].size for one in tables]).high
        rows = feature.indicator or self.prepared.traced.spec.tables[feature.table].rows
        for table in tables:
            ends_there = last == table.first_value + vocabularies[table.vocabulary].size - 1
            if ends_there and last >= rows:
                raise UsageError(
                    f"features.{name}.ids: vocabulary {table.vocabulary!r} reaches row {last}, and "
                    f"table {feature.table!r} has {rows} rows: either the vocabulary is not the "
                    "one of training, or the table was too short there, so that the last "
                    f"{last + 1 - rows} keys have no row (a table needs one for each key, and "
                    "those for other keys): leave them out of the vocabulary, or train a larger "
                    "table"
                )

    def _write_corpora(self, moved: Callable[[int], None]) -> dict[str, manifest.Corpus]:
        stores = self._write_stores("corpora", self.job.corpora, moved)
        entries = {name: self._write_filters(name, corpus) for name, corpus in stores.items()}
        for name, index in self.job.indexes.items():
            # Its mistakes, too, are reported before copies.
            indexes.choose(index, name, entries[index.corpus].size)
        return entries

    def _choices(self, table: str) -> dict[str, str]:
        """Returns what the recipe chooses for a table beside its rows."""
        part = self.job.tables.get(table)
        return {} if part is None else {"unavailable": part.unavailable}

    def _write_stores(
        self, key: str, parts: Mapping[str, CorpusSection], moved: Callable[[int], None]
    ) -> dict[str, manifest.Corpus]:
        entries = {}
        features = self.prepared.entries
        store = _STORES[key]
        for name, part in parts.items():
            files = locate_corpus(self.prepared.base, name, part, key)
            corpus = CorpusReader(files, name, part.stored, features)
            changes = [] if self.changes is None else self.changes.of(key, name)
            write = partial(self._write_store, key, name, corpus, changes, moved)
            step_key = StepKey(
                store(name),
                {"corpus": part.stored, "features": features},
                content=[self.changes.digest] if self.changes is not None and changes else [],
                files=[file.path for file in files],
            )
            entries[name] = self.draft.do(Step(step_key, manifest.Corpus, write))
            self.notes += candidates.notes_of_lengths(f"{key}.{name}", entries[name])
        return entries

    def _write_lists(
        self, corpora: Mapping[str, manifest.Corpus]
    ) -> dict[str, manifest.CandidateList]:
        entries = {}
        for name, part in self.job.lists.items():
            lists.check_segment_input(name, part, self.prepared.entries)
            read = lists.columns_of(part)
            files = locate_corpus(self.prepared.base, name, read, "lists")
            rows = CorpusReader(files, f"lists.{name}", read, {})
            corpus = corpora[part.corpus]
            deleted: set[Any] = set()
            if self.changes is not None:
                deleted = self.changes.deleted(part.corpus)
            write = partial(
                lists.write_candidate_list, self.directory, name, part, rows, corpus, deleted
            )
            key = StepKey(
                paths.candidate_list(name),
                {"list": part, "deleted": sorted(deleted)},
                content=self.stage.files(corpus.file),
                files=[file.path for file in files],
            )
            written = self.draft.do(Step(key, lists.WrittenList, write))
            self.notes += written.notes(name)
            entries[name] = written.entry
        return entries

    def _write_warm_up(self) -> manifest.WarmUpRequests | None:
        """Writes the requests for the warm-up, if there are any."""
        prepared = self.prepared
        source = prepared.warm_up_requests
        if source is None:
            return None
        file = paths.WARM_UP_REQUESTS
        unread = prepared.unread_inputs
        writer = WarmUpWriter(self.job, prepared.traced.spec, prepared.entries, unread)
        read = {"part": self.job.warm_up, "features": prepared.entries, "unread": unread}
        towers = {"towers": self.job.towers, "indexes": self.job.indexes}
        key = StepKey(file, read | towers, files=[source])
        size = self.draft.do(Step(key, int, partial(writer.write, source, self.directory / file)))
        self.notes.append(
            f"a service computes {size} requests of {source.name} before it serves the bundle, "
            "which contains them"
        )
        return manifest.WarmUpRequests(file=file, size=size)

    def _write_store(
        self,
        section: str,
        name: str,
        corpus: CorpusReader,
        changes: Sequence[tuple[int, Change]],
        moved: Callable[[int], None],
    ) -> manifest.Corpus:
        """Writes a corpus or a store of contexts, with the changes of its log."""
        file = _STORES[section](name)
        entry = candidates.write_store(
            self.directory, file, corpus, moved, searched=section == "corpora"
        )
        if self.changes is None:
            return entry
        log = self.changes.path.name
        return fold(self.directory, entry, changes, f"{section}.{name}", log)

    def _write_filters(self, name: str, corpus: manifest.Corpus) -> manifest.Corpus:
        filters = {}
        store = self.stage.files(corpus.file)
        for number, attribute in enumerate(dict.fromkeys(self.job.corpora[name].filters)):
            write = partial(
                candidates.write_filter, self.directory, name, number, corpus, attribute
            )
            key = StepKey(
                paths.attribute_index(name, number), {"attribute": attribute}, content=store
            )
            filters[attribute] = self.draft.do(Step(key, manifest.AttributeIndex, write))
        return corpus.model_copy(update={"filters": filters})

    def _write_towers(self) -> dict[str, manifest.Tower]:
        prepared = self.prepared
        splits = self.prepared.splits
        files = TowerFiles(self.stage, prepared.traced.original, self.notes)
        return {
            name: files.write(tower, splits[name].parts if name in splits else (), self.job)
            for name, tower in ((tower.spec.name, tower) for tower in prepared.traced.towers)
        }

    def _shares_vectors_of(self, part: IndexSection) -> str:
        """Returns the first index of the same corpus and candidate tower.

        Its file of vectors serves them all: it is most of the bytes of an index, and the pages of
        one file are in memory once.
        """
        same = (part.corpus, part.candidate_tower)
        return next(
            name
            for name, other in self.job.indexes.items()
            if (other.corpus, other.candidate_tower) == same
        )

    def _write_vectors(
        self,
        name: str,
        part: IndexSection,
        features: FeatureReader,
        tower: manifest.Tower,
        corpus: manifest.Corpus,
        tables: Mapping[str, manifest.Table],
        found_by: Sequence[str],
        moved: Callable[[int], None],
    ) -> None:
        taken = {source for each in tower.inputs for source in each.sources}
        read = {
            feature: (entry, tables.get(getattr(entry, "table", "")))
            for feature, entry in self.prepared.entries.items()
            if feature in taken
        }
        form = find_form(tower.forms, ("litert", "f32"), ("saved_model", "f32"))
        runs_in = "ai-edge-litert" if form is not None and form.kind == "litert" else "tensorflow"
        # Files that lead from a candidate to its vector, and the libraries that compute it.
        files = [each.path for each in tower.forms if each.precision == "f32"]
        files += [corpus.file, *found_by]
        key = StepKey(
            paths.index_vectors(name),
            {"corpus": part.corpus, "features": read},
            content=[self.stage.files(path) for path in files],
            libraries=("numpy", runs_in),
        )
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
        self.draft.do(Step(key, int, write))

    def _write_index(
        self,
        name: str,
        part: IndexSection,
        reference: Reference,
        trained: FeatureReader,
        towers: Mapping[str, manifest.Tower],
        corpus: manifest.Corpus,
    ) -> manifest.Index:
        tower = towers[part.query_tower]
        made_of = towers[part.candidate_tower]
        queries = query_vectors(reference, self.directory, tower, reference.features)
        converted = any(
            reference.converted_tables(each) for each in (part.query_tower, part.candidate_tower)
        )
        right = query_vectors(reference, self.directory, tower, trained) if converted else queries
        cold = with_empty_bags(reference, part.query_tower)
        cold_queries = None
        if cold is not None:
            cold_queries = query_vectors(cold, self.directory, tower, cold.features)
        elif part.recall.of_cold_users is not None:
            raise UsageError(
                f"indexes.{name}.recall.of_cold_users is a limit for users with empty bags, but "
                f"tower {part.query_tower!r} has no bags; leave the limit out"
            )
        real = self.job.verify.examples is not None
        if not real:
            self.notes.append(
                f"index {name!r}: recall on invented queries, which is not representative: name "
                "real ones as verify.examples"
            )

        vectors_file = paths.index_vectors(self._shares_vectors_of(part))
        vectors = self.stage.files(vectors_file)
        coded = self._write_codes(name, part, corpus, vectors_file, queries.shape[1])

        def write() -> manifest.Index:
            run = executors.LocalExecutor(executors.encoder_count(self.settings.workers)).run
            once = partial(self._build_once, vectors)
            entry = indexes.build_index(
                self.directory,
                name,
                part,
                queries,
                run,
                once,
                representative=real,
                vectors_file=vectors_file,
                coded=coded,
            )
            if converted:
                aside = self.directory / ".vectors"
                candidates.write_vectors(
                    self.directory, name, part.corpus, corpus, made_of, trained, aside=aside
                )
                recall = recall_of_tables(self.directory, name, part, entry, queries, right, aside)
                entry = entry.model_copy(update={"recall_of_tables": recall})
                aside.unlink()  # as large as the vectors: what follows may need the space
            if cold_queries is not None:
                rows = sample_rows(len(cold_queries), part.recall.queries)
                cold_recall = recall_of_cold_users(
                    self.directory, name, part, entry, cold_queries, rows
                )
                entry = entry.model_copy(update={"recall_of_cold_users": cold_recall})
            return entry

        key = StepKey(
            paths.index_directory(name),
            {
                "index": part,
                "queries": queries,
                "true_queries": right,
                "cold_queries": cold_queries,
                "representative": real,
                "coded": coded,
            },
            content=vectors,
            libraries=LIBRARIES,
        )
        entry = self.draft.do(Step(key, manifest.Index, write))
        # Of an index that an earlier run wrote, too.
        if cold_queries is not None and (note := note_of_cold_users(name, entry)):
            self.notes.append(note)
        if note := indexes.note_of_costs(name, entry, corpus.size):
            self.notes.append(note)
        return entry

    def _judge_stages(
        self,
        reference: Reference,
        towers: Mapping[str, manifest.Tower],
        corpora: Mapping[str, manifest.Corpus],
        found_indexes: Mapping[str, manifest.Index],
    ) -> dict[str, manifest.Stage]:
        """Returns the stages with what was measured of them."""
        if not self.job.stages:
            return {}
        examples = reference.examples
        judge = StageJudge(
            base=self.directory,
            features=self.prepared.entries,
            reader=reference.features,
            towers=towers,
            corpora=corpora,
            examples=examples.columns,
            count=examples.n,
            representative=self.job.verify.examples is not None,
        )
        queries = {
            name: query_vectors(
                reference, self.directory, towers[index.query_tower], reference.features
            )
            for name, index in found_indexes.items()
        }
        stages = {}
        for name, part in self.job.stages.items():
            stages[name], notes = judge.judge(name, part, found_indexes, queries)
            self.notes += notes
        return stages

    def _write_codes(
        self, name: str, part: IndexSection, corpus: manifest.Corpus, vectors_file: str, dim: int
    ) -> bool:
        """Writes the codes of an index's vectors, and returns whether it has any."""
        kind, _ = indexes.choose(part, name, corpus.size)
        if not indexes.has_codes(kind, corpus):
            return False

        def write() -> int:
            # faiss is loaded where an index has codes.
            from export.corpora.codes import write_codes

            vectors = VectorFile(self.directory / vectors_file, dim)
            write_codes(self.directory, name, vectors, part.distance)
            return corpus.size

        key = StepKey(
            paths.index_codes(name),
            {"distance": part.distance},
            content=self.stage.files(vectors_file),
            libraries=("numpy", "faiss-cpu"),
        )
        self.draft.do(Step(key, int, write))
        return True

    def _build_once(
        self,
        vectors: Sequence[manifest.File],
        place: str,
        inputs: Any,
        make: Callable[[], None],
    ) -> None:
        """Builds a partition of an index, unless an earlier run built it of the same vectors.

        Its configuration is not among the files of its step: the chosen setting is written to it.
        The journal keeps the configuration as it was built.
        """
        step = indexes.partition_step(place)
        key = StepKey(
            step, {"partition": inputs}, content=vectors, libraries=("numpy", "scann")
        ).digest()
        config = f"{place}/{CONFIG}"
        finished = self.stage.finished(step, key)
        if finished is not None:
            (self.directory / config).write_bytes(bytes.fromhex(finished.payload))
            return

        make()
        built = (self.directory / config).read_bytes()
        files = [file for file in self.stage.digests(place) if file.path != config]
        self.stage.finish(step, key, built.hex(), files)


def _forms_of(towers: Mapping[str, manifest.Tower]) -> list[str]:
    """Returns the paths of the forms of towers, and of their parts."""
    forms = [form.path for tower in towers.values() for form in tower.forms]
    parts = [part for tower in towers.values() for part in tower.parts]
    return [*forms, *[form.path for part in parts for form in part.forms]]
