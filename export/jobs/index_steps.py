"""The steps that write indexes over corpora (vectors of candidates, codes, the index itself), and
that measure the recall of indexes and of stages of rankings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.reader import FeatureReader
from bundle.format import manifest, paths
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
from export.steps import LIBRARIES, Step, StepKey
from export.verify.parity import query_vectors, with_empty_bags
from export.verify.reference_inputs import Reference
from runtime.scann import CONFIG
from runtime.towers import find_form
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


class IndexSteps:
    """Writes the indexes of a bundle.

    Attributes:
      vector_owners: By index, the first index of the same corpus and candidate tower. Its file of
        vectors serves them all: it is most of the bytes of an index, and the pages of one file are
        in memory once.
    """

    def __init__(
        self,
        context: BundleContext,
        reference: Reference,
        trained: FeatureReader,
        towers: Mapping[str, manifest.Tower],
        corpora: Mapping[str, manifest.Corpus],
    ) -> None:
        """Creates the steps.

        Args:
          context: The bundle while it is made.
          reference: The examples, and the features as a service reads them.
          trained: The features with the rows of tables as they were trained.
          towers: The towers in the manifest, written.
          corpora: The corpora in the manifest, written.
        """
        self._context = context
        self._job = context.job
        self._directory = context.directory
        self._reference = reference
        self._trained = trained
        self._towers = towers
        self._corpora = corpora
        first_index: dict[tuple[str, str], str] = {}
        self.vector_owners: dict[str, str] = {}
        for name, section in self._job.indexes.items():
            corpus_and_tower = (section.corpus, section.candidate_tower)
            self.vector_owners[name] = first_index.setdefault(corpus_and_tower, name)

    @property
    def vector_count(self) -> int:
        """The number of vectors that `write_vectors` writes."""
        owners = set(self.vector_owners.values())
        return sum(self._corpora[self._job.indexes[name].corpus].size for name in owners)

    def write_vectors(
        self,
        tables: Mapping[str, manifest.Table],
        id_files: Sequence[str],
        moved: Callable[[int], None],
    ) -> None:
        """Writes the vectors of the candidates of all indexes.

        Args:
          tables: The tables in the manifest, written.
          id_files: The files by which rows of ids are found.
          moved: Takes the number of vectors that were written since its last call.
        """
        for name in dict.fromkeys(self.vector_owners.values()):
            self._write_vectors(name, tables, id_files, moved)

    def _write_vectors(
        self,
        name: str,
        tables: Mapping[str, manifest.Table],
        id_files: Sequence[str],
        moved: Callable[[int], None],
    ) -> None:
        section = self._job.indexes[name]
        corpus = self._corpora[section.corpus]
        tower = self._towers[section.candidate_tower]
        sources = {source for tensor in tower.inputs for source in tensor.sources}
        features = {
            feature: (entry, tables.get(getattr(entry, "table", "")))
            for feature, entry in self._context.prepared.entries.items()
            if feature in sources
        }
        library = "tensorflow"
        form = find_form(tower.forms, ("litert", "f32"), ("saved_model", "f32"))
        if form is not None and form.kind == "litert":
            library = "ai-edge-litert"
        # The files that lead from a candidate to its vector, beside the rows of tables: these are
        # known by the checksums in `features`.
        files = [form.path for form in tower.forms if form.precision == "f32"]
        files += [corpus.file, *id_files]
        key = StepKey(
            paths.index_vectors(name),
            {"corpus": section.corpus, "features": features},
            content=[self._context.stage.files(path) for path in files],
            # Another release of the library that runs the tower may compute other vectors.
            libraries=("numpy", library),
        )
        write = partial(
            candidates.write_vectors,
            self._directory,
            name,
            section.corpus,
            corpus,
            tower,
            self._reference.features,
            moved,
        )
        self._context.staged.run(Step(key, int, write))

    def write_indexes(self) -> dict[str, manifest.Index]:
        """Builds the indexes and measures their recall.

        Raises:
          UsageError: The recipe limits a recall that cannot be measured.
          VerificationFailed: The recall is lower than the recipe allows.
        """
        return {
            name: self._write_index(name, section) for name, section in self._job.indexes.items()
        }

    def _write_index(self, name: str, section: IndexSection) -> manifest.Index:
        corpus = self._corpora[section.corpus]
        queries = self._queries(name, section)
        if not queries.are_real:
            self._context.notes.append(
                f"index {name!r}: recall on invented queries, which is not representative: name "
                "real ones as verify.examples"
            )
        vectors_file = paths.index_vectors(self.vector_owners[name])
        has_codes = self._write_codes(name, section, corpus, vectors_file, queries.served.shape[1])
        vectors = self._context.stage.files(vectors_file)
        key = StepKey(
            paths.index_directory(name),
            {
                "index": section,
                "queries": queries.served,
                "true_queries": queries.trained,
                "cold_queries": queries.cold,
                "representative": queries.are_real,
                "coded": has_codes,
            },
            content=vectors,
            libraries=LIBRARIES,
        )
        build = partial(self._build_index, name, section, queries, vectors_file, has_codes)
        entry = self._context.staged.run(Step(key, manifest.Index, build))

        # These notes are also given for an index that an earlier run wrote.
        if queries.cold is not None and (note := note_of_cold_users(name, entry)):
            self._context.notes.append(note)
        if note := indexes.note_of_costs(name, entry, corpus.size):
            self._context.notes.append(note)
        return entry

    def _queries(self, name: str, section: IndexSection) -> Queries:
        """Returns the queries by which an index is measured.

        Raises:
          UsageError: The recipe limits the recall for users with empty bags, and there are no bags.
        """
        reference = self._reference
        tower = self._towers[section.query_tower]
        served = query_vectors(reference, self._directory, tower, reference.features)
        trained = served
        are_converted = any(
            reference.converted_tables(tower_name)
            for tower_name in (section.query_tower, section.candidate_tower)
        )
        # Where no table is converted, both are the same, and the towers need not run again.
        if are_converted:
            trained = query_vectors(reference, self._directory, tower, self._trained)

        cold = None
        cold_examples = with_empty_bags(reference, section.query_tower)
        if cold_examples is not None:
            cold = query_vectors(cold_examples, self._directory, tower, cold_examples.features)
        elif section.recall.of_cold_users is not None:
            raise UsageError(
                f"indexes.{name}.recall.of_cold_users is a limit for users with empty bags, but "
                f"tower {section.query_tower!r} has no bags; leave the limit out"
            )
        are_real = self._job.verify.examples is not None
        return Queries(served, trained, cold, are_real, are_converted)

    def _build_index(
        self,
        name: str,
        section: IndexSection,
        queries: Queries,
        vectors_file: str,
        has_codes: bool,
    ) -> manifest.Index:
        """Builds an index, and returns its entry with all recalls that were measured."""
        directory = self._directory
        encoders = executors.LocalExecutor(executors.encoder_count(self._context.settings.workers))
        build_once = partial(self._build_once, self._context.stage.files(vectors_file))
        entry = indexes.build_index(
            directory,
            name,
            section,
            queries.served,
            encoders.run,
            build_once,
            representative=queries.are_real,
            vectors_file=vectors_file,
            coded=has_codes,
        )
        if queries.are_converted:
            trained_vectors = directory / ".vectors"
            candidates.write_vectors(
                directory,
                name,
                section.corpus,
                self._corpora[section.corpus],
                self._towers[section.candidate_tower],
                self._trained,
                aside=trained_vectors,
            )
            recall = recall_of_tables(
                directory, name, section, entry, queries.served, queries.trained, trained_vectors
            )
            entry = entry.model_copy(update={"recall_of_tables": recall})
            # They are as large as the vectors: what follows may need the space.
            trained_vectors.unlink()
        if queries.cold is not None:
            rows = sample_rows(len(queries.cold), section.recall.queries)
            cold_recall = recall_of_cold_users(directory, name, section, entry, queries.cold, rows)
            entry = entry.model_copy(update={"recall_of_cold_users": cold_recall})
        return entry

    def _write_codes(
        self,
        name: str,
        section: IndexSection,
        corpus: manifest.Corpus,
        vectors_file: str,
        dim: int,
    ) -> bool:
        """Writes the codes of an index's vectors, and returns whether it has any."""
        kind, _ = indexes.choose(section, name, corpus.size)
        if not indexes.has_codes(kind, corpus):
            return False

        def write() -> int:
            # faiss takes time and memory to load, and most bundles have no codes.
            from export.corpora.codes import write_codes

            vectors = VectorFile(self._directory / vectors_file, dim)
            write_codes(self._directory, name, vectors, section.distance)
            return corpus.size

        key = StepKey(
            paths.index_codes(name),
            {"distance": section.distance},
            content=self._context.stage.files(vectors_file),
            libraries=("numpy", "faiss-cpu"),
        )
        self._context.staged.run(Step(key, int, write))
        return True

    def _build_once(
        self,
        vectors: Sequence[manifest.File],
        partition: str,
        inputs: Any,
        build: Callable[[], None],
    ) -> None:
        """Builds a partition of an index, unless an earlier run built it of the same vectors.

        Its configuration is not among the files of its step: the chosen setting is written to it.
        The journal keeps the configuration as it was built.

        Args:
          vectors: The files of the vectors.
          partition: The directory of the partition in the bundle.
          inputs: All other values that decide what is built.
          build: Builds the partition.
        """
        stage = self._context.stage
        step = indexes.partition_step(partition)
        key = StepKey(
            step, {"partition": inputs}, content=vectors, libraries=("numpy", "scann")
        ).digest()
        config = f"{partition}/{CONFIG}"
        finished = stage.finished(step, key)
        if finished is not None:
            (self._directory / config).write_bytes(bytes.fromhex(finished.payload))
            return

        build()
        config_bytes = (self._directory / config).read_bytes()
        files = [file for file in stage.digests(partition) if file.path != config]
        stage.finish(step, key, config_bytes.hex(), files)

    def measure_stages(self, entries: Mapping[str, manifest.Index]) -> dict[str, manifest.Stage]:
        """Returns the stages of rankings with their measured recall.

        Args:
          entries: The indexes in the manifest, written.
        """
        if not self._job.stages:
            return {}
        reference = self._reference
        judge = StageJudge(
            base=self._directory,
            features=self._context.prepared.entries,
            reader=reference.features,
            towers=self._towers,
            corpora=self._corpora,
            examples=reference.examples.columns,
            count=reference.examples.n,
            representative=self._job.verify.examples is not None,
        )
        queries = {}
        for name, index in entries.items():
            tower = self._towers[index.query_tower]
            queries[name] = query_vectors(reference, self._directory, tower, reference.features)
        stages = {}
        for name, section in self._job.stages.items():
            stages[name], notes = judge.judge(name, section, entries, queries)
            self._context.notes.extend(notes)
        return stages
