"""Proves by which layout a training program wrote tables to a variable: ids that occur in training
must read rows that training changed.

Every layout that the tables can have (`layout_candidates`) is scored on the rows of trained ids:

    agree        trained ids whose stored row training changed (`slot_marks`)
    correlation  between the counts of ids and what the accumulators of their rows grew by

A layout is proved if it explains the data and every other one explains it far worse. Scores are
logarithms of likelihoods. A trained id that falls on an untouched row is as unlikely as the best
layout makes it; a row of no trained id is touched as often as the best layout leaves such rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from export.checkpoint.layout_candidates import (
    Family,
    are_one,
    families,
    family_of,
    joined,
    layout_text,
    overlap,
)
from export.checkpoint.layouts import Layout
from export.checkpoint.slot_marks import SlotMarks, SlotReader, ranks_of
from export.checkpoint.trained_rows import TrainedRows
from export.errors import NotConvertible

IDS_MAX = 10_000
"""Trained ids of a table that are looked at."""
DECISIVE = math.log(1e6)
"""By how much the logarithm of the likelihood of the best layout must exceed that of another."""
UNTOUCHED_SHARE_MAX = 0.05
"""Share of trained ids that may fall on untouched rows: examples that training skipped, gradients
that are zero."""
CORRELATION_MIN = 0.3
"""Correlation of counts and accumulators that explains the data where all rows were trained."""
_CORRELATION_IDS_MIN = 50
_CORRELATION_WEIGHT = 0.5
"""Counts of ids that training read alike often depend on one another, so each tells less."""
_KEPT_MAX = 32
"""Layouts of a table that are kept for each number of cores."""
_STAGES = ((256, 2048), (2048, 256), (IDS_MAX, _KEPT_MAX))
"""Trained ids by which layouts are compared, and how many of these go on to the next stage."""
_SPARSE_IDS = (64, 16)
"""Trained ids of a table whose slot variables are too large to be read as a whole: at most, and at
least."""
_SPARSE_ROWS_MAX = 400_000
"""Stored rows that are read of such a table."""
_BACKGROUND_BLOCKS = 256
_BACKGROUND_ROWS = 16
_OPPOSED_IDS_MIN = 100
_OPPOSED_MAX = -0.1
"""Correlation of counts with accumulators below which they contradict each other."""
_DENSE_SHARE = 0.5
"""Share of trained rows from which on a message names it as a reason."""
_ARRANGEMENTS_MAX = 20_000
"""Combinations of layouts of the tables of one variable that are looked at."""
_CELLS_MAX = 1 << 22
"""Stored rows that are computed at a time."""


class TableInVariable(NamedTuple):
    """A table of a variable.

    Attributes:
      name: of the table.
      rows: of the table.
      stated: its layout by the user or by the training program; None: it is to be derived.
    """

    name: str
    rows: int
    stated: Layout | None = None


@dataclass(frozen=True)
class LayoutProof:
    """How the layout of a table is known from trained ids.

    Attributes:
      ids: trained ids that were looked at.
      agree: those whose row training changed.
      other: the layout that explains the data best of all others; "": there is no other.
      other_agree: trained ids whose row training changed by that layout.
      correlation: of counts and accumulators; None: there are none, or they were not needed.
      other_correlation: the same by the best other layout.
      decisive: whether every other layout explains the data far worse.
    """

    ids: int
    agree: int
    other: str
    other_agree: int
    correlation: float | None = None
    other_correlation: float | None = None
    decisive: bool = True

    def text(self) -> str:
        """Returns what was found, for reading: `187 of 187 trained ids agree; ...`."""
        text = f"{self.agree} of {self.ids} trained ids agree"
        if self.correlation is not None:
            text += f", and counts correlate by {self.correlation:.2f}"
        if not self.other:
            return f"{text}; no other layout is possible"
        text += f"; the best other layout ({self.other}) reaches {self.other_agree}"
        if self.other_correlation is not None:
            text += f" and {self.other_correlation:.2f}"
        return text


@dataclass(frozen=True)
class ProvedLayout:
    """The layout of a table, and how trained ids prove it."""

    layout: Layout
    proof: LayoutProof


def prove_layouts(
    reader: SlotReader,
    key: str,
    slices: Sequence[int],
    tables: Sequence[TableInVariable],
    trained: Mapping[str, TrainedRows],
) -> dict[str, ProvedLayout]:
    """Derives the layouts of the tables of one variable, or compares stated ones with the data.

    Args:
      reader: of the slot variables of the variable.
      key: of the variable, for messages.
      slices: first stored rows of its slices.
      tables: all tables of the variable.
      trained: rows that training read, by the name of a table.

    Returns:
      The layout of each table that has trained ids. A stated one may be undecided: the data does
      not contradict it, but `decisive` is false. A derived one never is.

    Raises:
      NotConvertible: the data contradicts a stated layout, explains no layout, or explains several
        equally well; or there is no data.
      CheckpointError: a slot variable cannot be read.
    """
    known = [table for table in tables if table.name in trained]
    if not known:
        return {}
    if not reader.slots:
        raise NotConvertible(
            f"verify.trained_ids of table {known[0].name!r}: the checkpoint has no slot variables "
            f"of {key!r}, so nothing tells which rows training read; a layout cannot be proved: "
            "leave the trained ids out, state the layout and accept it, or give recorded outputs "
            "(verify.expected)"
        )
    subject = _Subject(reader, key, slices, tables, dict(trained))
    subject = subject.with_readable_ids()
    marks = subject.read_marks()
    _check_marks(key, marks)
    scores = {table.name: subject.scores(table, marks) for table in known}
    return _Decision(subject, known, scores, marks).proved()


def _check_marks(key: str, marks: SlotMarks) -> None:
    if not marks.touched.any():
        raise NotConvertible(
            f"verify.trained_ids: all {len(marks.touched)} rows that were read of the slot "
            f"variables of {key!r} ({', '.join(marks.slots)}) have one value, as if the optimizer "
            "had been reset: nothing tells which rows training read; name a checkpoint with the "
            "optimizer's state, or leave the trained ids out"
        )


class _Scored(NamedTuple):
    """A layout of a table, and how it explains the trained ids.

    Attributes:
      cores: see `Family`.
      layout: of the table.
      agree: trained ids whose row training changed.
      correlation: of counts and accumulators; 0 without either.
    """

    cores: int
    layout: Layout
    agree: int
    correlation: float


@dataclass(frozen=True)
class _Scores:
    """The best layouts of one table for each number of cores.

    Attributes:
      trained: ids that were looked at.
      counted: whether counts were compared with accumulators.
      by_cores: layouts by the number of cores.
      cut: numbers of cores of which other layouts, left out, are as good.
      stated: the stated layout; None: it is to be derived.
    """

    trained: TrainedRows
    counted: bool
    by_cores: Mapping[int, Sequence[_Scored]]
    cut: frozenset[int]
    stated: _Scored | None


@dataclass(frozen=True)
class _Subject:
    """What is proved: tables, the variable that holds them, and rows that training read."""

    reader: SlotReader
    key: str
    slices: Sequence[int]
    tables: Sequence[TableInVariable]
    trained: dict[str, TrainedRows]

    def families(self, table: TableInVariable) -> Iterator[Family]:
        """Yields the layouts that a table can have."""
        number = self.tables.index(table)
        table_rows = [each.rows for each in self.tables]
        usual = not self.reader.reads_all
        yield from families(self.reader.rows, table_rows, number, self.slices, usual=usual)

    def with_readable_ids(self) -> _Subject:
        """Returns the same with as many trained ids as can be looked at.

        Raises:
          NotConvertible: so many layouts are possible that too few ids can be.
        """
        count = IDS_MAX
        if not self.reader.reads_all:
            layouts = sum(
                len(family.rotations)
                for table in self.tables
                if table.name in self.trained
                for family in self.families(table)
            )
            count = min(_SPARSE_IDS[0], _SPARSE_ROWS_MAX // max(1, layouts))
            if count < _SPARSE_IDS[1]:
                raise NotConvertible(
                    f"variable {self.key!r} has {self.reader.rows} rows, and its tables can lie in "
                    f"{layouts} ways: too many to compare; state the layout and accept it, or give "
                    "recorded outputs (verify.expected)"
                )
        sampled = {name: rows.sample(count) for name, rows in self.trained.items()}
        return _Subject(self.reader, self.key, self.slices, self.tables, sampled)

    def read_marks(self) -> SlotMarks:
        """Reads the slot variables: all rows, or those that some layout gives a trained id, and
        blocks of others.
        """
        if self.reader.reads_all:
            return self.reader.read_all()
        rows = self.reader.rows
        starts = np.linspace(0, rows - _BACKGROUND_ROWS, _BACKGROUND_BLOCKS).astype(np.int64)
        wanted = [(starts[:, None] + np.arange(_BACKGROUND_ROWS)).ravel()]
        for table in self.tables:
            if table.name in self.trained:
                ids = self.trained[table.name].rows
                wanted += [family.stored_rows(ids).ravel() for family in self.families(table)]
                if table.stated is not None:
                    wanted.append(family_of(table.stated).stored_rows(ids).ravel())
        return self.reader.read(np.concatenate(wanted))

    def scores(self, table: TableInVariable, marks: SlotMarks) -> _Scores:
        """Scores every layout that a table can have."""
        ranking = _Ranking(self.trained[table.name], marks)
        by_cores: dict[int, list[Family]] = {}
        for family in self.families(table):
            by_cores.setdefault(family.cores, []).append(family)
        best = {cores: ranking.best_of(members) for cores, members in by_cores.items()}
        stated = None
        if table.stated is not None:
            stated = ranking.score(table.stated)
            # A statement need not be one that a program would choose.
            best.setdefault(stated.cores, []).append(stated)
        return _Scores(ranking.trained, ranking.counted, best, frozenset(ranking.cut), stated)


class _Ranking:
    """Finds the layouts of a table that explain its trained ids best, by more ids in each stage.

    Attributes:
      trained: rows that training read.
      counted: whether their counts are compared with accumulators.
      cut: numbers of cores of which layouts were left out that are as good as those that were kept.
    """

    def __init__(self, trained: TrainedRows, marks: SlotMarks) -> None:
        self.trained = trained
        self.counted = marks.growth is not None and trained.counts is not None
        self.cut: set[int] = set()
        self._marks = marks

    def score(self, layout: Layout) -> _Scored:
        """Returns how one layout explains all trained ids."""
        family = family_of(layout)
        agree, correlation = self._score(family, self.trained)
        return _Scored(family.cores, layout, int(agree[0]), float(correlation[0]))

    def best_of(self, members: Sequence[Family]) -> list[_Scored]:
        """Returns the best layouts of one number of cores, best first."""
        remaining = list(members)
        layouts: list[_Scored] = []
        for ids_max, kept_max in _STAGES:
            ids = self.trained.sample(ids_max)
            if len(ids.rows) == len(self.trained.rows):
                return self._best(remaining, ids, _KEPT_MAX)
            layouts = self._best(remaining, ids, kept_max)
            remaining = joined([scored.layout for scored in layouts])
        return layouts

    def _best(self, members: Sequence[Family], ids: TrainedRows, kept_max: int) -> list[_Scored]:
        scores = [self._score(family, ids) for family in members]
        agree = np.concatenate([score[0] for score in scores])
        correlation = np.concatenate([score[1] for score in scores])
        weight = _weight_of_id(0, len(ids.rows), self._marks.touched_share)
        likelihood = _likelihoods(agree, correlation, ids, weight)
        order = np.argsort(-likelihood, kind="stable")
        left_out = order[kept_max:]
        if len(left_out) and likelihood[left_out[0]] > likelihood[order[0]] - DECISIVE:
            self.cut.add(members[0].cores)
        starts = np.cumsum([0, *(len(score[0]) for score in scores)])
        layouts = []
        for at in order[:kept_max].tolist():
            number = int(np.searchsorted(starts, at, side="right")) - 1
            family = members[number]
            layout = family.member(at - int(starts[number]))
            layouts.append(_Scored(family.cores, layout, int(agree[at]), float(correlation[at])))
        return layouts

    def _score(
        self, family: Family, ids: TrainedRows
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Returns agreement and correlation, each [k], of the layouts of a family."""
        weights = _standardized(ids.counts) if self.counted else None
        growth = self._marks.growth
        agree = np.empty(len(family.rotations), np.int64)
        correlation = np.zeros(len(family.rotations))
        step = max(1, _CELLS_MAX // max(1, len(ids.rows)))
        for first in range(0, len(family.rotations), step):
            part = Family(family.cores, family.layout, family.rotations[first : first + step])
            at = self._marks.positions(part.stored_rows(ids.rows))
            agree[first : first + step] = self._marks.touched[at].sum(axis=0)
            if weights is not None and growth is not None:
                correlation[first : first + step] = _correlations(weights, growth[at])
        return agree, correlation


Arrangement = dict[str, _Scored]
"""A layout for each table that has trained ids, all in one variable."""


class _Decision:
    """Decides which layouts the scores prove."""

    def __init__(
        self,
        subject: _Subject,
        known: Sequence[TableInVariable],
        scores: Mapping[str, _Scores],
        marks: SlotMarks,
    ) -> None:
        self._subject = subject
        self._tables = {table.name: table for table in known}
        self._scores = scores
        self._marks = marks
        self._weight = _weight_of_id(0, self._ids, marks.touched_share)

    def proved(self) -> dict[str, ProvedLayout]:
        """Returns the layout of each table with trained ids; raises as of `prove_layouts`."""
        best = self._best()
        if best is None:
            raise NotConvertible(
                f"variable {self._subject.key!r} of {self._subject.reader.rows} rows cannot hold "
                f"tables of {', '.join(str(table.rows) for table in self._subject.tables)} rows as "
                "SparseCores or TF1 place them; list every table of the stack, with its rows"
            )
        self._weight = self._weight_by(best)
        best = self._best() or best
        self._check_statement(best)
        self._check_explained(best)
        stated = self._stated
        chosen = stated or best
        proved = {}
        for name in self._tables:
            proof = self._proof(name, chosen)
            if stated is None and not proof.decisive:
                raise self._ambiguous(name, proof, chosen[name].layout)
            proved[name] = ProvedLayout(chosen[name].layout, proof)
        return proved

    @property
    def _ids(self) -> int:
        return sum(len(scores.trained.rows) for scores in self._scores.values())

    @property
    def _stated(self) -> Arrangement | None:
        stated = {name: scores.stated for name, scores in self._scores.items()}
        found = {name: scored for name, scored in stated.items() if scored is not None}
        return found if len(found) == len(stated) else None

    def _likelihood(self, name: str, scored: _Scored) -> float:
        agree = np.array([scored.agree])
        correlation = np.array([scored.correlation])
        ids = self._scores[name].trained
        return float(_likelihoods(agree, correlation, ids, self._weight)[0])

    def _total(self, arrangement: Arrangement) -> float:
        return sum(self._likelihood(name, scored) for name, scored in arrangement.items())

    def _weight_by(self, best: Arrangement) -> float:
        """Returns what a trained id on a touched row is worth, by how the best layouts explain the
        data.
        """
        agree = sum(scored.agree for scored in best.values())
        others = len(self._marks.touched) - self._ids
        touched_others = int(self._marks.touched.sum()) - agree
        share = (max(0, touched_others) + 1) / (max(0, others) + 2)
        return _weight_of_id(self._ids - agree, self._ids, share)

    def _best(self, name: str = "", unlike: Layout | None = None) -> Arrangement | None:
        """Returns the layouts that together explain the data best.

        Args:
          name: of a table whose layout must differ; "": none.
          unlike: from which it must differ.
        """
        best: Arrangement | None = None
        best_total = -math.inf
        numbers = set.intersection(*(set(each.by_cores) for each in self._scores.values()))
        options = {cores: self._options(cores, name, unlike) for cores in numbers}
        bounds = {
            cores: sum(choices[0][0] if choices else -math.inf for choices in option.values())
            for cores, option in options.items()
        }
        for cores in sorted(numbers, key=lambda cores: -bounds[cores]):
            if bounds[cores] <= best_total:
                break
            arrangement, total = self._arrange(options[cores], best_total)
            if arrangement is not None:
                best, best_total = arrangement, total
        return best

    def _options(
        self, cores: int, name: str, unlike: Layout | None
    ) -> dict[str, list[tuple[float, _Scored]]]:
        """Returns the layouts of each table, with their likelihoods, best first."""
        options = {}
        for table, scores in self._scores.items():
            layouts = [
                (self._likelihood(table, scored), scored)
                for scored in scores.by_cores[cores]
                if table != name
                or unlike is None
                or not are_one(scored.layout, unlike, self._tables[table].rows)
            ]
            options[table] = sorted(layouts, key=lambda option: -option[0])
        return options

    def _arrange(
        self, options: Mapping[str, Sequence[tuple[float, _Scored]]], total_min: float
    ) -> tuple[Arrangement | None, float]:
        """Returns the best combination of layouts of which no two overlap, if it is better than
        `total_min`.
        """
        names = sorted(options, key=lambda name: len(options[name]))
        tops = [options[name][0][0] for name in names]
        best: Arrangement | None = None
        best_total = total_min
        visited = 0
        pending: list[tuple[int, float, Arrangement]] = [(0, 0.0, {})]
        while pending and visited < _ARRANGEMENTS_MAX:
            depth, total, arrangement = pending.pop()
            visited += 1
            if depth == len(names):
                if total > best_total:
                    best, best_total = arrangement, total
                continue
            name = names[depth]
            rest = sum(tops[depth + 1 :])
            # The best option is pushed last, so that it is looked at first.
            for likelihood, scored in reversed(options[name]):
                reachable = total + likelihood + rest
                if reachable > best_total and not self._overlaps(name, scored, arrangement):
                    pending.append((depth + 1, total + likelihood, arrangement | {name: scored}))
        return best, best_total

    def _overlaps(self, name: str, scored: _Scored, arrangement: Arrangement) -> bool:
        rows = self._tables[name].rows
        return any(
            overlap(scored.layout, rows, other.layout, self._tables[other_name].rows)
            for other_name, other in arrangement.items()
        )

    def _proof(self, name: str, chosen: Arrangement) -> LayoutProof:
        """Compares the chosen layouts with the best ones that place a table otherwise."""
        other = self._best(name, chosen[name].layout)
        agree = sum(scored.agree for scored in chosen.values())
        scores = self._scores[name]
        correlation = chosen[name].correlation if scores.counted else None
        if other is None:
            return LayoutProof(self._ids, agree, "", 0, correlation)
        margin = self._total(chosen) - self._total(other)
        return LayoutProof(
            self._ids,
            agree,
            layout_text(other[name].layout),
            sum(scored.agree for scored in other.values()),
            correlation,
            other[name].correlation if scores.counted else None,
            decisive=margin >= DECISIVE
            and self._explains(name, chosen[name])
            and not self._may_be_cut(name, chosen),
        )

    def _may_be_cut(self, name: str, chosen: Arrangement) -> bool:
        """Returns whether a layout that was left out may explain the data as well."""
        scores = self._scores[name]
        for cores in scores.cut:
            bound = 0.0
            for table, own in self._scores.items():
                likelihoods = [
                    self._likelihood(table, scored) for scored in own.by_cores.get(cores, ())
                ]
                bound += max(likelihoods, default=-math.inf)
            if bound > self._total(chosen) - DECISIVE:
                return True
        return False

    def _explains(self, name: str, scored: _Scored) -> bool:
        """Returns whether a layout explains the trained ids of a table."""
        trained = self._scores[name].trained
        ids = len(trained.rows)
        if trained.all_trained:
            return ids - scored.agree <= UNTOUCHED_SHARE_MAX * ids
        return ids >= _CORRELATION_IDS_MIN and scored.correlation >= CORRELATION_MIN

    def _check_statement(self, best: Arrangement) -> None:
        """Refuses a stated layout that the data contradicts."""
        stated = self._stated
        if stated is None:
            return
        margin = self._total(best) - self._total(stated)
        for name, scored in stated.items():
            other = best[name]
            if are_one(scored.layout, other.layout, self._tables[name].rows):
                continue
            explained = self._explains(name, scored)
            refuted = self._scores[name].trained.all_trained and not explained
            if margin >= DECISIVE or (refuted and self._explains(name, other)):
                raise NotConvertible(
                    f"table {name!r}: its layout ({layout_text(scored.layout)}) contradicts the "
                    f"ids of training ({self._scores[name].trained.source}): "
                    f"{self._found(name, scored)}, and {self._found(name, other)} by another "
                    f"layout ({layout_text(other.layout)}); correct the layout, or let the "
                    'exporter derive it (layout = "derive")'
                )

    def _found(self, name: str, scored: _Scored) -> str:
        scores = self._scores[name]
        text = f"{scored.agree} of {len(scores.trained.rows)} read rows that training changed"
        if scores.counted:
            text += f" (correlation with counts {scored.correlation:.2f})"
        return text

    def _check_explained(self, best: Arrangement) -> None:
        """Refuses trained ids that no layout explains."""
        chosen = self._stated or best
        for name, scored in chosen.items():
            scores = self._scores[name]
            ids = len(scores.trained.rows)
            if not self._explains(name, scored) and (
                scores.trained.all_trained or self._stated is None
            ):
                raise NotConvertible(
                    f"table {name!r}: no layout explains the ids of training "
                    f"({scores.trained.source}): at best, {self._found(name, scored)} "
                    f"({layout_text(scored.layout)}); check that they are ids of this feature that "
                    "occurred in this training, and that every table of the stack is listed with "
                    "its rows; without trained ids, state the layout and accept it, or give "
                    "recorded outputs (verify.expected)"
                )
            if scores.counted and ids >= _OPPOSED_IDS_MIN and scored.correlation < _OPPOSED_MAX:
                raise NotConvertible(
                    f"table {name!r}: the counts of the trained ids ({scores.trained.source}) "
                    f"contradict the accumulators of their rows: their correlation is "
                    f"{scored.correlation:.2f}, and a positive one was expected; give the number "
                    "of times that each id occurs in training, or leave the counts out"
                )

    def _ambiguous(self, name: str, proof: LayoutProof, layout: Layout) -> NotConvertible:
        share = self._marks.touched_share
        hint = ""
        if share > _DENSE_SHARE:
            hint = f" ({share:.0%} of all rows were trained)"
        return NotConvertible(
            f"table {name!r}: more than one layout explains the ids of training "
            f"({self._scores[name].trained.source}): {proof.agree} of {proof.ids} read rows that "
            f"training changed by {layout_text(layout)}, and {proof.other_agree} by "
            f"{proof.other or 'others'}{hint}; give more trained ids, or how often each of them "
            "occurs; or state the layout and accept it, or give recorded outputs (verify.expected)"
        )


def _weight_of_id(untouched: int, ids: int, touched_share: float) -> float:
    """Returns by how much a trained id on a touched row raises the likelihood of a layout.

    Args:
      untouched: trained ids on untouched rows by the best layout.
      ids: trained ids.
      touched_share: share of touched rows among those of no trained id.
    """
    missed = (untouched + 1) / (ids + 2)
    touched = min(max(touched_share, 1e-6), 1 - 1e-6)
    return max(0.0, math.log((1 - missed) / missed) + math.log((1 - touched) / touched))


def _likelihoods(
    agree: NDArray[np.int64], correlation: NDArray[np.float64], ids: TrainedRows, weight: float
) -> NDArray[np.float64]:
    """Returns [k] float64, the logarithms of the likelihoods of k layouts, up to a constant."""
    positive = np.clip(correlation, 0, 1 - 1e-9)
    counted = -0.5 * _CORRELATION_WEIGHT * len(ids.rows) * np.log1p(-positive * positive)
    total: NDArray[np.float64] = counted + (agree * weight if ids.all_trained else 0)
    return total


def _standardized(counts: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    """Returns the ranks of counts with mean 0 and standard deviation 1; None: all are equal."""
    if counts is None or len(counts) < 2 or np.ptp(counts) == 0:
        return None
    order = ranks_of(counts)
    order = order - order.mean()
    result: NDArray[np.float64] = order / order.std()
    return result


def _correlations(weights: NDArray[np.float64], growth: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns [k] float64, the correlation of [n] standardized ranks with each column of [n, k]."""
    spread = growth.std(axis=0)
    covariance = weights @ growth / len(weights)
    return np.divide(covariance, spread, out=np.zeros_like(spread), where=spread > 1e-12)
