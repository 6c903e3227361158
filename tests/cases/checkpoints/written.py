"""Checkpoints by what they hold: names, objects, leaves, layers, modules, stacks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from tests.cases.checkpoints.inspections import Write
from tests.units.export.checkpoint import tensor_bundles as bundles
from tests.units.export.checkpoint.formats.safetensors_files import write_safetensors
from tests.units.export.checkpoint.orbax_trees import write_item
from tests.units.export.checkpoint.tensor_bundles import GRAPH, SUFFIX, write_bundle

TABLE = np.arange(24, dtype=np.float32).reshape(8, 3)
COUNT = np.array(7)


def names(variables: Mapping[str, Any] | Sequence[str], **cut: Sequence[int]) -> Write:
    """Returns what writes variables as TF1's Saver does.

    Args:
      variables: Values by name; of names alone, tables.
      cut: The rows of each slice of the variables that are cut; `__` is a slash of the name.
    """
    if not isinstance(variables, Mapping):
        variables = dict.fromkeys(variables, TABLE)
    boxes: dict[str, Any] = {}
    for name, sizes in cut.items():
        starts = np.cumsum([0, *sizes]).tolist()
        boxes[name.replace("__", "/")] = [
            [(start, size), (0, -1)] for start, size in zip(starts, sizes, strict=False)
        ]

    def write(directory: Path) -> Path:
        write_bundle(directory / "c", variables, boxes=boxes)
        return directory / "c"

    return write


@dataclass(eq=False)
class Leaf:
    """A variable of an object: its key, the name that Keras gives it, its values if they are
    saved, and the rows of its slices.
    """

    key: str
    full_name: str = ""
    values: Any = field(default_factory=lambda: TABLE)
    cut: Sequence[int] = ()


class Slots(NamedTuple):
    """An object with slot variables: the variable that each is of, its name, and itself."""

    children: dict[str, Any]
    slots: Sequence[tuple[Leaf, str, Leaf]]


Tree = dict[str, Any]
"""Objects by attribute: trees, variables, and objects with slots. An object that stands there twice
is one object.
"""


def objects(tree: Tree) -> Write:
    """Returns what writes objects as tf.train.Checkpoint does."""
    parts: list[Any] = [tree]
    numbers: dict[int, int] = {}
    for part in parts:
        numbers.setdefault(id(part), len(numbers))
        if isinstance(part, Slots):
            more = [*part.children.values(), *(leaf for slot in part.slots for leaf in slot[::2])]
        elif isinstance(part, dict):
            more = list(part.values())
        else:
            more = []
        queued = {id(queued_part) for queued_part in parts}
        parts += {id(child): child for child in more if id(child) not in queued}.values()

    def node(part: Any) -> bytes:
        if isinstance(part, Leaf):
            return bundles.node(key=part.key + SUFFIX, full_name=part.full_name)
        slots = []
        if isinstance(part, Slots):
            slots = [
                (numbers[id(owner)], name, numbers[id(state)]) for owner, name, state in part.slots
            ]
            part = part.children
        return bundles.node({name: numbers[id(child)] for name, child in part.items()}, slots=slots)

    leaves = [part for part in parts if isinstance(part, Leaf) and part.values is not None]
    variables = {leaf.key + SUFFIX: leaf.values for leaf in leaves}
    variables[GRAPH] = bundles.object_graph(*map(node, parts))
    cut = {(leaf.key + SUFFIX).replace("/", "__"): leaf.cut for leaf in leaves if leaf.cut}
    return names(variables, **cut)


def leaves(values: Mapping[str, Any] | Sequence[str]) -> Write:
    """Returns what writes a tree of Orbax; of paths alone, tables."""
    if not isinstance(values, Mapping):
        values = dict.fromkeys(values, TABLE)

    def write(directory: Path) -> Path:
        write_item(directory / "c", values)
        return directory / "c"

    return write


def layer(kind: str, name: str, *inner: Any) -> dict[str, Any]:
    """Returns a layer in the configuration of a model of Keras."""
    return {"class_name": kind, "config": {"name": name, "layers": inner}}


def weights(values: Mapping[str, Any], *layers: Any, config: str = "") -> Write:
    """Returns what writes a file of Keras.

    Args:
      values: The name of each table's layer, by the path of the table; or other values.
      layers: The layers in the configuration of the model.
      config: The configuration itself, if it is another.
    """
    if layers:
        config = json.dumps({"config": {"layers": layers}})

    def write(directory: Path) -> Path:
        with h5py.File(directory / "a.weights.h5", "w") as file:
            for path, value in values.items():
                file[path] = TABLE if isinstance(value, str) else value
                if isinstance(value, str) and value:
                    file[path].parent.attrs["name"] = value
            if config:
                file.attrs["model_config"] = config
        return directory / "a.weights.h5"

    return write


def tensors(*keys: str, shape: tuple[int, ...] = (4, 2)) -> Write:
    """Returns what writes a file of safetensors."""

    def write(directory: Path) -> Path:
        return write_safetensors(
            directory / "a.safetensors", dict.fromkeys(keys, np.zeros(shape, np.float32))
        )

    return write


class Layout(NamedTuple):
    """A SparseCoreTableLayout."""

    name: str
    shape: tuple[int, ...]
    padded: tuple[int, int]
    offset: int
    rotation: int
    stack: str = "users_items"
    cores: int = 4
    core_rows: int = 32

    def message(self) -> bytes:
        """Returns its bytes, by the numbers of its fields."""
        numbers = {3: self.cores, 4: 2, 5: self.core_rows, 8: self.offset, 9: self.rotation}
        shapes = {6: self.shape, 7: self.padded}
        content = bundles.field(1, self.name) + bundles.field(2, self.stack)
        for number, value in numbers.items():
            content += bundles.field(number, value) if value else b""
        for number, shape in shapes.items():
            content += bundles.field(number, b"".join(map(bundles.varint, shape)))
        return bundles.field(1, content)


STACKED = (
    Layout("users", (50, 5), (64, 8), offset=0, rotation=0),
    Layout("items", (30, 7), (32, 8), offset=16, rotation=2),
)
STACK = np.arange(4 * 32 * 8, dtype=np.float32).reshape(-1, 8)


def stacks(
    *layouts: Layout, values: Mapping[str, Any] | None = None, raw: bytes | None = None
) -> Write:
    """Returns what writes an embedding object whose tables lie in stacks.

    Args:
      layouts: The layouts of its tables.
      values: The variable of each stack; None: it is not saved.
      raw: The layouts as they are stored, if they are others.
    """
    variables: Tree = {}
    for stack, stored in ({"users_items": STACK} if values is None else values).items():
        slot = Leaf(f"e/{stack}.Sacc", values=STACK)
        variables[stack] = {"parameters": Leaf(f"e/{stack}", values=stored), "acc": slot}
    embedding: Tree = {"_variables": variables}
    text = b"".join(layout.message() for layout in layouts) if raw is None else raw
    if layouts or raw is not None:
        embedding["_sparse_core_table_layouts"] = Leaf("layouts", values=text)
    return objects({"e": embedding})
