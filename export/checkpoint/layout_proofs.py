"""Proves by which layout a training program wrote tables to a variable: ids that occur in training
must read rows that training changed.

A layout is proved if it explains the trained ids, and every other layout that the tables can have
(`layout_candidates`) explains them far worse (`layout_scores`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bundle.format.manifest import TrainedIdsCheck
from export.checkpoint.inventory.specs import TableSpec
from export.checkpoint.layout_candidates import are_one, core_range, layout_text
from export.checkpoint.layout_scores import (
    DECISIVE,
    LayoutScores,
    ScoredLayout,
    Variable,
    count_evidence,
    likelihoods,
    weight_of_id,
)
from export.checkpoint.layouts import Layout
from export.checkpoint.slot_marks import SlotMarks, SlotReader
from export.checkpoint.trained_rows import TrainedRows
from export.errors import NotConvertible

UNTOUCHED_SHARE_MAX = 0.01
"""The maximum share of trained ids on untouched rows, which examples that training skipped and zero
gradients leave.
"""
CORRELATION_MIN = 0.3
"""Correlation of counts and accumulators that explains the data where all rows were trained."""
_CORRELATION_IDS_MIN = 50
"""The minimum number of trained ids whose correlation explains the data. Among fewer ids, chance
reaches CORRELATION_MIN too often.
"""
_OPPOSED_IDS_MIN = 100
"""The minimum number of trained ids whose counts can contradict the accumulators."""
_OPPOSED_MAX = -0.1
"""Correlation of counts with accumulators below which they contradict each other."""
_DENSE_SHARE = 0.5
"""Share of trained rows above which a message names it as a reason why ids do not decide."""
_ARRANGEMENTS_MAX = 20_000
"""The maximum number of combinations of layouts of one variable's tables that are tried. Their
number grows exponentially with the number of tables; combinations that were not tried leave the
layouts undecided.
"""


@dataclass(frozen=True)
class ProvedLayout:
    """The layout of a table, and how trained ids prove it."""

    layout: Layout
    proof: TrainedIdsCheck


def prove_layouts(
    reader: SlotReader,
    key: str,
    slices: Sequence[int],
    tables: Sequence[TableSpec],
    trained: Mapping[str, TrainedRows],
) -> dict[str, ProvedLayout]:
    """Derives the layouts of the tables of one variable, or compares stated ones with the data.

    Args:
      reader: The reader of the variable's slot variables.
      key: The key of the variable, for messages.
      slices: The first stored rows of its slices.
      tables: All tables of the variable.
      trained: The rows that training read, by the name of a table.

    Returns:
      The layout of each table that has trained ids. A stated one may be undecided: the data does
      not contradict it, but `decisive` is false. A derived one never is.

    Raises:
      NotConvertible: The data contradicts a stated layout, explains no layout, or explains several
        equally well; or there is no data.
      CheckpointError: A slot variable cannot be read.
    """
    tables_with_ids = [table for table in tables if table.name in trained]
    if not tables_with_ids:
        return {}
    if not reader.slots:
        raise NotConvertible(
            f"table {tables_with_ids[0].name!r}: {cannot_be_proved(key, has_slots=False)}; leave "
            "its trained ids out"
        )
    for table in tables_with_ids:
        _check_rows(table, trained[table.name])
    variable = Variable(reader, key, slices, tables, dict(trained))
    variable = variable.with_readable_ids()
    marks = variable.read_marks()
    _check_marks(key, marks)
    scores = {table.name: variable.scores(table, marks) for table in tables_with_ids}
    return _Decision(variable, tables_with_ids, scores, marks).proved()


def _check_rows(table: TableSpec, trained: TrainedRows) -> None:
    beyond = trained.rows[trained.rows >= table.rows]
    if len(beyond):
        raise NotConvertible(
            f"table {table.name!r}: {len(beyond)} of {len(trained.rows)} trained ids "
            f"({trained.source}) read rows that it does not have, such as row {beyond[0]} of "
            f"{table.rows}; ids of this table that occurred in training were expected"
        )


def cannot_be_proved(key: str, *, has_slots: bool) -> str:
    """Returns why nothing proves the layout of a table, and what to do."""
    if not has_slots:
        return (
            f"its layout cannot be proved, as the checkpoint has no slot variables of {key!r}, "
            "which show the rows that training changed; state the layout and accept it, or give "
            "recorded outputs (verify.expected)"
        )
    return (
        f"its layout in {key!r} cannot be proved without ids that occur in training; give them "
        "(verify.trained_ids in a recipe, --trained-ids NAME=FILE), or state the layout and accept "
        "it, or give recorded outputs (verify.expected)"
    )


def _check_marks(key: str, marks: SlotMarks) -> None:
    if not marks.touched.any():
        raise NotConvertible(
            f"verify.trained_ids: all {len(marks.touched)} rows that were read of the slot "
            f"variables of {key!r} ({', '.join(marks.slots)}) have one value, as if the optimizer "
            "had been reset: nothing shows which rows training read; name a checkpoint with the "
            "optimizer's state, or leave the trained ids out"
        )


Arrangement = dict[str, ScoredLayout]
"""A layout for each table that has trained ids, all in one variable."""


class _Option(NamedTuple):
    """A layout of a table among those of the other tables in the variable.

    Attributes:
      likelihood: The logarithm of its likelihood.
      first, end: The rows [first, end) that it takes on each core.
      scored: The layout.
    """

    likelihood: float
    first: int
    end: int
    scored: ScoredLayout

    def overlaps(self, option: _Option) -> bool:
        """Returns whether two tables take the same rows."""
        return self.first < option.end and option.first < self.end


def _lead(options: Sequence[_Option]) -> float:
    """Returns by how much the best layout of a table is more likely than the next."""
    if len(options) < 2:
        return math.inf
    return options[0].likelihood - options[1].likelihood


class _Decision:
    """Decides which layouts the scores prove."""

    def __init__(
        self,
        variable: Variable,
        tables: Sequence[TableSpec],
        scores: Mapping[str, LayoutScores],
        marks: SlotMarks,
    ) -> None:
        self._variable = variable
        self._tables = {table.name: table for table in tables}
        self._scores = scores
        self._marks = marks
        self._weight = weight_of_id(0, self._ids, marks.touched_share)
        self._unsearched = -math.inf

    def proved(self) -> dict[str, ProvedLayout]:
        """Returns the layout of each table with trained ids. Raises: see `prove_layouts`."""
        # A stated layout need not be one that a program would choose, so it may fit where no
        # candidate does.
        best = self._best() or self._stated
        if best is None:
            raise NotConvertible(
                f"variable {self._variable.key!r} of {self._variable.reader.rows} rows cannot hold "
                f"tables of {', '.join(str(table.rows) for table in self._variable.tables)} rows "
                "as SparseCores or TF1 place them; list every table of the stack, with its rows"
            )
        # The first weight assumes that the best layouts explain every id; with the share that they
        # do explain, others may be better.
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
        stated = {}
        for name, scores in self._scores.items():
            if scores.stated is None:
                return None
            stated[name] = scores.stated
        return stated

    def _likelihood(self, name: str, scored: ScoredLayout) -> float:
        return self._likelihoods(name, [scored])[0]

    def _likelihoods(self, name: str, layouts: Sequence[ScoredLayout]) -> list[float]:
        agree = np.array([scored.agree for scored in layouts])
        correlation = np.array([scored.correlation for scored in layouts])
        ids = self._scores[name].trained
        values: list[float] = likelihoods(agree, correlation, ids, self._weight).tolist()
        return values

    def _total(self, arrangement: Arrangement) -> float:
        return sum(self._likelihood(name, scored) for name, scored in arrangement.items())

    def _weight_by(self, best: Arrangement) -> float:
        """Returns what a trained id on a touched row is worth, by how the best layouts explain the
        data.
        """
        # Laplace's rule of succession, as in `weight_of_id`: the share is neither 0 nor 1.
        agree = sum(scored.agree for scored in best.values())
        rows_without_id = len(self._marks.touched) - self._ids
        touched_without_id = int(self._marks.touched.sum()) - agree
        share = (max(0, touched_without_id) + 1) / (max(0, rows_without_id) + 2)
        return weight_of_id(self._ids - agree, self._ids, share)

    def _best(self, name: str = "", unlike: Layout | None = None) -> Arrangement | None:
        """Returns the layouts that together explain the data best.

        Args:
          name: The table whose layout must differ from `unlike`; "" if none must.
          unlike: The layout from which it must differ.
        """
        best: Arrangement | None = None
        best_total = -math.inf
        # Tables of one variable are spread over the same cores.
        numbers = set.intersection(*(set(scores.by_cores) for scores in self._scores.values()))
        options = {cores: self._options(cores, name, unlike) for cores in numbers}

        # No combination is better than the best layout of each table, wherever they overlap.
        bounds: dict[int, float] = {}
        for cores, options_of_tables in options.items():
            bound = 0.0
            for choices in options_of_tables.values():
                bound += choices[0].likelihood if choices else -math.inf
            bounds[cores] = bound

        for cores in sorted(numbers, key=lambda cores: -bounds[cores]):
            if bounds[cores] <= best_total:
                break
            arrangement, total = self._arrange(options[cores], best_total)
            if arrangement is not None:
                best = arrangement
                best_total = total
        return best

    def _options(self, cores: int, name: str, unlike: Layout | None) -> dict[str, list[_Option]]:
        """Returns the layouts of each table, with their likelihoods, best first."""
        options = {}
        for table, scores in self._scores.items():
            rows = self._tables[table].rows
            layouts = scores.by_cores[cores]
            choices = []
            for likelihood, scored in zip(self._likelihoods(table, layouts), layouts, strict=True):
                if unlike is not None and table == name and are_one(scored.layout, unlike, rows):
                    continue
                choices.append(_Option(likelihood, *core_range(scored.layout, rows), scored))
            options[table] = sorted(choices, key=lambda option: -option.likelihood)
        return options

    def _arrange(
        self, options: Mapping[str, Sequence[_Option]], total_min: float
    ) -> tuple[Arrangement | None, float]:
        """Returns the best combination of layouts of which no two overlap, if it is better than
        `total_min`.
        """
        # Tables whose best layout is far better than the next leave the others few choices.
        names = sorted(options, key=lambda name: _lead(options[name]), reverse=True)
        tops = [options[name][0].likelihood for name in names]
        best: tuple[_Option, ...] | None = None
        best_total = total_min
        visited = 0
        pending: list[tuple[float, tuple[_Option, ...]]] = [(0.0, ())]
        while pending and visited < _ARRANGEMENTS_MAX:
            total, chosen = pending.pop()
            visited += 1
            if len(chosen) == len(names):
                if total > best_total:
                    best = chosen
                    best_total = total
                continue
            # Combinations that cannot reach the best one are cut off (branch and bound).
            remaining_total = sum(tops[len(chosen) + 1 :])
            # The best option is pushed last, so that it is looked at first.
            for option in reversed(options[names[len(chosen)]]):
                reachable = total + option.likelihood + remaining_total
                if reachable > best_total and not any(map(option.overlaps, chosen)):
                    pending.append((total + option.likelihood, (*chosen, option)))
        # An upper bound of what the combinations reach that the limit left out. Layouts are proved
        # only if these are far worse, too.
        for total, chosen in pending:
            self._unsearched = max(self._unsearched, total + sum(tops[len(chosen) :]))
        if best is None:
            return None, best_total
        arrangement = dict(zip(names, best, strict=True))
        return {name: arrangement[name].scored for name in options}, best_total

    def _proof(self, name: str, chosen: Arrangement) -> TrainedIdsCheck:
        """Compares the chosen layouts with the best ones that place a table otherwise."""
        self._unsearched = -math.inf
        rival = self._best(name, chosen[name].layout)
        agree = sum(scored.agree for scored in chosen.values())
        scores = self._scores[name]
        correlation = None
        if scores.counted:
            correlation = chosen[name].correlation
        if rival is None:
            # The table can have no other layout beside those of its neighbors.
            return TrainedIdsCheck(
                ids=self._ids,
                agree=agree,
                other_layout="",
                other_agree=0,
                correlation=correlation,
                decisive=self._explains(name, chosen[name]),
            )

        rival_correlation = None
        if scores.counted:
            rival_correlation = rival[name].correlation
        # Every other layout must be far worse: the best one, but also those that limits left
        # untried or out of the ranking.
        is_decisive = (
            self._explains(name, chosen[name])
            and self._unsearched < self._total(chosen) - DECISIVE
            and self._margin(chosen, rival) >= DECISIVE
            and self._is_unrivaled(name, chosen)
            and not self._may_be_left_out(name, chosen)
        )
        return TrainedIdsCheck(
            ids=self._ids,
            agree=agree,
            other_layout=layout_text(rival[name].layout),
            other_agree=sum(scored.agree for scored in rival.values()),
            correlation=correlation,
            other_correlation=rival_correlation,
            decisive=is_decisive,
        )

    def _margin(self, chosen: Arrangement, rival: Arrangement) -> float:
        """Returns by how much the data favors layouts over others, as the logarithm of a
        likelihood.
        """
        margin = 0.0
        for name, scored in chosen.items():
            margin += self._margin_of_table(name, scored, rival[name])
        return margin

    def _margin_of_table(self, name: str, chosen: ScoredLayout, rival: ScoredLayout) -> float:
        scores = self._scores[name]
        margin = 0.0
        if scores.trained.all_trained:
            margin = (chosen.agree - rival.agree) * self._weight
        if scores.counted and chosen.layout != rival.layout:
            margin += count_evidence(scores.trained, self._marks, chosen.layout, rival.layout)
        return margin

    def _is_unrivaled(self, name: str, chosen: Arrangement) -> bool:
        """Returns whether every other layout of a table, beside the chosen ones of the others, is
        far worse.
        """
        # Agreement orders layouts as the margin does. Correlation does not: the best layout by
        # correlation need not be the one that the signed ranks exclude by the smallest margin.
        if not self._scores[name].counted:
            return True
        rows = self._tables[name].rows
        chosen_layout = chosen[name]
        neighbors = {table: scored for table, scored in chosen.items() if table != name}
        for scored in self._scores[name].by_cores.get(chosen_layout.cores, ()):
            if are_one(scored.layout, chosen_layout.layout, rows):
                continue
            if self._overlaps(name, scored, neighbors):
                continue
            if self._margin_of_table(name, chosen_layout, scored) < DECISIVE:
                return False
        return True

    def _overlaps(self, name: str, scored: ScoredLayout, neighbors: Arrangement) -> bool:
        first, end = core_range(scored.layout, self._tables[name].rows)
        for table, neighbor in neighbors.items():
            neighbor_first, neighbor_end = core_range(neighbor.layout, self._tables[table].rows)
            if first < neighbor_end and neighbor_first < end:
                return True
        return False

    def _may_be_left_out(self, name: str, chosen: Arrangement) -> bool:
        """Returns whether a layout that was left out may explain the data as well."""
        for cores, left_out in self._scores[name].left_out.items():
            bound = self._likelihood(name, left_out)
            for table, scores in self._scores.items():
                if table != name:
                    layouts = scores.by_cores.get(cores, ())
                    bound += max(self._likelihoods(table, layouts), default=-math.inf)
            if bound > self._total(chosen) - DECISIVE:
                return True
        return False

    def _explains(self, name: str, scored: ScoredLayout) -> bool:
        """Returns whether a layout explains the trained ids of a table."""
        trained = self._scores[name].trained
        ids = len(trained.rows)
        if trained.all_trained:
            return ids - scored.agree <= UNTOUCHED_SHARE_MAX * ids
        return ids >= _CORRELATION_IDS_MIN and scored.correlation >= CORRELATION_MIN

    def _check_statement(self, best: Arrangement) -> None:
        """Rejects a stated layout that the data contradicts."""
        stated = self._stated
        if stated is None:
            return
        margin = self._margin(best, stated)
        for name, scored in stated.items():
            best_layout = best[name]
            if are_one(scored.layout, best_layout.layout, self._tables[name].rows):
                continue
            # A statement is contradicted if another layout is far more likely, or if ids that were
            # surely trained read untouched rows by the statement and not by another layout.
            explained = self._explains(name, scored)
            refuted = self._scores[name].trained.all_trained and not explained
            if margin >= DECISIVE or (refuted and self._explains(name, best_layout)):
                raise NotConvertible(
                    f"table {name!r}: its layout ({layout_text(scored.layout)}) contradicts the "
                    f"ids of training ({self._scores[name].trained.source}): "
                    f"{self._agreement(name, scored)}, and {self._agreement(name, best_layout)} by "
                    f"another layout ({layout_text(best_layout.layout)}); {self._remedy(name)}"
                )

    def _remedy(self, name: str) -> str:
        if not self._tables[name].stated:
            return (
                "check that these are ids of this table, that occurred in this training, and the "
                "rule that makes rows of them"
            )
        return (
            'correct the statement, or let the exporter derive the layout (kind = "derive" in a '
            'layout file, checkpoint.layout = "derive" in a recipe)'
        )

    def _agreement(self, name: str, scored: ScoredLayout) -> str:
        scores = self._scores[name]
        text = f"{scored.agree} of {len(scores.trained.rows)} read rows that training changed"
        if scores.counted:
            text += f" (correlation with counts {scored.correlation:.2f})"
        return text

    def _check_explained(self, best: Arrangement) -> None:
        """Rejects trained ids that no layout explains."""
        chosen = self._stated or best
        for name, scored in chosen.items():
            scores = self._scores[name]
            ids = len(scores.trained.rows)
            # Ids of a vocabulary may all be rare, which says nothing against a statement.
            must_be_explained = scores.trained.all_trained or self._stated is None
            if must_be_explained and not self._explains(name, scored):
                raise NotConvertible(
                    f"table {name!r}: no layout explains the ids of training "
                    f"({scores.trained.source}): at best, {self._agreement(name, scored)} "
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

    def _ambiguous(self, name: str, proof: TrainedIdsCheck, layout: Layout) -> NotConvertible:
        share = self._marks.touched_share
        hint = ""
        if share > _DENSE_SHARE:
            hint = f" ({share:.0%} of all rows were trained)"
        if self._marks.growth is None:
            hint += f", and the optimizer keeps no accumulators ({', '.join(self._marks.slots)})"
        return NotConvertible(
            f"table {name!r}: more than one layout explains the ids of training "
            f"({self._scores[name].trained.source}): {proof.agree} of {proof.ids} read rows that "
            f"training changed by {layout_text(layout)}, and {proof.other_agree} by "
            f"{proof.other_layout or 'others'}{hint}; give more trained ids, or how often each of "
            "them occurs; or state the layout and accept it, or give recorded outputs "
            "(verify.expected)"
        )
