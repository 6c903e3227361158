"""Graphs of ids as expressions, for people."""

from __future__ import annotations

import re
from collections import Counter
from string import ascii_lowercase

from bundle.features.ids.operations import OPERATIONS
from bundle.format.id_graphs import (
    CROSS_KEY,
    ConstantNode,
    CrossNode,
    GraphIds,
    InputNode,
    OperationNode,
    SplitNode,
)

_LENGTH_MAX = 240
"""The maximum number of characters of one operation; a longer one is written without operands."""
_ARGUMENT = r"[(,] ?\{%d\}[,)]"
"""An operand that stands alone between parentheses and commas."""
_UNITS = {"whitespace": "word", "characters": "character", "separator": "word"}
"""What texts are split into, by the rule of the split."""
_BOUNDARIES_MAX = 8
"""The maximum number of boundaries that are written; of more, only their number is."""


def expression(graph: GraphIds, *names: str) -> str:
    """Returns what a graph computes of inputs that are called `names`, such as
    `fingerprint64(str(x)) mod 1000`. A value that several operations read is written once, behind
    `where`.
    """
    reads = Counter(operand for node in graph.nodes for operand in node.inputs)
    letters = iter(ascii_lowercase)
    words = ""
    texts: list[str] = []
    shared: list[str] = []
    for position, node in enumerate(graph.nodes):
        if isinstance(node, InputNode):
            texts.append(names[node.input])
        elif isinstance(node, ConstantNode):
            texts.append(_constant(node))
        elif isinstance(node, CrossNode):
            crossed = " and ".join(_bare(texts[operand]) for operand in node.inputs)
            text = f"cross of {crossed} mod {node.num_buckets}"
            if node.hash_key != CROSS_KEY:
                text += f" by key {node.hash_key}"
            texts.append(text)
        elif isinstance(node, SplitNode):
            words = f" for {_words(node, _bare(texts[node.inputs[0]]))}"
            texts.append(_UNITS[node.split])
        else:
            text = _operation(graph, node, [texts[operand] for operand in node.inputs])
            if reads[position] > 1 and (letter := next(letters, "")):
                shared.append(f"{letter} = {_bare(text)}")
                text = letter
            texts.append(text)
    return ", where ".join(filter(None, [_bare(texts[-1]) + words, ", ".join(shared)]))


def _words(node: SplitNode, text: str) -> str:
    """Returns the text of the words of a text."""
    words = f"the {_UNITS[node.split]}s of {text}"
    if node.ngrams:
        words = f"runs of {' and '.join(map(str, node.ngrams))} of {words}"
    if node.length is not None:
        words = f"the first {node.length} of {words}"
    if node.separator:
        words += f" at {node.separator!r}"
    if node.padding is not None:
        words += f", filled up to {node.length} by {node.padding!r}"
    return words


def _bare(text: str) -> str:
    """Returns an expression without the parentheses around it."""
    if _is_enclosed(text):
        return text[1:-1]
    return text


def _constant(node: ConstantNode) -> str:
    """Returns the text of a constant."""
    if node.is_list:
        return f"list of {len(node.values)}"
    return repr(node.values[0])


def _operation(graph: GraphIds, node: OperationNode, operands: list[str]) -> str:
    """Returns the text of an operation on operands of these texts."""
    words = ""
    if node.op in OPERATIONS:
        words = OPERATIONS[node.op].words
    if node.op == "LookupTableFindV2":
        text = _lookup(graph, node, operands)
    elif node.op == "StringJoin":
        plus = " + "
        if node.attributes["separator"]:
            plus = f" + {node.attributes['separator']!r} + "
        text = f"({plus.join(operands)})"
    elif node.op == "Bucketize":
        boundaries = node.attributes["boundaries"]
        if len(boundaries) > _BOUNDARIES_MAX:
            boundaries = len(boundaries)
        text = f"bucket({_bare(operands[0])}, {boundaries})"
    elif words:
        arguments = []
        for position, operand in enumerate(operands):
            is_argument = re.search(_ARGUMENT % position, words) is not None
            # An argument stands between brackets or commas of its own.
            arguments.append(_bare(operand) if is_argument else operand)
        text = words.format(*arguments, **node.attributes)
    else:
        text = f"{node.op}({', '.join(operands)})"
    if len(text) > _LENGTH_MAX:
        return f"{node.op}(...)"
    return text


def _lookup(graph: GraphIds, node: OperationNode, operands: list[str]) -> str:
    """Returns the text of a lookup in a vocabulary."""
    key, default = operands
    table = graph.tables[node.attributes["table"]]
    position = f"position of {key} in {table.vocabulary}"
    if table.first_value:
        position += f" + {table.first_value}"
    if table.is_complete:
        default = "an error"
    return f"({position}, else {default})"


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
