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
from export.checkpoint.inventory.findings import Findings, stacked_spec, table_spec
from export.checkpoint.inventory.name_tables import partition_note
from export.checkpoint.inventory.optimizer_state import AVERAGE, AVERAGE_SLOTS
from export.checkpoint.inventory.proved_tables import derive_tables, proofs_of
from export.checkpoint.inventory.sparsecore import LayoutContradiction, check_stack
from export.checkpoint.inventory.specs import (
    NAMES_COMPARED,
    STATED_NOTE,
    FileTable,
    Inventory,
    StatedTable,
    TableSpec,
    is_to_be_derived,
)
from export.checkpoint.layouts import (
    Layout,
    Mod,
    Plain,
    SparseCore,
    fits,
    layout_text,
    place_alike,
)
from export.checkpoint.trained_rows import TrainedRows
from export.checkpoint.variables import Entry, StackedTable
from export.errors import NotConvertible

_SHOWN_MAX = 8
"""The maximum number of tables, variables or sizes that a message lists."""


def state_layouts(
    findings: Findings, layouts: Mapping[str, FileTable], trained: Mapping[str, TrainedRows]
) -> None:
    """Adds the tables of a layout file; they replace tables that were recognized in the same
    variables or by the same names.

    The layout of a table is a statement where its rows would come out in another order without it.
    Rows or columns that are cut off a plain variable change no order.

    Args:
      findings: The findings of the rules.
      layouts: The tables by their names.
      trained: Rows that training read, by the name of a table; the layouts of tables of kind
        "derive" are derived from them.

    Raises:
      NotConvertible: A variable does not exist, is a slot variable, or cannot hold the table; or
        trained rows do not prove a layout that is to be derived.
    """
    reordered_keys = {rejected.key for rejected in findings.rejected}
    recorded_tables: dict[str, list[TableSpec]] = {}
    for table in findings.tables.values():
        if not isinstance(table.layout, Plain):
            reordered_keys.add(table.key)
        if isinstance(table.layout, SparseCore):
            recorded_tables.setdefault(table.key, []).append(table)
    file_tables_by_key: dict[str, dict[str, FileTable]] = {}
    for name, file_table in layouts.items():
        key = _key(findings, name, _reference(file_table), of_stack=True)
        file_tables_by_key.setdefault(key, {})[name] = file_table

    # The file describes a variable as a whole: none of its recognized tables stays.
    findings.tables = {
        name: table
        for name, table in findings.tables.items()
        if table.key not in file_tables_by_key
    }
    findings.rejected = [
        rejected for rejected in findings.rejected if rejected.key not in file_tables_by_key
    ]
    for key, tables in file_tables_by_key.items():
        if any(is_to_be_derived(table) for table in tables.values()):
            derive_tables(findings, key, _tables_to_derive(findings, key, tables), trained)
            continue
        specs = []
        for name, file_table in tables.items():
            spec = _spec(findings, name, key, file_table)
            is_recorded = isinstance(file_table, StackedTable)
            # For a stack, or if another layout is recorded, a plain layout changes the order, too.
            changes_order = not isinstance(spec.layout, Plain) or key in reordered_keys
            if changes_order and not is_recorded:
                spec = replace(spec, stated=True, note=STATED_NOTE)
            specs.append(spec)
        _check_stated(key, specs)
        if key in recorded_tables:
            specs = _compare_with_record(findings, specs, recorded_tables[key], trained)
        findings.tables |= {spec.name: spec for spec in specs}


def _reference(table: FileTable) -> str:
    """Returns the name by which a table of a layout file refers to its variable."""
    if isinstance(table, StackedTable):
        return table.stack
    return table.key


def _spec(findings: Findings, name: str, key: str, table: FileTable) -> TableSpec:
    """Returns a table of a layout file in the variable `key`."""
    entry = _matrix_entry(findings, name, key)
    path = findings.paths_by_key.get(key, "")
    if isinstance(table, StackedTable):
        return stacked_spec(table, entry, "embedding spec", path)
    return table_spec(
        name,
        entry,
        "layout file",
        path,
        rows=table.rows,
        dim=table.dim,
        layout=_stated_layout(findings, name, table, entry),
    )


def name_tables(findings: Findings, references: Mapping[str, str]) -> None:
    """Gives variables and recognized tables the names that the user states.

    Args:
      findings: The findings of the rules.
      references: By the name of a table, the key, the key without its suffix, the attribute path,
        or the name by which a table is recognized.
    Raises:
      NotConvertible: A variable does not exist, is a slot variable, does not have the shape of a
        table, is a stack of several tables, or has two names.
    """
    tables_by_key: dict[str, list[TableSpec]] = {}
    for table in findings.tables.values():
        tables_by_key.setdefault(table.key, []).append(table)
    tables = {
        name: _referenced_table(findings, tables_by_key, name, reference)
        for name, reference in references.items()
    }
    first_names: dict[tuple[str, Layout], str] = {}
    for name, table in tables.items():
        first_name = first_names.setdefault((table.key, table.layout), name)
        if first_name != name:
            raise NotConvertible(
                f"tables {first_name!r} and {name!r} are both stated to be {table.key!r}; a "
                "variable is exported once, under one name"
            )

    # All old names go before the first new one comes: two tables may exchange their names.
    for table in tables.values():
        findings.tables.pop(table.name, None)
    for name, table in tables.items():
        note = table.note
        # The note of such a table requests a name, which it has now.
        if table.origin == "PartialTPUEmbedding":
            note = ""
        findings.tables[name] = replace(table, name=name, note=note)


def state_mod(findings: Findings, name: str) -> None:
    """Gives a table the layout that the user states: TF1's `mod` strategy spread its rows over its
    slices.

    Raises:
      NotConvertible: There is no such table, or its slices are not what that strategy makes.
    """
    table = findings.inventory().table(name)
    if not isinstance(table.layout, Plain) or (table.rows, table.dim) != table.stored:
        raise NotConvertible(
            f"--mod {name}: the table has the layout {table.layout.kind}, which is not TF1's"
        )
    starts = _mod_starts(name, findings.checkpoint.entries[table.key])
    findings.tables[name] = replace(
        findings.tables[name], layout=Mod(starts), stated=True, note=STATED_NOTE
    )


def _referenced_table(
    findings: Findings, tables_by_key: Mapping[str, list[TableSpec]], name: str, reference: str
) -> TableSpec:
    """Returns the table that a reference means: a recognized one, by its variable or by its name,
    else a variable.
    """
    key = _resolve(findings, reference)
    if key is None and reference in findings.tables:
        return findings.tables[reference]
    key = _key(findings, name, reference)
    key_tables = tables_by_key.get(key, [])
    if len(key_tables) > 1:
        # A layout file may have named the tables of a stack before.
        table_of_name = findings.tables.get(name)
        if table_of_name in key_tables:
            return table_of_name
        names = ", ".join(sorted(table.name for table in key_tables))
        raise NotConvertible(
            f"table {name!r}: {key!r} is a stack of several tables; give the name of one, as in "
            f"--table {name}={key_tables[0].name} (they are {names})"
        )
    if key_tables:
        return key_tables[0]
    for rejected in findings.rejected:
        if rejected.key == key:
            raise NotConvertible(f"table {name!r}: {key!r} cannot be exported: {rejected.reason}")

    entry = _matrix_entry(findings, name, key)
    note = ""
    if findings.checkpoint.graph is None:
        note = partition_note(entry)
    return table_spec(name, entry, "named", findings.paths_by_key.get(key, ""), note=note)


def _resolve(findings: Findings, reference: str) -> str | None:
    """Returns the key that the user means, by key, key without suffix or attribute path."""
    for key in (reference, reference + VARIABLE_SUFFIX):
        if key in findings.checkpoint.entries:
            return key
    return findings.keys_by_path.get(reference)


def _key(findings: Findings, name: str, reference: str, of_stack: bool = False) -> str:
    """Returns the key of the variable that the user means, perhaps by the name of a stack in it."""
    key = _resolve(findings, reference)
    if key is None and of_stack:
        key = _stack_key(findings, name, reference)
    if key is None:
        raise _unknown_variable_error(findings.inventory(), name, reference)
    slot = findings.slots.get(key)
    # Averages of the weights are no state of the optimizer: some models serve them.
    if slot is not None and slot.name not in (AVERAGE, *AVERAGE_SLOTS):
        raise NotConvertible(
            f"table {name!r}: {key!r} is a slot variable ({slot.name} of "
            f"{slot.trained_key or 'an optimizer'}), no table; name the variable that the "
            "optimizer trains"
        )
    return key


def _unknown_variable_error(inventory: Inventory, name: str, reference: str) -> NotConvertible:
    keys = [entry.key for entry in inventory.candidates[:NAMES_COMPARED]]
    keys += [table.key for table in inventory.tables]
    known_names = [key.removesuffix(VARIABLE_SUFFIX) for key in keys]
    known_names += [table.name for table in inventory.tables]
    matches = difflib.get_close_matches(reference, known_names, n=1)
    hint = inventory.naming_help()
    if matches:
        hint = f"did you mean {matches[0]!r}?"
    return NotConvertible(
        f"table {name!r}: checkpoint {inventory.checkpoint} has no variable {reference!r}; {hint}"
    )


def _stack_key(findings: Findings, name: str, stack: str) -> str | None:
    """Returns the key of the one variable that has a stack's name in its key, and its shape; None
    if there is none.
    """
    pattern = re.compile(rf"(^|[/.:]){re.escape(stack)}($|[/.:])")
    candidates = []
    for key, entry in findings.checkpoint.entries.items():
        if len(entry.shape) == 2 and key not in findings.slots and pattern.search(key):
            candidates.append(key)
    # The name may also be that of a scope which holds further variables.
    stack_keys = [key for key in candidates if re.split(r"[/.:]", key)[-1] in ("table", stack)]
    stack_keys = stack_keys or candidates
    if len(stack_keys) > 1:
        listed = ", ".join(stack_keys[:_SHOWN_MAX])
        raise NotConvertible(
            f"table {name!r}: several variables are called {stack!r}: {listed}; "
            "write the layout file by hand, with each table's key (docs/reference/layouts.md)"
        )
    if not stack_keys:
        return None
    return stack_keys[0]


def _matrix_entry(findings: Findings, name: str, key: str) -> Entry:
    entry = findings.checkpoint.entries[key]
    if len(entry.shape) != 2 or not min(entry.shape):
        raise NotConvertible(
            f"table {name!r}: {key!r} has the shape {list(entry.shape)}, not [rows, dim]"
        )
    return entry


def _stated_layout(findings: Findings, name: str, stated: StatedTable, entry: Entry) -> Layout:
    if stated.kind == "plain":
        return Plain()
    if stated.kind == "sparse_core":
        cores = stated.cores or 1
        return SparseCore(
            cores, stated.core_rows or entry.shape[0] // cores, stated.offset, stated.rotation
        )
    if stated.partitions is None:
        return Mod(_mod_starts(name, entry))
    saved_count = len({part.starts[0] for part in entry.slices})
    # In TF1, a partition is a slice. Later programs cut variables by other rules.
    if findings.checkpoint.graph is None and saved_count > 1 and saved_count != stated.partitions:
        raise NotConvertible(
            f"layout file: table {name!r} is stated to have {stated.partitions} partitions, and "
            f"TF1 saved {entry.key!r} in {saved_count}; leave `partitions` out"
        )
    # Partitions beyond the number of rows are empty.
    sizes = _mod_sizes(entry.shape[0], min(stated.partitions, entry.shape[0]))
    return Mod((0, *accumulate(sizes[:-1])))


def _compare_with_record(
    findings: Findings,
    tables: list[TableSpec],
    recorded: list[TableSpec],
    trained: Mapping[str, TrainedRows],
) -> list[TableSpec]:
    """Returns the tables of a layout file in a variable whose layout the checkpoint records.

    Tables that lie where the record states are recorded, too. A record was written by the program
    that wrote the rows, so a file that contradicts it is as good as contradicted by the data; only
    ids of training show that it is the record that is wrong.

    Raises:
      NotConvertible: The file contradicts the record, and nothing proves the file.
    """
    records = {table.name: _record_of(table, recorded) for table in tables}
    if all(records.values()):
        return [
            replace(table, stated=False, note="", combiner=record.combiner)
            for table in tables
            if (record := records[table.name])
        ]
    proofs = proofs_of(findings, tables, trained)
    for table in tables:
        if table.name not in proofs or not proofs[table.name].decisive:
            raise _contradiction_error(table, recorded)
    return tables


def _record_of(table: TableSpec, recorded: list[TableSpec]) -> TableSpec | None:
    """Returns the recorded table that lies where a table does; None if there is none."""
    for record in recorded:
        if table.rows <= record.rows and place_alike(table.layout, record.layout, table.rows):
            return record
    return None


def _contradiction_error(table: TableSpec, recorded: list[TableSpec]) -> NotConvertible:
    descriptions = [
        f"{record.name!r} ({record.rows} rows, {layout_text(record.layout)})"
        for record in recorded[:_SHOWN_MAX]
    ]
    return NotConvertible(
        f"layout file: table {table.name!r} ({table.rows} rows, {layout_text(table.layout)}) "
        f"contradicts what the checkpoint records of {table.key!r}: {', '.join(descriptions)}; "
        "leave the table out of the file, or prove it by ids of training (verify.trained_ids, "
        "--trained-ids)"
    )


def _tables_to_derive(
    findings: Findings, key: str, tables: Mapping[str, FileTable]
) -> dict[str, TableSpec]:
    """Returns the tables of one variable whose layouts are to be derived, as if their rows were in
    order.

    Raises:
      NotConvertible: The layouts of other tables are stated, or the variable cannot hold the
        tables.
    """
    stated_names = sorted(name for name, table in tables.items() if not is_to_be_derived(table))
    if stated_names:
        raise NotConvertible(
            f"layout file: of the tables of {key!r}, some are to be derived and "
            f'{stated_names[0]!r} is stated; give all of them kind = "derive"'
        )
    specs = {}
    for name, table in tables.items():
        entry = _matrix_entry(findings, name, key)
        if len(tables) > 1 and table.rows is None:
            raise NotConvertible(
                f"layout file: table {name!r} is one of {len(tables)} in {key!r}, so it needs "
                "'rows' and 'dim'"
            )
        spec = table_spec(
            name,
            entry,
            "trained ids",
            findings.paths_by_key.get(key, ""),
            rows=table.rows,
            dim=table.dim,
        )
        if not fits(spec.layout, spec.rows, spec.dim, spec.stored):
            raise _unfit_error(spec)
        specs[name] = spec
    return specs


def _unfit_error(table: TableSpec) -> NotConvertible:
    return NotConvertible(
        f"layout file: table {table.name!r} has the shape [{table.rows}, {table.dim}], its "
        f"variable {table.key!r} {list(table.stored)}; correct it"
    )


def _check_stated(key: str, tables: list[TableSpec]) -> None:
    stacked_tables = [table for table in tables if isinstance(table.layout, SparseCore)]
    if len(tables) > max(1, len(stacked_tables)):
        names = ", ".join(sorted(table.name for table in tables))
        raise NotConvertible(
            f"layout file: tables {names} have one variable, {key!r}; only the tables of a "
            "SparseCore stack share one"
        )
    try:
        check_stack(stacked_tables)
    except LayoutContradiction as problem:
        raise NotConvertible(
            f"layout file: {problem} ({key!r} {list(tables[0].stored)}); correct it"
        ) from problem
    for table in tables:
        if not fits(table.layout, table.rows, table.dim, table.stored):
            raise _unfit_error(table)


def _mod_sizes(rows: int, partitions: int) -> list[int]:
    return [rows // partitions + (number < rows % partitions) for number in range(partitions)]


def _mod_starts(name: str, entry: Entry) -> tuple[int, ...]:
    """Returns the first row of each partition.

    Raises:
      NotConvertible: The slices are not those of `mod`, of which the first ones have a row more.
    """
    ranges = sorted({(part.starts[0], part.shape[0]) for part in entry.slices})
    sizes = [size for _, size in ranges]
    if len(ranges) < 2 or sizes != _mod_sizes(entry.shape[0], len(ranges)):
        shown_sizes = ", ".join(map(str, sizes[:_SHOWN_MAX]))
        if len(sizes) > _SHOWN_MAX:
            shown_sizes += ", ..."
        raise NotConvertible(
            f"table {name!r}: {entry.key!r} lies in {len(ranges)} row "
            f"range{'s' * (len(ranges) != 1)} ({shown_sizes} rows); the `mod` strategy makes two "
            "or more, of which the first ones may have one row more than the others: it was not "
            "spread so"
        )
    return tuple(start for start, _ in ranges)
