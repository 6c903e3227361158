"""The steps that convert what the user provides beside the checkpoint: vocabularies, corpora,
contexts, lists of candidates, and requests for the warm-up.

They come first: a mistake in a file that was written by hand is reported before the first table is
copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from bundle.changes.records import Change
from bundle.format import manifest, paths
from export.corpora import candidates, indexes, lists
from export.corpora.changes import fold
from export.corpora.files import locate_corpus
from export.corpora.reading import CorpusReader
from export.errors import UsageError
from export.front_end.specs import FeatureSpec
from export.id_graphs.limits import limits_of
from export.jobs.bundle_context import BundleContext
from export.jobs.warm_up import WarmUpWriter
from export.model_code.values import named_vocabularies
from export.recipe.schema import CorpusSection
from export.steps import Step, StepKey
from export.tables.vocabularies import write_model_vocabulary, write_vocabulary

_STORE_PATHS = {"corpora": paths.corpus_store, "contexts": paths.context_store}


class ProvidedFiles:
    """Writes the files of a bundle that come from the user's own files."""

    def __init__(self, context: BundleContext) -> None:
        self._context = context
        self._prepared = context.prepared
        self._job = context.job
        self._directory = context.directory

    def write_vocabularies(self) -> dict[str, manifest.Vocabulary]:
        """Writes the vocabularies of the recipe and of the model.

        Raises:
          UsageError: A vocabulary has keys without a row in the table of a feature.
        """
        entries: dict[str, manifest.Vocabulary] = {}
        # A model that looks up its keys by itself brings them; then only the model's code reads the
        # recipe's file.
        read_by_code = named_vocabularies(self._job) - self._vocabularies_of_features()
        for name, section in self._job.vocabularies.items():
            if name in read_by_code:
                continue
            file = paths.vocabulary(name)
            source = self._prepared.base / section.file
            key = StepKey(file, {"dtype": section.dtype}, files=[source])
            write = partial(write_vocabulary, source, section.dtype, self._directory / file)
            size = self._context.staged.run(Step(key, int, write))
            entries[name] = manifest.Vocabulary(file=file, size=size, dtype=section.dtype)

        for name, keys in self._prepared.traced.spec.vocabularies.items():
            file = paths.vocabulary(name)
            key = StepKey(file, {"keys": keys})
            write = partial(write_model_vocabulary, name, keys, self._directory / file)
            size = self._context.staged.run(Step(key, int, write))
            dtype = "string" if isinstance(keys[0], str) else "int64"
            entries[name] = manifest.Vocabulary(file=file, size=size, dtype=dtype)

        for name, feature in self._prepared.entries.items():
            if isinstance(feature, manifest.EmbeddedFeature):
                self._check_reach(name, feature, entries)
        return entries

    def _vocabularies_of_features(self) -> set[str]:
        """Returns the names of the vocabularies that rules of ids read."""
        names: set[str] = set()
        for feature in self._prepared.entries.values():
            if isinstance(feature, manifest.EmbeddedFeature):
                tables = manifest.lookup_tables_of(feature.ids)
                names.update(table.vocabulary for table in tables)
        return names

    def _check_reach(
        self,
        name: str,
        feature: manifest.EmbeddedFeature,
        vocabularies: Mapping[str, manifest.Vocabulary],
    ) -> None:
        """Rejects a vocabulary whose last keys have no row in the table of a feature."""
        if not isinstance(feature.ids, manifest.GraphIds):
            return
        spec = self._prepared.traced.spec.features[name]
        is_stated = isinstance(spec, FeatureSpec) and not spec.has_rule
        if not is_stated and any("Select" in node.op for node in feature.ids.nodes):
            # A condition of the model may replace the rows behind the table.
            return
        tables = feature.ids.tables
        sizes = [vocabularies[table.vocabulary].size for table in tables]
        last_row = limits_of(feature.ids, sizes).high
        row_count = feature.indicator or self._prepared.traced.spec.tables[feature.table].rows
        for table, size in zip(tables, sizes, strict=True):
            ends_with_vocabulary = last_row == table.first_value + size - 1
            if ends_with_vocabulary and last_row >= row_count:
                raise UsageError(
                    f"features.{name}.ids: vocabulary {table.vocabulary!r} reaches row {last_row}, "
                    f"and table {feature.table!r} has {row_count} rows: either the vocabulary is "
                    "not the one of training, or the table was too short there, so that the last "
                    f"{last_row + 1 - row_count} keys have no row (a table needs one for each key, "
                    "and those for other keys): leave them out of the vocabulary, or train a "
                    "larger table"
                )

    def write_corpora(self, moved: Callable[[int], None]) -> dict[str, manifest.Corpus]:
        """Writes the corpora with their filters.

        Args:
          moved: Takes the number of rows that were written since its last call.

        Raises:
          UsageError: A row or the section of an index is invalid.
        """
        stores = self._write_stores("corpora", self._job.corpora, moved)
        entries = {name: self._write_filters(name, corpus) for name, corpus in stores.items()}
        for name, index in self._job.indexes.items():
            # The index itself is built much later; its mistakes are reported before copies.
            indexes.choose(index, name, entries[index.corpus].size)
        return entries

    def write_contexts(self, moved: Callable[[int], None]) -> dict[str, manifest.Corpus]:
        """Writes the stores of contexts; see `write_corpora`."""
        return self._write_stores("contexts", self._job.contexts, moved)

    def _write_stores(
        self, kind: str, sections: Mapping[str, CorpusSection], moved: Callable[[int], None]
    ) -> dict[str, manifest.Corpus]:
        entries = {}
        features = self._prepared.entries
        logged = self._context.changes
        for name, section in sections.items():
            files = locate_corpus(self._prepared.base, name, section, kind)
            corpus = CorpusReader(files, f"{kind}.{name}", section, features)
            changes: Sequence[tuple[int, Change]] = []
            content = []
            if logged is not None:
                changes = logged.of(kind, name)
            # A store without changes in the log is not written again when the log grows.
            if logged is not None and changes:
                content.append(logged.digest)
            key = StepKey(
                _STORE_PATHS[kind](name),
                # How a column is read and checked depends on the features that read it.
                {"corpus": section.stored, "features": features},
                content=content,
                files=[file.path for file in files],
            )
            write = partial(self._write_store, kind, name, corpus, changes, moved)
            entries[name] = self._context.staged.run(Step(key, manifest.Corpus, write))
            self._context.notes.extend(candidates.notes_of_lengths(f"{kind}.{name}", entries[name]))
        return entries

    def _write_store(
        self,
        kind: str,
        name: str,
        corpus: CorpusReader,
        changes: Sequence[tuple[int, Change]],
        moved: Callable[[int], None],
    ) -> manifest.Corpus:
        """Writes a corpus or a store of contexts, with the changes of its log."""
        file = _STORE_PATHS[kind](name)
        entry = candidates.write_store(
            self._directory, file, corpus, moved, searched=kind == "corpora"
        )
        if self._context.changes is None:
            return entry
        log = self._context.changes.path.name
        return fold(self._directory, entry, changes, f"{kind}.{name}", log)

    def _write_filters(self, name: str, corpus: manifest.Corpus) -> manifest.Corpus:
        """Writes the attribute indexes of a corpus, and returns its entry with them."""
        filters = {}
        store_files = self._context.stage.files(corpus.file)
        # An attribute that the recipe names twice has one index.
        attributes = dict.fromkeys(self._job.corpora[name].filters)
        for number, attribute in enumerate(attributes):
            key = StepKey(
                paths.attribute_index(name, number), {"attribute": attribute}, content=store_files
            )
            write = partial(
                candidates.write_filter, self._directory, name, number, corpus, attribute
            )
            filters[attribute] = self._context.staged.run(Step(key, manifest.AttributeIndex, write))
        return corpus.model_copy(update={"filters": filters})

    def write_lists(
        self, corpora: Mapping[str, manifest.Corpus]
    ) -> dict[str, manifest.CandidateList]:
        """Writes the lists of candidates, without those that the log of changes deleted.

        Args:
          corpora: The corpora that the lists refer to, written.
        """
        entries = {}
        for name, section in self._job.lists.items():
            lists.check_segment_input(name, section, self._prepared.entries)
            columns = lists.columns_of(section)
            files = locate_corpus(self._prepared.base, name, columns, "lists")
            rows = CorpusReader(files, f"lists.{name}", columns, {})
            corpus = corpora[section.corpus]
            deleted_ids: set[Any] = set()
            if self._context.changes is not None:
                deleted_ids = self._context.changes.deleted(section.corpus)
            key = StepKey(
                paths.candidate_list(name),
                {"list": section, "deleted": sorted(deleted_ids)},
                content=self._context.stage.files(corpus.file),
                files=[file.path for file in files],
            )
            write = partial(
                lists.write_candidate_list,
                self._directory,
                name,
                section,
                rows,
                corpus,
                deleted_ids,
            )
            written = self._context.staged.run(Step(key, lists.WrittenList, write))
            self._context.notes.extend(written.notes(name))
            entries[name] = written.entry
        return entries

    def write_warm_up(self) -> manifest.WarmUpRequests | None:
        """Writes the requests for the warm-up; returns None if there are none."""
        source = self._prepared.warm_up_requests
        if source is None:
            return None
        file = paths.WARM_UP_REQUESTS
        features = self._prepared.entries
        unread_inputs = self._prepared.unread_inputs
        # Requests were compared with all of these: if one of them changes, they are compared again.
        inputs = {
            "part": self._job.warm_up,
            "features": features,
            "unread": unread_inputs,
            "towers": self._job.towers,
            "indexes": self._job.indexes,
        }
        key = StepKey(file, inputs, files=[source])
        writer = WarmUpWriter(self._job, self._prepared.traced.spec, features, unread_inputs)
        write = partial(writer.write, source, self._directory / file)
        size = self._context.staged.run(Step(key, int, write))
        self._context.notes.append(
            f"a service computes {size} requests of {source.name} before it serves the bundle, "
            "which contains them"
        )
        return manifest.WarmUpRequests(file=file, size=size)
