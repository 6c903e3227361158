"""Finds the tower, index, corpus or context store that a request names, or the only one if it names
none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from service.engine.names import SHOWN_CHARS, check_names, show_version
from service.errors import InvalidArgument, NotFound
from service.versions.loaded_towers import LoadedTower
from service.versions.version import LoadedStore, ModelVersion, ServedIndex

Loaded = TypeVar("Loaded")


def choose_index(model_version: ModelVersion, name: str) -> tuple[str, ServedIndex]:
    """Returns an index and its name; empty: the only one."""
    return _choose(model_version, model_version.indexes, name, "index", "index")


def choose_ranking_tower(model_version: ModelVersion, name: str) -> tuple[str, LoadedTower]:
    """Returns a ranking tower and its name; empty: the only one."""
    towers = {
        each: tower for each, tower in model_version.towers.items() if tower.entry.role == "ranking"
    }
    return _choose(model_version, towers, name, "ranking tower", "tower")


def choose_tower(model_version: ModelVersion, name: str) -> tuple[str, LoadedTower]:
    """Returns any tower and its name; empty: the only one."""
    return _choose(model_version, model_version.towers, name, "tower", "tower")


def choose_corpus(model_version: ModelVersion, features: Collection[str]) -> LoadedStore | None:
    """Returns the corpus that stores (some of) these candidate features; None: no corpus does.

    Raises:
      InvalidArgument: several do, so that an id alone does not identify a candidate.
    """
    return _choose_store(model_version.corpora, features, "corpora", "candidate")


def choose_context_store(
    model_version: ModelVersion, inputs: Collection[str]
) -> LoadedStore | None:
    """Returns the context store that holds (some of) these inputs of contexts; None: it holds none
    of them.

    Raises:
      InvalidArgument: there is no store, or several hold them, so that an id alone does not
        identify a context.
    """
    if not model_version.contexts:
        where = show_version(model_version)
        raise InvalidArgument(
            f"{where} has no context store; send the features instead of context ids"
        )
    return _choose_store(model_version.contexts, inputs, "context stores", "context")


def check_attributes(corpus: LoadedStore, attributes: Sequence[str]) -> None:
    """Rejects attributes that a corpus does not hold."""
    check_names(attributes, corpus.entry.attributes, "attribute", f"corpus {corpus.name!r}")


def _choose_store(
    stores: Mapping[str, LoadedStore], features: Collection[str], what: str, of: str
) -> LoadedStore | None:
    storing = [
        store for store in stores.values() if not set(store.entry.features).isdisjoint(features)
    ]
    if len(storing) > 1:
        names = ", ".join(repr(store.name) for store in storing)
        raise InvalidArgument(
            f"{what} {names} all store {of} features; send the features instead of ids"
        )
    return storing[0] if storing else None


def _choose(
    model_version: ModelVersion, loaded: Mapping[str, Loaded], name: str, what: str, field: str
) -> tuple[str, Loaded]:
    if name in loaded:
        return name, loaded[name]
    if not name and len(loaded) == 1:
        return next(iter(loaded.items()))
    where = show_version(model_version)
    listed = ", ".join(repr(each) for each in sorted(loaded)) or "none"
    if name:
        raise NotFound(f"{where} has no {what} {name[:SHOWN_CHARS]!r}; it has {listed}")
    if not loaded:
        raise NotFound(f"{where} has no {what}")
    raise InvalidArgument(f"{field!r} must be named: {where} has {listed}")
