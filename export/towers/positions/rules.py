"""How operations compute on tensors in blocks: a rule for each type of operation."""

from __future__ import annotations

from collections.abc import Mapping

from export.towers.positions import elementwise, movements, products, reductions, slices
from export.towers.positions.grids import Grid
from export.towers.positions.steps import Rule, Step

_RULES: Mapping[str, Rule] = {
    **elementwise.RULES,
    **movements.RULES,
    **products.RULES,
    **reductions.RULES,
    **slices.RULES,
}
_OF_FLAT_ROWS = frozenset({*elementwise.RULES, "MatMul", "Reshape"})
"""The types of operations that have a rule for rows whose positions and examples are one axis."""


def results_of(step: Step) -> list[Grid] | None:
    """Returns the results of an operation in blocks; None: it has no rule for its arguments."""
    rule = _RULES.get(step.kind)
    if rule is None:
        return None
    if step.kind not in _OF_FLAT_ROWS and any(grid.is_flat for grid in step.arguments):
        return None
    return rule(step)
