"""Finds every table of a model in its checkpoint, under the bundle's names: by the model's objects,
by metadata, or as the recipe states.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from export.checkpoint.inventory.name_tables import DIV_OR_MOD, is_partitioned
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import FileTable, Inventory, Statements
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
from export.front_end.table_shapes import check_shapes
from export.graphs.placeholders import line_of_variable, placeholder_class
from export.partition.tracing import TracedModel
from export.recipe.schema import ExportJob
from export.tables.dumped import stated_key
from export.tensorflow_models.frameworks.named_graphs import NamedGraph
from export.tensorflow_models.model.saved_models import trained_model
from export.tensorflow_models.model.weights import TrainedModel
from export.user_lines import at_line


def recognize_tables(
    checkpoint: Checkpoint,
    traced: TracedModel,
    job: ExportJob,
    base: Path,
    trained: Mapping[str, TrainedRows] = NO_ROWS,
) -> Inventory:
    """Finds every table that a tower of the model reads.

    Args:
      checkpoint: The open checkpoint.
      traced: The model.
      job: The recipe.
      base: The folder that the recipe's paths are relative to.
      trained: The rows that training read, by the name of a table.

    Raises:
      NotConvertible: A table is missing or cannot be exported; the message shows how to name it.
      CheckpointError: A table has another shape in the checkpoint.
    """
    # First under the checkpoint's own names, with which the tables of the model are matched.
    layouts = recipe_layouts(job, base)
    recognized = recognize(checkpoint, Statements(layouts=layouts))
    model = trained_model(traced.root, checkpoint, job.checkpoint.object_path)
    keys = model.table_keys(traced.tables)
    if is_derived(job):
        layouts = _to_derive(checkpoint, traced, recognized, keys)

    named = {}
    for name, spec in traced.spec.tables.items():
        stated = stated_key(checkpoint, name, job)
        if stated or name not in layouts:
            # The recipe first, then the surest source: an object of the model, a layout, a name.
            named[name] = (
                stated
                or keys.get(name)
                or _in_layouts(layouts, name)
                or _by_name(recognized, spec, traced.tables[name], model)
            )

    mod = {name for name, section in job.tables.items() if section.mod}
    mod_by_code: set[str] = set()
    if isinstance(traced.root, NamedGraph):
        mod_by_code = {
            name
            for name, variable in traced.tables.items()
            if _is_mod(variable, checkpoint, named[name])
        }
    statements = Statements(named, tuple(sorted(mod | mod_by_code)), layouts)
    trained_rows = with_config_names(trained, traced.spec.tables)
    inventory = recognize(checkpoint, statements, trained_rows)
    if isinstance(traced.root, NamedGraph):
        # The model's own lookups have the strategy: nobody states it, and no note requests it.
        tables = []
        for table in inventory.tables:
            if table.note == DIV_OR_MOD or table.name in mod_by_code:
                tables.append(replace(table, note="", stated=False))
            else:
                tables.append(table)
        inventory = replace(inventory, tables=tuple(tables))
    lines = {name: line_of_variable(table) for name, table in traced.tables.items()}
    check_shapes(inventory, traced.spec.tables, lines)
    return inventory


def _to_derive(
    checkpoint: Checkpoint, traced: TracedModel, recognized: Inventory, keys: Mapping[str, str]
) -> dict[str, FileTable]:
    """Returns the tables whose layouts nothing records: those in stacks, and variables that TF1
    saved in slices, unless the model's own lookups have the strategy.
    """
    recognized_keys = {table.name: table.key for table in recognized.tables}
    layouts: dict[str, FileTable] = {}
    for name, facts in traced.spec.tables.items():
        key = keys.get(name) or recognized_keys.get(facts.config_name)
        if key is None:
            stack = stack_key(recognized, facts.config_name)
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
    if short in layouts:
        return short
    return ""


def _by_name(recognized: Inventory, spec: TableFacts, variable: Any, trained: TrainedModel) -> str:
    """Returns the checkpoint's name of a table that is not found by the model's objects.

    Raises:
      CheckpointError: The checkpoint is that of another model, or of an object that holds it.
      NotConvertible: The checkpoint has no such table; the message shows how to name it.
    """
    line = line_of_variable(variable)
    if trained.why_unlike:
        raise CheckpointError(
            f"table {spec.name!r} of the model{at_line(line)} is not in checkpoint "
            f"{recognized.checkpoint}: {trained.why_unlike}"
        )
    holder = ""
    if not trained.object_path:
        holder = trained.holder_of(variable)
    if holder:
        raise CheckpointError(
            f"table {spec.name!r}: the model is not at the top of checkpoint "
            f"{recognized.checkpoint} but under {holder!r}, as tf.train.Checkpoint({holder}=...) "
            f'saves it: write checkpoint.object_path = "{holder}"'
        )
    # The path of a plain variable says where it must be; a layer's table may be in a stack.
    is_plain = isinstance(variable, placeholder_class()) and line != ""
    if is_plain and spec.config_name not in {table.name for table in recognized.tables}:
        raise CheckpointError(
            f"table {spec.name!r} is {spec.config_name!r} of the model ({line}), which is not in "
            f"checkpoint {recognized.checkpoint}; the model code is not the one that was saved, or "
            f"its variable has another place there: name it as "
            f"tables.{spec.name}.key{_rejected(recognized)}"
        )
    try:
        return recognized.table(spec.config_name).name
    except NotConvertible as problem:
        reason = trained.why_missing(variable)
        if reason:
            reason = f"; {reason}"
        raise NotConvertible(
            f"table {spec.name!r} of the model{at_line(line)}: {problem}{reason}"
        ) from problem


def _rejected(recognized: Inventory) -> str:
    """Returns the rejected variables of a checkpoint, any of which may hold a missing table."""
    return "".join(
        f"; or it is in {rejected.key!r}: {rejected.reason}" for rejected in recognized.rejected
    )


def _is_mod(variable: Any, checkpoint: Checkpoint, key: str) -> bool:
    """Returns whether a table is in slices, over which a lookup of the model spreads ids by mod."""
    entry = checkpoint.entries.get(key)
    return variable.mod and entry is not None and is_partitioned(entry)
