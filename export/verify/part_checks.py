"""Holds the parts of a tower to the original model: run one after the other as a service does, contexts once each.

Each example is a context with one candidate, so the parts are compared with the original on all examples and on the
first alone. Then candidates share contexts, whose part runs once for each of them and is repeated: that must be what
the whole tower gives, and proves that a context's row is made of that context alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import BundleError
from bundle.format import manifest
from bundle.format.manifest import Tower, TowerForm, TowerPart
from export.errors import VerificationFailed
from export.graph.specs import WrittenForm
from export.verify.parity import Compared, OpenForm, allowed, check_output, verified_form
from export.verify.reference_model import Replay
from runtime import towers as running
from runtime.tower_inputs import tower_inputs

Values = Mapping[str, NDArray[Any]]
Chain = tuple[TowerForm, ...]
"""A form of each part, in the order of the parts."""

_CANDIDATES = 4
"""Candidates that share a context in the second comparison."""


def check_parts(
    replayed: Replay, root: Path, name: str, tower: Tower, values: Values, expected: Values
) -> tuple[TowerPart, ...]:
    """Runs a tower's parts in each of their forms.

    Args:
      replayed: the model and the examples.
      root: directory of the bundle.
      name: of the tower.
      tower: its page, with the SavedModel of the whole among its forms.
      values: of each feature, [n, ...].
      expected: what the original model gives, by output.
    Returns:
      The parts, each form with the largest difference of its outputs: those of the tower from the original's, others
      from what the part's SavedModel gives.
    Raises:
      VerificationFailed: an answer differs by more than the tower's limit.
    """
    n = len(next(iter(expected.values())))
    shared = {key: array[: n - n % _CANDIDATES] for key, array in values.items()}
    for key in {
        source for part in tower.parts if part.per == "context" for each in part.inputs for source in each.sources
    }:
        shared[key] = shared[key][::_CANDIDATES].repeat(_CANDIDATES, axis=0)
    (whole,) = (form for form in tower.forms if (form.kind, form.precision) == ("saved_model", "f32"))
    right = {}
    if n >= _CANDIDATES:
        inputs = tower_inputs(tower.inputs, shared, n - n % _CANDIDATES)
        right = running.open_form(root, tower, whole).run(inputs)
    pages, first = {part.name: part.model_copy(update={"forms": ()}) for part in tower.parts}, None
    for chain in chains(tower.parts):
        run = _Run(replayed, root, name, tower.parts, chain)
        made = run.compare(values, expected)
        if right:
            run.compare_shared(shared, right)
        first = first or made
        for part, form, page in zip(tower.parts, chain, run.forms(made, first, expected), strict=True):
            known = pages[part.name].forms
            if form.path not in {each.path for each in known}:
                pages[part.name] = pages[part.name].model_copy(update={"forms": (*known, page)})
    return tuple(pages.values())


def chains(parts: Sequence[TowerPart]) -> Iterator[Chain]:
    """Yields the combinations of forms in which a service may run parts: by SavedModels, or compiled where it can."""
    found: set[tuple[str, ...]] = set()
    precisions = dict.fromkeys(form.precision for part in parts for form in part.forms)
    for precision in sorted(precisions, key=lambda each: each != "f32"):
        for kinds in (("saved_model", "litert"), ("litert", "saved_model")):
            wanted = [(kind, precision) for kind in kinds]
            chain = tuple(running.find_form(part.forms, *wanted) for part in parts)
            whole = tuple(form for form in chain if form is not None)
            files = tuple(str(form.path) for form in whole)
            if len(whole) == len(parts) and files not in found:
                found.add(files)
                yield whole


class _Run:
    """Parts in one form each, open."""

    def __init__(self, replayed: Replay, root: Path, name: str, parts: Sequence[TowerPart], chain: Chain) -> None:
        self._replayed, self._parts, self._chain = replayed, parts, chain
        spec = replayed.model.towers[name]
        limit = replayed.job.towers[name].max_abs_error.get(chain[0].precision)
        self._opened = []
        for part, form in zip(parts, chain, strict=True):
            written = WrittenForm(name, form.kind, form.precision, str(form.path), part.name)
            try:
                network = running.open_form(root, part, form)
            except BundleError as problem:
                raise VerificationFailed(f"tower {name!r}, part {part.name!r}: {problem}") from problem
            self._opened.append(OpenForm(written, spec, network, limit))

    def compare(self, values: Values, expected: Values) -> Values:
        """Runs the parts on all examples and on the first alone; returns what all gave for all examples."""
        made: Values = {}
        n = len(next(iter(expected.values())))
        for count in dict.fromkeys((n, min(n, 1))):
            results = self._run({name: array[:count] for name, array in values.items()}, count, 1)
            made = made or results
            for part, opened in zip(self._parts, self._opened, strict=True):
                for output in part.outputs:
                    if output.name in expected:
                        check_output(opened, output.name, results[output.name], expected[output.name][:count])
        return made

    def compare_shared(self, values: Values, right: Values) -> None:
        """Runs the parts on candidates that share contexts, and compares with the whole tower."""
        n = len(next(iter(right.values())))
        results = self._run(values, n, _CANDIDATES)
        for part, opened in zip(self._parts, self._opened, strict=True):
            limit = opened.limit if opened.form.precision != "f32" or opened.spec.half else None
            for name in {output.name for output in part.outputs} & set(right):
                difference = np.abs(results[name].astype(np.float64) - right[name])
                if not (difference <= 2 * allowed(right[name], limit)).all():  # each may miss the original by its limit
                    raise VerificationFailed(
                        f"tower {opened.form.tower!r}, part {part.name!r}: with contexts computed once and each shared "
                        f"by {_CANDIDATES} candidates, output {name!r} lies {difference.max():.3g} from the whole "
                        f"tower's; set towers.{opened.form.tower}.split = false, and report it"
                    )

    def forms(self, made: Values, first: Values, expected: Values) -> Iterator[TowerForm]:
        """Yields the page of each part's form; `first` is what the SavedModels gave."""
        for part, opened in zip(self._parts, self._opened, strict=True):
            names = [output.name for output in part.outputs]
            right = {name: expected.get(name, first[name]) for name in names}
            errors = {
                name: _largest(made[name], right[name]) for name in names if made is not first or name in expected
            }
            own = {name: expected[name] for name in names if name in expected}
            page = verified_form(self._replayed, opened.form, Compared(made, errors), own)
            yield page

    def _run(self, values: Values, n: int, candidates: int) -> Values:
        """Runs the parts; values of what is computed per context are those of each context's first candidate."""
        made = dict(values)
        for part, opened in zip(self._parts, self._opened, strict=True):
            step = candidates if part.per == "context" else 1
            taken = {name: array[::step] for name, array in made.items()} if step > 1 else made
            try:
                results = opened.tower.run(tower_inputs(part.inputs, taken, n // step))
            except BundleError as problem:
                raise VerificationFailed(f"tower {opened.form.tower!r}, part {part.name!r}: {problem}") from problem
            made |= {name: array.repeat(step, axis=0) for name, array in results.items()}
        return made


def _largest(found: NDArray[Any], right: NDArray[Any]) -> float:
    return float(np.abs(found.astype(np.float64) - right.astype(np.float64)).max(initial=0.0))


def unverified(part: manifest.TowerPart, forms: Sequence[WrittenForm]) -> TowerPart:
    """Returns a part's page with the forms that were written of it, before they are compared."""
    pages = [TowerForm(kind=form.kind, precision=form.precision, path=form.path, max_abs_error={}) for form in forms]
    return part.model_copy(update={"forms": tuple(pages)})
