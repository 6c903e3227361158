"""Guesses the towers of a draft by the names and the outputs of a model's calls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from export.drafts.observed_calls import ObservedCall

Shape = tuple[int | None, ...]
Role = Literal["query", "candidate", "ranking"]

_OF_QUERIES = re.compile(r"query|queries|user|customer|member|viewer|context|session|history")
_OF_CANDIDATES = re.compile(
    r"candidate|item|movie|film|product|book|song|track|video|article|document|news|restaurant|"
    r"recipe|listing|(^|_)(ads?|docs?|pois?|jobs?|posts?)(_|$)"
)
_OF_RANKINGS = re.compile(r"rank|score|predict|click|ctr")
_SINGLE: set[Shape] = {(), (1,)}
"""The shapes of a single number."""


@dataclass(frozen=True)
class DraftedTower:
    """A tower of a draft.

    Attributes:
      name: Its name.
      role: The role that names and outputs suggest.
      call: The call that it runs.
      outputs: The shape of each output, by its key in what the call returns; {}: the call returns
        one tensor, or failed.
    """

    name: str
    role: Role
    call: ObservedCall
    outputs: Mapping[str | int, Shape]

    @property
    def vector_size(self) -> int | None:
        """The size of its vector; None: it has none, or a size that the graph leaves open."""
        shapes = list(self.outputs.values()) or list(self.call.results.outputs.values())
        if self.role == "ranking" or len(shapes) != 1 or len(shapes[0]) != 1:
            return None
        return shapes[0][0]


def drafted_towers(calls: Sequence[ObservedCall]) -> list[DraftedTower]:
    """Returns the towers of the calls."""
    towers = [tower for call in calls for tower in _towers_of(call)]
    # Two vectors of one size are a pair: where no name says which is which, the second one is that
    # of candidates.
    vectors = [tower for tower in towers if tower.vector_size is not None]
    sizes = {tower.vector_size for tower in vectors}
    is_pair = len(vectors) == 2 and len(sizes) == 1
    roles = [tower.role for tower in vectors]
    if is_pair and roles == ["query", "query"]:
        towers[towers.index(vectors[1])] = replace(vectors[1], role="candidate")
    elif is_pair and roles == ["candidate", "candidate"]:
        towers[towers.index(vectors[0])] = replace(vectors[0], role="query")
    return towers


def is_of_candidates(name: str) -> bool:
    """Returns whether the name of a call, an output or an input suggests candidates."""
    is_query = _OF_QUERIES.search(name.lower()) is not None
    return not is_query and _OF_CANDIDATES.search(name.lower()) is not None


def candidate_inputs(names: Iterable[str]) -> list[str]:
    """Returns the inputs of a ranking call that seem to describe the candidate: by their names, or
    the last one.
    """
    ordered = list(names)
    named = [name for name in ordered if is_of_candidates(name)]
    if named and len(named) < len(ordered):
        return named
    return ordered[-1:]


def _towers_of(call: ObservedCall) -> list[DraftedTower]:
    name = call.path or "tower"
    shapes = list(call.results.outputs.values())
    are_scores = [shape in _SINGLE for shape in shapes]
    if call.results.has_queries:
        return [DraftedTower(name, "query", call, {})]
    if None in call.results.outputs or not shapes:
        # A call that failed has only its name.
        is_score = all(are_scores) and bool(shapes or _OF_RANKINGS.search(name.lower()))
        return [DraftedTower(name, _role(name, is_score), call, {})]

    outputs = {key: shape for key, shape in call.results.outputs.items() if key is not None}
    if len(shapes) == 1 or all(are_scores):
        hint = f"{name} {' '.join(map(str, outputs))}"
        return [DraftedTower(name, _role(hint, all(are_scores)), call, outputs)]
    # Vectors beside scores are towers of their own where their names say of what.
    towers = []
    for key, shape in outputs.items():
        words = str(key).lower()
        is_named = _OF_QUERIES.search(words) or _OF_CANDIDATES.search(words)
        if shape not in _SINGLE and (is_named or not any(are_scores)):
            output = output_name(key)
            towers.append(DraftedTower(output, _role(words, False), call, {key: shape}))
    scores = {key: shape for key, shape in outputs.items() if shape in _SINGLE}
    if scores:
        ranking = DraftedTower(call.path or "ranking", "ranking", call, scores)
        towers.append(ranking)
    return towers


def _role(name: str, is_score: bool) -> Role:
    if is_score:
        return "ranking"
    if is_of_candidates(name):
        return "candidate"
    return "query"


def output_name(key: str | int | None) -> str:
    """Returns the name of an output, by its key in what a call returns."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", str(key)).lstrip("_.-")
    if not name or name.isdigit():
        return f"output_{name}"
    return name
