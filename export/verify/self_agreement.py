"""Whether the original model agrees with itself: a service computes an example alone, or among
others in any order, and each time anew.

Asked where a tower differs from the model: then the model's own code may be the cause.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from export.front_end.interface import Results
from export.verify.examples import Examples, offsets_of
from export.verify.forms import another_order
from export.verify.reference_inputs import Reference
from export.verify.reference_model import reference_results

_NOISE = 1e-4
"""Share of the largest value that another size of a batch may change."""


def why_unlike_itself(reference: Reference) -> str:
    """Returns how what the original model gives for examples contradicts what it gives for them
    another time, and the remedy; "": it does not.
    """
    expected = reference_results(reference)
    if at := _first_difference(reference_results(reference), expected):
        tower, output, example = at
        place = _place_of(reference, tower, "random")
        again = (
            f"tower {tower!r}, output {output!r}: the original model itself gives another value "
            f"for example {example} when it is called again ({place})"
        )
        if reference.model.towers[tower].random:
            return (
                f"{again}: something random is in it, such as dropout. Call it for inference: "
                "training=False"
            )
        return (
            f"{again}: something random is in it, such as dropout, or it keeps numbers that its "
            "code computes while it is made, when no weight is trained. Call it for inference, "
            "training=False; compute such numbers in the call, or keep them in a variable of the "
            "model, which is saved"
        )
    for order in (another_order(reference.examples.n), np.arange(1)):
        sample = replace(reference, examples=_chosen(reference.examples, order))
        chosen = {
            tower: {output: values[order] for output, values in outputs.items()}
            for tower, outputs in expected.items()
        }
        if at := _first_difference(reference_results(sample), chosen):
            tower, output, row = at
            where = "alone" if len(order) == 1 else "among other examples, or in another order"
            place = _place_of(reference, tower, "joining")
            return (
                f"tower {tower!r}, output {output!r}: the original model itself gives another "
                f"value for example {order[row]} {where} ({place}): it depends on the other "
                "examples of the batch, which a request does not have. Compute each example from "
                "its own values: what joins, sums or counts needs an axis behind the first"
            )
    return ""


def _place_of(reference: Reference, tower: str, cause: Literal["random", "joining"]) -> str:
    """Returns the call of a tower, and the operation that its graph shows as the likely cause."""
    spec = reference.model.towers[tower]
    operation = spec.random if cause == "random" else spec.joining
    return ", ".join(filter(None, (str(spec.call), operation)))


def _chosen(examples: Examples, order: NDArray[np.int64]) -> Examples:
    columns = {name: _rows(column, order, examples.n) for name, column in examples.columns.items()}
    return Examples(len(order), columns)


def _rows(column: Column, order: NDArray[np.int64], n: int) -> Column:
    offsets = column.offsets
    if offsets is None:
        offsets = np.arange(n + 1) * (column.values.size // n)
    places = np.concatenate([np.arange(offsets[i], offsets[i + 1]) for i in order])
    return Column(
        column.values[places],
        None if column.offsets is None else offsets_of(np.diff(offsets)[order]),
        None if column.weights is None else column.weights[places],
    )


def _first_difference(results: Results, expected: Results) -> tuple[str, str, int] | None:
    """Returns tower, output and example of a value that is not the expected one."""
    for tower, outputs in expected.items():
        for output, values in outputs.items():
            noise = _NOISE * max(1.0, float(np.abs(values).max(initial=0.0)))
            unlike = ~(np.abs(results[tower][output] - values) <= noise)
            if unlike.any():
                return tower, output, int(np.argwhere(unlike)[0][0])
    return None
