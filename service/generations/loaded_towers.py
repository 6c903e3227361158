"""A tower that runs, in parts or as a whole, and which of its parts some outputs need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from bundle.fields import array_dtype
from bundle.formula import Formula
from bundle.manifest import Manifest, Role, Tower, TowerForm, TowerPart
from bundle.tower_pages import Per
from runtime import towers as running
from service.generations.layouts import Example, Layout, Taken, example_of, lay_out

_ROLES: tuple[Role, Role] = ("context", "candidate")
_WORKS_MAX = 256
"""Sets of outputs whose work is remembered."""


@dataclass(frozen=True, eq=False)
class LoadedPart:
    """A network that runs, and what the manifest says of it: a part of a tower, or a whole one.

    Attributes:
      form: which of its forms it is.
    """

    page: TowerPart
    form: TowerForm
    network: running.Tower

    @property
    def per(self) -> Per:
        """Whether it runs once for each context or for each candidate."""
        return self.page.per

    @cached_property
    def inputs(self) -> tuple[Taken, ...]:
        """What it takes."""
        return tuple(
            Taken(
                one.name,
                (one.tensor,) if one.tensor else one.sources,
                one.tensor != "",
                tuple(-1 if size is None else size for size in one.shape[1:]),
                array_dtype(one.dtype),
            )
            for one in self.page.inputs
        )


@dataclass(frozen=True, eq=False)
class Work:
    """What some outputs of a tower need.

    Attributes:
      outputs: that are wanted.
      parts: that run for them, in this order.
      context, candidate: the features that these take, by role.
      inputs: what callers send for them, by role.
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
        """Where features lie, those of contexts once for each."""
        return lay_out(self._examples, self.parts, frozenset(self.context))

    @cached_property
    def layout_alone(self) -> Layout:
        """Where the features of examples lie that are context and candidate at once."""
        return lay_out(self._examples, self.parts, ())

    @property
    def _examples(self) -> dict[str, Example]:
        return {name: example_of(self.manifest, name) for name in (*self.context, *self.candidate)}


@dataclass(frozen=True, eq=False)
class LoadedTower:
    """A tower that runs, in parts or as a whole, and what the manifest says of it."""

    name: str
    page: Tower
    manifest: Manifest
    parts: tuple[LoadedPart, ...]
    """Each before those that take its outputs; a whole tower is one part."""
    device: str = "cpu"
    formula: Formula | None = None
    """What candidates are ordered by unless a request says so; None: the result."""
    _works: dict[frozenset[str], Work] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The features that the tower takes, each once, in the order of its inputs."""
        return tuple(dict.fromkeys(source for tower_input in self.page.inputs for source in tower_input.sources))

    @cached_property
    def inputs(self) -> Mapping[str, Role]:
        """What callers send for the tower, in the order of its features: by name, with its role."""
        manifest = self.manifest
        return {name: manifest.role_of(name) for name in manifest.inputs_of(self.features)}

    @cached_property
    def by_role(self) -> Mapping[Role, Mapping[str, Role]]:
        """`inputs`, those of a context and those of a candidate."""
        return {role: {name: one for name, one in self.inputs.items() if one == role} for role in _ROLES}

    @cached_property
    def heads(self) -> frozenset[str]:
        """The outputs that are one number for each example."""
        return frozenset(one.name for one in self.page.outputs if math.prod(size or 1 for size in one.shape) == 1)

    @cached_property
    def result_work(self) -> Work:
        """What its result needs."""
        return self.work(frozenset([self.page.result]))

    def work(self, outputs: frozenset[str]) -> Work:
        """Returns what some outputs need; found out once for each set of them that is asked for."""
        found = self._works.get(outputs)
        if found is None:
            if len(self._works) >= _WORKS_MAX:
                self._works.clear()
            found = self._works[outputs] = self._closure(outputs)
        return found

    def _closure(self, outputs: frozenset[str]) -> Work:
        needed, parts = set(outputs), []
        for part in reversed(self.parts):
            if not needed.isdisjoint(output.name for output in part.page.outputs):
                needed.update(each.tensor for each in part.page.inputs)
                parts.append(part)
        parts.reverse()
        taken = {source for part in parts for each in part.page.inputs for source in each.sources}
        features, manifest = [name for name in self.features if name in taken], self.manifest
        context = tuple(name for name in features if manifest.features[name].role == "context")
        candidate = tuple(name for name in features if manifest.features[name].role != "context")
        sent = manifest.inputs_of(features)
        inputs = {role: tuple(name for name in sent if self.inputs[name] == role) for role in _ROLES}
        crossed = tuple(name for name in manifest.inputs_of(candidate) if self.inputs[name] == "context")
        return Work(manifest, outputs, tuple(parts), context, candidate, inputs, crossed)
