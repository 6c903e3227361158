"""Where the model's own code gives other results than the reference model, whose results a bundle
must have: Keras divides zero by zero in the mean of a text without words.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from export.front_end.interface import Results
from export.verify.forms import allowed
from export.verify.reference_inputs import Reference


def notes_on_eager_results(reference: Reference, expected: Results) -> Iterator[str]:
    """Yields notes on examples for which a call of the model as users make it, `model(inputs)`,
    gives other results.

    Args:
      reference: The model and its examples.
      expected: The outputs of the reference model for the examples.
    """
    if not reference.model.averages_texts:
        return
    run = reference.original.run(reference.model, reference.inputs, as_written=True)
    for tower, outputs in expected.items():
        for output, values in outputs.items():
            results = run.results[tower][output]
            # Negated, so that NaN counts as a difference.
            differs = ~(np.abs(results - values) <= allowed(values, None))
            examples = np.unique(np.argwhere(differs)[:, 0])
            if examples.size:
                first = int(examples[0])
                yield (
                    f"tower {tower!r}, output {output!r}: the model itself gives "
                    f"{results[differs][0]} in {examples.size} of {len(values)} examples, first in "
                    f"example {first}, where the bundle gives numbers: the mean of a text without "
                    "words is zeros in a bundle, and zero divided by zero in Keras"
                )
