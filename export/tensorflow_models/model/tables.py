"""Finds every table of a model in its checkpoint, under the bundle's names: by the model's objects,
by metadata, or as the recipe states."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from export.checkpoint.inventory.name_tables import DIV_OR_MOD, is_partitioned
from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.inventory.specs import Inventory, StatedTable, Statements
from export.checkpoint.reader import Checkpoint
from export.checkpoint.trained_rows import NO_ROWS, TrainedRows
from export.errors import CheckpointError, NotConvertible
from export.front_end.recipe_layouts import (
    is_derived,
    recipe_layouts,
    stack_key,
    to_derive,
    with_config_names,
)
from export.front_end.specs import TableFacts
from export.recipe.schema import ExportJob
from export.tables.dumped import vectors_key
from export.tensorflow_models.frameworks.named_graphs import NamedGraph
from export.tensorflow_models.frameworks.placeholders import line_of_variable, placeholder_class
from export.tensorflow_models.model.tracing import TracedModel
from export.tensorflow_models.model.weights import TrainedModel
from export.user_lines import at_line


def recognise_tables(
    checkpoint: Checkpoint,
    traced: TracedModel,
    job: ExportJob,
    base: Path,
    trained: Mapping[str, TrainedRows] = NO_ROWS,
) -> Inventory:
    """Finds every table that a tower of the model reads.

    Args:
      checkpoint: the open checkpoint.
      traced: the model.
      job: the recipe.
      base: the folder that its paths are relative to.
      trained: rows that training read, by the name of a table.
    Raises:
      NotConvertible: a table is missing or cannot be exported; the message shows how to name it.
      CheckpointError: a table has another shape in the checkpoint.
    """
    layouts = recipe_layouts(job, base)
    found = recognise(checkpoint, Statements(layouts=layouts))
    model = TrainedModel(traced.root, checkpoint, job.checkpoint.object_path)
    keys = model.table_keys(traced.tables)
    if is_derived(job):
        layouts = _to_derive(checkpoint, traced, found, keys)
    named = {}
    for name, spec in traced.spec.tables.items():
        stated = vectors_key(checkpoint, name) or (
            job.tables[name].key if name in job.tables else None
        )
        if stated or name not in layouts:
            named[name] = (
                stated
                or keys.get(name)
                or _in_layouts(layouts, name)
                or _by_name(found, spec, traced.tables[name], model)
            )
    mod = {name for name, part in job.tables.items() if part.mod}
    mod_by_code: set[str] = set()
    if isinstance(traced.root, NamedGraph):
        mod_by_code = {
            name
            for name, variable in traced.tables.items()
            if _is_mod(variable, checkpoint, named[name])
        }
    statements = Statements(named, tuple(sorted(mod | mod_by_code)), layouts)
    known = with_config_names(trained, traced.spec.tables)
    inventory = recognise(checkpoint, statements, known)
    if isinstance(traced.root, NamedGraph):
        # The model's own lookups have the strategy: nobody states it, and no note asks for it.
        tables = tuple(
            replace(each, note="", stated=False)
            if each.note == DIV_OR_MOD or each.name in mod_by_code
            else each
            for each in inventory.tables
        )
        inventory = replace(inventory, tables=tables)
    for name, spec in traced.spec.tables.items():
        check_shape(inventory, name, spec, line_of_variable(traced.tables[name]))
    return inventory


def _to_derive(
    checkpoint: Checkpoint, traced: TracedModel, found: Inventory, keys: Mapping[str, str]
) -> dict[str, StatedTable]:
    """Returns the tables whose layouts nothing records: those in stacks, and variables that TF1
    saved in slices, unless the model's own lookups have the strategy.
    """
    recognised = {table.name: table.key for table in found.tables}
    layouts = {}
    for name, facts in traced.spec.tables.items():
        key = keys.get(name) or recognised.get(facts.config_name)
        if key is None:
            stack = stack_key(found, facts.config_name)
            if stack is not None:
                layouts[name] = to_derive(stack, facts)
        elif not isinstance(traced.root, NamedGraph) and checkpoint.graph is None:
            entry = checkpoint.entries.get(key)
            if entry is not None and is_partitioned(entry):
                layouts[name] = to_derive(key, facts)
    return layouts


def _in_layouts(layouts: Collection[str], name: str) -> str:
    """Returns the name that a layout file gives a table: that of its TableConfig, without the layer
    of keras-rs that holds it; "" if it gives none.
    """
    short = name.rpartition(".")[2]
    return short if short in layouts else ""


def _by_name(found: Inventory, spec: TableFacts, variable: Any, trained: TrainedModel) -> str:
    """Returns the checkpoint's name of a table that is not found by the model's objects."""
    line = line_of_variable(variable)
    if trained.why_unlike:
        raise CheckpointError(
            f"table {spec.name!r} of the model{at_line(line)} is not in checkpoint "
            f"{found.checkpoint}: {trained.why_unlike}"
        )
    if not trained.object_path and (place := trained.holder_of(variable)):
        raise CheckpointError(
            f"table {spec.name!r}: the model is not at the top of checkpoint {found.checkpoint} "
            f"but under {place!r}, "
            f"as tf.train.Checkpoint({place}=...) saves it: write checkpoint.object_path = "
            f'"{place}"'
        )
    if (
        isinstance(variable, placeholder_class())
        and line
        and spec.config_name not in {each.name for each in found.tables}
    ):
        raise CheckpointError(
            f"table {spec.name!r} is {spec.config_name!r} of the model ({line}), which is not in "
            "checkpoint "
            f"{found.checkpoint}; the model code is not the one that was saved, or its variable "
            f"has another place there: name it as tables.{spec.name}.key{_rejected(found)}"
        )
    try:
        return found.table(spec.config_name).name
    except NotConvertible as problem:
        why = trained.why_missing(variable)
        raise NotConvertible(
            f"table {spec.name!r} of the model{at_line(line)}: {problem}{why and f'; {why}'}"
        ) from problem


def _rejected(found: Inventory) -> str:
    """Returns what else may hold a table that was not found."""
    return "".join(
        f"; or it is in {rejected.key!r}: {rejected.reason}" for rejected in found.rejected
    )


def _is_mod(variable: Any, checkpoint: Checkpoint, key: str) -> bool:
    entry = checkpoint.entries.get(key)
    return variable.mod and entry is not None and is_partitioned(entry)


def check_shape(inventory: Inventory, name: str, spec: TableFacts, line: str) -> None:
    """Checks that a table has the model's shape in the checkpoint.

    Raises:
      CheckpointError: it has another one.
    """
    stored = inventory.table(name)
    if (stored.rows, stored.dim) != (spec.rows, spec.dim):
        raise CheckpointError(
            f"table {name!r} is [{spec.rows}, {spec.dim}] in the model{at_line(line)} and "
            f"[{stored.rows}, {stored.dim}] in checkpoint {inventory.checkpoint} ({stored.key!r}); "
            "the model code is not the one that was saved"
        )
