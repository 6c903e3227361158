"""The user's statements about tables, where a checkpoint does not record them: --table NAME=KEY,
--mod NAME, a layout file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate

from export.checkpoint.formats.object_graph import VARIABLE_SUFFIX
from export.checkpoint.inventory.findings import Findings, table_spec
from export.checkpoint.inventory.name_tables import partition_note
from export.checkpoint.inventory.optimizer_state import AVERAGE, AVERAGE_SLOTS
from export.checkpoint.inventory.proved_tables import derive_tables, proofs_of
from export.checkpoint.inventory.sparsecore import LayoutContradiction, check_stack
from export.checkpoint.inventory.specs import (
    STATED_NOTE,
    RecordedTable,
    StatedTable,
    TableSpec,
)
from export.checkpoint.layout_candidates import are_one, layout_text
from export.checkpoint.layouts import Layout, Mod, Plain, SparseCore, fits
from export.checkpoint.trained_rows import TrainedRows
from export.checkpoint.variables import Entry
from export.errors import NotConvertible


def state_layouts(
    found: Findings, stated: Mapping[str, StatedTable], trained: Mapping[str, TrainedRows]
) -> None:
    """Takes the tables of a layout file; they replace what was recognised in the same variables or
    by the same names.

    The layout of a table is a statement where its rows would come out in another order without it.
    Rows or columns that are cut off a plain variable change no order.

    Args:
      found: The findings of the rules.
      stated: The tables by their names.
      trained: Rows that training read, by the name of a table; the layouts of tables of kind
        "derive" are derived from them.

    Raises:
      NotConvertible: A variable is not there, is a slot variable, or cannot hold the table; or
        trained rows do not prove a layout that is to be derived.
    """
    in_another_order = {rejected.key for rejected in found.rejected} | {
        table.key for table in found.tables.values() if not isinstance(table.layout, Plain)
    }
    by_key: dict[str, dict[str, StatedTable]] = {}
    for name, each in stated.items():
        by_key.setdefault(_key(found, name, each.key, of_stack=True), {})[name] = each
    recorded: dict[str, list[TableSpec]] = {}
    for table in found.tables.values():
        if isinstance(table.layout, SparseCore):
            recorded.setdefault(table.key, []).append(table)
    found.tables = {name: table for name, table in found.tables.items() if table.key not in by_key}
    found.rejected = [rejected for rejected in found.rejected if rejected.key not in by_key]
    for key, tables in by_key.items():
        path = found.paths_by_key.get(key, "")
        if any(table.kind == "derive" for table in tables.values()):
            derive_tables(found, key, _derivable(found, key, tables), trained)
            continue
        specs = []
        for name, each in tables.items():
            entry = _matrix(found, name, key)
            layout = _stated_layout(found, name, each, entry)
            spec = table_spec(
                name, entry, "layout file", path, rows=each.rows, dim=each.dim, layout=layout
            )
            if isinstance(each, RecordedTable):
                spec = replace(spec, origin="embedding spec")
            elif not isinstance(layout, Plain) or key in in_another_order:
                spec = replace(spec, stated=True, note=STATED_NOTE)
            specs.append(spec)
        _check_stated(key, specs)
        if key in recorded:
            specs = _beside_record(found, specs, recorded[key], trained)
        found.tables |= {spec.name: spec for spec in specs}


def name_tables(found: Findings, named: Mapping[str, str]) -> None:
    """Takes the user's names for variables or for recognised tables.

    Args:
      found: The findings of the rules.
      named: By the name of a table, the key, the key without its suffix, the attribute path, or the
        name by which a table is recognized.
    Raises:
      NotConvertible: A variable does not exist, is a slot variable, does not have the shape of a
        table, is a stack of several tables, or has two names.
    """
    by_key: dict[str, list[TableSpec]] = {}
    for table in found.tables.values():
        by_key.setdefault(table.key, []).append(table)
    meant = {name: _meant(found, by_key, name, wanted) for name, wanted in named.items()}
    first: dict[tuple[str, Layout], str] = {}
    for name, table in meant.items():
        if (other := first.setdefault((table.key, table.layout), name)) != name:
            raise NotConvertible(
                f"tables {other!r} and {name!r} are both said to be {table.key!r}; a variable is "
                "exported once, under one name"
            )
    for table in meant.values():
        found.tables.pop(table.name, None)
    for name, table in meant.items():
        # The note of such a table requests a name.
        answered = table.origin == "PartialTPUEmbedding"
        found.tables[name] = replace(table, name=name, note="" if answered else table.note)


def state_mod(found: Findings, name: str) -> None:
    """Takes the user's word that TF1's `mod` strategy spread the rows of a table over its slices.

    Raises:
      NotConvertible: There is no such table, or its slices are not what that strategy makes.
    """
    table = found.inventory().table(name)
    if not isinstance(table.layout, Plain) or (table.rows, table.dim) != table.stored:
        raise NotConvertible(
            f"--mod {name}: the table has the layout {table.layout.kind}, which is not TF1's"
        )
    starts = _mod_starts(name, found.checkpoint.entries[table.key])
    found.tables[name] = replace(
        found.tables[name], layout=Mod(starts), stated=True, note=STATED_NOTE
    )


def _meant(
    found: Findings, by_key: Mapping[str, list[TableSpec]], name: str, wanted: str
) -> TableSpec:
    """Returns the table that is meant: a recognised one, by its variable or by its name, else a
    variable.
    """
    key = _resolved(found, wanted)
    if key is None and wanted in found.tables:
        return found.tables[wanted]
    key = _key(found, name, wanted)
    held = by_key.get(key, [])
    if len(held) > 1:
        own = found.tables.get(name)
        if own in held:
            return own
        raise NotConvertible(
            f"table {name!r}: {key!r} is a stack of several tables; give the name of one, as in "
            f"--table {name}="
            f"{held[0].name} (they are {', '.join(sorted(table.name for table in held))})"
        )
    if held:
        return held[0]
    for rejected in found.rejected:
        if rejected.key == key:
            raise NotConvertible(f"table {name!r}: {key!r} cannot be exported: {rejected.reason}")
    entry = _matrix(found, name, key)
    note = partition_note(entry) if found.checkpoint.graph is None else ""
    return table_spec(name, entry, "named", found.paths_by_key.get(key, ""), note=note)


def _resolved(found: Findings, wanted: str) -> str | None:
    """Returns the key that the user means, by key, key without suffix or attribute path."""
    for key in (wanted, wanted + VARIABLE_SUFFIX):
        if key in found.checkpoint.entries:
            return key
    return found.keys_by_path.get(wanted)


def _key(found: Findings, name: str, wanted: str, of_stack: bool = False) -> str:
    """Returns the key of the variable that the user means, perhaps by the name of a stack in it."""
    key = _resolved(found, wanted) or (_stack_key(found, name, wanted) if of_stack else None)
    if key is None:
        inventory = found.inventory()
        keys = [entry.key for entry in inventory.candidates[:2000]] + [
            table.key for table in inventory.tables
        ]
        known = [each.removesuffix(VARIABLE_SUFFIX) for each in keys] + [
            table.name for table in inventory.tables
        ]
        close = difflib.get_close_matches(wanted, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else inventory.naming_help()
        raise NotConvertible(
            f"table {name!r}: checkpoint {inventory.checkpoint} has no variable {wanted!r}; {hint}"
        )
    slot = found.slots.get(key)
    if slot is not None and slot.name not in (AVERAGE, *AVERAGE_SLOTS):
        raise NotConvertible(
            f"table {name!r}: {key!r} is a slot variable ({slot.name} of "
            f"{slot.of or 'an optimizer'}), no table; name the variable that the optimizer trains"
        )
    return key


def _stack_key(found: Findings, name: str, stack: str) -> str | None:
    """Returns the key of the one variable that has a stack's name in its key, and its shape; None
    if there is none.
    """
    named = [
        key
        for key, entry in found.checkpoint.entries.items()
        if len(entry.shape) == 2
        and key not in found.slots
        and re.search(rf"(^|[/.:]){re.escape(stack)}($|[/.:])", key)
    ]
    meant = [key for key in named if re.split(r"[/.:]", key)[-1] in ("table", stack)] or named
    if len(meant) > 1:
        raise NotConvertible(
            f"table {name!r}: several variables are called {stack!r}: {', '.join(meant[:8])}; "
            "write the layout file by hand, with each table's key (docs/reference/checkpoints.md)"
        )
    return meant[0] if meant else None


def _matrix(found: Findings, name: str, key: str) -> Entry:
    entry = found.checkpoint.entries[key]
    if len(entry.shape) != 2 or not min(entry.shape):
        raise NotConvertible(
            f"table {name!r}: {key!r} has the shape {list(entry.shape)}, not [rows, dim]"
        )
    return entry


def _stated_layout(found: Findings, name: str, stated: StatedTable, entry: Entry) -> Layout:
    if stated.kind == "plain":
        return Plain()
    if stated.kind == "sparse_core":
        cores = stated.cores or 1
        return SparseCore(
            cores, stated.core_rows or entry.shape[0] // cores, stated.offset, stated.rotation
        )
    if stated.partitions is None:
        return Mod(_mod_starts(name, entry))
    saved = len({part.starts[0] for part in entry.slices})
    if (
        found.checkpoint.graph is None and saved > 1 and saved != stated.partitions
    ):  # TF1: a partition is a slice
        raise NotConvertible(
            f"layout file: table {name!r} is said to have {stated.partitions} partitions, and TF1 "
            f"saved {entry.key!r} in {saved}; leave `partitions` out"
        )
    sizes = _mod_sizes(entry.shape[0], min(stated.partitions, entry.shape[0]))
    return Mod((0, *accumulate(sizes[:-1])))


def _beside_record(
    found: Findings,
    tables: list[TableSpec],
    recorded: list[TableSpec],
    trained: Mapping[str, TrainedRows],
) -> list[TableSpec]:
    """Returns the tables of a layout file in a variable whose layout the checkpoint records.

    Those that lie where the record says are recorded, too. A record was written by the program that
    wrote the rows, so a file that contradicts it is as good as contradicted by the data; only ids
    of training show that it is the record that is wrong.

    Raises:
      NotConvertible: The file contradicts the record, and nothing proves the file.
    """
    if all(_is_recorded(table, recorded) for table in tables):
        return [replace(table, stated=False, note="") for table in tables]
    proofs = proofs_of(found, tables, trained)
    for table in tables:
        if table.name not in proofs or not proofs[table.name].decisive:
            raise _unlike_record(table, recorded)
    return tables


def _is_recorded(table: TableSpec, recorded: list[TableSpec]) -> bool:
    return any(
        table.rows <= other.rows and are_one(table.layout, other.layout, table.rows)
        for other in recorded
    )


def _unlike_record(table: TableSpec, recorded: list[TableSpec]) -> NotConvertible:
    shown = ", ".join(
        f"{other.name!r} ({other.rows} rows, {layout_text(other.layout)})" for other in recorded[:8]
    )
    return NotConvertible(
        f"layout file: table {table.name!r} ({table.rows} rows, {layout_text(table.layout)}) "
        f"contradicts what the checkpoint records of {table.key!r}: {shown}; leave the table out "
        "of the file, or prove it by ids of training (verify.trained_ids, --trained-ids)"
    )


def _derivable(
    found: Findings, key: str, tables: Mapping[str, StatedTable]
) -> dict[str, TableSpec]:
    """Returns the tables of one variable whose layouts are to be derived, as if their rows were in
    order.

    Raises:
      NotConvertible: The layouts of others are stated, or the variable cannot hold the tables.
    """
    stated = sorted(name for name, table in tables.items() if table.kind != "derive")
    if stated:
        raise NotConvertible(
            f"layout file: of the tables of {key!r}, some are to be derived and {stated[0]!r} is "
            'stated; give all of them kind = "derive"'
        )
    specs = {}
    for name, table in tables.items():
        entry = _matrix(found, name, key)
        if len(tables) > 1 and table.rows is None:
            raise NotConvertible(
                f"layout file: table {name!r} is one of {len(tables)} in {key!r}, so it needs "
                "'rows' and 'dim'"
            )
        spec = table_spec(
            name,
            entry,
            "trained ids",
            found.paths_by_key.get(key, ""),
            rows=table.rows,
            dim=table.dim,
        )
        if not fits(spec.layout, spec.rows, spec.dim, spec.stored):
            raise _unfit(spec)
        specs[name] = spec
    return specs


def _unfit(table: TableSpec) -> NotConvertible:
    return NotConvertible(
        f"layout file: table {table.name!r} has the shape [{table.rows}, {table.dim}], its "
        f"variable {table.key!r} {list(table.stored)}; correct it"
    )


def _check_stated(key: str, tables: list[TableSpec]) -> None:
    stacked = [table for table in tables if isinstance(table.layout, SparseCore)]
    if len(tables) > max(1, len(stacked)):
        names = ", ".join(sorted(table.name for table in tables))
        raise NotConvertible(
            f"layout file: tables {names} have one variable, {key!r}; only the tables of a "
            "SparseCore stack share one"
        )
    try:
        check_stack(stacked)
    except LayoutContradiction as problem:
        raise NotConvertible(
            f"layout file: {problem} ({key!r} {list(tables[0].stored)}); correct it"
        ) from problem
    for table in tables:
        if not fits(table.layout, table.rows, table.dim, table.stored):
            raise _unfit(table)


def _mod_sizes(rows: int, partitions: int) -> list[int]:
    return [rows // partitions + (number < rows % partitions) for number in range(partitions)]


def _mod_starts(name: str, entry: Entry) -> tuple[int, ...]:
    """Returns the first row of each partition.

    Raises:
      NotConvertible: The slices are not those of `mod`, of which the first ones have a row more.
    """
    held = sorted({(part.starts[0], part.shape[0]) for part in entry.slices})
    sizes = [size for _, size in held]
    if len(held) < 2 or sizes != _mod_sizes(entry.shape[0], len(held)):
        shown = ", ".join(map(str, sizes[:8])) + (", ..." if len(sizes) > 8 else "")
        raise NotConvertible(
            f"table {name!r}: {entry.key!r} lies in {len(held)} row range{'s' * (len(held) != 1)} "
            f"({shown} rows); the "
            "`mod` strategy makes two or more, of which the first ones may have one row more than "
            "the others: it was not spread so"
        )
    return tuple(start for start, _ in held)
