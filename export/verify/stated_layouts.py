"""Layouts that a file tells instead of the checkpoint: what the data contradicts, and what nothing
verifies.

The copy of a table, the comparison of its rows and the reference model all follow the same layout.
A wrong one passes all of them. Three things can tell more: ids that occur in training
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
"""Cores whose padding is read, spread evenly, besides those where a wrong rotation shows: the
shard of a core may lie in a chunk of gigabytes, which is decoded as a whole.
"""
LANE_ROWS = 32
"""Rows that are read at either end of the padding of a core."""
_ALIKE_SHARE = 1 / 16
"""Share of padding rows that are alike from which on all must be: initializers of few values, as
bfloat16 of one column has them, repeat a row by chance, but far less often.
"""

Judgement = Literal["derived", "trained_ids", "expected", "accepted"]
Values = NDArray[Any]
Ranges = list[tuple[int, int]]
"""Stored rows: first row and how many."""


class StatedLayout(NamedTuple):
    """How the layout of a table is known that the training program did not record.

    Attributes:
      judgement: why the table may be published by it; None: the layout is recorded.
      padding: what it was compared with; None: its kind has no padding.
      trained_ids: how ids of training agree with it, or with a recorded one; None: none are given.
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
      checkpoint: the open checkpoint.
      inventory: all of its tables: those of a stack are judged together.
      names: of the tables that are exported.
      recorded: names of the tables that outputs recorded by training depend on, which the job
        compares later.
      accepted: whether the user accepts statements that nothing verifies.
      remedy: what the user can do, a clause of the message.

    Returns:
      How the layout of each table is known that is stated, derived, or compared with ids of
      training.

    Raises:
      NotConvertible: the data contradicts a layout; names table, layout and what was found.
      VerificationFailed: nothing verifies a stated layout, and the user does not accept it.
    """
    padding = check_padding(checkpoint, inventory.tables, names)
    tables = [table for table in inventory.tables if table.name in names]
    unverified = [
        table.name
        for table in tables
        if table.stated and table.name not in recorded and not _is_proved(table)
    ]
    if unverified and not accepted:
        shown = ", ".join(map(repr, unverified[:8])) + (", ..." if len(unverified) > 8 else "")
        plural = len(unverified) > 1
        raise VerificationFailed(
            f"table{'s' * plural} {shown}: the layout{'s' * plural} of the rows "
            f"{'are' if plural else 'is'} stated, and nothing in the checkpoint confirms the "
            "statement: if it is wrong, ids get the rows of other ids, and no comparison finds it; "
            f"{_undecided(tables, unverified)}"
            f"{remedy}; nothing is published"
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
    return "accepted" if table.name in unverified else "expected"


def with_layouts(
    checks: Mapping[str, TableCheck], stated: Mapping[str, StatedLayout]
) -> dict[str, TableCheck]:
    """Returns what was compared of each table, with how its layout is known."""
    recorded = StatedLayout(None)
    found = {}
    for name, check in checks.items():
        layout = stated.get(name, recorded)
        update = {
            "stated_layout": layout.judgement,
            "padding": layout.padding,
            "trained_ids": layout.trained_ids,
        }
        found[name] = check.model_copy(update=update)
    return found


def judge_recipe(
    job: ExportJob,
    checkpoint: Checkpoint,
    inventory: Inventory,
    model: ModelSpec,
    features: Mapping[str, Feature],
) -> dict[str, StatedLayout]:
    """Judges the layouts of a recipe's tables; the rest as of `judge_layouts`."""
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
    """Compares the layouts of stacks that a file tells with what training left in their padding.

    Padding rows lie behind the last row of a table on each core. No id leads to them, so they stay
    as they were initialized: all alike (zeros, NaN), or all different, as random numbers are. An
    optimizer initializes all values of a slot variable alike, so that all values of it that belong
    to padding are one value. Rows of a table that a wrong layout takes for padding were trained,
    and a slot variable tells it, even of a single row.

    Args:
      checkpoint: the open checkpoint.
      tables: all that the layout file tells, so that no table is taken for the padding of another.
      names: of those that are exported.

    Returns:
      What was compared, by the name of a table in a stack.

    Raises:
      NotConvertible: a layout contradicts the data.
    """
    compared: dict[str, PaddingCheck] = {}
    stacks: dict[str, list[TableSpec]] = {}
    for table in tables:
        if table.origin in ("layout file", "embedding spec"):
            stacks.setdefault(table.key, []).append(table)
    for key, held in stacks.items():
        if any(table.name in names for table in held):
            for padding in _paddings(held):
                compared[padding.table.name] = _check(checkpoint, key, padding)
    return compared


@dataclass(frozen=True)
class _Padding:
    """What to read of a table and of the padding behind it.

    Attributes:
      table: the table.
      padding: stored rows of padding.
      last: stored rows at the end of the table on each core.
    """

    table: TableSpec
    padding: Ranges
    last: Ranges


def _paddings(tables: Sequence[TableSpec]) -> list[_Padding]:
    """Returns the padding behind each SparseCore table of a stack."""
    stacked = sorted(
        ((table.layout, table) for table in tables if isinstance(table.layout, SparseCore)),
        key=lambda pair: pair[0].offset,
    )
    found = []
    ends = [layout.offset for layout, _ in stacked[1:]]
    ends += [layout.core_rows for layout, _ in stacked[-1:]]
    for (layout, table), end in zip(stacked, ends, strict=True):
        padding: Ranges = []
        last: Ranges = []
        bases = layout.bases()
        for lane in _lanes(layout.cores, table.rows):
            held = max(0, ceil_div(table.rows - lane, layout.cores))
            shard = int(bases[lane]) - layout.offset
            padding += _ends_of(shard + layout.offset + held, shard + end)
            shown = min(held, LANE_ROWS)
            last += [(shard + layout.offset + held - shown, shown)] * bool(shown)
        found.append(_Padding(table, sorted(padding), sorted(last)))
    return found


def _lanes(cores: int, rows: int) -> list[int]:
    """Returns the cores to look at, by their number in the table: some of all, and those where the
    last round of rows begins and ends.
    """
    partly = rows % cores
    chosen = {*np.linspace(0, cores - 1, LANES).astype(int).tolist(), partly - 1, partly}
    return sorted(lane for lane in chosen if 0 <= lane < cores)


def _ends_of(first: int, end: int) -> Ranges:
    """Returns the rows at either end of [first, end)."""
    if end - first <= 2 * LANE_ROWS:
        return [(first, end - first)] if end > first else []
    return [(first, LANE_ROWS), (end - LANE_ROWS, LANE_ROWS)]


def _check(checkpoint: Checkpoint, key: str, table: _Padding) -> PaddingCheck:
    if not table.padding:
        return PaddingCheck(rows=0)
    spec = table.table
    padding = _read(checkpoint, key, table.padding)
    alike = _count_alike(padding)
    if alike < len(padding) and alike >= max(2, len(padding) * _ALIKE_SHARE):
        raise _contradiction(
            table,
            f"of {len(padding)} of these rows, {alike} are alike and the others are not, as if "
            "some were padding and some were trained",
        )
    slots = []
    for slot in spec.slots:
        entry = checkpoint.entries[slot.key]
        if entry.shape != spec.stored or AVERAGES.search(slot.name):
            continue
        _check_untouched(table, slot.name, _read(checkpoint, slot.key, table.padding))
        slots.append(slot.name)
    last = _read(checkpoint, key, table.last)
    if np.isnan(last.astype(np.float32)).all(axis=1).any():
        raise _contradiction(table, "rows before them hold nothing but NaN, as padding does")

    # Without slot variables, random padding and a single row look like rows of a table.
    telling = bool(slots) or alike == len(padding) > 1
    return PaddingCheck(rows=len(padding) if telling else 0, slots=tuple(slots))


def _check_untouched(table: _Padding, slot: str, state: Values) -> None:
    """Rejects a layout whose padding has values of a slot variable that training changed."""
    if _count_alike(state) < len(state):
        raise _contradiction(
            table,
            f"these rows of its slot variable {slot!r} differ from one another, so they were "
            "trained",
        )
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


def _count_alike(rows: Values) -> int:
    """Returns how many rows have the most frequent value, bit by bit: NaN equals NaN."""
    return Counter(row.tobytes() for row in rows).most_common(1)[0][1]


def _contradiction(table: _Padding, found: str) -> NotConvertible:
    spec = table.table
    layout = spec.layout
    assert isinstance(layout, SparseCore)  # noqa: S101
    first, count = table.padding[0]
    return NotConvertible(
        f"table {spec.name!r}: the {spec.origin} gives it {spec.rows} rows on {layout.cores} cores "
        f"of {layout.core_rows} rows each (offset {layout.offset}, rotation {layout.rotation}), "
        f"which makes rows from {first} to {first + count} of {spec.key!r} and others behind its "
        f"last rows padding; but {found}: correct cores, offset, rotation and rows, and list every "
        "table of the stack"
    )
