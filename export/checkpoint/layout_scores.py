"""Scores how well each layout that a table can have explains the rows that training read.

    agree        trained ids whose stored row training changed (`slot_marks`)
    correlation  between the counts of ids and what the accumulators of their rows grew by

Scores are turned into logarithms of likelihoods. A trained id on an untouched row is as unlikely as
the best layout makes it; a row of no trained id is touched as often as the best layout leaves such
rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from export.checkpoint.inventory.specs import TableSpec
from export.checkpoint.layout_candidates import Family, families, family_of, joined
from export.checkpoint.layouts import Layout, stored_rows
from export.checkpoint.slot_marks import SlotMarks, SlotReader, scores_of_ranks
from export.checkpoint.trained_rows import TrainedRows
from export.errors import NotConvertible

DECISIVE = math.log(1e4)
"""The minimum difference between the logarithms of the likelihoods of the best layout and another.
"""
IDS_MAX = 10_000
"""The maximum number of trained ids of a table that are compared."""


class _SurvivorLimits(NamedTuple):
    """How many layouts of a table survive a stage, for each number of cores.

    Attributes:
      best: The number of layouts that survive in any case, the best ones.
      most: The maximum number of layouts if more are about as good.
    """

    best: int
    most: int


_FINAL_SURVIVORS = _SurvivorLimits(32, 512)
"""The number of layouts of a table that are scored by all trained ids and then decided among."""
_STAGES = (
    (256, _SurvivorLimits(2048, 2048)),
    (2048, _SurvivorLimits(256, 1024)),
    (IDS_MAX, _FINAL_SURVIVORS),
)
"""The stages of a ranking: by how many trained ids layouts are compared, and how many layouts
survive. Few ids exclude most layouts, so that many ids are compared with few layouts only.
"""
_SPARSE_IDS_MAX = 64
_SPARSE_IDS_MIN = 16
"""The number of trained ids that are compared for a table whose slot variables are too large to be
read as a whole. Fewer ids than the minimum would decide nothing.
"""
_SPARSE_ROWS_MAX = 400_000
"""The maximum number of stored rows that are read of such a table: each is a read of its own."""
_BACKGROUND_BLOCKS = 256
_BACKGROUND_ROWS = 16
"""Blocks, and rows of a block, that are read of such a table for the share of touched rows among
the rows of no trained id.
"""
_SPREAD_MIN = 1e-12
"""Standard deviation below which all values count as equal."""
_EQUAL_ERRORS = 1e-9
"""Difference of two errors of standardized scores below which the errors count as equal."""
_CELLS_MAX = 1 << 22
"""The maximum number of stored rows that are computed at a time, which bounds the memory: 8 bytes
each.
"""


class ScoredLayout(NamedTuple):
    """A layout of a table, and how it explains the trained ids.

    Attributes:
      cores: See `Family`.
      layout: The layout of the table.
      agree: The number of trained ids whose row training changed.
      correlation: The correlation of counts and accumulators; 0 if either is missing.
    """

    cores: int
    layout: Layout
    agree: int
    correlation: float


@dataclass(frozen=True)
class LayoutScores:
    """The best layouts of a table for each number of cores.

    Attributes:
      trained: The trained rows that were compared.
      counted: Whether counts were compared with accumulators.
      by_cores: Layouts by the number of cores.
      left_out: The best layout that was left out, by the number of cores.
      stated: The stated layout; None if it is to be derived.
    """

    trained: TrainedRows
    counted: bool
    by_cores: Mapping[int, Sequence[ScoredLayout]]
    left_out: Mapping[int, ScoredLayout]
    stated: ScoredLayout | None


@dataclass(frozen=True)
class Variable:
    """A variable whose tables' layouts are to be proved.

    Attributes:
      reader: The reader of its slot variables.
      key: Its key.
      slices: The first stored rows of its slices.
      tables: All its tables.
      trained: The rows that training read, by the name of the table.
    """

    reader: SlotReader
    key: str
    slices: Sequence[int]
    tables: Sequence[TableSpec]
    trained: dict[str, TrainedRows]

    def families(self, table: TableSpec) -> Iterator[Family]:
        """Yields the layouts that a table can have."""
        number = self.tables.index(table)
        table_rows = [table.rows for table in self.tables]
        usual = not self.reader.reads_all
        yield from families(self.reader.rows, table_rows, number, self.slices, usual=usual)

    def with_readable_ids(self) -> Variable:
        """Returns the same variable with at most as many trained ids as can be compared.

        Raises:
          NotConvertible: So many layouts are possible that too few ids can be compared.
        """
        count = IDS_MAX
        if not self.reader.reads_all:
            # Each layout may give a trained id another row to read.
            layouts = 0
            for table in self.tables:
                if table.name in self.trained:
                    layouts += sum(len(family.rotations) for family in self.families(table))
            count = min(_SPARSE_IDS_MAX, _SPARSE_ROWS_MAX // max(1, layouts))
            if count < _SPARSE_IDS_MIN:
                raise NotConvertible(
                    f"variable {self.key!r} has {self.reader.rows} rows, and its tables can lie in "
                    f"{layouts} ways: too many to compare; state the layout and accept it, or give "
                    "recorded outputs (verify.expected)"
                )
        sampled = {name: rows.sample(count) for name, rows in self.trained.items()}
        return Variable(self.reader, self.key, self.slices, self.tables, sampled)

    def read_marks(self) -> SlotMarks:
        """Reads the slot variables: all rows, or those that some layout gives a trained id, and
        blocks of others.
        """
        if self.reader.reads_all:
            return self.reader.read_all()
        rows = self.reader.rows
        starts = np.linspace(0, rows - _BACKGROUND_ROWS, _BACKGROUND_BLOCKS).astype(np.int64)
        row_groups = [(starts[:, None] + np.arange(_BACKGROUND_ROWS)).ravel()]
        for table in self.tables:
            if table.name not in self.trained:
                continue
            ids = self.trained[table.name].rows
            candidates = list(self.families(table))
            if table.stated_layout is not None:
                candidates.append(family_of(table.stated_layout))
            row_groups += [family.stored_rows(ids).ravel() for family in candidates]
        return self.reader.read(np.concatenate(row_groups))

    def scores(self, table: TableSpec, marks: SlotMarks) -> LayoutScores:
        """Scores every layout that a table can have."""
        ranking = _Ranking(self.trained[table.name], marks)
        by_cores: dict[int, list[Family]] = {}
        for family in self.families(table):
            by_cores.setdefault(family.cores, []).append(family)
        best = {cores: ranking.best_of(members) for cores, members in by_cores.items()}
        stated = None
        if table.stated_layout is not None:
            stated = ranking.score(table.stated_layout)
            # A statement need not be one that a program would choose.
            best.setdefault(stated.cores, []).append(stated)
        return LayoutScores(ranking.trained, ranking.counted, best, ranking.left_out, stated)


class _Ranking:
    """Finds the layouts of a table that explain its trained ids best, by more ids in each stage.

    Attributes:
      trained: Rows that training read.
      counted: Whether their counts are compared with accumulators.
      left_out: The best layout that was left out, by the number of cores; where a sample of the
        ids left it out, it would agree with as large a share of all.
    """

    def __init__(self, trained: TrainedRows, marks: SlotMarks) -> None:
        self.trained = trained
        self.counted = marks.growth is not None and trained.counts is not None
        self.left_out: dict[int, ScoredLayout] = {}
        self._marks = marks

    def score(self, layout: Layout) -> ScoredLayout:
        """Returns how one layout explains all trained ids."""
        family = family_of(layout)
        agree, correlation = self._score(family, self.trained)
        return ScoredLayout(family.cores, layout, int(agree[0]), float(correlation[0]))

    def best_of(self, members: Sequence[Family]) -> list[ScoredLayout]:
        """Returns the best layouts of one number of cores, best first."""
        remaining = list(members)
        layouts: list[ScoredLayout] = []
        for ids_max, survivors in _STAGES:
            ids = self.trained.sample(ids_max)
            # All ids were compared: a later stage would find the same.
            if len(ids.rows) == len(self.trained.rows):
                return self._best(remaining, ids, _FINAL_SURVIVORS)
            layouts = self._best(remaining, ids, survivors)
            remaining = joined([scored.layout for scored in layouts])
        return layouts

    def _best(
        self, members: Sequence[Family], ids: TrainedRows, survivors: _SurvivorLimits
    ) -> list[ScoredLayout]:
        scores = [self._score(family, ids) for family in members]
        agree = np.concatenate([family_agree for family_agree, _ in scores])
        correlation = np.concatenate([family_correlation for _, family_correlation in scores])
        weight = weight_of_id(0, len(ids.rows), self._marks.touched_share)
        likelihood = likelihoods(agree, correlation, ids, weight)
        # Stable: which of equally likely layouts survive does not depend on the machine.
        order = np.argsort(-likelihood, kind="stable")
        as_good = int((likelihood > likelihood[order[0]] - DECISIVE).sum())
        survivors_max = min(max(as_good, survivors.best), survivors.most)

        # Positions count the members of all families, one family behind the other.
        starts = np.cumsum([0, *(len(family_agree) for family_agree, _ in scores)])
        layouts = []
        # One more than survive: the best layout that is left out must be known.
        for position in order[: survivors_max + 1].tolist():
            number = int(np.searchsorted(starts, position, side="right")) - 1
            family = members[number]
            layout = family.member(position - int(starts[number]))
            scored = ScoredLayout(
                family.cores, layout, int(agree[position]), float(correlation[position])
            )
            layouts.append(scored)

        if len(layouts) > survivors_max:
            share = len(self.trained.rows) / len(ids.rows)
            self._leave_out(layouts.pop(), share)
        return layouts

    def _leave_out(self, scored: ScoredLayout, share: float) -> None:
        scaled = scored._replace(agree=round(scored.agree * share))
        # An upper bound over all stages, since agreement and correlation may be of two layouts.
        earlier = self.left_out.get(scored.cores, scaled)
        agree = max(earlier.agree, scaled.agree)
        correlation = max(earlier.correlation, scaled.correlation)
        self.left_out[scored.cores] = scaled._replace(agree=agree, correlation=correlation)

    def _score(
        self, family: Family, ids: TrainedRows
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Returns agreement and correlation, each [k], of the layouts of a family."""
        weights = None
        if self.counted:
            weights = _standardized(ids.counts)
        growth = self._marks.growth
        agree = np.empty(len(family.rotations), np.int64)
        correlation = np.zeros(len(family.rotations))
        step = max(1, _CELLS_MAX // max(1, len(ids.rows)))
        for first in range(0, len(family.rotations), step):
            part = Family(family.cores, family.layout, family.rotations[first : first + step])
            positions = self._marks.positions(part.stored_rows(ids.rows))
            agree[first : first + step] = self._marks.touched[positions].sum(axis=0)
            if weights is not None and growth is not None:
                correlation[first : first + step] = _correlations(weights, growth[positions])
        return agree, correlation


def weight_of_id(untouched: int, ids: int, touched_share: float) -> float:
    """Returns by how much a trained id on a touched row raises the likelihood of a layout.

    Args:
      untouched: Trained ids on untouched rows by the best layout.
      ids: Trained ids.
      touched_share: Share of touched rows among those of no trained id.
    """
    # Laplace's rule of succession: neither share may be 0 or 1, however few ids there are.
    missed = (untouched + 1) / (ids + 2)
    touched = min(max(touched_share, 1e-6), 1 - 1e-6)
    explained_odds = (1 - missed) / missed
    untouched_odds = (1 - touched) / touched
    return max(0.0, math.log(explained_odds) + math.log(untouched_odds))


def likelihoods(
    agree: NDArray[np.int64], correlation: NDArray[np.float64], ids: TrainedRows, weight: float
) -> NDArray[np.float64]:
    """Returns [k] float64, the logarithms of the likelihoods of k layouts, up to a constant.

    Counts and accumulators are taken for normally distributed, which finds the best layout, but
    overstates by how much it is better: `count_evidence` returns that.
    """
    # The likelihood ratio of a bivariate normal distribution with this correlation to one with
    # none. A negative correlation is evidence for nothing.
    positive = np.clip(correlation, 0, 1 - 1e-9)
    total: NDArray[np.float64] = -0.5 * len(ids.rows) * np.log1p(-positive * positive)
    if ids.all_trained:
        total = total + agree * weight
    return total


def count_evidence(ids: TrainedRows, marks: SlotMarks, layout: Layout, rival: Layout) -> float:
    """Returns by how much the counts of ids favor one layout over another, as the logarithm of a
    likelihood; negative if they favor the other.

    Each id shows under which layout its row grew as its count predicts, in standardized scores, and
    by how much more; this is Wilcoxon's signed-rank test. If neither layout were the right one,
    either sign would be as likely, and the sum of signed ranks, divided by the root of the sum of
    their squares, would exceed t with a probability below exp(-t^2 / 2).

    Source: W. Hoeffding, Probability inequalities for sums of bounded random variables, 1963.
    """
    expected = _standardized(ids.counts)
    if expected is None or marks.growth is None:
        return 0.0
    errors = []
    for rows in (stored_rows(layout, ids.rows), stored_rows(rival, ids.rows)):
        grown = _standardized(marks.growth[marks.positions(rows)])
        if grown is None:
            # All rows grew alike: each score is the mean, 0.
            errors.append(np.abs(expected))
        else:
            errors.append(np.abs(grown - expected))

    nearer = errors[1] - errors[0]
    nearer = nearer[np.abs(nearer) > _EQUAL_ERRORS]
    if not len(nearer):
        return 0.0
    # The position of each value in the order of values is the inverse of the sorting permutation.
    ranks = np.argsort(np.argsort(np.abs(nearer), kind="stable"), kind="stable") + 1.0
    signed_sum = (np.sign(nearer) * ranks).sum()
    ratio = float(signed_sum / np.sqrt((ranks**2).sum()))
    return math.copysign(ratio * ratio / 2, ratio)


def _standardized(counts: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    """Returns the scores of values with mean 0 and standard deviation 1; None: all are equal."""
    if counts is None or len(counts) < 2 or np.ptp(counts) == 0:
        return None
    order = scores_of_ranks(counts)
    order = order - order.mean()
    result: NDArray[np.float64] = order / order.std()
    return result


def _correlations(weights: NDArray[np.float64], growth: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns [k] float64: how [n] standardized scores correlate with each column of [n, k]."""
    spread = growth.std(axis=0)
    covariance = weights @ growth / len(weights)
    correlations: NDArray[np.float64] = np.divide(
        covariance, spread, out=np.zeros_like(spread), where=spread > _SPREAD_MIN
    )
    return correlations
