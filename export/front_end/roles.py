"""Roles of inputs, context or candidate: as the recipe states, else from what uses them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bundle.format.manifest import Feature, Role
from export.errors import UsageError
from export.front_end.specs import ModelSpec
from export.recipe.schema import ExportJob


def input_roles(model: ModelSpec, job: ExportJob) -> dict[str, Role]:
    """Returns the role of each input.

    Inputs of query towers and context stores are of contexts; inputs of candidate towers and
    corpora are of candidates. All others are of contexts: a ranking tower takes one value for all
    candidates. `check_candidate_inputs` rejects a ranking tower that is left without any input of a
    candidate.

    Raises:
      UsageError: towers and stores disagree about an input that a ranking tower reads, and the
        recipe states no role.
    """
    uses: dict[str, dict[Role, str]] = {}
    for name, role, by in _uses(model, job):
        uses.setdefault(name, {}).setdefault(role, by)
    ranked = {
        name
        for tower in model.towers.values()
        if tower.role == "ranking"
        for name in model.read_by(tower)
    }
    roles: dict[str, Role] = {}
    for name in model.inputs:
        stated = job.features[name].role if name in job.features else None
        found = uses.get(name, {})
        if stated is None and len(found) > 1 and name in ranked:
            raise UsageError(
                f"input {name!r} is a context's by {found['context']}, and a candidate's by "
                f"{found['candidate']}; state which it is for ranking as features.{name}.role"
            )
        first: Role = next(iter(found), "context")
        roles[name] = stated or first
    return roles


def check_candidate_inputs(model: ModelSpec, entries: Mapping[str, Feature]) -> None:
    """Checks that each ranking tower reads an input of the candidate.

    Args:
      model: The traced model.
      entries: The features, with their roles.

    Raises:
      UsageError: All inputs of a ranking tower belong to the context.
    """
    for name, tower in model.towers.items():
        sources = [source for tensor in tower.inputs for source in tensor.sources]
        if tower.role != "ranking" or any(entries[each].role == "candidate" for each in sources):
            continue
        raise UsageError(
            f"towers.{name}: all inputs of this ranking tower belong to the context, so every "
            "candidate would get the same score; for each input that describes the candidate, "
            'write [features.NAME] role = "candidate" in the recipe. The tower reads '
            f"{', '.join(sorted(model.read_by(tower)))}"
        )


def _uses(model: ModelSpec, job: ExportJob) -> Iterator[tuple[str, Role, str]]:
    """Yields an input, its role, and what implies that role."""
    for store, contexts in job.contexts.items():
        yield from ((name, "context", f"contexts.{store}") for name in contexts.features)
    for store, corpus in job.corpora.items():
        yield from ((name, "candidate", f"corpora.{store}") for name in corpus.features)
    for tower in model.towers.values():
        if tower.role != "ranking":
            role: Role = "context" if tower.role == "query" else "candidate"
            yield from ((name, role, f"tower {tower.name!r}") for name in model.read_by(tower))
