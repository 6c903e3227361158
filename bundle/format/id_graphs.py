"""Manifest entries: the operations of a model between an input and the rows of a table.

A graph is a list of operations in an order in which they can be computed. Each has the name and the
attributes that TensorFlow gives it; `bundle/features/ids/operations.py` computes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from bundle.format.fields import Count, Length, Name, Positive, StrictModel

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


class _Leaf(StrictModel):
    """A node that takes no results of others."""

    inputs: ClassVar[tuple[int, ...]] = ()


class InputNode(_Leaf):
    """The values that callers send."""

    op: Literal["Input"] = "Input"
    dtype: InputDtype
    input: Count = 0
    """The position of the input among the inputs of the feature."""


class ConstantNode(_Leaf):
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


class SplitNode(StrictModel):
    """The words of one text, each of which is a result of its own."""

    op: Literal["StringSplit"] = "StringSplit"
    inputs: tuple[Count]
    """The position of the node whose result is the text."""
    split: Literal["whitespace", "characters", "separator"]
    """The rule of the split: at runs of ASCII whitespace, into Unicode characters, or at each
    `separator`.
    """
    separator: str | None = None
    """The separator, such as "|", around which there may be empty words; None: of other splits."""
    ngrams: tuple[Positive, ...] = ()
    """The numbers of consecutive words that are joined, with a space between them, into the ngrams
    that are taken instead of words. All ngrams of the first number come first.
    """
    length: Length | None = None
    """The maximum number of words, or ngrams, that are taken of a text."""
    padding: str | None = None
    """The word that texts of fewer words are filled up with to `length`; None: They stay short."""

    @model_validator(mode="after")
    def _check_separator_and_padding(self) -> SplitNode:
        if (self.split == "separator") != bool(self.separator):
            raise ValueError("'separator' belongs to the split 'separator', and is not empty")
        if self.padding is not None and self.length is None:
            raise ValueError("'padding' needs a 'length'")
        return self


class LookupTable(StrictModel):
    """Keys that operations look up: the value of a key is `first_value` + its position in a
    vocabulary.
    """

    vocabulary: Name
    first_value: Count = 0
    is_complete: bool = False
    """Whether the model fails on a key that the vocabulary lacks."""


def kind_of_node(node: Any) -> str:
    """Returns the tag of a node: the `op` of one with fields of its own, otherwise operation."""
    # JSON when a manifest is read, a node when one is created.
    if isinstance(node, dict):
        op = node.get("op")
    else:
        op = getattr(node, "op", None)
    return str(op) if op in ("Input", "Const", "SparseCross", "StringSplit") else "operation"


Node = Annotated[
    Annotated[InputNode, Tag("Input")]
    | Annotated[ConstantNode, Tag("Const")]
    | Annotated[CrossNode, Tag("SparseCross")]
    | Annotated[SplitNode, Tag("StringSplit")]
    | Annotated[OperationNode, Tag("operation")],
    Discriminator(kind_of_node),
]


def check_order(nodes: Sequence[Node]) -> None:
    """Checks that nodes read nodes before them only.

    Raises:
      ValueError: One does not; names it.
    """
    for position, node in enumerate(nodes):
        for operand in node.inputs:
            if operand >= position:
                raise ValueError(
                    f"node {position} ({node.op}) reads node {operand}; an operation reads "
                    "nodes before it"
                )


def reading(node: Node, positions: Mapping[int, int]) -> Node:
    """Returns a node of a graph in which those that it reads have other positions."""
    if not node.inputs:
        return node
    inputs = tuple(positions[position] for position in node.inputs)
    return node.model_copy(update={"inputs": inputs})


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

    @property
    def split(self) -> SplitNode | None:
        """The node that splits a text; None: values are not split."""
        return next((node for node in self.nodes if isinstance(node, SplitNode)), None)

    def part(self, last: int) -> GraphIds:
        """Returns the graph that computes the result of one node, with its inputs numbered anew."""
        positions: dict[int, int] = {}
        nodes: list[Node] = []
        input_count = 0
        for position in self._needed(last):
            node = reading(self.nodes[position], positions)
            if isinstance(node, InputNode):
                node = node.model_copy(update={"input": input_count})
                input_count += 1
            positions[position] = len(nodes)
            nodes.append(node)
        return self.model_copy(update={"nodes": tuple(nodes)})

    @property
    def of_word(self) -> GraphIds:
        """The graph that computes the row of one word of a text that is split."""
        nodes = list(self.nodes)
        for position, node in enumerate(nodes):
            if isinstance(node, SplitNode):
                nodes[position] = InputNode(dtype="string")
        return self.model_copy(update={"nodes": tuple(nodes)}).part(len(nodes) - 1)

    def cut(self, length: int) -> GraphIds:
        """Returns the graph of no more than `length` words of a text."""
        nodes = list(self.nodes)
        for position, node in enumerate(nodes):
            if isinstance(node, SplitNode):
                nodes[position] = node.model_copy(update={"length": length})
        return self.model_copy(update={"nodes": tuple(nodes)})

    def inputs_of(self, position: int) -> list[int]:
        """Returns the numbers of the inputs that a node is computed from, ascending."""
        nodes = [self.nodes[needed] for needed in self._needed(position)]
        return sorted(node.input for node in nodes if isinstance(node, InputNode))

    def _needed(self, last: int) -> list[int]:
        """Returns the positions of the nodes that one is computed from, and its own, ascending."""
        needed = {last}
        for position in range(last, -1, -1):
            if position in needed:
                needed.update(self.nodes[position].inputs)
        return sorted(needed)

    @model_validator(mode="after")
    def _in_order(self) -> GraphIds:
        check_order(self.nodes)
        positions = [node.input for node in self.inputs]
        if not positions or positions != list(range(len(positions))):
            raise ValueError(f"a graph has one node for each of its inputs, not {positions}")
        if any(isinstance(node, CrossNode) for node in self.nodes[:-1]):
            raise ValueError("a cross is the last node")
        if sum(isinstance(node, SplitNode) for node in self.nodes) > 1:
            raise ValueError("a text is split once")
        if self.split is not None and len(self.of_word.inputs) != 1:
            raise ValueError("the row of a word is computed from the word alone")
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
