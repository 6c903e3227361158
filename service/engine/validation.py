"""Validates requests: limits, names, offsets, and which tower, index or corpus they mean. And results: finite numbers.

What is rejected is rejected before anything of its size is allocated.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.format.manifest import DenseFeature, Manifest
from service.config import ServiceSettings
from service.engine.requests import Ids, Offsets
from service.engine.shard_requests import PartSearch
from service.errors import InvalidArgument, NotFound, TooLarge
from service.models.towers import LoadedTower
from service.models.version import LoadedStore, ModelVersion, ServedIndex

_NAMES_SHOWN_MAX = 20
_SHOWN_CHARS = 128
"""Of a name or id that a client sent."""

Loaded = TypeVar("Loaded")


class NoSuchCandidate(InvalidArgument):
    """A candidate id is not in the corpus; another version of the model may have it."""


class NotFinite(ArithmeticError):
    """A result holds NaN or an infinity; the message names it."""


def at_most(settings: ServiceSettings, setting: str, count: int, where: str) -> None:
    """Raises TooLarge if `where`, a request or a field, has more than the limit `setting` allows."""
    limit: int = getattr(settings, setting)
    if count > limit:
        what = setting.removeprefix("max_")
        raise TooLarge(f"{where} has {count} {what}; at most {limit} are accepted ({setting})")


def check_k(k: int, default: int, max_k: int) -> int:
    """Returns the number of results per query: `k`, or the default for 0.

    Raises:
      InvalidArgument: k is negative or over its limit.
    """
    if not 0 <= k <= max_k:
        raise InvalidArgument(
            f"k is {k}; 1 to {max_k} are accepted (max_k), 0 stands for {default or 'all'}"
        )
    return k or min(default, max_k)


def check_queries(n: int, settings: ServiceSettings) -> None:
    """Rejects a request of no query, or of more than `max_queries`."""
    if n < 1:
        raise InvalidArgument("the request holds no query")
    at_most(settings, "max_queries", n, "the request")


def check_values(settings: ServiceSettings, columns: Iterable[Column], *ids: Ids | None) -> None:
    """Rejects a request that holds more values and ids than `max_values`."""
    total = sum([column.values.size for column in columns]) + sum(
        [each.size for each in ids if each is not None]
    )
    at_most(settings, "max_values", total, "the request, ids included,")


def check_names(sent: Iterable[str], known: Iterable[str], what: str, owner: str) -> None:
    """Rejects names that are not known: a misspelt feature must not silently become its default.

    Raises:
      InvalidArgument: names the first such name and the nearest known one.
    """
    known = known if isinstance(known, Mapping | Set) else set(known)
    for name in sent:
        if name not in known:
            hint = name_hint(name, known, "takes")
            raise InvalidArgument(f"{what} {name[:_SHOWN_CHARS]!r} is not taken by {owner}; {hint}")


def name_hint(name: str, known: Iterable[str], verb: str) -> str:
    """Returns the name that was probably meant, or the known ones."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    listed = ", ".join(map(repr, names[:_NAMES_SHOWN_MAX])) or "none"
    return f"did you mean {close[0]!r}?" if close else f"it {verb} {listed}"


def check_attributes(corpus: LoadedStore, attributes: Sequence[str]) -> None:
    """Rejects attributes that a corpus does not hold."""
    check_names(attributes, corpus.entry.attributes, "attribute", f"corpus {corpus.name!r}")


def check_offsets(offsets: Offsets, n: int, total: int, what: str) -> None:
    """Rejects offsets that do not divide `total` values into n examples.

    Raises:
      InvalidArgument: they are not n + 1, do not begin with 0, do not end with `total`, or fall.
    """
    if offsets.ndim != 1 or offsets.size != n + 1:
        raise InvalidArgument(
            f"{what}: {offsets.size} offsets; {n + 1} are expected, one more than the request's {n}"
        )
    if n == 1 and offsets.tolist() == [0, total]:
        return
    if offsets[0] != 0 or offsets[-1] != total or np.count_nonzero(offsets[1:] < offsets[:-1]):
        raise InvalidArgument(
            f"{what}: offsets must begin with 0, never fall, and end with {total}, the number of values"
        )


def show_id(one: Any) -> str:
    """Returns an id as error messages show it."""
    return repr(one[:_SHOWN_CHARS]) if isinstance(one, str) else str(one)


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
    """Returns the context store that holds (some of) these inputs of contexts; None: it holds none of them.

    Raises:
      InvalidArgument: there is no store, or several hold them, so that an id alone does not identify a context.
    """
    if not model_version.contexts:
        where = show_version(model_version)
        raise InvalidArgument(
            f"{where} has no context store; send the features instead of context ids"
        )
    return _choose_store(model_version.contexts, inputs, "context stores", "context")


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


def show_version(model_version: ModelVersion) -> str:
    """Returns which version it is, as error messages name it."""
    return f"model {model_version.model!r} version {model_version.version}"


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
        raise NotFound(f"{where} has no {what} {name[:_SHOWN_CHARS]!r}; it has {listed}")
    if not loaded:
        raise NotFound(f"{where} has no {what}")
    raise InvalidArgument(f"{field!r} must be named: {where} has {listed}")


def check_finite(array: NDArray[Any], what: str) -> None:
    """Raises NotFinite if the array holds NaN or an infinity."""
    finite = np.isfinite(array)
    if np.count_nonzero(finite) < finite.size:  # counting is much cheaper than all()
        raise NotFinite(what)


def sends_numbers(manifest: Manifest, request: Any) -> bool:
    """Whether a request holds numbers that are computed with: vectors, weights or values of dense features."""
    if isinstance(request, PartSearch) or getattr(request, "vectors", None) is not None:
        return True
    fields = [field for field in vars(request).values() if isinstance(field, Mapping)]
    columns = [
        (name, each) for field in fields for name, each in field.items() if isinstance(each, Column)
    ]
    return any(
        column.weights is not None
        or any(
            isinstance(manifest.features[reader], DenseFeature)
            for reader in manifest.inputs.get(name, ())
        )
        for name, column in columns
    )
