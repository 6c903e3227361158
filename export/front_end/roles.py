"""Roles of inputs, context or candidate: as the recipe states them, or else by the towers and
stores that use them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bundle.format.manifest import Feature, Role
from bundle.shown_values import shown_first
from export.errors import UsageError
from export.front_end.specs import ModelSpec
from export.recipe.schema import ExportJob

_SHOWN = 5
"""Names that a note lists; a note is one line."""


def input_roles(model: ModelSpec, job: ExportJob) -> dict[str, Role]:
    """Returns the role of each input.

    Inputs of query towers and context stores belong to contexts; inputs of candidate towers and
    corpora belong to candidates. All other inputs belong to contexts: a ranking tower reads one
    value for all candidates. `check_candidate_inputs` rejects a ranking tower that has no input of
    a candidate.

    Raises:
      UsageError: Towers and stores disagree about an input that a ranking tower reads, and the
        recipe states no role.
    """
    uses: dict[str, dict[Role, str]] = {}
    for name, role, user in _uses(model, job):
        # The first use of each role counts: it is the one that the error names.
        uses.setdefault(name, {}).setdefault(role, user)

    ranked: set[str] = set()
    for tower in model.towers.values():
        if tower.role == "ranking":
            ranked.update(model.read_by(tower))

    roles: dict[str, Role] = {}
    for name in model.inputs:
        stated_role = job.features[name].role if name in job.features else None
        users = uses.get(name, {})
        # Outside of ranking, each tower or store reads its own side of the request, so that an
        # input of both sides needs no role.
        if stated_role is None and len(users) > 1 and name in ranked:
            raise UsageError(
                f"input {name!r} is a context's by {users['context']}, and a candidate's by "
                f"{users['candidate']}; state which it is for ranking as features.{name}.role"
            )
        first_role: Role = next(iter(users), "context")
        roles[name] = stated_role or first_role
    return roles


def note_absent_roles(model: ModelSpec, job: ExportJob) -> tuple[str, ...]:
    """Returns a note that names the inputs of ranking towers that belong to contexts because
    nothing says otherwise, if there are any, and a corpus that might have them.
    """
    if not job.corpora:
        return ()
    used = {name for name, _, _ in _uses(model, job)}
    stated = {name for name, section in job.features.items() if section.role is not None}
    names: dict[str, None] = {}
    for tower in model.towers.values():
        if tower.role == "ranking":
            names |= dict.fromkeys(model.read_by(tower))
    absent = [name for name in names if name not in used | stated]
    if not absent:
        return ()
    listed = shown_first([*map(repr, absent)], _SHOWN)
    return (
        f"of the context by absence: {listed}. No store, no tower of one side and no "
        "features.NAME.role says whose they are, so a request sends one value for all candidates. "
        f"If {absent[0]!r} describes the item, name its column in the features of the corpus, or "
        f'write features.{absent[0]}.role = "candidate"',
    )


def check_candidate_inputs(model: ModelSpec, entries: Mapping[str, Feature]) -> None:
    """Checks that each ranking tower reads an input of the candidate.

    Args:
      model: The traced model.
      entries: The features, with their roles.

    Raises:
      UsageError: All inputs of a ranking tower belong to the context.
    """
    for name, tower in model.towers.items():
        if tower.role != "ranking":
            continue
        sources = [source for tensor in tower.inputs for source in tensor.sources]
        if any(entries[source].role == "candidate" for source in sources):
            continue
        raise UsageError(
            f"towers.{name}: all inputs of this ranking tower belong to the context, so every "
            "candidate would get the same score; for each input that describes the candidate, "
            'write [features.NAME] role = "candidate" in the recipe. The tower reads '
            f"{', '.join(sorted(model.read_by(tower)))}"
        )


def _uses(model: ModelSpec, job: ExportJob) -> Iterator[tuple[str, Role, str]]:
    """Yields inputs, their roles, and the store or tower that implies each role; the recipe's own
    stores come first.
    """
    for store, contexts in job.contexts.items():
        yield from ((name, "context", f"contexts.{store}") for name in contexts.features)
    for store, corpus in job.corpora.items():
        yield from ((name, "candidate", f"corpora.{store}") for name in corpus.features)
    # Query towers first, whatever their order in the recipe.
    for tower in sorted(model.towers.values(), key=lambda tower: tower.role != "query"):
        if tower.role == "ranking":
            # Its inputs may be of either side.
            continue
        role: Role = "context" if tower.role == "query" else "candidate"
        yield from ((name, role, f"tower {tower.name!r}") for name in model.read_by(tower))
