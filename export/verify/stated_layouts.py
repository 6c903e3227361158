"""Layouts that a file states instead of the checkpoint: rejects those that the data contradicts, or
that nothing verifies (docs/adr/0037-stated-layouts.md).

The copy of a table, the comparison of its rows and the reference model all follow the same layout.
A wrong one passes all of them. Three sources show more: ids that occur in training
(`verify.trained_ids`), whose rows training changed; the padding of a stack, which training never
touches, in the table and in its slot variables; and outputs that training recorded
(`verify.expected`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.format.manifest import (
    Feature,
    PaddingCheck,
    TableCheck,
    TrainedIdsCheck,
)
from export.checkpoint.inventory.proved_tables import AVERAGES
from export.checkpoint.inventory.specs import Inventory, TableSpec
from export.checkpoint.layouts import SparseCore
from export.checkpoint.reader import Checkpoint
from export.errors import NotConvertible, VerificationFailed
from export.report_text import trained_ids_text
from export.verify.unverified import tables_behind

if TYPE_CHECKING:
    from export.front_end.specs import ModelSpec
    from export.recipe.schema import ExportJob

LANES = 16
"""The number of cores whose padding is read, spread evenly, besides those where a wrong rotation
shows: the shard of a core may lie in a chunk of gigabytes, which is decoded as a whole.
"""
LANE_ROWS = 32
"""The number of rows that are read at either end of the padding of a core."""
_EQUAL_SHARE = 1 / 16
"""The share of equal padding rows from which on all must be equal: initializers of few values, as
bfloat16 of one column has them, repeat a row by chance, but far less often.
"""
_NAMES_MAX = 8
"""The number of tables that a message lists."""

Judgement = Literal["derived", "trained_ids", "expected", "accepted"]
Values = NDArray[Any]
Ranges = list[tuple[int, int]]
"""Ranges of stored rows: the first row, and the number of rows."""


class StatedLayout(NamedTuple):
    """The evidence for the layout of a table.

    Attributes:
      judgement: The reason why the table may be published by this layout; None: the layout is
        recorded.
      padding: The padding that the layout was compared with; None: its kind has no padding.
      trained_ids: The agreement of ids of training with the layout, stated or recorded; None: the
        user gives no such ids.
    """

    judgement: Judgement | None
    padding: PaddingCheck | None = None
    trained_ids: TrainedIdsCheck | None = None


def judge_layouts(
    checkpoint: Checkpoint,
    inventory: Inventory,
    names: Collection[str],
    recorded: Collection[str],
    accepted: bool,
    remedy: str,
) -> dict[str, StatedLayout]:
    """Decides, before anything is copied, whether tables may be published by their stated layouts.

    Args:
      checkpoint: The open checkpoint.
      inventory: All tables of the checkpoint: those of a stack are judged together.
      names: The names of the exported tables.
      recorded: The names of the tables that outputs recorded by training depend on, which the job
        compares later.
      accepted: Whether the user accepts statements that nothing verifies.
      remedy: The clause of the message that says what the user can do.

    Returns:
      How the layout of each table is known that is stated, derived, or compared with ids of
      training.

    Raises:
      NotConvertible: The data contradicts a layout; names table, layout and contradiction.
      VerificationFailed: Nothing verifies a stated layout, and the user does not accept it.
    """
    padding = check_padding(checkpoint, inventory.tables, names)
    tables = [table for table in inventory.tables if table.name in names]
    unverified = [
        table.name
        for table in tables
        if table.stated and table.name not in recorded and not _is_proved(table)
    ]
    if unverified and not accepted:
        listed = ", ".join(map(repr, unverified[:_NAMES_MAX]))
        if len(unverified) > _NAMES_MAX:
            listed += ", ..."
        subject = f"table {listed}: the layout of the rows is stated"
        if len(unverified) > 1:
            subject = f"tables {listed}: the layouts of the rows are stated"
        raise VerificationFailed(
            f"{subject}, and nothing in the checkpoint confirms the statement: if it is wrong, ids "
            "get the rows of other ids, and no comparison finds it; "
            f"{_undecided(tables, unverified)}{remedy}; nothing is published"
        )
    return {
        table.name: StatedLayout(
            _judgement(table, unverified), padding.get(table.name), table.proof
        )
        for table in tables
        if table.stated or table.derived or table.proof is not None
    }


def _undecided(tables: Iterable[TableSpec], unverified: Collection[str]) -> str:
    """Returns why trained ids do not prove the layouts of tables, a clause of the message."""
    for table in tables:
        if table.name in unverified and table.proof is not None:
            return f"of table {table.name!r}, {trained_ids_text(table.proof)}; "
    return ""


def _is_proved(table: TableSpec) -> bool:
    return table.proof is not None and table.proof.decisive


def _judgement(table: TableSpec, unverified: Collection[str]) -> Judgement | None:
    """Returns why a table may be published by its layout; None: the layout is recorded."""
    if table.derived:
        return "derived"
    if not table.stated:
        return None
    if _is_proved(table):
        return "trained_ids"
    if table.name in unverified:
        return "accepted"
    return "expected"


def with_layouts(
    checks: Mapping[str, TableCheck], stated: Mapping[str, StatedLayout]
) -> dict[str, TableCheck]:
    """Returns the checks of tables, completed by the evidence for the layout of each."""
    recorded = StatedLayout(None)
    complete = {}
    for name, check in checks.items():
        layout = stated.get(name, recorded)
        update = {
            "stated_layout": layout.judgement,
            "padding": layout.padding,
            "trained_ids": layout.trained_ids,
        }
        complete[name] = check.model_copy(update=update)
    return complete


def judge_recipe(
    job: ExportJob,
    checkpoint: Checkpoint,
    inventory: Inventory,
    model: ModelSpec,
    features: Mapping[str, Feature],
) -> dict[str, StatedLayout]:
    """Judges the layouts of a recipe's tables, as `judge_layouts` does."""
    return judge_layouts(
        checkpoint,
        inventory,
        model.tables,
        tables_behind(job.verify.expected, model.towers, features),
        accepted=job.verify.stated_layouts == "accept",
        remedy="give ids that occur in training (verify.trained_ids), compare outputs that "
        "training recorded (verify.expected) of a tower that reads the table, or accept the "
        'statement with verify.stated_layouts = "accept"',
    )


def check_padding(
    checkpoint: Checkpoint, tables: Iterable[TableSpec], names: Collection[str]
) -> dict[str, PaddingCheck]:
    """Compares the layouts of stacks that a file states with the padding that training left.

    Padding rows lie behind the last row of a table on each core. No id leads to them, so they stay
    as they were initialized: all equal (zeros, NaN), or all different, as random numbers are. An
    optimizer initializes all values of a slot variable alike, so that all its values in padding are
    equal. Rows of a table that a wrong layout takes for padding were trained, and a slot variable
    shows that, even in a single row.

    Args:
      checkpoint: The open checkpoint.
      tables: All tables of the layout file, so that no table is taken for the padding of another.
      names: The names of the exported tables.

    Returns:
      The padding that was compared, by the name of the table.

    Raises:
      NotConvertible: A layout contradicts the data.
    """
    compared: dict[str, PaddingCheck] = {}
    stacks: dict[str, list[TableSpec]] = {}
    for table in tables:
        if table.origin in ("layout file", "embedding spec"):
            stacks.setdefault(table.key, []).append(table)
    for key, stack in stacks.items():
        if any(table.name in names for table in stack):
            for padding in _paddings(stack):
                compared[padding.table.name] = _check(checkpoint, key, padding)
    return compared


@dataclass(frozen=True)
class _Padding:
    """The stored rows that are read of a table and of the padding behind it.

    Attributes:
      table: The table.
      padding: The stored rows of padding.
      last: The stored rows of the table itself that lie before the padding of each core.
    """

    table: TableSpec
    padding: Ranges
    last: Ranges


def _paddings(tables: Sequence[TableSpec]) -> list[_Padding]:
    """Returns the padding behind each SparseCore table of a stack."""
    stacked = sorted(
        ((table.layout, table) for table in tables if isinstance(table.layout, SparseCore)),
        key=lambda layout_and_table: layout_and_table[0].offset,
    )
    paddings = []
    # On each core, the padding of a table ends where the next table of the stack begins, and that
    # of the last table at the end of the shard.
    ends = [layout.offset for layout, _ in stacked[1:]]
    ends += [layout.core_rows for layout, _ in stacked[-1:]]
    for (layout, table), end in zip(stacked, ends, strict=True):
        padding: Ranges = []
        last: Ranges = []
        bases = layout.bases()
        for lane in _lanes(layout.cores, table.rows):
            # Row r of a table lies on core r mod cores, before rotation.
            core_rows = max(0, ceil_div(table.rows - lane, layout.cores))
            table_end = int(bases[lane]) + core_rows
            shard = int(bases[lane]) - layout.offset
            padding += _ends_of(table_end, shard + end)
            last_rows = min(core_rows, LANE_ROWS)
            if last_rows:
                last.append((table_end - last_rows, last_rows))
        # In their stored order, so that a chunk is decoded once.
        paddings.append(_Padding(table, sorted(padding), sorted(last)))
    return paddings


def _lanes(cores: int, rows: int) -> list[int]:
    """Returns the cores whose padding is read, by their number in the table."""
    chosen = set(np.linspace(0, cores - 1, LANES).astype(int).tolist())
    # Cores below this number have one row more than the others. A wrong rotation puts the border
    # elsewhere, so that it shows on either side of it.
    last_round = rows % cores
    chosen |= {last_round - 1, last_round}
    return sorted(lane for lane in chosen if 0 <= lane < cores)


def _ends_of(first: int, end: int) -> Ranges:
    """Returns the rows at either end of [first, end)."""
    if end <= first:
        return []
    if end - first <= 2 * LANE_ROWS:
        return [(first, end - first)]
    return [(first, LANE_ROWS), (end - LANE_ROWS, LANE_ROWS)]


def _check(checkpoint: Checkpoint, key: str, table: _Padding) -> PaddingCheck:
    """Compares a layout with the values of its padding.

    Raises:
      NotConvertible: The values contradict the layout.
    """
    if not table.padding:
        return PaddingCheck(rows=0)
    spec = table.table
    padding = _read(checkpoint, key, table.padding)
    equal = _count_equal(padding)
    if max(2, len(padding) * _EQUAL_SHARE) <= equal < len(padding):
        raise _contradiction(
            table,
            f"of {len(padding)} of these rows, {equal} are alike and the others are not, as if "
            "some were padding and some were trained",
        )
    slots = []
    for slot in spec.slots:
        entry = checkpoint.entries[slot.key]
        # Averages begin as the rows themselves, so their padding differs as that of the table does.
        if entry.shape != spec.stored or AVERAGES.search(slot.name):
            continue
        _check_untouched(table, slot.name, _read(checkpoint, slot.key, table.padding))
        slots.append(slot.name)
    last = _read(checkpoint, key, table.last)
    if np.isnan(last.astype(np.float32)).all(axis=1).any():
        raise _contradiction(table, "rows before them hold nothing but NaN, as padding does")

    # Without slot variables, random padding and a single row look like rows of a table.
    proves_padding = bool(slots) or equal == len(padding) > 1
    compared_rows = len(padding) if proves_padding else 0
    return PaddingCheck(rows=compared_rows, slots=tuple(slots))


def _check_untouched(table: _Padding, slot: str, state: Values) -> None:
    """Rejects a layout whose padding has values of a slot variable that training changed."""
    if _count_equal(state) < len(state):
        raise _contradiction(
            table,
            f"these rows of its slot variable {slot!r} differ from one another, so they were "
            "trained",
        )
    # By bytes, so that NaN equals NaN. Columns behind the table's are padding, too.
    values = {value.tobytes() for value in state[0, : table.table.dim]}
    if len(values) > 1:
        raise _contradiction(
            table,
            f"the values in a row of its slot variable {slot!r} differ from one another there, so "
            "it was trained",
        )


def _read(checkpoint: Checkpoint, key: str, ranges: Ranges) -> Values:
    """Returns [n, columns] stored rows of a variable."""
    return np.concatenate(list(checkpoint.read_each(key, ranges)))


def _count_equal(rows: Values) -> int:
    """Returns the number of rows with the most frequent value, bit by bit: NaN equals NaN."""
    return Counter(row.tobytes() for row in rows).most_common(1)[0][1]


def _contradiction(table: _Padding, observation: str) -> NotConvertible:
    """Returns the error that a layout contradicts its padding."""
    spec = table.table
    layout = spec.layout
    assert isinstance(layout, SparseCore)  # noqa: S101 - only these have padding
    first, count = table.padding[0]
    return NotConvertible(
        f"table {spec.name!r}: the {spec.origin} gives it {spec.rows} rows on {layout.cores} cores "
        f"of {layout.core_rows} rows each (offset {layout.offset}, rotation {layout.rotation}), "
        f"which makes rows from {first} to {first + count} of {spec.key!r} and others behind its "
        f"last rows padding; but {observation}: correct cores, offset, rotation and rows, and list "
        "every table of the stack"
    )
