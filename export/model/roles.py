"""Whose each input is, a context's or a candidate's: as the recipe states it, else by what uses it."""

from __future__ import annotations

from collections.abc import Iterator

from bundle.format.manifest import Role
from export.errors import UsageError
from export.graph.specs import ModelSpec
from export.recipe.schema import ExportJob


def input_roles(model: ModelSpec, job: ExportJob) -> dict[str, Role]:
    """Returns the role of each input.

    What a query tower reads and what a context store holds is of contexts; what a candidate tower reads and what a
    corpus holds is of candidates. Of any other, a ranking tower takes one value for all candidates.

    Raises:
      UsageError: towers and stores disagree about an input that a ranking tower reads, and the recipe is silent.
    """
    uses: dict[str, dict[Role, str]] = {}
    for name, role, by in _evidence(model, job):
        uses.setdefault(name, {}).setdefault(role, by)
    ranked = {
        name
        for tower in model.towers.values()
        if tower.role == "ranking"
        for tensor in tower.inputs
        for source in tensor.sources
        for name in model.features[source].reads
    }
    roles: dict[str, Role] = {}
    for name in model.inputs:
        stated = job.features[name].role if name in job.features else None
        found = uses.get(name, {})
        if stated is None and len(found) > 1 and name in ranked:
            raise UsageError(
                f"input {name!r} is a context's by {found['context']}, and a candidate's by {found['candidate']}; "
                f"state which it is for ranking as features.{name}.role"
            )
        first: Role = next(iter(found), "context")
        roles[name] = stated or first
    return roles


def _evidence(model: ModelSpec, job: ExportJob) -> Iterator[tuple[str, Role, str]]:
    """Yields inputs, what they are, and what says so."""
    for store, part in job.contexts.items():
        for name in part.features:
            yield name, "context", f"contexts.{store}"
    for corpus, part in job.candidates.items():
        for name in part.features:
            yield name, "candidate", f"candidates.{corpus}"
    for tower in model.towers.values():
        if tower.role == "ranking":
            continue
        role: Role = "context" if tower.role == "query" else "candidate"
        for source in dict.fromkeys(source for tensor in tower.inputs for source in tensor.sources):
            for name in model.features[source].reads:
                yield name, role, f"tower {tower.name!r}"
