"""The names in requests: what they stand for, and what is said of those that stand for nothing.

Unknown names are rejected with a hint, and shown in messages at a bounded length, as ids are.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from service.errors import FieldViolation, InvalidArgument, NotFound
from service.versions.version import (
    LoadedList,
    LoadedStore,
    LoadedTower,
    ModelVersion,
    ServedIndex,
)

Loaded = TypeVar("Loaded")

_NAMES_SHOWN_MAX = 20
"""Maximum number of known names that a message lists."""
_COMPARED_CHARS = 64
"""Maximum length of a name for which a similar known one is searched."""
_NAMES_COMPARED_MAX = 64
"""Maximum number of known names that a given one is compared with: each costs about 30 µs."""
_LENGTH_DIFFERENCE_MAX = 2
"""Maximum difference in length of names that are compared where there are many."""
SHOWN_CHARS = 128
"""Characters shown of a name or id that a client sent."""


def check_names(
    sent: Iterable[str], known: Collection[str], field: str, what: str, owner: str
) -> None:
    """Rejects names that are not known: a misspelt feature must not silently become its default.

    Args:
      sent: The names.
      known: The names that are accepted.
      field: The field of the request that holds the names.
      what: What one of them names, with its article.
      owner: What knows the names.

    Raises:
      InvalidArgument: names the first such name and the nearest known one.
    """
    for name in sent:
        if name not in known:
            hint = name_hint(name, known, "takes")
            value = repr(name[:SHOWN_CHARS])
            expected = f"{what} of {owner}"
            raise InvalidArgument.of_field(field, value, expected, "has the unknown name", hint)


def name_hint(name: str, known: Iterable[str], verb: str) -> str:
    """Returns the name that was probably meant, or the known ones."""
    names = sorted(known)
    close = nearest_name(name, names)
    if close is not None:
        return f"did you mean {close!r}?"
    listed = ", ".join(map(repr, names[:_NAMES_SHOWN_MAX])) or "none"
    return f"it {verb} {listed}"


def nearest_name(name: str, known: Sequence[str]) -> str | None:
    """Returns the known name that is most like a given one; None if none is close.

    The comparison takes time that grows with the length of the name and the number of names. Both
    are bounded, since the name comes from a client and the event loop waits.
    """
    if len(name) > _COMPARED_CHARS:
        return None
    if len(known) > _NAMES_COMPARED_MAX:
        # A misspelt name usually begins right, and is about as long.
        known = [
            each
            for each in known
            if each[:1] == name[:1] and abs(len(each) - len(name)) <= _LENGTH_DIFFERENCE_MAX
        ][:_NAMES_COMPARED_MAX]
    close = difflib.get_close_matches(name, known, n=1)
    return close[0] if close else None


def show_id(one: Any) -> str:
    """Returns an id as error messages show it."""
    return repr(one[:SHOWN_CHARS]) if isinstance(one, str) else str(one)


def show_version(model_version: ModelVersion) -> str:
    """Returns which version it is, as error messages name it."""
    return f"model {model_version.model!r} version {model_version.version}"


def choose_index(model_version: ModelVersion, name: str) -> tuple[str, ServedIndex]:
    """Returns an index and its name; empty: the only one."""
    return _choose(model_version, model_version.indexes, name, "index", "index")


def choose_list(model_version: ModelVersion, name: str) -> LoadedList:
    """Returns a list of candidates; empty: the only one."""
    return _choose(model_version, model_version.lists, name, "list", "list")[1]


def choose_ranking_tower(model_version: ModelVersion, name: str) -> tuple[str, LoadedTower]:
    """Returns a ranking tower and its name; empty: the only one that is no stage before another."""
    towers = {
        each: tower for each, tower in model_version.towers.items() if tower.entry.role == "ranking"
    }
    if not name:
        of_stages = model_version.manifest.towers_of_stages
        towers = {tower.name: tower for tower in towers.values() if tower.name not in of_stages}
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
        message = f"{where} has no context store; send the features instead of context_ids"
        violation = FieldViolation("context_ids", "ids", "the features of contexts")
        raise InvalidArgument(message, violation)
    return _choose_store(model_version.contexts, inputs, "context stores", "context")


def check_attributes(corpus: LoadedStore, attributes: Iterable[str], field: str) -> None:
    """Rejects attributes, named in a field of the request, that a corpus does not hold."""
    owner = f"corpus {corpus.name!r}"
    check_names(attributes, corpus.entry.attributes, field, "an attribute", owner)


def _choose_store(
    stores: Mapping[str, LoadedStore], features: Collection[str], what: str, of: str
) -> LoadedStore | None:
    storing = [
        store for store in stores.values() if not set(store.entry.features).isdisjoint(features)
    ]
    if len(storing) > 1:
        names = ", ".join(repr(store.name) for store in storing)
        field = f"{of}_ids"
        message = f"{what} {names} all store {of} features; send the features instead of {field}"
        raise InvalidArgument(message, FieldViolation(field, "ids", f"the features of {of}s"))
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
    expected = f"one of {listed} of {where}"
    if name:
        value = repr(name[:SHOWN_CHARS])
        message = f"{where} has no {what} {value}; it has {listed}"
        raise NotFound(message, FieldViolation(field, value, expected))
    if not loaded:
        violation = FieldViolation(field, "empty", f"a model with a {what}")
        raise NotFound(f"{where} has no {what}", violation)
    raise InvalidArgument.of_field(field, "empty", expected)
