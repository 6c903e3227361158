"""The object graph of a checkpoint: which Python objects held which variables, under which
attribute names.

A graph may have cycles and several paths to one node, as Python objects do.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.protos import decode

KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
VARIABLE_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
PATH_CHARS_MAX = 1000
"""The maximum number of characters of a node's path; see `ObjectGraph.paths`."""


class SlotVariable(NamedTuple):
    """An optimizer's state for one variable.

    Attributes:
      trained_node: The node of the variable that is trained.
      name: The name of the state, e.g. `accumulator`.
      node: The node of the state itself.
    """

    trained_node: int
    name: str
    node: int


class Node(NamedTuple):
    """One tracked object.

    Attributes:
      children: The node of each child by its attribute name.
      key: The checkpoint key of the object's value; "" if the object holds no value.
      full_name: The name of the variable; often empty.
      slots: The slot variables of an optimizer of the older Keras API; () for other objects.
    """

    children: Mapping[str, int]
    key: str
    full_name: str
    slots: tuple[SlotVariable, ...]

    @property
    def is_optimizer(self) -> bool:
        """Whether it is an optimizer of Keras, which keeps slot variables or counts its steps."""
        return bool(self.slots) or "_iterations" in self.children


class ObjectGraph:
    """All nodes; node 0 is the root that was passed to the checkpoint."""

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self.nodes = nodes

    @cached_property
    def holders(self) -> tuple[tuple[int, Node], ...]:
        """The number and the node of each object that has children. In a large graph these are few,
        as most nodes are variables.
        """
        return tuple(
            (index, node) for index, node in enumerate(self.nodes) if node.children or node.slots
        )

    @cached_property
    def paths(self) -> Mapping[int, str]:
        """The shortest attribute path from the root to each reachable node, joined by `.`; "" for
        the root. A path leads through an optimizer only where there is no other path: an optimizer
        lists the variables that it trains, so it holds every variable of the layers once more, by
        number.

        A node whose path has more than PATH_CHARS_MAX characters is left out: otherwise a chain of
        objects would take memory that grows with the square of its length.
        """
        paths = {0: ""}
        optimizers: list[int] = []
        self._walk([0], paths, optimizers)
        self._walk(optimizers, paths, optimizers)
        return paths

    @cached_property
    def paths_by_key(self) -> dict[str, str]:
        """The path of each variable by its key in the checkpoint; the first path if several nodes
        hold the variable.
        """
        # Reversed, so that the first path of a key replaces the later ones.
        return {self.nodes[node].key: path for node, path in reversed(list(self.paths.items()))}

    def _walk(self, queue: list[int], paths: dict[int, str], optimizers: list[int]) -> None:
        """Adds the paths behind the nodes of a queue, breadth first.

        Args:
          queue: The nodes that have a path. The list grows while it is walked.
          paths: The path of each node, which is added to.
          optimizers: Receives the optimizers that the walk reaches and does not enter. If it is the
            queue itself, the walk enters them.
        """
        for node in queue:
            length_limit = PATH_CHARS_MAX - len(paths[node])
            # The path of the root is "", which no dot follows.
            path_prefix = f"{paths[node]}." if node else ""
            for name, child in self.nodes[node].children.items():
                if child in paths or len(name) >= length_limit:
                    continue
                paths[child] = path_prefix + name
                if self.nodes[child].is_optimizer:
                    optimizers.append(child)
                elif self.nodes[child].children:
                    queue.append(child)

    def child(self, node: int, name: str) -> Node | None:
        """Returns a node's child by its attribute name; None if there is none."""
        index = self.nodes[node].children.get(name)
        if index is None:
            return None
        return self.nodes[index]


def parse_object_graph(data: bytes) -> ObjectGraph:
    """Decodes a TrackableObjectGraph.

    Raises:
      Malformed: The bytes are not an object graph, or they name a node that does not exist.
    """
    nodes = tuple(map(_node, decode("TrackableObjectGraph", data).nodes))
    if not nodes:
        raise Malformed("an object graph without nodes")
    graph = ObjectGraph(nodes)
    for _, node in graph.holders:
        numbers = list(node.children.values())
        for slot in node.slots:
            numbers += [slot.trained_node, slot.node]
        # Later look-ups rely on this check: a negative number would count nodes from the end.
        if not 0 <= min(numbers) <= max(numbers) < len(nodes):
            raise Malformed(f"an object graph of {len(nodes)} nodes that names a node outside it")
    return graph


_NO_CHILDREN: Mapping[str, int] = MappingProxyType({})
"""Shared by all nodes without children, which are most: an object of its own for each would take
memory in graphs of 10^5 variables.
"""


def _node(proto: Any) -> Node:
    children = {child.local_name: child.node_id for child in proto.children}
    key = full_name = ""
    for attribute in proto.attributes:
        # Other attributes, such as the string of a Python object, count only without a value.
        if attribute.name == "VARIABLE_VALUE" or not key:
            key = attribute.checkpoint_key
            full_name = attribute.full_name
    slots = [
        SlotVariable(slot.original_variable_node_id, slot.slot_name, slot.slot_variable_node_id)
        for slot in proto.slot_variables
    ]
    return Node(children or _NO_CHILDREN, key, full_name, tuple(slots))
