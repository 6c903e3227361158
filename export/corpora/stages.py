"""Stages before ranking towers: what their towers read of candidates, and how much of what a
ranking tower finds best the stage before it keeps.

The recall is measured with the towers, tables, stores and vectors of the bundle: for contexts of
examples, both towers score the nearest candidates of an index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import wilson_interval
from bundle.errors import BundleError, FormulaUndefined
from bundle.features.columns import Column, repeated
from bundle.features.reader import FeatureReader
from bundle.format.features import input_facts, readers_of
from bundle.format.formula import parse_formula
from bundle.format.manifest import Corpus, Feature, Index, Stage, StageRecall, Tower
from bundle.stores.reader import MappedColumns
from export.corpora.recall import open_vectors, sample_rows
from export.errors import NotConvertible, UsageError, VerificationFailed
from export.recipe.schema import CorpusSection, StageSection
from runtime.errors import InvalidInput
from runtime.exact import ExactIndex
from runtime.tower_inputs import tower_inputs
from runtime.towers import open_tower

Scores = NDArray[np.float64]
Vectors = NDArray[np.float32]

_K = 10
"""The number of best candidates that are looked for, unless a recipe states another one."""


def required_inputs(tower_features: Sequence[str], features: Mapping[str, Feature]) -> list[str]:
    """Returns the inputs of candidates that a tower reads, and that have no default.

    Args:
      tower_features: The features that the tower reads.
      features: Every feature of the model.
    """
    required = []
    for name, readers in readers_of(features).items():
        facts = input_facts(name, features[readers[0]])
        is_read = not {*readers}.isdisjoint(tower_features)
        if is_read and facts.role == "candidate" and facts.default is None:
            required.append(name)
    return required


def check_stage(
    name: str,
    section: StageSection,
    required: Mapping[str, Sequence[str]],
    corpora: Mapping[str, CorpusSection],
) -> None:
    """Checks that corpora hold what the towers of a stage, and of the ranking, read of candidates.

    Args:
      name: The tower that ranks.
      section: The stage before it, in the recipe.
      required: The inputs of candidates that each tower must get, by tower.
      corpora: The corpora of the recipe.

    Raises:
      UsageError: No corpus has the inputs of the tower that ranks, or one that has them lacks those
        of the stage; names them.
    """
    missing_by_corpus = {
        corpus: _lacking(entry, required[name]) for corpus, entry in corpora.items()
    }
    # A ranking tower may be for one of several corpora, so not every corpus must suit it.
    rankable = [corpus for corpus, missing in missing_by_corpus.items() if not missing]
    if not rankable:
        corpus = min(corpora, key=lambda corpus: len(missing_by_corpus[corpus]))
        raise UsageError(
            f"stages.{name}: no corpus has all inputs that tower {name!r} reads of candidates; "
            f"{_missing(corpus, missing_by_corpus[corpus])}, or leave the stage out"
        )
    for corpus in rankable:
        missing = _lacking(corpora[corpus], required[section.tower])
        if missing:
            raise UsageError(
                f"stages.{name}.tower: tower {section.tower!r} reads inputs of candidates that a "
                f"corpus lacks; {_missing(corpus, missing)}"
            )


def _lacking(corpus: CorpusSection, inputs: Sequence[str]) -> list[str]:
    return [name for name in inputs if name not in corpus.features]


def _missing(corpus: str, inputs: Sequence[str]) -> str:
    """Returns what a corpus lacks, and the remedies."""
    return (
        f"corpora.{corpus}.features has no column for {', '.join(inputs)}; add it, as in features "
        f'= {{ {inputs[0]} = "COLUMN" }}, or set features.{inputs[0]}.default'
    )


@dataclass(frozen=True)
class StageJudge:
    """Measures the recall of stages in a bundle that is being written.

    Attributes:
      base: The directory of the bundle.
      features: Its features.
      reader: The reader of their values.
      towers: Its towers.
      corpora: Its corpora.
      examples: The columns of the examples.
      count: The number of examples.
      representative: Whether the examples are those of the recipe.
    """

    base: Path
    features: Mapping[str, Feature]
    reader: FeatureReader
    towers: Mapping[str, Tower]
    corpora: Mapping[str, Corpus]
    examples: Mapping[str, Column]
    count: int
    representative: bool

    def judge(
        self,
        name: str,
        section: StageSection,
        indexes: Mapping[str, Index],
        queries: Mapping[str, Vectors],
    ) -> tuple[Stage, list[str]]:
        """Measures a stage on each index whose candidates its tower and the ranking tower can rank.

        Args:
          name: The tower that ranks.
          section: The stage before it, in the recipe.
          indexes: The indexes of the bundle.
          queries: The vectors of the examples, [n, dim], by index.

        Returns:
          The entry of the stage in the manifest, and notes on what was not measured.

        Raises:
          VerificationFailed: A recall is less than `section.recall.value`, or is not known though
            the recipe limits it.
          NotConvertible: A candidate cannot be scored.
        """
        notes = []
        recalls = {}
        for index_name, index in indexes.items():
            where = f"stage {section.tower!r} before {name!r}, index {index_name!r}"
            corpus = self.corpora[index.corpus]
            if not self._can_rank(name, corpus):
                continue
            # A stage that keeps the whole pool drops nothing that could be measured.
            pool_size = min(section.recall.pool_size or 10 * section.keep, corpus.size)
            if pool_size <= section.keep:
                notes.append(
                    f"{where}: the recall is not measured, since the stage keeps {section.keep} "
                    f"candidates, and the corpus has {corpus.size}"
                )
                continue
            try:
                recall = self._recall(
                    name, section, index_name, index, queries[index_name], pool_size
                )
            except FormulaUndefined as problem:
                notes.append(f"{where}: the recall is not measured: {problem}")
                continue
            except (BundleError, InvalidInput) as problem:
                raise NotConvertible(
                    f"{where}: candidates cannot be scored: {problem}"
                ) from problem
            recalls[index_name] = recall
            _check_recall(where, name, section, recall)
        if section.recall.value is not None and not recalls:
            reasons = "; ".join(notes) or "no index has candidates that both towers can rank"
            raise VerificationFailed(
                f"stages.{name}.recall.value is a limit, and the recall is not known: {reasons}; "
                "leave the limit out"
            )
        return Stage(tower=section.tower, keep=section.keep, recall=recalls), notes

    def _can_rank(self, tower: str, corpus: Corpus) -> bool:
        """Returns whether a corpus has what a tower must get of candidates."""
        required = required_inputs(_features_of(self.towers[tower]), self.features)
        return set(required) <= set(corpus.features)

    def _recall(
        self,
        name: str,
        section: StageSection,
        index_name: str,
        index: Index,
        queries: Vectors,
        pool_size: int,
    ) -> StageRecall:
        rows = sample_rows(self.count, section.recall.contexts)
        vectors = open_vectors(self.base / index.vectors, index_name, queries)
        pools, _ = ExactIndex(vectors, index.distance).search(queries[rows], pool_size)
        corpus = self.corpora[index.corpus]
        store = MappedColumns(self.base / corpus.file, corpus)
        # The towers that were written are run, as a service runs them.
        best = _Scorer(self, name, store, corpus)
        cheaper = _Scorer(self, section.tower, store, corpus)
        k = section.recall.k or min(_K, section.keep)
        shares = []
        for row, pool in zip(rows.tolist(), pools, strict=True):
            scores = best.scores(row, pool)
            stage_scores = cheaper.scores(row, pool)
            shares.append(kept_share(scores, stage_scores, section.keep, k))
        value = float(np.mean(shares))
        return StageRecall(
            k=k,
            value=value,
            low=wilson_interval(value, len(shares))[0],
            contexts=len(shares),
            pool_size=pool_size,
            representative=self.representative,
        )


def kept_share(scores: Scores, stage_scores: Scores, keep: int, k: int) -> float:
    """Returns the share of the best k candidates of a pool that a stage keeps.

    A candidate counts as one of the best if its score reaches the k-th one: among equals any is as
    good. Candidates without a finite score are in no pool.

    Args:
      scores: [m] scores of the tower that ranks.
      stage_scores: [m] scores of the stage, of the same candidates.
      keep: The number of candidates that the stage keeps, at least k.
      k: The number of best candidates.
    """
    is_finite = np.isfinite(scores) & np.isfinite(stage_scores)
    scores = scores[is_finite]
    k = min(k, scores.size)
    # A pool without finite scores has no best candidates that could be lost.
    if not k:
        return 1.0
    reached = np.sort(scores)[-k]
    order = np.argsort(-stage_scores[is_finite], kind="stable")
    hits = int(np.count_nonzero(scores[order[:keep]] >= reached))
    # If scores are equal, more than k candidates may reach the k-th one.
    return min(hits, k) / k


def _check_recall(where: str, name: str, section: StageSection, recall: StageRecall) -> None:
    limit = section.recall.value
    if limit is not None and recall.value < limit:
        raise VerificationFailed(
            f"{where}: of the {recall.k} best candidates of {name!r} in pools of "
            f"{recall.pool_size}, the stage keeps {recall.value:.4f}, stages.{name}.recall.value = "
            f"{limit:g}; raise stages.{name}.keep, change the limit, or train a better tower "
            f"{section.tower!r}"
        )


def _features_of(tower: Tower) -> list[str]:
    return [source for tensor in tower.inputs for source in tensor.sources]


class _Scorer:
    """Scores candidates of a store for contexts of examples by a written tower."""

    def __init__(self, judge: StageJudge, name: str, store: MappedColumns, corpus: Corpus) -> None:
        self._entry = judge.towers[name]
        self._tower = open_tower(judge.base, self._entry)
        self._features = _features_of(self._entry)
        self._reader = judge.reader
        self._store = store
        self._count = judge.count
        roles = {
            feature_input: input_facts(feature_input, judge.features[readers[0]]).role
            for feature_input, readers in readers_of(judge.features).items()
            if not {*readers}.isdisjoint(self._features)
        }
        self._context = {
            name: column for name, column in judge.examples.items() if roles.get(name) == "context"
        }
        self._stored = [name for name in corpus.features if roles.get(name) == "candidate"]

    def scores(self, row: int, pool: NDArray[np.int64]) -> Scores:
        """Returns [m] scores of a pool of candidates for the context of an example.

        Args:
          row: The number of the example.
          pool: [m] positions of the candidates.
        """
        counts = np.zeros(self._count, np.int64)
        # The context of the example is repeated for each candidate, and all others are left out.
        counts[row] = pool.size
        columns = {name: repeated(name, column, counts) for name, column in self._context.items()}
        columns |= self._store.features(pool, self._stored)
        activations = self._reader.activations(self._features, columns, pool.size)
        values: dict[str, Any] = {
            feature: activation.values for feature, activation in activations.items()
        }
        outputs = self._tower.run(tower_inputs(self._entry.inputs, values, pool.size))
        if self._entry.formula is None:
            return outputs[self._entry.result].reshape(-1).astype(np.float64)
        # A formula takes one number for each candidate, which other outputs do not have.
        heads = {
            output: array.reshape(-1)
            for output, array in outputs.items()
            if array.size == pool.size
        }
        scores: Scores = parse_formula(self._entry.formula).evaluate(heads).astype(np.float64)
        return scores
