"""The object graph of a checkpoint: which Python objects held which variables, under which attribute names.

A graph may have cycles and several paths to one node, as Python objects do. Source: TensorFlow 2.20,
tensorflow/core/protobuf/trackable_object_graph.proto.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import repeat, zip_longest
from types import MappingProxyType
from typing import NamedTuple

from export.checkpoint.formats.graph_runs import LARGE_BYTES, reference_runs, variable_runs
from export.checkpoint.formats.wire import WireError, as_bytes, as_int, as_text, made, read_fields

KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
VARIABLE_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
PATH_CHARS_MAX = 1000


class SlotVariable(NamedTuple):
    """An optimizer's state for one variable.

    Attributes:
      of: node of the variable that is trained.
      name: e.g. `accumulator`.
      node: node of the state itself.
    """

    of: int
    name: str
    node: int


class Node(NamedTuple):
    """One tracked object.

    Attributes:
      children: node by attribute name.
      key: the checkpoint key of its value; "" for what holds no value.
      full_name: the variable's own name; often empty.
      slots: of an optimizer of Keras' older kind, its slot variables.
    """

    children: Mapping[str, int]
    key: str
    full_name: str
    slots: tuple[SlotVariable, ...]


class ObjectGraph:
    """All nodes; node 0 is the root that was passed to the checkpoint."""

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self.nodes = nodes

    @cached_property
    def holders(self) -> tuple[tuple[int, Node], ...]:
        """Number and node of whatever holds others: of a large graph few, as most nodes are variables."""
        return tuple((index, node) for index, node in enumerate(self.nodes) if node.children or node.slots)

    @cached_property
    def paths(self) -> Mapping[int, str]:
        """The shortest attribute path from the root to each reachable node, joined by `.`; "" for the root.

        A node behind a path of more than PATH_CHARS_MAX characters has none here: a chain of objects would otherwise
        cost memory by the square of its length.
        """
        paths = {0: ""}
        queue = [0]
        for node in queue:  # grows while it is walked: breadth first
            room = PATH_CHARS_MAX - len(paths[node])
            lead = f"{paths[node]}." if node else ""
            for name, child in self.nodes[node].children.items():
                if child not in paths and len(name) < room:
                    paths[child] = lead + name
                    if self.nodes[child].children:
                        queue.append(child)
        return paths

    def child(self, node: int, name: str) -> Node | None:
        """Returns a node's child by its attribute name, or None."""
        index = self.nodes[node].children.get(name)
        return None if index is None else self.nodes[index]


def parse_object_graph(data: bytes) -> ObjectGraph:
    """Decodes a TrackableObjectGraph.

    Raises:
      WireError: the bytes are no object graph, or name a node that it does not have.
    """
    nodes = tuple(_nodes(data))
    if not nodes:
        raise WireError("an object graph without nodes")
    graph = ObjectGraph(nodes)
    for _, node in graph.holders:
        trained, _, states = zip(*node.slots, strict=True) if node.slots else ((), (), ())
        named = [*node.children.values(), *trained, *states]
        if not 0 <= min(named) <= max(named) < len(nodes):
            raise WireError(f"an object graph of {len(nodes)} nodes that names a node outside it")
    return graph


_EMPTY = Node(MappingProxyType({}), "", "", ())


def _nodes(data: bytes) -> list[Node]:
    """Decodes all nodes: variables, which are most of a large graph, at once."""
    between, found = variable_runs(data)
    whole: list[Node] = made(Node, repeat(_EMPTY.children), found.keys, found.names, repeat(()))
    nodes = []
    for gap, node in zip_longest(between, whole):
        if gap:
            nodes += [_node(as_bytes(value)) for number, value in read_fields(gap) if number == 1]
        if node:
            nodes.append(node)
    return nodes


def _node(data: bytes) -> Node:
    if not data:  # two bytes of the file; a node of its own would be a hundred times that
        return _EMPTY
    children: dict[str, int] = {}
    slots: list[SlotVariable] = []
    key = full_name = ""
    runs = reference_runs(data) if len(data) > LARGE_BYTES else [data]
    for run in runs:
        if not isinstance(run, bytes):
            if run.others is None:
                children.update(zip(run.names, run.nodes, strict=True))
            else:
                slots += made(SlotVariable, run.nodes, run.names, run.others)
            continue
        for number, value in read_fields(run):
            if number == 1:
                name, child = _child(as_bytes(value))
                children[name] = child
            elif number == 2:
                attribute = dict(read_fields(as_bytes(value)))
                if attribute.get(1) == b"VARIABLE_VALUE" or not key:
                    full_name = as_text(attribute.get(2, b""))
                    key = as_text(attribute.get(3, b""))
            elif number == 3:
                slot = dict(read_fields(as_bytes(value)))
                slots.append(SlotVariable(as_int(slot.get(1, 0)), as_text(slot.get(2, b"")), as_int(slot.get(3, 0))))
    return Node(children or _EMPTY.children, key, full_name, tuple(slots))


def _child(data: bytes) -> tuple[str, int]:
    """Decodes name and node of a child."""
    if len(data) > 5 and data[0] == 8:  # nearly every one: a node of one to three bytes, then a short name
        node, at = data[1], 2
        if node >= 0x80:
            node, at = node & 0x7F | data[2] << 7, 3
            if node >= 1 << 14:
                node, at = node & 0x3FFF | data[3] << 14, 4
        if node < 1 << 21 and data[at] == 0x12 and data[at + 1] == len(data) - at - 2 < 0x80:
            return as_text(data[at + 2 :]), node
    child = dict(read_fields(data))
    return as_text(child.get(2, b"")), as_int(child.get(1, 0))
