"""Compares layouts with ids that occur in training: the ids must read rows that training changed.

A layout explains the ids if at most 1 % of them read rows that training left alone. It is proved if
every other layout that the formula can give the table (`layout_candidates`) leaves at least two ids
more on such rows. By the ids 0, 1, 9 and 10 of a table on 4 SparseCores of 4 rows each:

    touched rows       0 | 4, 6 | 10 | none    (| divides the cores)
    4 cores            0, 4, 6, 10: all four agree
    rotation 1         4, 8, 10, 14: two agree
    rows in order      0, 1, 9, 10: two agree
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import TrainedIdsCheck
from export.checkpoint.inventory.specs import TableSpec
from export.checkpoint.layout_candidates import Family, families
from export.checkpoint.layouts import Layout, layout_text, place_alike
from export.checkpoint.slot_marks import SlotMarks, SlotReader
from export.checkpoint.trained_rows import TrainedRows
from export.errors import NotConvertible

UNTOUCHED_SHARE_MAX = 0.01
"""The maximum share of trained ids on untouched rows, which examples that training skipped and zero
gradients leave.
"""
MARGIN_IDS = 2
"""The number of ids that another layout must leave on untouched rows beyond those of the best one.
Each is at most 1 % likely (`UNTOUCHED_SHARE_MAX`), so two are 1 in 10,000.
"""
_IDS_MAX = 10_000
"""The maximum number of trained ids of a table that are compared."""
_FIRST_IDS = 256
"""The number of trained ids that are compared first. They exclude most layouts, so that all ids are
compared with few layouts only.
"""
_KEPT_MIN = 32
"""The minimum number of layouts that all ids are compared with: a report names the best other one.
"""
_RANKED_MAX = 64
"""The number of best layouts of a table that are decided among."""
_SPARSE_IDS_MAX = 64
_SPARSE_IDS_MIN = 16
"""The number of trained ids that are compared for a table whose slot variables are too large to be
read as a whole. Fewer ids than the minimum would decide nothing.
"""
_SPARSE_ROWS_MAX = 400_000
"""The maximum number of stored rows that are read of such a table: each is a read of its own."""
_BACKGROUND_BLOCKS = 256
_BACKGROUND_ROWS = 16
"""Blocks, and rows of a block, that are read of such a table for the value of untouched rows."""
_CELLS_MAX = 1 << 22
"""The maximum number of stored rows that are computed at a time, which bounds the memory: 8 bytes
each.
"""
_LOOKUPS_MAX = 1 << 30
"""The maximum number of stored rows that are computed for all ids, which bounds the time."""
_LISTED_MAX = 4
"""The number of layouts that a message lists."""


@dataclass(frozen=True)
class ProvedLayout:
    """The layout of a table, and how trained ids agree with it."""

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
    compared = [table for table in tables if table.name in trained]
    if not compared:
        return {}
    if not reader.slots:
        raise NotConvertible(
            f"table {compared[0].name!r}: {cannot_be_proved(key, has_slots=False)}; leave its "
            "trained ids out"
        )
    table_rows = [table.rows for table in tables]
    candidates = {}
    for table in compared:
        _check_rows(table, trained[table.name])
        possible = list(
            families(
                reader.rows, table_rows, tables.index(table), slices, usual=not reader.reads_all
            )
        )
        # A statement need not be one that a program would choose.
        if table.stated_layout is not None:
            possible.append(Family.of(table.stated_layout))
        if not possible:
            raise NotConvertible(
                f"variable {key!r} of {reader.rows} rows cannot hold tables of "
                f"{', '.join(map(str, table_rows))} rows as SparseCores or TF1 place them; list "
                "every table of the stack, with its rows"
            )
        candidates[table.name] = possible

    ids_max = _IDS_MAX
    if not reader.reads_all:
        ids_max = _sparse_ids(reader, key, candidates)
    ids = {name: trained[name].sample(ids_max) for name in candidates}
    marks = _read_marks(reader, candidates, ids)
    if not marks.touched.any():
        raise NotConvertible(
            f"verify.trained_ids: all {len(marks.touched)} rows that were read of the slot "
            f"variables of {key!r} ({', '.join(marks.slots)}) have one value, as if the optimizer "
            "had been reset: nothing shows which rows training read; name a checkpoint with the "
            "optimizer's state, or leave the trained ids out"
        )

    scored = {}
    for name, possible in candidates.items():
        scored[name], ids[name] = _scored(possible, ids[name], marks)
    consistent = _consistent(scored, compared)
    return {
        table.name: _proved(table, consistent[table.name], ids[table.name], marks)
        for table in compared
    }


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


def _check_rows(table: TableSpec, trained: TrainedRows) -> None:
    beyond = trained.rows[trained.rows >= table.rows]
    if len(beyond):
        raise NotConvertible(
            f"table {table.name!r}: {len(beyond)} of {len(trained.rows)} trained ids "
            f"({trained.source}) read rows that it does not have, such as row {beyond[0]} of "
            f"{table.rows}; ids of this table that occurred in training were expected"
        )


def _sparse_ids(reader: SlotReader, key: str, candidates: Mapping[str, Sequence[Family]]) -> int:
    """Returns how many trained ids can be compared if each layout may give an id another row to
    read.

    Raises:
      NotConvertible: So many layouts are possible that too few ids can be compared.
    """
    layouts = sum(len(family.rotations) for table in candidates.values() for family in table)
    count = min(_SPARSE_IDS_MAX, _SPARSE_ROWS_MAX // layouts)
    if count < _SPARSE_IDS_MIN:
        raise NotConvertible(
            f"variable {key!r} has {reader.rows} rows, and its tables can lie in {layouts} ways: "
            "too many to compare; state the layout and accept it, or give recorded outputs "
            "(verify.expected)"
        )
    return count


def _read_marks(
    reader: SlotReader,
    candidates: Mapping[str, Sequence[Family]],
    ids: Mapping[str, TrainedRows],
) -> SlotMarks:
    """Reads the slot variables: all rows, or those that some layout gives a trained id, and blocks
    of others.
    """
    if reader.reads_all:
        return reader.read_all()
    starts = np.linspace(0, reader.rows - _BACKGROUND_ROWS, _BACKGROUND_BLOCKS).astype(np.int64)
    row_groups = [(starts[:, None] + np.arange(_BACKGROUND_ROWS)).ravel()]
    for name, possible in candidates.items():
        row_groups += [family.stored_rows(ids[name].rows).ravel() for family in possible]
    return reader.read(np.concatenate(row_groups))


@dataclass(frozen=True)
class _Scored:
    """Layouts, and how they explain the trained ids.

    Attributes:
      family: The layouts.
      missed: [k] int64, the number of trained ids on untouched rows, by each layout.
    """

    family: Family
    missed: NDArray[np.int64]


def _scored(
    possible: Sequence[Family], ids: TrainedRows, marks: SlotMarks
) -> tuple[list[_Scored], TrainedRows]:
    """Returns the layouts that may explain the trained ids, with some that explain them worse; and
    the ids that were compared.
    """
    first = ids.sample(_FIRST_IDS)
    scored = [_Scored(family, _missed(family, first, marks)) for family in possible]
    missed = np.sort(np.concatenate([score.missed for score in scored]))
    limit = missed[0] + MARGIN_IDS + UNTOUCHED_SHARE_MAX * len(first.rows)
    limit = max(limit, missed[:_KEPT_MIN][-1])
    layouts = int((missed <= limit).sum())
    # Where this many layouts explain the first ids, more ids would hardly leave one.
    if len(ids.rows) == len(first.rows) or layouts * len(ids.rows) > _LOOKUPS_MAX:
        return scored, first

    remaining = []
    for score in scored:
        rotations = score.family.rotations[score.missed <= limit]
        if len(rotations):
            remaining.append(Family(score.family.layout, rotations))
    return [_Scored(family, _missed(family, ids, marks)) for family in remaining], ids


def _missed(family: Family, ids: TrainedRows, marks: SlotMarks) -> NDArray[np.int64]:
    """Returns [k] int64: the number of trained ids on untouched rows, by each layout."""
    missed = np.empty(len(family.rotations), np.int64)
    step = max(1, _CELLS_MAX // max(1, len(ids.rows)))
    for first in range(0, len(missed), step):
        part = Family(family.layout, family.rotations[first : first + step])
        positions = marks.positions(part.stored_rows(ids.rows))
        missed[first : first + step] = (~marks.touched[positions]).sum(axis=0)
    return missed


def _ranked(scored: Sequence[_Scored]) -> list[tuple[int, Layout]]:
    """Returns the best layouts, and how many ids each leaves on untouched rows, best first."""
    missed = np.concatenate([score.missed for score in scored])
    # Positions count the members of all families, one family behind the other.
    starts = np.cumsum([0, *(len(score.missed) for score in scored)])
    ranked = []
    # Stable: which of equally good layouts comes first does not depend on the machine.
    for position in np.argsort(missed, kind="stable")[:_RANKED_MAX].tolist():
        number = int(np.searchsorted(starts, position, side="right")) - 1
        layout = scored[number].family.member(position - int(starts[number]))
        ranked.append((int(missed[position]), layout))
    return ranked


def _consistent(
    scored: Mapping[str, list[_Scored]], tables: Sequence[TableSpec]
) -> Mapping[str, list[_Scored]]:
    """Leaves out layouts that the ids of the other tables exclude: the tables of a variable are
    spread over the same cores, and no two take the same rows.
    """
    rows = {table.name: table.rows for table in tables}
    while True:
        cores = []
        proved: dict[str, Layout] = {}
        for name, scores in scored.items():
            ranked = _ranked(scores)
            fewest, best = ranked[0]
            limit = fewest + MARGIN_IDS
            close = [score for score in scores if score.missed.min() < limit]
            cores.append({score.family.layout.lanes for score in close})
            if all(missed >= limit for missed, _ in _others(ranked, best, rows[name])):
                proved[name] = best

        shared_cores = set.intersection(*cores)
        narrowed = {}
        for name, scores in scored.items():
            narrowed[name] = [
                score
                for score in scores
                if score.family.layout.lanes in shared_cores
                and not any(
                    neighbor != name and score.family.overlaps(rows[name], layout, rows[neighbor])
                    for neighbor, layout in proved.items()
                )
            ]
        # Ids that leave a table no layout contradict each other: that of another table is refused
        # as stated, or does not fit into the stack.
        is_empty = not all(narrowed.values())
        if is_empty or sum(map(len, narrowed.values())) == sum(map(len, scored.values())):
            return scored
        scored = narrowed


def _others(
    ranked: Sequence[tuple[int, Layout]], layout: Layout, rows: int
) -> list[tuple[int, Layout]]:
    """Returns the ranked layouts that place some row of a table otherwise."""
    return [scored for scored in ranked if not place_alike(scored[1], layout, rows)]


def _proved(
    table: TableSpec, scored: Sequence[_Scored], ids: TrainedRows, marks: SlotMarks
) -> ProvedLayout:
    """Returns the stated layout of a table, or the one that explains the ids.

    Raises:
      NotConvertible: The ids contradict the statement, or no layout or several explain them.
    """
    ranked = _ranked(scored)
    fewest, best = ranked[0]
    layout = table.stated_layout or best
    missed = int(_missed(Family.of(layout), ids, marks)[0])
    alternatives = _others(ranked, layout, table.rows)
    limit = fewest + MARGIN_IDS
    rivals = [scored for scored in alternatives if scored[0] < limit]
    count = len(ids.rows)
    missed_max = UNTOUCHED_SHARE_MAX * count

    if fewest > missed_max and table.stated_layout is None:
        raise NotConvertible(
            f"table {table.name!r}: no layout explains the ids of training ({ids.source}): at "
            f"best, {count - fewest} of {count} read rows that training changed "
            f"({layout_text(best)}); check that they are ids of this feature that occurred in this "
            "training, and that every table of the stack is listed with its rows; without trained "
            "ids, state the layout and accept it, or give recorded outputs (verify.expected)"
        )
    other_layout = ""
    other_agree = 0
    if alternatives:
        other_agree = count - alternatives[0][0]
        other_layout = layout_text(alternatives[0][1])
    if missed > missed_max or missed >= limit:
        compared = ""
        if alternatives:
            compared = f", and {other_agree} of {count} by the best other layout ({other_layout})"
        remedy = (
            "check that these are ids of this table, that occurred in this training, and the rule "
            "that makes rows of them"
        )
        if table.stated:
            remedy = (
                'correct the statement, or let the exporter derive the layout (kind = "derive" in '
                'a layout file, checkpoint.layout = "derive" in a recipe)'
            )
        raise NotConvertible(
            f"table {table.name!r}: its layout ({layout_text(layout)}) contradicts the ids of "
            f"training ({ids.source}): {count - missed} of {count} read rows that training "
            f"changed{compared}; {remedy}"
        )
    if rivals and table.stated_layout is None:
        layouts = [layout, *(rival for _, rival in rivals)]
        listed = " | ".join(map(layout_text, layouts[:_LISTED_MAX]))
        if len(layouts) > _LISTED_MAX:
            listed += " | ..."
        raise NotConvertible(
            f"table {table.name!r}: more than one layout explains the ids of training "
            f"({ids.source}): at least {count - rivals[-1][0]} of {count} read rows that training "
            f"changed ({marks.touched_share:.0%} of all rows) by each of these: {listed}; "
            "give more trained ids, or state in a layout file which of these layouts each table "
            "of the variable has (kind, cores, offset, rotation) and accept it, or give recorded "
            "outputs (verify.expected)"
        )

    proof = TrainedIdsCheck(
        ids=count,
        agree=count - missed,
        other_layout=other_layout,
        other_agree=other_agree,
        decisive=not rivals,
    )
    return ProvedLayout(layout, proof)
