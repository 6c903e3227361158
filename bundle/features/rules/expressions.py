"""Graphs of ids as expressions, for people."""

from __future__ import annotations

from bundle.features.rules.operations import OPERATIONS
from bundle.format.id_graphs import ConstantNode, InputNode, OperationNode
from bundle.format.id_rules import GraphIds

_LENGTH_MAX = 240
"""Characters of what one operation computes; longer operands are left out."""


def expression(graph: GraphIds, name: str = "x") -> str:
    """Returns what a graph computes of an input called `name`, such as
    `fingerprint64(str(x)) mod 1000`.
    """
    texts: list[str] = []
    for node in graph.nodes:
        if isinstance(node, InputNode):
            texts.append(name)
        elif isinstance(node, ConstantNode):
            texts.append(_constant(node))
        else:
            texts.append(_operation(graph, node, [texts[operand] for operand in node.inputs]))
    text = texts[-1]
    return text[1:-1] if _is_enclosed(text) else text


def _constant(node: ConstantNode) -> str:
    return f"list of {len(node.values)}" if node.is_list else repr(node.values[0])


def _operation(graph: GraphIds, node: OperationNode, operands: list[str]) -> str:
    if node.op == "LookupTableFindV2":
        vocabulary = graph.vocabularies[node.attributes["vocabulary"]]
        position = f"position of {operands[0]} in {vocabulary.vocabulary}"
        first = f" + {vocabulary.first_row}" if vocabulary.first_row else ""
        text = f"({position}{first}, else {operands[1]})"
    elif node.op == "StringJoin":
        separator = node.attributes["separator"]
        between = f" + {separator!r} + " if separator else " + "
        text = f"({between.join(operands)})"
    elif words := OPERATIONS[node.op].words:
        text = words.format(*operands, **node.attributes)
    else:
        text = f"{node.op}({', '.join(operands)})"
    return text if len(text) <= _LENGTH_MAX else f"{node.op}(...)"


def _is_enclosed(text: str) -> bool:
    """Returns whether the first parenthesis of a text is closed by its last character."""
    if not text.startswith("("):
        return False
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position == len(text) - 1
    return False
