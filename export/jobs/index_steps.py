"""The steps that write indexes over corpora (vectors of candidates, codes, the index itself), and
that measure the recall of indexes and of stages of rankings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle.features.reader import FeatureReader
from bundle.format import manifest, paths
from bundle.storage.staging import Staging
from export.corpora import candidates, indexes
from export.corpora.recall import (
    note_of_cold_users,
    recall_of_cold_users,
    recall_of_tables,
    sample_rows,
)
from export.corpora.stages import StageJudge
from export.errors import UsageError
from export.jobs import executors
from export.jobs.bundle_context import BundleContext
from export.recipe.schema import IndexSection
from export.steps import LIBRARIES, Step, Written
from export.verify.parity import query_vectors, with_empty_bags
from export.verify.reference_inputs import Reference
from runtime.vectors import VectorFile


@dataclass(frozen=True)
class Queries:
    """Vectors of the examples, [n, dim] float32, by which an index is measured.

    Attributes:
      served: As a service computes them.
      trained: From rows as they were trained; the same as `served` if no table is converted.
      cold: As of users whose bags are empty; None if the query tower reads no bags.
      are_real: Whether the user named the examples.
      are_converted: Whether a tower of the index reads a converted table.
    """

    served: NDArray[np.float32]
    trained: NDArray[np.float32]
    cold: NDArray[np.float32] | None
    are_real: bool
    are_converted: bool


@dataclass(frozen=True)
class IndexSteps:
    """Writes the indexes of a bundle.

    Attributes:
      context: The bundle while it is made.
      reference: The examples, and the features as a service reads them.
      trained: The features with the rows of tables as they were trained.
      towers: The towers in the manifest, written.
      corpora: The corpora in the manifest, written.
      tables: The tables in the manifest, written.
      id_files: The files by which rows of ids are found.
    """

    context: BundleContext
    reference: Reference
    trained: FeatureReader
    towers: Mapping[str, manifest.Tower]
    corpora: Mapping[str, manifest.Corpus]
    tables: Mapping[str, manifest.Table]
    id_files: Sequence[Written]

    @cached_property
    def vector_owners(self) -> dict[str, str]:
        """By index, the first index of the same corpus and candidate tower. Its file of vectors
        serves them all: it is most of the bytes of an index, and the pages of one file are in
        memory once.
        """
        first_index: dict[tuple[str, str], str] = {}
        owners = {}
        for name, section in self.context.job.indexes.items():
            corpus_and_tower = (section.corpus, section.candidate_tower)
            owners[name] = first_index.setdefault(corpus_and_tower, name)
        return owners

    @property
    def vector_count(self) -> int:
        """The number of vectors that `write_vectors` writes."""
        owners = set(self.vector_owners.values())
        return sum(self.corpora[self.context.job.indexes[name].corpus].size for name in owners)

    def write_vectors(self, moved: Callable[[int], None]) -> None:
        """Writes the vectors of the candidates of all indexes.

        Args:
          moved: Takes the number of vectors that were written since its last call.
        """
        for name in dict.fromkeys(self.vector_owners.values()):
            section = self.context.job.indexes[name]
            tower = self._candidate_tower(section.candidate_tower, self.reference.features)
            library = "tensorflow"
            if any(form.kind == "litert" for form in tower.entry.forms):
                library = "ai-edge-litert"
            self.context.staged.run(
                # Another release of the library that runs the tower may compute other vectors.
                Step(paths.index_vectors(name), ("numpy", library)),
                candidates.write_vectors,
                name,
                section.corpus,
                candidates.store_of(self.corpora[section.corpus]),
                tower,
                moved=moved,
            )

    def _candidate_tower(self, name: str, reader: FeatureReader) -> candidates.CandidateTower:
        entry = self.towers[name]
        forms = tuple(form for form in entry.forms if form.precision == "f32")
        sources = {source for tensor in entry.inputs for source in tensor.sources}
        features = {
            feature: (feature_entry, self.tables.get(getattr(feature_entry, "table", "")))
            for feature, feature_entry in self.context.prepared.entries.items()
            if feature in sources
        }
        entry = entry.model_copy(update={"forms": forms})
        return candidates.CandidateTower(entry, reader, features, self.id_files)

    def write_indexes(self) -> dict[str, manifest.Index]:
        """Builds the indexes and measures their recall.

        Raises:
          UsageError: The recipe limits a recall that cannot be measured.
          VerificationFailed: The recall is lower than the recipe allows.
        """
        return {
            name: self._write_index(name, section)
            for name, section in self.context.job.indexes.items()
        }

    def _write_index(self, name: str, section: IndexSection) -> manifest.Index:
        context = self.context
        corpus = self.corpora[section.corpus]
        queries = self._queries(name, section)
        if not queries.are_real:
            context.notes.append(
                f"index {name!r}: recall on invented queries, which is not representative: name "
                "real ones as verify.examples"
            )
        vectors = Written(paths.index_vectors(self.vector_owners[name]))
        choice = indexes.choose(section, name, corpus.size)
        has_codes = indexes.has_codes(choice.kind, corpus)
        if has_codes:
            step = Step(paths.index_codes(name), ("numpy", "faiss-cpu"))
            dim = queries.served.shape[1]
            context.staged.run(step, _write_codes, name, vectors, dim, section.distance)
        entry = context.staged.run(
            Step(paths.index_directory(name, choice.engine), LIBRARIES),
            _build_index,
            name,
            section,
            queries,
            vectors,
            candidates.store_of(corpus),
            self._candidate_tower(section.candidate_tower, self.trained),
            has_codes,
            workers=context.settings.workers,
            stage=context.stage,
        )

        # These notes are also given for an index that an earlier run wrote.
        if queries.cold is not None and (note := note_of_cold_users(name, entry)):
            context.notes.append(note)
        if note := indexes.note_of_costs(name, entry, corpus.size):
            context.notes.append(note)
        return entry

    def _queries(self, name: str, section: IndexSection) -> Queries:
        """Returns the queries by which an index is measured.

        Raises:
          UsageError: The recipe limits the recall for users with empty bags, and there are no bags.
        """
        reference = self.reference
        directory = self.context.directory
        tower = self.towers[section.query_tower]
        served = query_vectors(reference, directory, tower, reference.features)
        trained = served
        are_converted = any(
            reference.converted_tables(tower_name)
            for tower_name in (section.query_tower, section.candidate_tower)
        )
        # Where no table is converted, both are the same, and the towers need not run again.
        if are_converted:
            trained = query_vectors(reference, directory, tower, self.trained)

        cold = None
        cold_examples = with_empty_bags(reference, section.query_tower)
        if cold_examples is not None:
            cold = query_vectors(cold_examples, directory, tower, cold_examples.features)
        elif section.recall.of_cold_users is not None:
            raise UsageError(
                f"indexes.{name}.recall.of_cold_users is a limit for users with empty bags, but "
                f"tower {section.query_tower!r} has no bags; leave the limit out"
            )
        are_real = self.context.job.verify.examples is not None
        return Queries(served, trained, cold, are_real, are_converted)

    def measure_stages(self, entries: Mapping[str, manifest.Index]) -> dict[str, manifest.Stage]:
        """Returns the stages of rankings with their measured recall.

        Args:
          entries: The indexes in the manifest, written.
        """
        if not self.context.job.stages:
            return {}
        reference = self.reference
        judge = StageJudge(
            base=self.context.directory,
            features=self.context.prepared.entries,
            reader=reference.features,
            towers=self.towers,
            corpora=self.corpora,
            examples=reference.examples.columns,
            count=reference.examples.n,
            representative=self.context.job.verify.examples is not None,
        )
        queries = {}
        for name, index in entries.items():
            tower = self.towers[index.query_tower]
            queries[name] = query_vectors(
                reference, self.context.directory, tower, reference.features
            )
        stages = {}
        for name, section in self.context.job.stages.items():
            stages[name], notes = judge.judge(name, section, entries, queries)
            self.context.notes.extend(notes)
        return stages


def _write_codes(
    base: Path, name: str, vectors: Written, dim: int, distance: manifest.Distance
) -> None:
    """Writes the codes of an index's vectors."""
    # faiss takes time and memory to load, and most bundles have no codes.
    from export.corpora.codes import write_codes

    write_codes(base, name, VectorFile(base / vectors.path, dim), distance)


def _build_index(
    base: Path,
    name: str,
    section: IndexSection,
    queries: Queries,
    vectors: Written,
    corpus: manifest.Corpus,
    trained: candidates.CandidateTower,
    has_codes: bool,
    workers: int,
    stage: Staging,
) -> manifest.Index:
    """Builds an index, and returns its entry with all recalls that were measured."""
    encoders = executors.LocalExecutor(executors.encoder_count(workers))
    entry = indexes.build_index(
        base,
        name,
        section,
        queries.served,
        encoders.run,
        stage=stage,
        representative=queries.are_real,
        vectors_file=vectors.path,
        coded=has_codes,
    )
    if queries.are_converted:
        trained_vectors = base / ".vectors"
        candidates.write_vectors(
            base,
            name,
            section.corpus,
            corpus,
            trained,
            aside=trained_vectors,
        )
        recall = recall_of_tables(
            base, name, section, entry, queries.served, queries.trained, trained_vectors
        )
        entry = entry.model_copy(update={"recall_of_tables": recall})
        # They are as large as the vectors: what follows may need the space.
        trained_vectors.unlink()
    if queries.cold is not None:
        rows = sample_rows(len(queries.cold), section.recall.queries)
        cold_recall = recall_of_cold_users(base, name, section, entry, queries.cold, rows)
        entry = entry.model_copy(update={"recall_of_cold_users": cold_recall})
    return entry
