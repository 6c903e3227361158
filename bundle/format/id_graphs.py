"""Manifest entries: the operations of a model between an input and the rows of a table.

A graph is a list of operations in an order in which they can be computed. Each has the name and the
attributes that TensorFlow gives it; `bundle/features/rules/operations.py` computes them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from bundle.format.fields import Count, StrictModel

OPERATIONS_MAX = 1024
"""Operations of one graph."""
CONSTANT_MAX = 1 << 16
"""Values of one constant, such as the rows that a gather maps ids to."""

InputDtype = Literal["int32", "int64", "float32", "string"]
"""What callers send."""
ConstantDtype = Literal[
    "bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "float32", "float64", "string"
]
Constants = Annotated[tuple[int | float | str, ...], Field(min_length=1, max_length=CONSTANT_MAX)]


class InputNode(StrictModel):
    """The values that callers send."""

    op: Literal["Input"] = "Input"
    dtype: InputDtype


class ConstantNode(StrictModel):
    """Values that the model holds."""

    op: Literal["Const"] = "Const"
    dtype: ConstantDtype
    values: Constants
    """Numbers that are not finite are "NaN", "Infinity" and "-Infinity"."""
    is_list: bool = False
    """Whether other operations search the values, or gather some of them. Otherwise there is one,
    which meets each value of the other operands.
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
    """As TensorFlow names them, where they have an effect on single values; dtypes as NumPy names
    them. Of `LookupTableFindV2`, `vocabulary` is a position among those of the graph.
    """

    def __hash__(self) -> int:
        return hash((self.op, self.inputs))  # attributes may be lists


def kind_of_node(node: Any) -> str:
    """Returns which of the kinds of nodes one is."""
    op = node.get("op") if isinstance(node, dict) else getattr(node, "op", None)
    return op if op in ("Input", "Const") else "operation"


def check_order(nodes: tuple[InputNode | ConstantNode | OperationNode, ...]) -> None:
    """Checks that nodes read nodes before them only.

    Raises:
      ValueError: One does not; names it.
    """
    for position, node in enumerate(nodes):
        if isinstance(node, OperationNode):
            for operand in node.inputs:
                if operand >= position:
                    raise ValueError(
                        f"node {position} ({node.op}) reads node {operand}; an operation reads "
                        "nodes before it"
                    )
