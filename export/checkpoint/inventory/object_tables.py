"""Tables that an object graph records: TPU embedding objects with their SparseCore stacks, TFRS
layers and Keras layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.object_graph import VARIABLE_SUFFIX, ObjectGraph
from export.checkpoint.inventory.findings import Findings, stacked_spec, table_spec
from export.checkpoint.inventory.sparsecore import (
    LayoutContradiction,
    check_stack,
    parse_table_layouts,
)
from export.checkpoint.inventory.specs import Duplicate, Origin, TableSpec, may_be_table
from export.checkpoint.variables import Entry, StackedTable
from export.errors import CheckpointError

_EMBEDDINGS_KEY = re.compile(rf"(^|/)_?embeddings{re.escape(VARIABLE_SUFFIX)}$")
_LISTED_KEY = re.compile(rf"(^|/)(_all_variables|variables)/\d+{re.escape(VARIABLE_SUFFIX)}$")
_EMBEDDINGS_NAME = re.compile(r"(?:^|.*/)([^/]+)/(embeddings|embedding_weights)$")
_LORA_REASON = (
    "its Keras layer adds LoRA weights, variables of their own, to its rows; save the model by "
    "`save_weights`, which joins them"
)
_CONTRADICTION_REMEDY = "the checkpoint contradicts itself; take another one or save it anew"


def find_embedding_objects(findings: Findings, graph: ObjectGraph) -> None:
    """Finds TPUEmbedding objects. Their `_variables` hold `parameters` and slot variables by table
    or stack.

    Raises:
      CheckpointError: The layouts of an object contradict its stacks.
    """
    layers = {
        node.children["_tpu_embedding"]
        for _, node in graph.holders
        if "_tpu_embedding" in node.children
    }
    tables: list[tuple[TableSpec, str]] = []
    claimed_keys: set[str] = set()
    for index, variables_by_name in _embedding_objects(graph):
        origin: Origin = "TPUEmbedding"
        if index in layers:
            origin = "TFRS TPUEmbedding"
        object_path = graph.paths.get(index, "")
        specs: dict[str, TableSpec] = {}
        rejected_count = len(findings.rejected)
        for name, variables in variables_by_name.items():
            key = graph.nodes[variables["parameters"]].key
            if key in claimed_keys:
                findings.reject(
                    name,
                    key,
                    "another embedding object has the same variable; save the checkpoint anew",
                )
                continue
            claimed_keys.add(key)
            for slot, node in variables.items():
                if slot != "parameters":
                    findings.add_slot(slot, graph.nodes[node].key, key)
            entry = findings.checkpoint.entries.get(key)
            if entry is None:
                findings.reject(name, key, "its variable was not saved; save the checkpoint anew")
            elif len(entry.shape) != 2:
                findings.reject(name, key, f"it has the shape {list(entry.shape)}, not [rows, dim]")
            else:
                specs[name] = table_spec(
                    name, entry, origin, graph.paths.get(variables["parameters"], "")
                )
        if not specs:
            continue
        saved_layouts = _saved_layouts(findings, graph, index)
        absent_stacks = {
            rejected_table.name for rejected_table in findings.rejected[rejected_count:]
        }
        object_tables = _split_stacks(specs, saved_layouts, findings, absent_stacks)
        tables += ((table, f"{object_path}.{table.name}") for table in object_tables)
    findings.add_tables(tables)


def _embedding_objects(graph: ObjectGraph) -> Iterator[tuple[int, dict[str, Mapping[str, int]]]]:
    """Yields each TPUEmbedding object with the nodes of its variables.

    A Keras optimizer also has a child `_variables`, but only in an embedding object does each of
    its children have `parameters`. Variables that several objects hold are attributed to the first
    object: a thousand objects that share a thousand variables would otherwise yield a million.
    """
    seen_nodes: set[int] = set()
    for index, node in graph.holders:
        variables_node = node.children.get("_variables")
        if variables_node is None or variables_node in seen_nodes:
            continue
        children = {
            name: child
            for name, child in graph.nodes[variables_node].children.items()
            if child not in seen_nodes
        }
        seen_nodes.update((variables_node, *children.values()))
        variables = {name: graph.nodes[child].children for name, child in children.items()}
        if variables and all("parameters" in state_nodes for state_nodes in variables.values()):
            yield index, variables


def _saved_layouts(findings: Findings, graph: ObjectGraph, index: int) -> tuple[StackedTable, ...]:
    """Returns the stacked tables of an embedding object; () where its rows are in order."""
    node = graph.child(index, "_sparse_core_table_layouts")
    if node is None or node.key not in findings.checkpoint.entries:
        return ()
    try:
        return parse_table_layouts(findings.checkpoint.read_string(node.key))
    except Malformed as problem:
        raise CheckpointError(
            f"the SparseCore layouts ({node.key!r}) in checkpoint {findings.checkpoint.name} "
            f"cannot be read: {problem}"
        ) from problem


def _split_stacks(
    stacks: Mapping[str, TableSpec],
    saved_layouts: tuple[StackedTable, ...],
    findings: Findings,
    absent_stacks: set[str],
) -> Iterator[TableSpec]:
    """Yields the tables of an embedding object's stacks, except the tables of `absent_stacks`.
    Without saved layouts, each stack is a table whose rows are in order.
    """
    if not saved_layouts:
        yield from stacks.values()
        return
    tables_of_stack: dict[str, list[StackedTable]] = {name: [] for name in stacks}
    for table in saved_layouts:
        if table.stack in tables_of_stack:
            tables_of_stack[table.stack].append(table)
        elif table.stack not in absent_stacks:
            raise CheckpointError(
                f"the SparseCore layouts in checkpoint {findings.checkpoint.name} put table "
                f"{table.name!r} into stack {table.stack!r}, which it does not hold "
                f"(stacks: {', '.join(sorted(stacks))}): {_CONTRADICTION_REMEDY}"
            )
    for name, stack in stacks.items():
        if not tables_of_stack[name]:
            findings.reject(
                name, stack.key, "the SparseCore layouts do not say which tables this stack holds"
            )
        entry = findings.checkpoint.entries[stack.key]
        tables = [
            stacked_spec(table, entry, stack.origin, stack.path) for table in tables_of_stack[name]
        ]
        try:
            check_stack(tables)
        except LayoutContradiction as problem:
            raise CheckpointError(
                f"stack {name!r} ({stack.key!r}) in checkpoint {findings.checkpoint.name}: "
                f"{problem}: {_CONTRADICTION_REMEDY}"
            ) from problem
        yield from tables


def find_partial_layers(findings: Findings, graph: ObjectGraph) -> None:
    """Finds the small tables of PartialTPUEmbedding. They are Keras layers, named after the feature
    that reads them.
    """
    tables: list[tuple[TableSpec, str]] = []
    # Several objects may hold one dict of layers; a dict of numbers keeps their order.
    dicts_of_layers = dict.fromkeys(
        node.children["_keras_embedding_layers"]
        for _, node in graph.holders
        if "_keras_embedding_layers" in node.children
    )
    for layers in dicts_of_layers:
        features: dict[int, list[str]] = {}
        for feature, layer in graph.nodes[layers].children.items():
            features.setdefault(layer, []).append(feature)
        for layer, names in features.items():
            children = graph.nodes[layer].children
            variable = children.get("embeddings", children.get("_embeddings"))
            # The layer was never called, so that Keras did not create its variable.
            if variable is None:
                continue
            entry = findings.checkpoint.entries.get(graph.nodes[variable].key)
            if entry is None or len(entry.shape) != 2:
                continue
            readers = ""
            if len(names) > 1:
                readers = f" (also read by {', '.join(map(repr, names[1:]))})"
            note = (
                f"called by its feature {names[0]!r}{readers}, as the checkpoint does not hold the "
                f"name of a small table; --table NAME={names[0]} gives it"
            )
            path = graph.paths.get(variable, "")
            spec = table_spec(names[0], entry, "PartialTPUEmbedding", path, note=note)
            tables.append((spec, path))
    findings.add_tables(tables)


def find_keras_layers(findings: Findings, graph: ObjectGraph) -> None:
    """Finds Keras Embedding layers and feature columns by the names that they give their
    variables.
    """
    claimed_keys = findings.claimed_keys()
    lora_keys = {
        graph.nodes[node.children["_embeddings"]].key
        for _, node in graph.holders
        if "lora_embeddings_a" in node.children and "_embeddings" in node.children
    }
    tables: list[tuple[TableSpec, str]] = []
    first_keys: dict[tuple[object, ...], str] = {}
    for index, node in enumerate(graph.nodes):
        # Most of 10^5 variables are excluded here, before the expressions below.
        if "embedding" not in node.full_name and "embedding" not in node.key:
            continue
        entry = findings.checkpoint.entries.get(node.key)
        if entry is None or node.key in claimed_keys or not may_be_table(entry):
            continue
        full_name = _EMBEDDINGS_NAME.match(node.full_name)
        if not (full_name or _EMBEDDINGS_KEY.search(node.key)):
            continue
        # Several nodes may hold one variable.
        claimed_keys.add(node.key)
        original = first_keys.setdefault(_identity(node.full_name, entry), node.key)
        # Keras 3's model.export saves each variable twice.
        if original != node.key:
            findings.duplicates.append(Duplicate(node.key, original, entry.bytes))
            continue
        path = graph.paths.get(index, "")
        layer = path.rpartition(".")[0]
        attribute = layer.rpartition(".")[2]
        # Keras 3 names the variables of a subclassed model's layers after the model, and the
        # variables of a functional model's layers after the layers.
        is_named_after_model = path.endswith("._embeddings") and not attribute.isdigit()
        if full_name is None or is_named_after_model:
            short_name = attribute or "embeddings"
        else:
            short_name = full_name[1]
        if node.key in lora_keys:
            findings.reject(short_name, node.key, _LORA_REASON)
            continue
        origin: Origin = "Keras Embedding"
        if full_name is not None and full_name[2] == "embedding_weights":
            origin = "feature column"
        tables.append((table_spec(short_name, entry, origin, path), layer or short_name))
    findings.add_tables(tables)


def _identity(full_name: str, entry: Entry) -> tuple[object, ...]:
    """Returns a key that two variables share only if they are the same: the name in a SavedModel's
    list, and the checksums of all values.
    """
    pieces = tuple((part.starts, part.shape, part.crc32c) for part in entry.slices)
    have_checksums = all(crc is not None for _, _, crc in pieces)
    if full_name and have_checksums and _LISTED_KEY.search(entry.key):
        return full_name, entry.dtype, entry.shape, pieces
    # Nothing shows that two such variables are the same: each is only itself.
    return (entry.key,)
