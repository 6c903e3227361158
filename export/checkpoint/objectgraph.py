"""The object graph of a checkpoint: which Python objects held which variables, under which attribute names.

A graph may have cycles and several paths to one node, as Python objects do. Source: TensorFlow 2.20,
tensorflow/core/protobuf/trackable_object_graph.proto.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from export.checkpoint.wire import WireError, as_bytes, as_int, as_text, read_fields

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
    def paths(self) -> Mapping[int, str]:
        """The shortest attribute path from the root to each reachable node, joined by `.`; "" for the root.

        A node behind a path of more than PATH_CHARS_MAX characters has none here: a chain of objects would otherwise
        cost memory by the square of its length.
        """
        paths = {0: ""}
        queue = [0]
        for node in queue:  # grows while it is walked: breadth first
            for name, child in self.nodes[node].children.items():
                if child not in paths and len(paths[node]) + len(name) < PATH_CHARS_MAX:
                    paths[child] = f"{paths[node]}.{name}" if node else name
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
    nodes = tuple(_node(as_bytes(value)) for number, value in read_fields(data) if number == 1)
    if not nodes:
        raise WireError("an object graph without nodes")
    for node in nodes:
        if node.children or node.slots:
            named = [*node.children.values(), *(index for slot in node.slots for index in (slot.of, slot.node))]
            if not 0 <= min(named) <= max(named) < len(nodes):
                raise WireError(f"an object graph of {len(nodes)} nodes that names a node outside it")
    return ObjectGraph(nodes)


_EMPTY = Node(MappingProxyType({}), "", "", ())


def _node(data: bytes) -> Node:
    if not data:  # two bytes of the file; a node of its own would be a hundred times that
        return _EMPTY
    children: dict[str, int] = {}
    slots: list[SlotVariable] = []
    key = full_name = ""
    for number, value in read_fields(data):
        if number == 1:
            child = dict(read_fields(as_bytes(value)))
            children[as_text(child.get(2, b""))] = as_int(child.get(1, 0))
        elif number == 2:
            attribute = dict(read_fields(as_bytes(value)))
            if attribute.get(1) == b"VARIABLE_VALUE" or not key:
                full_name = as_text(attribute.get(2, b""))
                key = as_text(attribute.get(3, b""))
        elif number == 3:
            slot = dict(read_fields(as_bytes(value)))
            slots.append(SlotVariable(as_int(slot.get(1, 0)), as_text(slot.get(2, b"")), as_int(slot.get(3, 0))))
    return Node(children or _EMPTY.children, key, full_name, tuple(slots))
