"""Whether the original model agrees with itself where it is run in several ways: again, with its
examples alone or in another order, and as users call it.

A service computes an example alone, or among others in any order, and each time again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.bounds import allowed, differ, of_another_order
from export.front_end.interface import Results
from export.verify.examples import Examples, chosen_columns, chosen_values
from export.verify.forms import another_order
from export.verify.reference_inputs import Reference
from export.verify.reference_model import reference_results

Outputs = Mapping[str, Mapping[str, NDArray[Any]]]
"""Values by tower and output."""
Bound = Callable[[NDArray[Any]], NDArray[Any] | float]
"""By how much results may differ from expected values."""


@dataclass(frozen=True)
class Difference:
    """An output of a tower that is not the expected one.

    Attributes:
      tower, output: Their names.
      value: The first value that differs.
      examples: The examples that differ, ascending.
    """

    tower: str
    output: str
    value: Any
    examples: NDArray[np.int64]

    @property
    def label(self) -> str:
        """The name of the output in messages."""
        return f"tower {self.tower!r}, output {self.output!r}"


def differences(
    results: Outputs, expected: Outputs, bound: Bound = of_another_order
) -> Iterator[Difference]:
    """Yields the outputs of expected results that other results do not agree with."""
    for tower, outputs in expected.items():
        for output, values in outputs.items():
            result = results[tower][output]
            differs = differ(result, values, bound(values))
            if differs.any():
                examples = np.unique(np.argwhere(differs)[:, 0])
                yield Difference(tower, output, result[differs][0], examples)


def notes_on_eager_results(reference: Reference, expected: Results) -> Iterator[str]:
    """Yields notes on examples for which a call of the model as users make it, `model(inputs)`,
    gives other results than the reference model, which a bundle must have: Keras divides zero by
    zero in the mean of a text without words.

    Args:
      reference: The model and its examples.
      expected: The outputs of the reference model for the examples.
    """
    if not reference.model.averages_texts:
        return
    run = reference.original.run(reference.model, reference.inputs, as_written=True)
    for difference in differences(run.results, expected, lambda values: allowed(values, None)):
        yield (
            f"{difference.label}: the model itself gives {difference.value} in "
            f"{difference.examples.size} of {reference.examples.n} examples, first in example "
            f"{difference.examples[0]}, where the bundle gives numbers: the mean of a text without "
            "words is zeros in a bundle, and zero divided by zero in Keras"
        )


def self_contradiction(reference: Reference) -> str:
    """Returns how the results of the original model for the same examples contradict each other,
    and the remedy; "": they do not.

    This is tested only where a tower differs from the model: then the cause may be the model's own
    code.
    """
    expected = reference_results(reference)
    n = reference.examples.n
    everything = np.arange(n)
    runs = {
        "when it is called again": everything,
        "among other examples, or in another order": another_order(n),
        "alone": np.arange(1),
    }
    for way, order in runs.items():
        columns = chosen_columns(reference.examples.columns, order, n)
        sample = replace(reference, examples=Examples(len(order), columns))
        expected_of_sample = {
            tower: chosen_values(outputs, order) for tower, outputs in expected.items()
        }
        difference = next(differences(reference_results(sample), expected_of_sample), None)
        if difference is None:
            continue
        spec = reference.model.towers[difference.tower]
        example = order[difference.examples[0]]
        contradiction = (
            f"{difference.label}: the original model itself gives another value for example "
            f"{example} {way}"
        )
        if order is everything:
            # No operation of the graph is random, so the cause lies in code that runs outside of
            # it.
            return (
                f"{contradiction} ({spec.call}): something random is in its Python code, or it "
                "keeps numbers that its code computes while it is made, when no weight is trained. "
                "Call it for inference, training=False; compute such numbers in the call, or keep "
                "them in a variable of the model, which is saved"
            )
        operation = ", ".join(filter(None, (str(spec.call), spec.joining)))
        return (
            f"{contradiction} ({operation}): it depends on the other examples of the batch, which "
            "a request does not have. Compute each example from its own values: what joins, sums "
            "or counts needs an axis behind the first"
        )
    return ""
