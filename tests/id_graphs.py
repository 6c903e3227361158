"""Graphs of ids as recipes and models have them, in one call each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from bundle.format.graph_builder import GraphBuilder
from bundle.format.id_graphs import CROSS_KEY, InputDtype, SplitNode
from bundle.format.manifest import GraphIds, LookupTable

KeyDtype = Literal["int64", "string"]


def hash_ids(
    buckets: int,
    dtype: InputDtype = "int64_or_string",
    first_row: int = 0,
    key: Sequence[int] | None = None,
) -> GraphIds:
    """Returns hashes of ids, as the recipe's rule `hash` has them; of integers, of their texts."""
    builder = GraphBuilder(dtype)
    texts = builder.texts(builder.last) if dtype in ("int32", "int64") else builder.last
    builder.moved(builder.hashed(texts, buckets, key), first_row)
    return builder.graph()


def vocabulary_ids(
    vocabulary: str,
    dtype: KeyDtype = "string",
    first_row: int = 0,
    *,
    is_complete: bool = False,
    **others: Any,
) -> GraphIds:
    """Returns positions of ids in a vocabulary, as the recipe's rule `vocabulary` has them."""
    builder = GraphBuilder(dtype)
    table = LookupTable(vocabulary=vocabulary, first_value=first_row, is_complete=is_complete)
    builder.vocabulary(builder.last, dtype, table, **others)
    return builder.graph()


def crossed_ids(
    keys: Sequence[InputDtype | GraphIds], buckets: int, hash_key: int = CROSS_KEY
) -> GraphIds:
    """Returns a cross of what is sent for inputs of these types, or what graphs compute of it."""
    builder = GraphBuilder()
    operands = []
    for number, key in enumerate(keys):
        if isinstance(key, str):
            operands.append(builder.input(key, number))
        else:
            operands.append(builder.beside(key))
    builder.crossed(operands, buckets, hash_key)
    return builder.graph()


def word_ids(
    ids: GraphIds, split: str = "whitespace", text: GraphIds | None = None, **fields: Any
) -> GraphIds:
    """Returns ids of the words of what `text` computes of a text; None: of the text as sent."""
    builder = GraphBuilder("string", text)
    node = {"inputs": (builder.last,), "split": split} | fields
    builder.split(builder.last, SplitNode.model_validate(node))
    builder.then(ids)
    return builder.graph()


def bucket_ids(boundaries: Sequence[float], first_row: int = 0) -> GraphIds:
    """Returns buckets of numbers, as the recipe's rule `buckets` has them."""
    builder = GraphBuilder("float32")
    builder.buckets(builder.last, boundaries, first_row)
    return builder.graph()


def computed_ids(*steps: tuple[str, int], dtype: InputDtype = "int64") -> GraphIds:
    """Returns what operations, each with a constant, compute of integers one after another."""
    builder = GraphBuilder(dtype)
    for op, constant in steps:
        value = builder.last
        builder.compute(op, value, builder.constant(constant))
    return builder.graph()


def cast_ids(dtype: InputDtype, to: str, rounding: str | None = None) -> GraphIds:
    """Returns ids that are cast to integers of type `to`, after an operation that rounds them."""
    builder = GraphBuilder(dtype)
    if rounding is not None:
        builder.compute(rounding, builder.last)
    builder.compute("Cast", builder.last, DstT=to)
    return builder.graph()
