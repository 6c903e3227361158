"""Products of two tensors: matrices, batches of them, and equations of Einstein."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import add
from typing import Any, NamedTuple

from export.graphs.loading import tf
from export.towers.positions.grids import Block, Grid, corners
from export.towers.positions.steps import Rule, Step

_BATCH_PRODUCTS = ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
PRODUCTS = frozenset({"Einsum", "MatMul", *_BATCH_PRODUCTS})
"""The types of operations that are products."""


class Labels(NamedTuple):
    """A label for each axis of two factors and of their product, which sums over the labels that it
    lacks.
    """

    first: list[str]
    second: list[str]
    product: list[str]


def labels_of(operation: Any, first_rank: int, second_rank: int) -> Labels | None:
    """Returns the labels of a product; None: it is an equation of another kind.

    Args:
      operation: The operation, one of `PRODUCTS`.
      first_rank: The number of axes of the first factor.
      second_rank: That of the second one.
    """
    if operation.type == "Einsum":
        equation = operation.get_attr("equation").decode()
        terms, _, product = equation.partition("->")
        factors = [list(term) for term in terms.split(",")]
        has_repeated = any(len(set(factor)) < len(factor) for factor in factors)
        if "." in equation or len(factors) != 2 or has_repeated:
            return None
        return Labels(factors[0], factors[1], list(product))
    first_attribute, second_attribute = "adj_x", "adj_y"
    if operation.type == "MatMul":
        first_attribute, second_attribute = "transpose_a", "transpose_b"
    first = ["row", "summed"]
    if operation.get_attr(first_attribute):
        first.reverse()
    second = ["summed", "column"]
    if operation.get_attr(second_attribute):
        second.reverse()
    # The axes of the batch stand before those of the matrices, counted from the right.
    batch = [f"batch {number}" for number in range(max(first_rank, second_rank) - 2)]
    return Labels(
        [*batch[len(batch) - first_rank + 2 :], *first],
        [*batch[len(batch) - second_rank + 2 :], *second],
        [*batch, "row", "column"],
    )


def _product(step: Step) -> list[Grid] | None:
    first, second = step.arguments
    labels = labels_of(step.operation, len(first.shape), len(second.shape))
    if labels is None:
        return None
    cuts_by_label: dict[str, tuple[int, ...]] = {}
    factors = [(first, labels.first), (second, labels.second)]
    for grid, own_labels in factors:
        for axis, sizes in grid.cuts.items():
            if cuts_by_label.setdefault(own_labels[axis], sizes) != sizes:
                return None
    factors = [
        (grid.cut(_cuts(own_labels, cuts_by_label)), own_labels) for grid, own_labels in factors
    ]
    cuts = _cuts(labels.product, cuts_by_label)
    summed = [label for label in cuts_by_label if label not in labels.product]
    blocks = {}
    for corner in corners(cuts):
        outer = {labels.product[axis]: number for axis, number in corner.items()}
        pairs = []
        for inner in corners({place: cuts_by_label[label] for place, label in enumerate(summed)}):
            numbers = outer | {summed[place]: number for place, number in inner.items()}
            pairs.append(
                [
                    grid.at({axis: numbers[own_labels[axis]] for axis in grid.cuts})
                    for grid, own_labels in factors
                ]
            )
        # What a mask rules out adds nothing.
        counting = [pair for pair in pairs if not any(block.is_zero for block in pair)]
        terms = [step.run(*pair) for pair in counting or pairs[:1]]
        blocks[tuple(corner.values())] = Block(reduce(add, terms))
    return [Grid(step.shape, cuts, blocks)]


def _cuts(
    labels: list[str], cuts_by_label: Mapping[str, tuple[int, ...]]
) -> dict[int, tuple[int, ...]]:
    """Returns the cuts of axes by those of their labels."""
    return {
        axis: cuts_by_label[label] for axis, label in enumerate(labels) if label in cuts_by_label
    }


def _product_of_rows(step: Step) -> list[Grid] | None:
    """A product with a matrix, also of rows whose positions and examples are one axis."""
    first, second = step.arguments
    if not first.is_flat:
        return _product(step)
    if second.cuts or step.operation.get_attr("transpose_a"):
        return None
    is_turned = step.operation.get_attr("transpose_b")
    matrix = second.blocks[()].value
    return [
        Grid(
            (*first.shape[:2], step.shape[-1]),
            first.cuts,
            {
                corner: Block(tf.matmul(block.value, matrix, transpose_b=is_turned))
                for corner, block in first.blocks.items()
            },
            is_flat=True,
        )
    ]


RULES: Mapping[str, Rule] = {
    "Einsum": _product,
    "MatMul": _product_of_rows,
    **dict.fromkeys(_BATCH_PRODUCTS, _product),
}
