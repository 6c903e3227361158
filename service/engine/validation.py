"""What is validated of requests and responses: names, sizes, and that results are finite.

Unknown names are rejected with a hint, and shown in messages at a bounded length, as ids are.

A request beyond a limit is rejected before anything of its size is allocated. How large a response
becomes is known from the request and the model before anything is computed. Sizes are those of
JSON, the larger form, so that a request is accepted or rejected whatever the transport. Numbers and
ids count with their longest text, strings of a store with their average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from service.config import ServiceSettings
from service.contract.limits import at_most
from service.contract.messages import Ids
from service.contract.names import unknown_names
from service.contract.similar_names import nearest_name
from service.errors import FieldViolation, InvalidArgument, NotFound, TooLarge, one_of
from service.versions.version import (
    LoadedList,
    LoadedStore,
    LoadedTower,
    ModelVersion,
    ServedIndex,
)

Loaded = TypeVar("Loaded")
Prepared = TypeVar("Prepared")

SHOWN_CHARS = 128
"""Maximum number of characters that a message shows of a name or id that a client sent."""
_NAMES_SHOWN_MAX = 20
"""Maximum number of accepted names that a message lists."""
NUMBER_BYTES = 16
"""The longest float32, such as -1.2345678e-38, with its separators."""


class NotFinite(ArithmeticError):
    """A result holds NaN or an infinity, which do not exist in JSON and cannot be ordered; the
    message names it.
    """


def check_finite(array: NDArray[Any], what: str) -> None:
    """Raises NotFinite if the array holds NaN or an infinity."""
    # A square of what is not finite is not finite either. Unlike others, vdot does not warn.
    if not math.isfinite(np.vdot(array, array)) and not np.isfinite(array).all():
        raise NotFinite(what)


def prepared(
    model_version: ModelVersion, shape: Hashable, prepare: Callable[[], Prepared]
) -> Prepared:
    """Returns what requests of one shape have in common, which the first of them prepares.

    Args:
      model_version: The model version, which keeps it.
      shape: What it depends on: the names that a request sends, and which of its fields are set.
      prepare: Checks the names of a request, and returns what they stand for. It raises the errors
        of names, which are not kept.
    """
    statement: Prepared | None = model_version.statements.get(shape)
    if statement is None:
        statement = model_version.statements.keep(shape, prepare())
    return statement


def check_names(
    names: Iterable[str], accepted: Collection[str], field: str, what: str, owner: str
) -> None:
    """Rejects unknown names: a misspelt feature must not silently become its default.

    Args:
      names: The names that the client sent.
      accepted: The names that are accepted.
      field: The field of the request that holds the names.
      what: What one of them names, with its article.
      owner: What the accepted names belong to.

    Raises:
      InvalidArgument: Names are unknown; the message has the nearest accepted ones.
    """
    unknown = [name for name in names if name not in accepted]
    if unknown:
        sorted_names = sorted(accepted)
        hint = _all_names(sorted_names, "takes")
        expected = f"{what} of {owner}"
        raise unknown_names(field, "name", unknown, sorted_names, expected, hint)


def name_hint(name: str, accepted: Iterable[str], verb: str) -> str:
    """Returns the name that was probably meant, or the accepted ones."""
    names = sorted(accepted)
    close_name = nearest_name(name, names)
    if close_name is not None:
        return f"did you mean {close_name!r}?"
    return _all_names(names, verb)


def _all_names(names: Sequence[str], verb: str) -> str:
    listed = ", ".join(map(repr, names[:_NAMES_SHOWN_MAX])) or "none"
    return f"it {verb} {listed}"


def show_id(candidate_id: Any) -> str:
    """Returns an id as error messages show it."""
    if isinstance(candidate_id, str):
        return repr(candidate_id[:SHOWN_CHARS])
    return str(candidate_id)


def show_version(model_version: ModelVersion) -> str:
    """Returns which version it is, as error messages name it."""
    return f"model {model_version.model!r} version {model_version.version}"


def check_attributes(corpus: LoadedStore, attributes: Iterable[str], field: str) -> None:
    """Rejects attributes, named in a field of the request, that a corpus does not hold."""
    owner = f"corpus {corpus.name!r}"
    check_names(attributes, corpus.entry.attributes, field, "an attribute", owner)


def choose_index(model_version: ModelVersion, name: str) -> tuple[str, ServedIndex]:
    """Returns an index and its name; empty: the only one."""
    return _choose(model_version, model_version.indexes, name, "index", "index")


def choose_list(model_version: ModelVersion, name: str) -> LoadedList:
    """Returns a list of candidates; empty: the only one."""
    return _choose(model_version, model_version.lists, name, "list", "list")[1]


def choose_ranking_tower(model_version: ModelVersion, name: str) -> tuple[str, LoadedTower]:
    """Returns a ranking tower and its name; empty: the only one that is no stage before another."""
    towers = {
        tower_name: tower
        for tower_name, tower in model_version.towers.items()
        if tower.entry.role == "ranking"
    }
    if not name:
        # Without a name, the tower that ranks last is meant, not that of a stage before it.
        stage_names = model_version.manifest.towers_of_stages
        towers = {tower.name: tower for tower in towers.values() if tower.name not in stage_names}
    return _choose(model_version, towers, name, "ranking tower", "tower")


def choose_tower(model_version: ModelVersion, name: str) -> tuple[str, LoadedTower]:
    """Returns any tower and its name; empty: the only one."""
    return _choose(model_version, model_version.towers, name, "tower", "tower")


def choose_corpus(model_version: ModelVersion, features: Collection[str]) -> LoadedStore | None:
    """Returns the corpus that stores (some of) these candidate features; None: no corpus does.

    Raises:
      InvalidArgument: Several corpora do, so that an id alone does not identify a candidate.
    """
    return _choose_store(model_version.corpora, features, "corpora", "candidate")


def choose_context_store(
    model_version: ModelVersion, inputs: Collection[str]
) -> LoadedStore | None:
    """Returns the context store that holds (some of) these inputs of contexts; None: it holds none
    of them.

    Raises:
      InvalidArgument: There is no store, or several hold them, so that an id alone does not
        identify a context.
    """
    if not model_version.contexts:
        where = show_version(model_version)
        message = f"{where} has no context store; send the features instead of context_ids"
        violation = FieldViolation("context_ids", "ids", "the features of contexts")
        raise InvalidArgument(message, violation)
    return _choose_store(model_version.contexts, inputs, "context stores", "context")


def check_k(k: int, default: int, max_k: int) -> int:
    """Returns the number of results per query: `k`, or the default for 0.

    Raises:
      InvalidArgument: k is negative or over its limit.
    """
    if not 0 <= k <= max_k:
        expected = f"1 to {max_k} (max_k), or 0 for {default or 'all'}"
        raise InvalidArgument.of_field("k", k, expected)
    return k or min(default, max_k)


def check_queries(n: int, settings: ServiceSettings) -> None:
    """Rejects a request of no query, or of more than `max_queries`."""
    if n < 1:
        raise InvalidArgument.of_field("request", "no query", "at least one", "has")
    at_most(settings, "max_queries", n, "request")


def check_values(
    settings: ServiceSettings, columns: Iterable[Column], *id_arrays: Ids | None
) -> None:
    """Rejects a request that holds more values and ids than `max_values`."""
    count = 0
    for column in columns:
        count += column.values.size
    for ids in id_arrays:
        if ids is not None:
            count += ids.size
    at_most(settings, "max_values", count, "request")


def check_rows(n: int, dim: int, where: str, settings: ServiceSettings) -> None:
    """Rejects a request whose response would have too many vectors.

    Args:
      n: The number of vectors.
      dim: The number of values of each.
      where: The field of the request that has one element per vector.
      settings: The limit.

    Raises:
      TooLarge: The vectors exceed `max_response_bytes`.
    """
    what = f"{n} vectors of {dim} numbers"
    check_bytes(n * dim * NUMBER_BYTES, what, settings, f"send fewer {where} at a time")


def check_bytes(size: int, what: str, settings: ServiceSettings, remedy: str = "") -> None:
    """Rejects a response by its size.

    Args:
      size: The number of bytes.
      what: The content of the response.
      settings: The limit.
      remedy: What the client can do.

    Raises:
      TooLarge: The size exceeds `max_response_bytes`.
    """
    limit = settings.max_response_bytes
    if size > limit:
        value = f"{what}, about {size} bytes"
        message = f"the response would have {value}; at most {limit} are sent (max_response_bytes)"
        if remedy:
            message = f"{message}; {remedy}"
        expected = f"at most {limit} bytes (max_response_bytes)"
        raise TooLarge(message, FieldViolation("response", value, expected))


def _choose_store(
    stores: Mapping[str, LoadedStore], features: Collection[str], what: str, noun: str
) -> LoadedStore | None:
    storing = [
        store for store in stores.values() if not set(store.entry.features).isdisjoint(features)
    ]
    if len(storing) > 1:
        names = ", ".join(repr(store.name) for store in storing)
        field = f"{noun}_ids"
        message = f"{what} {names} all store {noun} features; send the features instead of {field}"
        raise InvalidArgument(message, FieldViolation(field, "ids", f"the features of {noun}s"))
    if not storing:
        return None
    return storing[0]


def _choose(
    model_version: ModelVersion, loaded: Mapping[str, Loaded], name: str, what: str, field: str
) -> tuple[str, Loaded]:
    if name in loaded:
        return name, loaded[name]
    if not name and len(loaded) == 1:
        return next(iter(loaded.items()))

    where = show_version(model_version)
    listed = ", ".join(repr(loaded_name) for loaded_name in sorted(loaded)) or "none"
    expected = f"{one_of(listed)} in {where}"
    if name:
        value = repr(name[:SHOWN_CHARS])
        message = f"{where} has no {what} {value}; it has {listed}"
        raise NotFound(message, FieldViolation(field, value, expected))
    if not loaded:
        violation = FieldViolation(field, "empty", f"a model with a {what}")
        raise NotFound(f"{where} has no {what}", violation)
    raise left_out(model_version, field, loaded)


def left_out(model_version: ModelVersion, field: str, names: Iterable[str]) -> InvalidArgument:
    """Returns the error of a name that a client left out, although there is a choice."""
    listed = ", ".join(map(repr, sorted(names)))
    expected = f"one of {listed} of {show_version(model_version)}"
    return InvalidArgument.of_field(field, "empty", expected)
