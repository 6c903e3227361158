"""Compares the outputs of opened forms of towers with the original model's, within the parity rule
or the recipe's limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import BundleError
from bundle.format.manifest import Tower, TowerForm, TowerPart
from export.bounds import TOLERANCE, allowed, differ, largest_at
from export.errors import VerificationFailed
from export.front_end.specs import TowerSpec
from export.verify.examples import chosen_values
from export.verify.reference_inputs import Reference
from runtime import tower, towers
from runtime.tower_inputs import tower_inputs

Values = Mapping[str, NDArray[Any]]

UNLIKE = "its results would not be the model's"
"""The consequence of a difference, a clause of messages."""

_READ_RAW = ("@values", "@lengths", "@weights", "@indicator")
"""Ends of the names of features that read no table."""
_NAMES_MAX = 8
"""The number of features that a message lists."""
_REORDERED_MAX = 64
"""The largest number of examples that are computed in another order, too."""
_SEED = 17


@dataclass(frozen=True)
class OpenForm:
    """A form of a tower, or of a part of one, that can be called.

    Attributes:
      label: The form's name in messages.
      spec: The tower.
      entry: The entry of the tower or the part in the manifest.
      form: The entry of the form.
      limit: The recipe's limit of its differences; None: the parity rule holds.
      network: The opened tower, which computes.
    """

    label: str
    spec: TowerSpec
    entry: Tower | TowerPart
    form: TowerForm
    limit: float | None
    network: tower.Tower

    @property
    def own_limit(self) -> float | None:
        """The limit of what the form itself may lose; None: the parity rule holds.

        A recipe's limit in f32 is for the rows of converted tables, unless the tower computes in
        half precision.
        """
        if self.form.precision == "f32" and not self.spec.half:
            return None
        return self.limit

    @property
    def _suspects(self) -> str:
        """A clause on the features that the tower reads, or those alone that it reads in two
        ways.
        """
        names = sorted({source for tensor in self.spec.inputs for source in tensor.sources})
        looked_up = {_input_of(name) for name in names if not name.endswith(_READ_RAW)}
        also_numbers = [
            name for name in names if name.endswith("@values") and _input_of(name) in looked_up
        ]
        if also_numbers:
            return (
                f"; suspect {', '.join(also_numbers)}: the tower reads these ids as numbers, too, "
                "and rows are found by a rule"
            )
        if not names:
            return ""
        listed = ", ".join(names[:_NAMES_MAX])
        more = " ..." if len(names) > _NAMES_MAX else ""
        return f"; it reads {listed}{more}"

    def check(
        self,
        output: str,
        result: NDArray[Any],
        expected: NDArray[Any],
        limit: float | None,
        batch: NDArray[np.int64],
    ) -> float:
        """Returns the largest difference of one output from the reference model's.

        Args:
          output: The name of the output.
          result: [b, ...] values of the form for a batch of examples.
          expected: [n, ...] values of the reference model for all examples.
          limit: The recipe's limit; None: the parity rule holds.
          batch: [b] positions of the batch among all examples.

        Raises:
          VerificationFailed: The difference is beyond the limit; the message names tower, form,
            output, example and values.
        """
        precision = self.form.precision
        key = f"towers.{self.spec.name}.max_abs_error.{self.form.precision}"
        remedy = f"{UNLIKE}{self._suspects}"
        if limit is not None:
            alternative = f"leave {precision!r} out of the tower's precisions"
            if precision == "f32":
                alternative = "where its tables are converted, choose a dtype that loses less"
            remedy = f"raise it, or {alternative}"
        if precision == "f32" and self.spec.half:
            remedy = f"{self.spec.half_cure}, or set {key} to what may differ"
        # The median of the parity rule is that of all examples, in each batch.
        tolerance = allowed(expected, limit)[batch]
        label = f"{self.label}, output {output!r}"
        return largest_difference(label, result, expected[batch], limit, key, remedy, tolerance)


def _input_of(feature: str) -> str:
    return feature.partition("@")[0]


def largest_difference(
    label: str,
    result: NDArray[Any],
    expected: NDArray[Any],
    limit: float | None,
    key: str,
    remedy: str = UNLIKE,
    tolerance: NDArray[Any] | None = None,
) -> float:
    """Returns the largest difference of an output from the reference model's.

    Args:
      label: The name of form and output in messages.
      result: [b, ...] values of the form.
      expected: [b, ...] values of the reference model.
      limit: The recipe's limit; None: the parity rule holds.
      key: The key of the recipe that states the limit.
      remedy: The last clause of the message.
      tolerance: [b, ...] the difference that each value may have; None: by `limit`.

    Raises:
      VerificationFailed: The difference is beyond the limit; the message names example and values.
    """
    if result.shape != expected.shape:
        raise VerificationFailed(
            f"{label}: shape {result.shape}; the original model gives {expected.shape}"
        )
    if tolerance is None:
        tolerance = allowed(expected, limit)
    wrong = differ(result, expected, tolerance)
    if not wrong.any():
        difference, _ = largest_at(result, expected)
        return difference

    # The message names the worst of the wrong values.
    _, position = largest_at(result, expected, wrong)
    worst = tuple(int(index) for index in np.unravel_index(position, wrong.shape))
    example, *element = worst
    element_text = f", element {element}," if element else ""
    rule = TOLERANCE if limit is None else f"{key} = {limit:g}"
    raise VerificationFailed(
        f"{label}: example {example}{element_text} is {result[worst]:.9g}, the original model "
        f"gives {expected[worst]:.9g}; {int(wrong.sum())} of {wrong.size} values break {rule}: "
        f"{remedy}"
    )


def open_form(
    reference: Reference, root: Path, name: str, entry: Tower | TowerPart, form: TowerForm
) -> OpenForm:
    """Opens a form of the tower `name`, or of a part of it.

    Raises:
      VerificationFailed: It does not open, or is not what its entry says.
    """
    part = ""
    if isinstance(entry, TowerPart):
        part = f"part {entry.name!r}, "
    runtime = {"saved_model": "SavedModel", "litert": "LiteRT"}[form.kind]
    label = f"tower {name!r}, {part}{runtime} {form.precision}"
    limit = reference.job.towers[name].max_abs_error.get(form.precision)
    try:
        network = towers.open_form(root, entry, form)
    except BundleError as problem:
        raise VerificationFailed(f"{label}: {problem}") from problem
    return OpenForm(label, reference.model.towers[name], entry, form, limit, network)


def open_saved_model(reference: Reference, root: Path, name: str, tower: Tower) -> OpenForm:
    """Opens the SavedModel in f32 of the tower `name`, which every tower has.

    Raises:
      VerificationFailed: It does not open, or is not what its entry says.
    """
    form = towers.find_form(tower.forms, ("saved_model", "f32"))
    assert form is not None  # noqa: S101
    return open_form(reference, root, name, tower, form)


def run(
    chain: Sequence[OpenForm], values: Values, n: int, candidates: int = 1
) -> dict[str, NDArray[Any]]:
    """Runs a tower in one form, or its parts one after the other.

    Args:
      chain: The tower, or its parts in their order.
      values: [n, ...] values of each feature.
      n: The number of examples.
      candidates: The number of adjacent examples that share a context. Parts of contexts run once
        for these, with the values of the first.

    Returns:
      [n, ...] the values of each feature, of each output, and of the tensors between parts.

    Raises:
      VerificationFailed: A form cannot compute.
    """
    tensors = dict(values)
    for opened in chain:
        step = 1
        batch = n
        if isinstance(opened.entry, TowerPart):
            if opened.entry.per == "context":
                step = candidates
            elif opened.entry.is_of_one_context:
                batch = candidates
        arrays = chosen_values(tensors, slice(None, None, step))
        results = _run_in_batches(opened, arrays, n // step, min(batch, n // step))
        # Later parts read these outputs by their names.
        tensors |= {name: array.repeat(step, axis=0) for name, array in results.items()}
    return tensors


def _run_in_batches(opened: OpenForm, values: Values, n: int, size: int) -> Values:
    """Runs a form on n examples, so many at a time."""
    batches = []
    for first in range(0, n, size):
        count = min(size, n - first)
        arrays = {name: array[first : first + count] for name, array in values.items()}
        try:
            batches.append(opened.network.run(tower_inputs(opened.entry.inputs, arrays, count)))
        except BundleError as problem:
            raise VerificationFailed(f"{opened.label}, batch of {count}: {problem}") from problem
    if len(batches) == 1:
        return batches[0]
    return {
        output.name: np.concatenate([batch[output.name] for batch in batches])
        for output in opened.entry.outputs
    }


def another_order(n: int) -> NDArray[np.int64]:
    """Returns the positions of half of n examples, at most _REORDERED_MAX, in another order: the
    same in every run.
    """
    count = min(_REORDERED_MAX, (n + 1) // 2)
    return np.random.default_rng(_SEED).permutation(n)[:count]


def compare(
    chain: Sequence[OpenForm], values: Values, expected: Values, *, own_rows: bool = False
) -> tuple[Values, dict[str, float]]:
    """Runs a tower, or its parts, on all examples at once, on the first alone, and on some of them
    in another order.

    Args:
      chain: The tower, or its parts in their order.
      values: [n, ...] values of each feature.
      expected: The outputs of the reference model.
      own_rows: Whether the values come from the checkpoint's own rows.
    Returns:
      The results of all examples, and the largest difference of each output.
    Raises:
      VerificationFailed: An output is beyond its limit.
    """
    n = len(next(iter(expected.values())))
    # A service computes requests alone and in batches that it merges as they arrive.
    batches = [np.arange(n)]
    if n > 1:
        batches += [np.arange(1), another_order(n)]
    whole: Values = {}
    errors: dict[str, float] = {}
    for batch in batches:
        results = run(chain, chosen_values(values, batch), len(batch))
        whole = whole or results
        for opened in chain:
            limit = opened.own_limit if own_rows else opened.limit
            for name in [output.name for output in opened.entry.outputs if output.name in expected]:
                difference = opened.check(name, results[name], expected[name], limit, batch)
                errors[name] = max(errors.get(name, 0.0), difference)
    return whole, errors
