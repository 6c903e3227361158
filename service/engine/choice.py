"""Which tower, index or corpus a request means: the one it names, or the only one there is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import TypeVar

from service.errors import InvalidArgument, NotFound
from service.generations.generation import Generation, LoadedCorpus, LoadedIndex
from service.generations.loaded_towers import LoadedTower

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


def corpus_of(generation: Generation, features: Set[str]) -> LoadedCorpus | None:
    """Returns the corpus that stores (some of) these candidate features; None: no corpus does.

    Raises:
      InvalidArgument: several do, so that an id alone does not tell which candidate is meant.
    """
    storing = [corpus for corpus in generation.corpora.values() if not features.isdisjoint(corpus.page.features)]
    if len(storing) > 1:
        names = ", ".join(repr(corpus.name) for corpus in storing)
        raise InvalidArgument(f"corpora {names} all store candidate features; send the features instead of ids")
    return storing[0] if storing else None


def store_of(generation: Generation, inputs: Collection[str]) -> LoadedCorpus | None:
    """Returns the context store that holds (some of) these inputs of contexts; None: nothing is wanted of one.

    Raises:
      InvalidArgument: there is none, or several, so that an id alone does not tell which context is meant.
    """
    if not generation.contexts:
        where = f"model {generation.model!r} version {generation.version}"
        raise InvalidArgument(f"{where} has no context store; send the features instead of context ids")
    storing = [store for store in generation.contexts.values() if not set(store.page.features).isdisjoint(inputs)]
    if len(storing) > 1:
        names = ", ".join(repr(store.name) for store in storing)
        raise InvalidArgument(f"context stores {names} all hold features of this call; send them instead of ids")
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
