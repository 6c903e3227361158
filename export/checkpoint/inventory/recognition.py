"""Sorts a checkpoint's variables into tables, slot variables and other variables.

They are distinguished by what the training program recorded, never by shape: Adam's moments have
the shape and dtype of their table, and the key of a slot variable can read like the key of another
table. The user states what is not recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from export.checkpoint.formats.object_graph import ObjectGraph
from export.checkpoint.inventory import keras_layers, orbax_tree, torch_names
from export.checkpoint.inventory.findings import Findings, find_dumped
from export.checkpoint.inventory.name_tables import find_named_tables
from export.checkpoint.inventory.object_tables import (
    find_embedding_objects,
    find_keras_layers,
    find_partial_layers,
)
from export.checkpoint.inventory.optimizer_state import find_named_slots, find_slots
from export.checkpoint.inventory.proved_tables import compare_tables
from export.checkpoint.inventory.recorded_stacks import find_recorded_stacks
from export.checkpoint.inventory.specs import Inventory, Statements
from export.checkpoint.inventory.stated_tables import name_tables, state_layouts, state_mod
from export.checkpoint.reader import Checkpoint
from export.checkpoint.trained_rows import NO_ROWS, TrainedRows


def recognize(
    checkpoint: Checkpoint,
    statements: Statements | Mapping[str, str] | None = None,
    trained: Mapping[str, TrainedRows] = NO_ROWS,
) -> Inventory:
    """Sorts a checkpoint's variables into tables, slot variables and other variables.

    Args:
      checkpoint: An open checkpoint.
      statements: The statements of the user; a mapping stands for `Statements.named`. They add
        tables, rename recognized ones, and take precedence over a recognized table of the same
        name.
      trained: The rows that training read, by the name of a table. Layouts are derived from them,
        and all other layouts are compared with them. Only in that case are rows read, of slot
        variables.
    Raises:
      CheckpointError: The object graph is damaged, or a saved layout contradicts its variable.
      NotConvertible: A named variable does not exist, is a slot variable, or cannot hold the table;
        or trained rows contradict a layout.
    """
    if not isinstance(statements, Statements):
        statements = Statements(named=statements or {})
    findings = Findings(checkpoint)
    # Slot variables come first: the key of one may read like that of another table.
    graph = checkpoint.graph
    if graph is not None:
        find_slots(findings, graph)
        find_embedding_objects(findings, graph)
        # These tables are Keras layers, too, but have the names of their features.
        find_partial_layers(findings, graph)
        find_keras_layers(findings, graph)
    elif checkpoint.storage.kind == "Orbax":
        orbax_tree.find_in_tree(findings)
        find_recorded_stacks(findings)
    elif checkpoint.storage.kind == "Keras":
        keras_layers.find_in_layers(findings)
    elif checkpoint.storage.kind == "PyTorch":
        torch_names.find_in_modules(findings)
    elif checkpoint.storage.kind == "TensorFlow":
        find_named_slots(findings)
        find_named_tables(findings)
    find_dumped(findings)
    # In this order: a name may refer to a table of the layout file, and `mod` to a name.
    state_layouts(findings, statements.layouts, trained)
    name_tables(findings, statements.named)
    for name in statements.mod:
        state_mod(findings, name)
    return compare_tables(checkpoint, findings.inventory(_step(checkpoint)), trained)


def _step(checkpoint: Checkpoint) -> int | None:
    """Returns the training step: the program's own step, else the count of its optimizers.

    Of several counts, the largest is taken: an optimizer that wraps another, such as Keras 3's
    LossScaleOptimizer, may leave its own count at 0.
    """
    if checkpoint.storage.step is not None:
        return checkpoint.storage.step
    if checkpoint.storage.kind == "Orbax":
        return next(_integers(checkpoint, orbax_tree.step_keys(checkpoint.entries)), None)
    graph = checkpoint.graph
    step_keys = ["global_step"]
    counter_keys = []
    if checkpoint.storage.kind == "Keras":
        step_keys = []
        counter_keys = keras_layers.step_keys(checkpoint.entries)
    if graph is not None:
        step_nodes = [graph.child(0, name) for name in ("step", "global_step")]
        step_keys = [node.key for node in step_nodes if node is not None]
        counter_keys += _counter_keys(graph)
    program_step = next(_integers(checkpoint, step_keys), None)
    if program_step is not None:
        return program_step
    return max(_integers(checkpoint, counter_keys), default=None)


def _counter_keys(graph: ObjectGraph) -> list[str]:
    """Returns the keys of the variables in which optimizers count their steps."""
    keys = []
    for _, node in graph.holders:
        counter = node.children.get("_iterations")
        # Other objects may have a child `iter`; only an optimizer has slot variables.
        if counter is None and node.slots:
            counter = node.children.get("iter")
        if counter is not None:
            keys.append(graph.nodes[counter].key)
    return keys


def _integers(checkpoint: Checkpoint, keys: Iterable[str]) -> Iterator[int]:
    """Yields the values of the variables that are single integers."""
    for key in dict.fromkeys(keys):
        entry = checkpoint.entries.get(key)
        if entry is None or (entry.array is not None and entry.array.absent):
            # A count of 0, which older releases of Orbax did not store, or a lost one.
            continue
        if entry.shape == () and entry.dtype in ("int64", "int32", "uint32"):
            yield int(checkpoint.read_all(key))
