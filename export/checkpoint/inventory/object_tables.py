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
_ADAPTED = (
    "its Keras layer adds LoRA weights, variables of their own, to its rows; save the model by "
    "`save_weights`, which joins them"
)
_ANEW = "the checkpoint contradicts itself; take another one or save it anew"


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
    claimed: set[str] = set()
    for index, variables_by_name in _embedding_objects(graph):
        origin: Origin = "TPUEmbedding"
        if index in layers:
            origin = "TFRS TPUEmbedding"
        object_path = graph.paths.get(index, "")
        specs: dict[str, TableSpec] = {}
        rejected = len(findings.rejected)
        for name, variables in variables_by_name.items():
            key = graph.nodes[variables["parameters"]].key
            if key in claimed:
                findings.reject(
                    name,
                    key,
                    "another embedding object has the same variable; save the checkpoint anew",
                )
                continue
            claimed.add(key)
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
        saved = _saved_layouts(findings, graph, index)
        absent = {rejected_table.name for rejected_table in findings.rejected[rejected:]}
        unstacked = _unstacked(specs, saved, findings, absent)
        tables += ((table, f"{object_path}.{table.name}") for table in unstacked)
    findings.add_tables(tables)


def _embedding_objects(graph: ObjectGraph) -> Iterator[tuple[int, dict[str, Mapping[str, int]]]]:
    """Yields each TPUEmbedding object with the nodes of its variables.

    A Keras optimizer also has a child `_variables`, but only in an embedding object does each of
    its children have `parameters`. Variables that several objects hold are attributed to the first
    object: a thousand objects that share a thousand variables would otherwise yield a million.
    """
    seen: set[int] = set()
    for index, node in graph.holders:
        listed = node.children.get("_variables")
        if listed is None or listed in seen:
            continue
        children = {
            name: child for name, child in graph.nodes[listed].children.items() if child not in seen
        }
        seen.update((listed, *children.values()))
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


def _unstacked(
    stacks: Mapping[str, TableSpec],
    saved: tuple[StackedTable, ...],
    findings: Findings,
    absent: set[str],
) -> Iterator[TableSpec]:
    """Yields the tables of an embedding object's stacks, except the tables of `absent` stacks.
    Without saved layouts, each stack is a table whose rows are in order.
    """
    if not saved:
        yield from stacks.values()
        return
    members: dict[str, list[StackedTable]] = {name: [] for name in stacks}
    for table in saved:
        if table.stack in members:
            members[table.stack].append(table)
        elif table.stack not in absent:
            raise CheckpointError(
                f"the SparseCore layouts in checkpoint {findings.checkpoint.name} put table "
                f"{table.name!r} into stack {table.stack!r}, which it does not hold "
                f"(stacks: {', '.join(sorted(stacks))}): {_ANEW}"
            )
    for name, stack in stacks.items():
        if not members[name]:
            findings.reject(
                name, stack.key, "the SparseCore layouts do not say which tables this stack holds"
            )
        entry = findings.checkpoint.entries[stack.key]
        tables = [stacked_spec(table, entry, stack.origin, stack.path) for table in members[name]]
        try:
            check_stack(tables)
        except LayoutContradiction as problem:
            raise CheckpointError(
                f"stack {name!r} ({stack.key!r}) in checkpoint {findings.checkpoint.name}: "
                f"{problem}: {_ANEW}"
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
    """Finds Keras Embedding layers and feature columns by the names that they give
    their variables.
    """
    claimed_keys = findings.claimed_keys()
    adapted = {
        graph.nodes[node.children["_embeddings"]].key
        for _, node in graph.holders
        if "lora_embeddings_a" in node.children and "_embeddings" in node.children
    }
    tables: list[tuple[TableSpec, str]] = []
    first: dict[tuple[object, ...], str] = {}
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
        original = first.setdefault(_identity(node.full_name, entry), node.key)
        # Keras 3's model.export saves each variable twice.
        if original != node.key:
            findings.duplicates.append(Duplicate(node.key, original, entry.bytes))
            continue
        path = graph.paths.get(index, "")
        layer = path.rpartition(".")[0]
        attribute = layer.rpartition(".")[2]
        # Keras 3 names the variables of a subclassed model's layers after the model, and the
        # variables of a functional model's layers after the layers.
        of_model = path.endswith("._embeddings") and not attribute.isdigit()
        if full_name is None or of_model:
            short = attribute or "embeddings"
        else:
            short = full_name[1]
        if node.key in adapted:
            findings.reject(short, node.key, _ADAPTED)
            continue
        origin: Origin = "Keras Embedding"
        if full_name is not None and full_name[2] == "embedding_weights":
            origin = "feature column"
        tables.append((table_spec(short, entry, origin, path), layer or short))
    findings.add_tables(tables)


def _identity(full_name: str, entry: Entry) -> tuple[object, ...]:
    """Returns what two variables share only if they are the same: the name in a SavedModel's list,
    and all values.
    """
    pieces = tuple((part.starts, part.shape, part.crc32c) for part in entry.slices)
    have_checksums = all(crc is not None for _, _, crc in pieces)
    if full_name and have_checksums and _LISTED_KEY.search(entry.key):
        return full_name, entry.dtype, entry.shape, pieces
    # Nothing shows that two such variables are the same: each is only itself.
    return (entry.key,)
