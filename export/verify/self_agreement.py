"""Whether the original model agrees with itself: a service computes an example alone, or among
others in any order, and each time again.

This is tested only where a tower differs from the model: then the cause may be the model's own
code.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from export.bounds import ANOTHER_ORDER
from export.front_end.interface import Results
from export.verify.examples import Examples, chosen
from export.verify.forms import another_order
from export.verify.reference_inputs import Reference
from export.verify.reference_model import reference_results


def self_contradiction(reference: Reference) -> str:
    """Returns how the results of the original model for the same examples contradict each other,
    and the remedy; "": they do not.
    """
    expected = reference_results(reference)
    return _random_difference(reference, expected) or _batch_difference(reference, expected)


def _random_difference(reference: Reference, expected: Results) -> str:
    """Returns how a second call of the same examples differs; "": it does not."""
    difference = _first_difference(reference_results(reference), expected)
    if difference is None:
        return ""
    tower, output, example = difference
    # No operation of the graph is random, so the cause lies in code that runs outside of it.
    return (
        f"tower {tower!r}, output {output!r}: the original model itself gives another value for "
        f"example {example} when it is called again ({reference.model.towers[tower].call}): "
        "something random is in its Python code, or it keeps numbers that its code computes while "
        "it is made, when no weight is trained. Call it for inference, training=False; compute "
        "such numbers in the call, or keep them in a variable of the model, which is saved"
    )


def _batch_difference(reference: Reference, expected: Results) -> str:
    """Returns how examples depend on the other examples of their batch; "": they do not."""
    for order in (another_order(reference.examples.n), np.arange(1)):
        n = reference.examples.n
        columns = {
            name: chosen(column, order, n) for name, column in reference.examples.columns.items()
        }
        sample = replace(reference, examples=Examples(len(order), columns))
        expected_of_sample = {
            tower: {output: values[order] for output, values in outputs.items()}
            for tower, outputs in expected.items()
        }
        difference = _first_difference(reference_results(sample), expected_of_sample)
        if difference is None:
            continue
        tower, output, row = difference
        batch = "among other examples, or in another order"
        if len(order) == 1:
            batch = "alone"
        spec = reference.model.towers[tower]
        operation = ", ".join(filter(None, (str(spec.call), spec.joining)))
        return (
            f"tower {tower!r}, output {output!r}: the original model itself gives another "
            f"value for example {order[row]} {batch} ({operation}): it depends on the other "
            "examples of the batch, which a request does not have. Compute each example from "
            "its own values: what joins, sums or counts needs an axis behind the first"
        )
    return ""


def _first_difference(results: Results, expected: Results) -> tuple[str, str, int] | None:
    """Returns tower, output and example of a value that is not the expected one."""
    for tower, outputs in expected.items():
        for output, values in outputs.items():
            noise = ANOTHER_ORDER * max(1.0, float(np.abs(values).max(initial=0.0)))
            # Negated, so that NaN counts as a difference.
            differs = ~(np.abs(results[tower][output] - values) <= noise)
            if differs.any():
                return tower, output, int(np.argwhere(differs)[0][0])
    return None
