"""A loaded tower, whole or in parts, and which of its parts and features given outputs need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from bundle.format.formula import Formula
from bundle.format.manifest import Manifest, Role, Tower, TowerForm, TowerPart
from runtime import tower
from service.versions.input_layout import Example, Layout, example_of, lay_out

_ROLES: tuple[Role, Role] = ("context", "candidate")
_PLANS_MAX = 256
"""Sets of outputs whose plans are remembered."""


@dataclass(frozen=True, eq=False)
class LoadedPart:
    """A network that runs: a part of a tower, or a whole one; its manifest entry, and which of its
    forms it is.
    """

    entry: TowerPart
    form: TowerForm
    network: tower.Tower


@dataclass(frozen=True, eq=False)
class TowerPlan:
    """What is computed for some outputs of a tower.

    Attributes:
      outputs: the outputs wanted.
      parts: the parts that run, in this order.
      context, candidate: the features they take, by role.
      inputs: what clients send for these features, by role.
      crossed: inputs of contexts that features of candidates read too.
    """

    manifest: Manifest
    outputs: frozenset[str]
    parts: tuple[LoadedPart, ...]
    context: tuple[str, ...]
    candidate: tuple[str, ...]
    inputs: Mapping[Role, tuple[str, ...]]
    crossed: tuple[str, ...]

    @cached_property
    def layout(self) -> Layout:
        """Where features lie when those of a context are looked up once and repeated for its
        candidates.
        """
        return lay_out(self._examples, [part.entry for part in self.parts], frozenset(self.context))

    @cached_property
    def layout_alone(self) -> Layout:
        """Where features lie when each example is context and candidate at once."""
        return lay_out(self._examples, [part.entry for part in self.parts], frozenset())

    @property
    def _examples(self) -> dict[str, Example]:
        return {name: example_of(self.manifest, name) for name in (*self.context, *self.candidate)}


@dataclass(frozen=True, eq=False)
class LoadedTower:
    """A tower that runs, and its manifest entry.

    Attributes:
      parts: each before those that take its outputs; a whole tower is one part.
      device: where it runs.
      formula: orders candidates unless a request brings its own; None: the result does.
    """

    name: str
    entry: Tower
    manifest: Manifest
    parts: tuple[LoadedPart, ...]
    device: str = "cpu"
    formula: Formula | None = None
    _plans: dict[frozenset[str], TowerPlan] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The features that the tower takes, each once, in the order of its inputs."""
        return tuple(
            dict.fromkeys(
                source for tower_input in self.entry.inputs for source in tower_input.sources
            )
        )

    @cached_property
    def inputs(self) -> Mapping[str, Role]:
        """What clients send for the tower, in the order of its features: role by name."""
        return {
            name: self.manifest.role_of(name) for name in self.manifest.inputs_of(self.features)
        }

    @cached_property
    def by_role(self) -> Mapping[Role, Mapping[str, Role]]:
        """`inputs`, split by role."""
        return {
            role: {name: one for name, one in self.inputs.items() if one == role} for role in _ROLES
        }

    @cached_property
    def heads(self) -> frozenset[str]:
        """The outputs that are one number for each example."""
        return frozenset(
            one.name
            for one in self.entry.outputs
            if math.prod(size or 1 for size in one.shape) == 1
        )

    @cached_property
    def result_dim(self) -> int:
        """How many numbers the result has for each example; 1 where its shape is not known."""
        result = next(one for one in self.entry.outputs if one.name == self.entry.result)
        return math.prod(size or 1 for size in result.shape)

    def plan(self, outputs: frozenset[str]) -> TowerPlan:
        """Returns the plan of some outputs; made once for each set of them."""
        found = self._plans.get(outputs)
        if found is None:
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            found = self._plans[outputs] = self._make_plan(outputs)
        return found

    def _make_plan(self, outputs: frozenset[str]) -> TowerPlan:
        needed = set(outputs)
        parts = list[LoadedPart]()
        for part in reversed(self.parts):
            if not needed.isdisjoint(output.name for output in part.entry.outputs):
                needed.update(each.tensor for each in part.entry.inputs)
                parts.insert(0, part)
        taken = {source for part in parts for each in part.entry.inputs for source in each.sources}
        features = [name for name in self.features if name in taken]
        manifest = self.manifest
        context = tuple(name for name in features if manifest.features[name].role == "context")
        candidate = tuple(name for name in features if manifest.features[name].role != "context")
        sent = manifest.inputs_of(features)
        inputs = {
            role: tuple(name for name in sent if self.inputs[name] == role) for role in _ROLES
        }
        crossed = tuple(
            name for name in manifest.inputs_of(candidate) if self.inputs[name] == "context"
        )
        return TowerPlan(manifest, outputs, tuple(parts), context, candidate, inputs, crossed)
