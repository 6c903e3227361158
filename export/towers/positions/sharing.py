"""Parts that run for all candidates of one context, and take what the context has computed once,
as one row.

Repeated for each candidate, keys and values of a history would be copied hundreds of times, and a
product with them would be one for each candidate. With one row for all of them, it is one product
of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from export.bounds import ABSOLUTE, RELATIVE
from export.graphs.functions import fill
from export.graphs.internals import copy_operation, run_flat
from export.graphs.loading import tf
from export.raised_errors import failure
from export.towers.data_flow import random_values
from export.towers.parts import TracedPart
from export.towers.positions.products import PRODUCTS, Labels, labels_of
from export.towers.rewriting import GraphRewriter

_CANDIDATES = 5
"""The number of candidates with which a part is tried."""


def share_context(part: TracedPart, of_context: Collection[str]) -> tuple[TracedPart, str]:
    """Returns a part that takes one row of a context for all of its candidates.

    Args:
      part: The part, which runs for candidates.
      of_context: The names of the inputs that are the same for all candidates of a context.

    Returns:
      The part, and why it takes a row for each candidate all the same; "": it does not.
    """
    fill(part.variables)
    try:
        shared = _rewritten(part, of_context)
        problem = _difference(part, shared)
    except Exception as error:  # noqa: BLE001 - operations raise many types of errors
        problem = failure(error, "it cannot run with one row of a context")
    if problem:
        return part, problem
    return shared, ""


def _rewritten(part: TracedPart, of_context: Collection[str]) -> TracedPart:
    rewriting = GraphRewriter(part)
    operations = list(rewriting.graph.get_operations())
    feeds = []
    specs = []
    of_one: set[str] = set()
    """The names of the tensors that have one row."""
    of_all: set[str] = set()
    """The names of the tensors that have a row for each candidate."""
    for spec, tensor in zip(part.spec.inputs, rewriting.inputs, strict=True):
        if spec.name not in of_context:
            of_all.add(tensor.name)
            feeds.append(tensor)
            specs.append(spec)
            continue
        with rewriting.graph.as_default():
            row = tf.compat.v1.placeholder(tensor.dtype, [1, *tensor.shape[1:]])
        rewriting.put(tensor, row)
        of_one.add(row.name)
        feeds.append(row)
        specs.append(spec.model_copy(update={"shape": (1, *spec.shape[1:])}))
    for operation in operations:
        names = {tensor.name for tensor in operation.inputs}
        if names & of_all:
            of_all |= {tensor.name for tensor in operation.outputs}
            if names & of_one:
                with rewriting.graph.as_default():
                    result = _result(operation, of_one, of_all)
                if result is not None:
                    rewriting.put(operation.outputs[0], result)
                    of_all.add(result.name)
        elif names & of_one:
            # A copy has the static shapes that follow from one row.
            results = copy_operation(operation, list(operation.inputs))
            for tensor, result in zip(operation.outputs, results, strict=True):
                rewriting.put(tensor, result)
            of_one |= {tensor.name for tensor in results}
    return rewriting.finished(feeds).taking(tuple(specs))


def _result(operation: Any, of_one: Collection[str], of_all: Collection[str]) -> Any:
    """Returns the result of an operation on tensors of both kinds; None: it broadcasts the one row
    by itself.
    """
    if operation.type in PRODUCTS:
        return _product(operation, of_one)
    if operation.type in ("ConcatV2", "Pack"):
        tensors = list(operation.inputs)
        axis = operation.get_attr("axis") if operation.type == "Pack" else tensors.pop()
        rows = next(tf.shape(tensor)[:1] for tensor in tensors if tensor.name in of_all)
        repeated = [
            tf.repeat(tensor, rows, axis=0) if tensor.name in of_one else tensor
            for tensor in tensors
        ]
        if operation.type == "Pack":
            return tf.stack(repeated, axis)
        return tf.concat(repeated, axis)
    return _of_heads(operation, of_one, of_all)


def _of_heads(operation: Any, of_one: Collection[str], of_all: Collection[str]) -> Any:
    """Returns the result of an operation whose tensors have a row for each head of each candidate,
    or of the context; None: they have others.
    """
    rank = operation.outputs[0].shape.rank
    tensors = list(operation.inputs)
    of_candidates = [
        tensor
        for tensor in tensors
        if tensor.name in of_all and tensor.shape.rank == rank and tensor.shape[0] is None
    ]
    repeated = list(tensors)
    for number, tensor in enumerate(tensors):
        has_heads = tensor.shape.rank == rank and (tensor.shape[0] or 0) > 1
        if of_candidates and tensor.name in of_one and has_heads:
            count = tf.shape(of_candidates[0])[:1] // tensor.shape[0]
            repeated[number] = tf.tile(tensor, tf.concat([count, [1] * (rank - 1)], 0))
    if all(new is old for new, old in zip(repeated, tensors, strict=True)):
        return None
    return copy_operation(operation, repeated)[0]


def _product(operation: Any, of_one: Collection[str]) -> Any:
    """Returns a product of candidates' rows with the row of a context, as one of matrices; None:
    the row is no batch of the product.
    """
    first, second = operation.inputs
    labels = labels_of(operation, first.shape.rank, second.shape.rank)
    if labels is None:
        return None
    if first.name in of_one:
        labels = Labels(labels.second, labels.first, labels.product)
        first, second = second, first
    row = labels.second[0]
    if row not in labels.first or row not in labels.product:
        return None
    # The context's row is the same for all candidates, whose axis belongs to the rows of a matrix.
    head_count = second.shape[0]
    has_heads = head_count not in (None, 1) and labels.first[0] == labels.product[0] == row
    if has_heads:
        # Each candidate has a row for each head, as the context has.
        first = tf.reshape(first, [-1, head_count, *first.shape[1:]])
        context = second
        labels = Labels(["candidate", *labels.first], labels.second, ["candidate", *labels.product])
        context_labels = labels.second
        row = "candidate"
    elif head_count == 1:
        context = tf.squeeze(second, 0)
        context_labels = labels.second[1:]
    else:
        return None
    sizes = dict(zip(labels.first, first.shape.as_list(), strict=True))
    sizes |= dict(zip(context_labels, context.shape.as_list(), strict=True))
    sizes[row] = -1
    both = [label for label in context_labels if label in labels.first]
    batch = [label for label in both if label in labels.product]
    summed = [label for label in both if label not in labels.product]
    rows = [label for label in labels.first if label not in both]
    columns = [label for label in context_labels if label not in both]

    left = _arranged(first, labels.first, [*batch, *rows, *summed])
    right = _arranged(context, context_labels, [*batch, *columns, *summed])

    def size(names: list[str]) -> int:
        return math.prod(sizes[name] for name in names)

    batch_sizes = [sizes[label] for label in batch]
    left = tf.reshape(left, [*batch_sizes, -1, size(summed)])
    right = tf.reshape(right, [*batch_sizes, size(columns), size(summed)])
    product = tf.matmul(left, right, transpose_b=True)
    arranged = [*batch, *rows, *columns]
    product = tf.reshape(product, [sizes[label] for label in arranged])
    product = _arranged(product, arranged, labels.product)
    if has_heads:
        return tf.reshape(product, [-1, *product.shape[2:]])
    return product


def _arranged(tensor: Any, labels: list[str], wanted: list[str]) -> Any:
    """Returns a tensor with its axes in another order."""
    order = [labels.index(label) for label in wanted]
    if order == sorted(order):
        return tensor
    return tf.transpose(tensor, order)


def _difference(part: TracedPart, shared: TracedPart) -> str:
    """Returns how results differ where the row of the context is repeated; "": they do not."""
    repeated = []
    rows = []
    for seed, (spec, tensor) in enumerate(
        zip(shared.spec.inputs, shared.function.inputs, strict=False)
    ):
        values = random_values(tensor, seed, _CANDIDATES)
        if spec.is_of_context:
            rows.append(values[:1])
            values = values[:1].repeat(_CANDIDATES, axis=0)
        else:
            rows.append(values)
        repeated.append(values)
    expected = run_flat(part.function, [tf.constant(values) for values in repeated])
    results = run_flat(shared.function, [tf.constant(values) for values in rows])
    for name, tensor in expected.items():
        wanted = tensor.numpy().astype(np.float64)
        result = results[name].numpy().astype(np.float64)
        if result.shape != wanted.shape:
            return f"{name!r} has another shape with one row of a context"
        limit = ABSOLUTE + RELATIVE * np.abs(np.nan_to_num(wanted)).max(initial=0.0)
        if not np.allclose(result, wanted, rtol=0, atol=limit, equal_nan=True):
            return f"{name!r} has other values with one row of a context"
    return ""
