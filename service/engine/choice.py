"""Which tower, index or corpus a request means: the one it names, or the only one there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from service.errors import InvalidArgument, NotFound
from service.generations.generation import Generation, LoadedCorpus, LoadedIndex, LoadedTower

Part = TypeVar("Part")


def index(generation: Generation, name: str) -> tuple[str, LoadedIndex]:
    """Returns an index and its name; empty: the only one."""
    return _chosen(generation, generation.indexes, name, "index", "index")


def ranking_tower(generation: Generation, name: str) -> tuple[str, LoadedTower]:
    """Returns a ranking tower and its name; empty: the only one."""
    towers = {each: tower for each, tower in generation.towers.items() if tower.page.role == "ranking"}
    return _chosen(generation, towers, name, "ranking tower", "tower")


def tower(generation: Generation, name: str) -> tuple[str, LoadedTower]:
    """Returns any tower and its name; empty: the only one."""
    return _chosen(generation, generation.towers, name, "tower", "tower")


def corpus_of(generation: Generation, features: set[str]) -> LoadedCorpus | None:
    """Returns the corpus that stores (some of) these candidate features; None: no corpus does.

    Raises:
      InvalidArgument: several do, so that an id alone does not tell which candidate is meant.
    """
    storing = [corpus for corpus in generation.corpora.values() if features & set(corpus.page.features)]
    if len(storing) > 1:
        names = ", ".join(repr(corpus.name) for corpus in storing)
        raise InvalidArgument(f"corpora {names} all store candidate features; send the features instead of ids")
    return storing[0] if storing else None


def _chosen(generation: Generation, parts: Mapping[str, Part], name: str, what: str, field: str) -> tuple[str, Part]:
    if name in parts:
        return name, parts[name]
    if not name and len(parts) == 1:
        return next(iter(parts.items()))
    where = f"model {generation.model!r} version {generation.version}"
    told = ", ".join(repr(each) for each in sorted(parts)) or "none"
    if name:
        raise NotFound(f"{where} has no {what} {name[:128]!r}; it has {told}")
    if not parts:
        raise NotFound(f"{where} has no {what}")
    raise InvalidArgument(f"{field!r} must be named: {where} has {told}")
