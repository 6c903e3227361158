"""Manifest entries: the operations of a model between an input and the rows of a table.

A graph is a list of operations in an order in which they can be computed. Each has the name and the
attributes that TensorFlow gives it; `bundle/features/ids/operations.py` computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from bundle.format.fields import Count, Name, Positive, StrictModel

OPERATIONS_MAX = 1024
"""The maximum number of operations of one graph."""
CONSTANT_MAX = 1 << 16
"""The maximum number of values of one constant, such as the rows that a gather maps ids to."""

InputDtype = Literal["int32", "int64", "float32", "string", "int64_or_string"]
"""The types that callers send. int64_or_string: operations read the text of an integer."""
ConstantDtype = Literal[
    "bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "float32", "float64", "string"
]
CROSS_KEY = 0xDECAFCAFFE
"""The `hash_key` that TensorFlow's crossed columns take by default."""
Constants = Annotated[tuple[int | float | str, ...], Field(min_length=1, max_length=CONSTANT_MAX)]


class InputNode(StrictModel):
    """The values that callers send."""

    op: Literal["Input"] = "Input"
    dtype: InputDtype
    input: Count = 0
    """The position of the input among the inputs of the feature."""


class ConstantNode(StrictModel):
    """Values that the model holds."""

    op: Literal["Const"] = "Const"
    dtype: ConstantDtype
    values: Constants
    """Numbers that are not finite are "NaN", "Infinity" and "-Infinity"."""
    is_list: bool = False
    """Whether other operations search the values, or gather some of them. Otherwise there is one
    value, which meets each value of the other operands.
    """

    @model_validator(mode="after")
    def _one_value(self) -> ConstantNode:
        if not self.is_list and len(self.values) != 1:
            raise ValueError(f"a constant that is no list has one value, not {len(self.values)}")
        return self


class OperationNode(StrictModel):
    """An operation of TensorFlow on results of nodes before it."""

    op: Annotated[str, Field(min_length=1, max_length=64)]
    inputs: Annotated[tuple[Count, ...], Field(min_length=1, max_length=256)]
    """Positions of the nodes whose results it takes."""
    attributes: dict[str, Any] = Field(default_factory=dict)
    """The attributes that have an effect on single values, as TensorFlow names them; dtypes as
    NumPy names them. Of `LookupTableFindV2`, `table` is a position among the lookup tables of the
    graph.
    """

    def __hash__(self) -> int:
        return hash((self.op, self.inputs))  # attributes may be lists


class CrossNode(StrictModel):
    """The hash of one value of each input together, as TensorFlow's crossed columns have it: one
    result for every combination of the values of an example. It is the last node.
    """

    op: Literal["SparseCross"] = "SparseCross"
    inputs: Annotated[tuple[Count, ...], Field(min_length=2, max_length=256)]
    """Positions of the nodes whose results are crossed: one of each input, in their order."""
    num_buckets: Positive
    hash_key: Count = CROSS_KEY


class LookupTable(StrictModel):
    """Keys that operations look up: the value of a key is `first_value` + its position in a
    vocabulary.
    """

    vocabulary: Name
    first_value: Count = 0
    is_complete: bool = False
    """Whether the model fails on a key that the vocabulary lacks."""


def kind_of_node(node: Any) -> str:
    """Returns the kind of a node: Input, Const, SparseCross or operation."""
    # JSON when a manifest is read, a node when one is created.
    if isinstance(node, dict):
        op = node.get("op")
    else:
        op = getattr(node, "op", None)
    return str(op) if op in ("Input", "Const", "SparseCross") else "operation"


Node = Annotated[
    Annotated[InputNode, Tag("Input")]
    | Annotated[ConstantNode, Tag("Const")]
    | Annotated[CrossNode, Tag("SparseCross")]
    | Annotated[OperationNode, Tag("operation")],
    Discriminator(kind_of_node),
]


def operands_of(node: Node) -> tuple[int, ...]:
    """Returns the positions of the nodes whose results a node takes."""
    if isinstance(node, InputNode | ConstantNode):
        return ()
    return node.inputs


def check_order(nodes: Sequence[Node]) -> None:
    """Checks that nodes read nodes before them only.

    Raises:
      ValueError: One does not; names it.
    """
    for position, node in enumerate(nodes):
        for operand in operands_of(node):
            if operand >= position:
                raise ValueError(
                    f"node {position} ({node.op}) reads node {operand}; an operation reads "
                    "nodes before it"
                )


def nodes_for(nodes: Sequence[Node], last: int) -> list[int]:
    """Returns the positions of the nodes that one is computed from, and its own, ascending."""
    needed = {last}
    for position in range(last, -1, -1):
        if position in needed:
            needed.update(operands_of(nodes[position]))
    return sorted(needed)


def part_of(nodes: Sequence[Node], positions: Sequence[int]) -> tuple[Node, ...]:
    """Returns the nodes at ascending positions, as the nodes of a graph: they read each other, and
    inputs are numbered as they come.
    """
    new_positions = {position: index for index, position in enumerate(positions)}
    part: list[Node] = []
    input_count = 0
    for position in positions:
        node = nodes[position]
        if isinstance(node, InputNode):
            part.append(node.model_copy(update={"input": input_count}))
            input_count += 1
        elif isinstance(node, ConstantNode):
            part.append(node)
        else:
            operands = tuple(new_positions[operand] for operand in node.inputs)
            part.append(node.model_copy(update={"inputs": operands}))
    return tuple(part)


class GraphIds(StrictModel):
    """Row = what operations compute of the id, or of one value of each of several inputs: the
    result of the last node.
    """

    kind: Literal["graph"] = "graph"
    nodes: Annotated[tuple[Node, ...], Field(min_length=1, max_length=OPERATIONS_MAX)]
    """The nodes, in an order in which they can be computed."""
    tables: tuple[LookupTable, ...] = ()
    """The tables that the operations look keys up in."""

    @property
    def inputs(self) -> tuple[InputNode, ...]:
        """Its inputs in their order."""
        nodes = [node for node in self.nodes if isinstance(node, InputNode)]
        return tuple(sorted(nodes, key=lambda node: node.input))

    @property
    def dtype(self) -> InputDtype:
        """The type that callers send to the first input."""
        return self.inputs[0].dtype

    @property
    def cross(self) -> CrossNode | None:
        """The node that crosses the inputs; None: their values meet one by one."""
        last = self.nodes[-1]
        if isinstance(last, CrossNode):
            return last
        return None

    def part(self, last: int) -> GraphIds:
        """Returns the graph that computes the result of one node."""
        nodes = part_of(self.nodes, nodes_for(self.nodes, last))
        return self.model_copy(update={"nodes": nodes})

    def inputs_of(self, position: int) -> list[int]:
        """Returns the numbers of the inputs that a node is computed from, ascending."""
        nodes = [self.nodes[needed] for needed in nodes_for(self.nodes, position)]
        return sorted(node.input for node in nodes if isinstance(node, InputNode))

    @model_validator(mode="after")
    def _in_order(self) -> GraphIds:
        check_order(self.nodes)
        positions = [node.input for node in self.inputs]
        if not positions or positions != list(range(len(positions))):
            raise ValueError(f"a graph has one node for each of its inputs, not {positions}")
        if any(isinstance(node, CrossNode) for node in self.nodes[:-1]):
            raise ValueError("a cross is the last node")
        if self.cross is not None:
            crossed = [self.inputs_of(operand) for operand in self.cross.inputs]
            if crossed != [[position] for position in positions]:
                raise ValueError(
                    "a cross takes a node of each input, computed from it alone, in the order of "
                    f"the inputs, not of {crossed}"
                )
        return self


IDENTITY = GraphIds(nodes=(InputNode(dtype="int64"),))
"""The graph whose result is its input: the id is the row."""
