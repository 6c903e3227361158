"""Sorts a checkpoint's variables: which are tables, which slot variables, which the rest.

They are told apart by what the training program recorded, never by shape: Adam's moments have the shape and dtype of
their table, and a slot's key can read like that of another table.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from export.checkpoint.layouts import Plain
from export.checkpoint.objectgraph import VARIABLE_SUFFIX, ObjectGraph
from export.checkpoint.specs import FLOATS, Inventory, Origin, RefusedTable, SlotSpec, TableSpec
from export.checkpoint.variables import Entry, StoredVariables
from export.errors import NotConvertible

_EMBEDDINGS_KEY = re.compile(rf"(^|/)_?embeddings{re.escape(VARIABLE_SUFFIX)}$")
_EMBEDDINGS_NAME = re.compile(r"(?:^|.*/)([^/]+)/embeddings$")
_SPARSE_CORE = (
    "it is a SparseCore stack (TPU v5p, v6e), whose rows are spread over cores, and is not exported yet; restore the "
    "checkpoint into TPUEmbeddingForServing, save that, and export what was saved"
)


def recognise(checkpoint: StoredVariables, named: Mapping[str, str] | None = None) -> Inventory:
    """Sorts a checkpoint's variables into tables, slot variables and the rest.

    Args:
      checkpoint: an open checkpoint.
      named: table name -> its variable, said by the user: the key, the key without its suffix, or the attribute path.
        It adds tables, renames recognised ones, and wins over a recognised table of the same name.
    Raises:
      CheckpointError: the object graph is damaged.
      NotConvertible: a named variable is not there, is a slot variable, or has not the shape of a table.
    """
    found = _Recognition(checkpoint)
    if found.graph is not None:
        found.find_slots(found.graph)
        found.find_embedding_objects(found.graph)
        found.find_keras_layers(found.graph)
    for name, key in (named or {}).items():
        found.name_table(name, key)
    taken = {table.key for table in found.tables} | {refused.key for refused in found.refused} | set(found.slots)
    rest = (entry for key, entry in checkpoint.entries.items() if key not in taken and entry.dtype != "string")
    return Inventory(
        checkpoint=checkpoint.name,
        fingerprint=checkpoint.fingerprint,
        objects=found.graph is not None,
        step=_step(checkpoint),
        tables=found.tables_with_slots(),
        refused=tuple(sorted(found.refused, key=lambda refused: refused.name)),
        slots=tuple(sorted(found.slots.values(), key=lambda slot: slot.key)),
        dense=tuple(rest),
    )


@dataclass
class _Recognition:
    """What was found so far; each rule adds to it."""

    checkpoint: StoredVariables
    tables: list[TableSpec] = field(default_factory=list)
    refused: list[RefusedTable] = field(default_factory=list)
    slots: dict[str, SlotSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graph = self.checkpoint.graph

    def find_slots(self, graph: ObjectGraph) -> None:
        """Finds the optimizers' variables, of Keras' older kind (slot variables) and of its newer (a list)."""
        for index, node in enumerate(graph.nodes):
            for slot in node.slots:
                self._add_slot(slot.name, graph.nodes[slot.node].key, graph.nodes[slot.of].key)
            if "_iterations" in node.children and "_variables" in node.children:
                for name, child in graph.nodes[node.children["_variables"]].children.items():
                    state = graph.nodes[child]
                    if child != graph.nodes[index].children["_iterations"]:
                        self._add_slot(state.full_name or name, state.key, "")

    def find_embedding_objects(self, graph: ObjectGraph) -> None:
        """Finds TPUEmbedding objects: `_variables` holds, by table name, `parameters` and its slot variables."""
        layers = {node.children["_tpu_embedding"] for node in graph.nodes if "_tpu_embedding" in node.children}
        found: list[tuple[str, int, TableSpec]] = []
        for index, held in _embedding_objects(graph):
            stacked = self._stacked(graph, index)
            for name, variables in held.items():
                key = graph.nodes[variables["parameters"]].key
                for slot, node in variables.items():
                    if slot != "parameters":
                        self._add_slot(slot, graph.nodes[node].key, key)
                entry = self.checkpoint.entries.get(key)
                if entry is None:
                    self.refused.append(RefusedTable(name, key, "its variable was not saved; save the checkpoint anew"))
                elif stacked:
                    self.refused.append(RefusedTable(name, key, _SPARSE_CORE))
                elif len(entry.shape) != 2:
                    reason = f"it has the shape {list(entry.shape)}, not [rows, dim]"
                    self.refused.append(RefusedTable(name, key, reason))
                else:
                    origin: Origin = "TFRS TPUEmbedding" if index in layers else "TPUEmbedding"
                    path = graph.paths.get(variables["parameters"], "")
                    found.append((name, index, _table(name, entry, origin, path)))
        count = Counter(name for name, _, _ in found)
        for name, index, table in found:  # several objects may each have a table of one name
            self.tables.append(
                table if count[name] == 1 else replace(table, name=f"{graph.paths.get(index, '')}.{name}")
            )

    def find_keras_layers(self, graph: ObjectGraph) -> None:
        """Finds Keras Embedding layers by the name that they give their one variable."""
        taken = {table.key for table in self.tables} | {refused.key for refused in self.refused} | set(self.slots)
        found: dict[str, tuple[str, str, Entry]] = {}
        for index, node in enumerate(graph.nodes):
            entry = self.checkpoint.entries.get(node.key)
            if entry is None or node.key in taken or len(entry.shape) != 2 or entry.dtype not in FLOATS:
                continue
            full_name = _EMBEDDINGS_NAME.match(node.full_name)
            if full_name or _EMBEDDINGS_KEY.search(node.key):
                path = graph.paths.get(index, "")
                layer = path.rpartition(".")[0]
                short = full_name[1] if full_name else layer.rpartition(".")[2] or "embeddings"
                found[node.key] = (short, path, entry)
        count = Counter([short for short, _, _ in found.values()] + [table.name for table in self.tables])
        for short, path, entry in found.values():
            name = short if count[short] == 1 else path.rpartition(".")[0]
            self.tables.append(_table(name, entry, "Keras Embedding", path))

    def name_table(self, name: str, wanted: str) -> None:
        """Takes the user's word for a table."""
        key = self._resolve(wanted)
        if key is None:
            inventory = recognise(self.checkpoint)
            keys = [entry.key for entry in inventory.candidates[:2000]] + [table.key for table in inventory.tables]
            close = difflib.get_close_matches(wanted, [each.removesuffix(VARIABLE_SUFFIX) for each in keys], n=1)
            hint = f"did you mean {close[0]!r}?" if close else inventory.naming_help()
            raise NotConvertible(
                f"table {name!r}: checkpoint {self.checkpoint.name} has no variable {wanted!r}; {hint}"
            )
        if key in self.slots:
            of = self.slots[key].of or "an optimizer's own"
            raise NotConvertible(
                f"table {name!r}: {key!r} is a slot variable ({self.slots[key].name} of {of}), which is never exported"
            )
        for refused in self.refused:
            if refused.key == key:
                raise NotConvertible(f"table {name!r}: {key!r} cannot be exported: {refused.reason}")
        entry = self.checkpoint.entries[key]
        if len(entry.shape) != 2 or not min(entry.shape):
            raise NotConvertible(f"table {name!r}: {key!r} has the shape {list(entry.shape)}, not [rows, dim]")
        known = next((table for table in self.tables if table.key == key), None)
        self.tables = [table for table in self.tables if name != table.name and key != table.key]
        self.tables.append(replace(known, name=name) if known else _table(name, entry, "named", self._path(key)))
        if self.graph is None and len({part.starts[0] for part in entry.slices}) > 1:
            note = (
                "saved by TF1 in slices, read as contiguous row ranges (the `div` strategy); a table trained with the "
                "`mod` strategy would come out in the wrong order, and the checkpoint does not tell them apart"
            )
            self.tables[-1] = replace(self.tables[-1], note=note)

    def tables_with_slots(self) -> tuple[TableSpec, ...]:
        """Returns the tables in the order of their names, each with its slot variables."""
        own: dict[str, list[SlotSpec]] = {}
        for slot in sorted(self.slots.values(), key=lambda slot: slot.name):
            own.setdefault(slot.of, []).append(slot)
        tables = (replace(table, slots=tuple(own.get(table.key, ()))) for table in self.tables)
        return tuple(sorted(tables, key=lambda table: table.name))

    def _add_slot(self, name: str, key: str, of: str) -> None:
        entry = self.checkpoint.entries.get(key)
        if entry is not None:
            self.slots[key] = SlotSpec(name, key, of, entry.bytes)

    def _stacked(self, graph: ObjectGraph, index: int) -> bool:
        layouts = graph.child(index, "_sparse_core_table_layouts")
        return (
            layouts is not None
            and layouts.key in self.checkpoint.entries
            and (self.checkpoint.read_string(layouts.key) != b"")
        )

    def _resolve(self, wanted: str) -> str | None:
        for key in (wanted, wanted + VARIABLE_SUFFIX):
            if key in self.checkpoint.entries:
                return key
        if self.graph is not None:
            for index, path in self.graph.paths.items():
                if path == wanted and self.graph.nodes[index].key in self.checkpoint.entries:
                    return self.graph.nodes[index].key
        return None

    def _path(self, key: str) -> str:
        if self.graph is None:
            return ""
        return next((path for index, path in self.graph.paths.items() if self.graph.nodes[index].key == key), "")


def _table(name: str, entry: Entry, origin: Origin, path: str) -> TableSpec:
    rows, dim = entry.shape
    return TableSpec(
        name,
        entry.key,
        rows,
        dim,
        entry.dtype,
        Plain(),
        (rows, dim),
        origin,
        path,
        len(entry.slices),
        entry.files,
        entry.bytes,
    )


def _embedding_objects(graph: ObjectGraph) -> Iterator[tuple[int, dict[str, Mapping[str, int]]]]:
    """Yields each TPUEmbedding object with its tables' variables.

    A Keras optimizer also has a child `_variables`; only an embedding object's hold `parameters` each.
    """
    for index, node in enumerate(graph.nodes):
        if "_variables" in node.children:
            held = graph.nodes[node.children["_variables"]].children
            variables = {name: graph.nodes[child].children for name, child in held.items()}
            if variables and all("parameters" in each for each in variables.values()):
                yield index, variables


def _step(checkpoint: StoredVariables) -> int | None:
    """Returns the training step: what the program calls so, else what its optimizer counted."""
    keys = ["global_step"]
    graph = checkpoint.graph
    if graph is not None:
        named = (graph.child(0, name) for name in ("step", "global_step"))
        keys = [node.key for node in named if node]
        for node in graph.nodes:
            counter = node.children.get("_iterations", node.children.get("iter") if node.slots else None)
            keys += [graph.nodes[counter].key] if counter is not None else []
    for key in keys:
        entry = checkpoint.entries.get(key)
        if entry is not None and entry.shape == () and entry.dtype in ("int64", "int32"):
            return int(checkpoint.read_all(key))
    return None
