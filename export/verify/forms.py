"""Forms of towers, open to be compared: what their answers may differ by, and how a wrong one is
named.
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
from export.errors import VerificationFailed
from export.front_end.specs import TowerSpec
from export.verify.reference_inputs import Reference
from runtime import tower, towers
from runtime.tower_inputs import tower_inputs

Values = Mapping[str, NDArray[Any]]

ABSOLUTE = 1e-5
RELATIVE = 1e-5
TOLERANCE = f"|d| <= {ABSOLUTE:g} + {RELATIVE:g} * max(|y|, median |y|)"
"""The parity rule of float32 forms. The median is that of all examples. A sum of large terms may be
close to 0 for one example, and still has the rounding of its terms, as any order of float32
additions has.
"""
UNLIKE = "it would not answer as the model does"

_READ_RAW = ("@values", "@lengths", "@weights", "@indicator")
"""Ends of the names of features that no table is read by."""
_SHOWN = 8
_SAMPLE = 64
_SEED = 17


@dataclass(frozen=True)
class OpenForm:
    """A form of a tower, or of a part of one.

    Attributes:
      label: how messages name it.
      spec: the tower.
      entry: of the tower or the part in the manifest.
      form: its own entry.
      limit: the recipe's for what it may differ by; None: the parity rule binds it.
      network: what runs.
    """

    label: str
    spec: TowerSpec
    entry: Tower | TowerPart
    form: TowerForm
    limit: float | None
    network: tower.Tower

    @property
    def own_limit(self) -> float | None:
        """What may be lost by the form itself: the limit of float32 is for the rows of converted
        tables.
        """
        return self.limit if self.form.precision != "f32" or self.spec.half else None

    @property
    def _suspects(self) -> str:
        """A clause on the features that the tower reads, or those alone that it reads in two
        ways.
        """
        names = sorted({source for tensor in self.spec.inputs for source in tensor.sources})
        looked_up = {_input_of(name) for name in names if not name.endswith(_READ_RAW)}
        twice = [
            name for name in names if name.endswith("@values") and _input_of(name) in looked_up
        ]
        if twice:
            return (
                f"; suspect {', '.join(twice)}: the tower reads these ids as numbers, too, and "
                "rows are found by a rule"
            )
        shown = ", ".join(names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")
        return f"; it reads {shown}" if shown else ""

    def check(
        self,
        output: str,
        got: NDArray[Any],
        expected: NDArray[Any],
        limit: float | None,
        batch: NDArray[np.int64],
    ) -> float:
        """Returns the largest difference of one output from the reference model's.

        Args:
          output: Its name.
          got: [b, ...] what the form gave for a batch of examples.
          expected: [n, ...] what the reference model gave for all examples.
          limit: The recipe's; None: the parity rule binds.
          batch: [b] which examples they are.

        Raises:
          VerificationFailed: it is beyond the limit; names tower, form, output, example and values.
        """
        precision = self.form.precision
        key = f"towers.{self.spec.name}.max_abs_error.{self.form.precision}"
        cure = f"{UNLIKE}{self._suspects}"
        if limit is not None:
            less = f"leave {precision!r} out of the tower's precisions"
            if precision == "f32":
                less = "where its tables are converted, choose a dtype that loses less"
            cure = f"raise it, or {less}"
        if precision == "f32" and self.spec.half:
            cure = f"{self.spec.half_cure}, or set {key} to what may differ"
        where = f"{self.label}, output {output!r}"
        permitted = allowed(expected, limit)[batch]
        return largest_difference(where, got, expected[batch], limit, key, cure, permitted)


def _input_of(feature: str) -> str:
    return feature.partition("@")[0]


def largest_difference(
    where: str,
    got: NDArray[Any],
    expected: NDArray[Any],
    limit: float | None,
    key: str,
    cure: str = UNLIKE,
    permitted: NDArray[Any] | None = None,
) -> float:
    """Returns the largest difference of some values, named `where` in messages, from the reference
    model's. Each may be missed by what is `permitted`; None: by the limit, or the parity rule.

    Raises:
      VerificationFailed: it is beyond the limit, which `key` of the recipe states; names example
        and values.
    """
    if got.shape != expected.shape:
        raise VerificationFailed(
            f"{where}: shape {got.shape}; the original model gives {expected.shape}"
        )
    difference = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    if permitted is None:
        permitted = allowed(expected, limit)
    wrong = ~(difference <= permitted)  # not a number is wrong too
    if not wrong.any():
        return float(difference.max(initial=0.0))
    excess = np.where(wrong, np.nan_to_num(difference, nan=np.inf), -1.0)
    at = tuple(int(place) for place in np.unravel_index(int(np.argmax(excess)), wrong.shape))
    element = f", element {list(at[1:])}," if len(at) > 1 else ""
    rule = TOLERANCE if limit is None else f"{key} = {limit:g}"
    raise VerificationFailed(
        f"{where}: example {at[0]}{element} is {got[at]:.9g}, the original model gives "
        f"{expected[at]:.9g}; {int(wrong.sum())} of {wrong.size} values break {rule}: {cure}"
    )


def allowed(values: NDArray[Any], limit: float | None) -> NDArray[Any]:
    """Returns how far the reference model's values may be missed: by the recipe's limit, else by
    the parity rule.

    Args:
      values: [n, ...] of all examples that are compared.
      limit: The recipe's; None: it states none.
    """
    if limit is not None:
        return np.full(values.shape, limit)
    magnitudes = np.abs(values.astype(np.float64))
    finite = np.where(np.isfinite(magnitudes), magnitudes, 0.0)
    typical = np.median(finite, axis=0) if len(values) else 0.0
    return ABSOLUTE + RELATIVE * np.maximum(magnitudes, typical)


def open_form(
    reference: Reference, root: Path, name: str, entry: Tower | TowerPart, form: TowerForm
) -> OpenForm:
    """Opens a form of the tower `name`, or of a part of it.

    Raises:
      VerificationFailed: it does not open, or is not what its entry says.
    """
    part = f"part {entry.name!r}, " if isinstance(entry, TowerPart) else ""
    label = (
        f"tower {name!r}, {part}{'SavedModel' if form.kind == 'saved_model' else 'LiteRT'} "
        f"{form.precision}"
    )
    limit = reference.job.towers[name].max_abs_error.get(form.precision)
    try:
        network = towers.open_form(root, entry, form)
    except BundleError as problem:
        raise VerificationFailed(f"{label}: {problem}") from problem
    return OpenForm(label, reference.model.towers[name], entry, form, limit, network)


def run(
    chain: Sequence[OpenForm], values: Values, n: int, candidates: int = 1
) -> dict[str, NDArray[Any]]:
    """Runs a tower in one form, or its parts one after the other.

    Args:
      chain: the tower, or its parts in their order.
      values: [n, ...] of each feature.
      n: examples.
      candidates: how many of them, one after the other, share a context; what is computed per
        context is computed once for these, from the values of the first.
    Returns:
      [n, ...] of each output, and of what parts hand on.
    Raises:
      VerificationFailed: one cannot compute.
    """
    made = dict(values)
    for opened in chain:
        step = (
            candidates
            if isinstance(opened.entry, TowerPart) and opened.entry.per == "context"
            else 1
        )
        taken = {name: array[::step] for name, array in made.items()}
        try:
            results = opened.network.run(tower_inputs(opened.entry.inputs, taken, n // step))
        except BundleError as problem:
            raise VerificationFailed(
                f"{opened.label}, batch of {n // step}: {problem}"
            ) from problem
        made |= {name: array.repeat(step, axis=0) for name, array in results.items()}
    return made


def another_order(n: int) -> NDArray[np.int64]:
    """Returns half of n examples in another order, but no more than _SAMPLE."""
    count = min(_SAMPLE, (n + 1) // 2)
    return np.random.default_rng(_SEED).permutation(n)[:count]


def compare(
    chain: Sequence[OpenForm], values: Values, expected: Values, *, own_rows: bool = False
) -> tuple[Values, dict[str, float]]:
    """Runs a tower, or its parts, on all examples at once, on the first alone, and on some of them
    in another order.

    Args:
      chain, values: as of `run`.
      expected: what the reference model gives, by output.
      own_rows: whether the values are made of the checkpoint's own rows.
    Returns:
      What all examples gave, and the largest difference of each output.
    Raises:
      VerificationFailed: one is beyond its limit.
    """
    n = len(next(iter(expected.values())))
    batches = [np.arange(n)]
    if n > 1:
        batches += [np.arange(1), another_order(n)]
    whole: Values = {}
    errors: dict[str, float] = {}
    for batch in batches:
        results = run(chain, {name: array[batch] for name, array in values.items()}, len(batch))
        whole = whole or results
        for opened in chain:
            limit = opened.own_limit if own_rows else opened.limit
            for name in [output.name for output in opened.entry.outputs if output.name in expected]:
                difference = opened.check(name, results[name], expected[name], limit, batch)
                errors[name] = max(errors.get(name, 0.0), difference)
    return whole, errors
