"""All features of a call: their columns -> activations that towers take, over `bundle/features`; counts unknown ids."""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import UnknownRefused
from bundle.features import Column, Place
from bundle.manifest import DenseFeature, EmbeddedFeature, Manifest, SeveralIds, inputs_of
from service.engine.limits import at_most
from service.engine.requests import Ids, LookedUp, Lookup, Offsets
from service.engine.steps import Steps
from service.errors import InvalidArgument, NotFound
from service.generations.generation import Generation
from service.settings import ServiceSettings

Activations = dict[str, NDArray[Any]]
"""By feature: [n, dim], [n, length, dim], or [n, *shape] of a dense one."""

_NAMES_TOLD_MAX = 20


def check_names(sent: Iterable[str], taken: Iterable[str], what: str, taker: str) -> None:
    """Refuses names that a call does not take: a misspelt feature must not silently become its default.

    Raises:
      InvalidArgument: names the first such name and the nearest known one.
    """
    known = taken if isinstance(taken, Mapping | Set) else set(taken)
    for name in sent:
        if name not in known:
            raise InvalidArgument(f"{what} {name[:128]!r} is not taken by {taker}; {_cure(name, known, 'takes')}")


def _cure(name: str, known: Iterable[str], verb: str) -> str:
    """Returns the name that was meant, or those that there are."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    told = ", ".join(map(repr, names[:_NAMES_TOLD_MAX])) or "none"
    return f"did you mean {close[0]!r}?" if close else f"it {verb} {told}"


def count_examples(manifest: Manifest, columns: Mapping[str, Column]) -> int:
    """Tells how many examples packed columns hold: by offsets, else by the values of a single or dense feature.

    Bags and sequences without offsets tell nothing: they hold one example if nothing else is sent.
    """
    for name, column in columns.items():
        if column.offsets is not None:
            return max(0, int(column.offsets.size) - 1)
        feature = manifest.features[manifest.inputs[name][0]]
        if isinstance(feature, DenseFeature):
            if feature.take != "values":
                continue
            return -(-int(column.values.size) // math.prod(feature.shape))
        if feature.one_each:
            return int(column.values.size)
    return 1


def check_size(settings: ServiceSettings, columns: Iterable[Column], *ids: Ids | None) -> None:
    """Refuses a request that holds more values than `ids_max`.

    Raises:
      TooLarge: names value and limit.
    """
    total = sum([column.values.size for column in columns]) + sum([each.size for each in ids if each is not None])
    at_most(total, settings.ids_max, "values and ids in one request", "ids_max")


def activations(
    generation: Generation, names: Iterable[str], columns: Mapping[str, Column], n: int, steps: Steps
) -> Activations:
    """Looks features up, each once.

    Args:
      names: the features wanted; an input without a column takes its default.
      columns: what was sent, by input.
      n: examples in every column.
    Raises:
      FeatureError: a column does not fit its feature, or is missing without a default; names the input.
    """
    names = tuple(names)
    with steps.phase("lookup"):
        found = generation.reader.activations(names, columns, n)
        steps.looked_up(generation, names, columns, n, functools.partial(_kind, generation.manifest))
        for name, activation in found.items():
            if activation.unknown:
                steps.unknown(generation.model, name, activation.unknown)
    return {name: activation.values for name, activation in found.items()}


def write(generation: Generation, places: Sequence[Place], columns: Mapping[str, Column], n: int, steps: Steps) -> None:
    """Looks features up, each once, into the arrays that `places` are.

    Raises:
      FeatureError: as `activations`.
    """
    with steps.phase("lookup"):
        for name, unknown in generation.reader.write(places, columns, n).items():
            steps.unknown(generation.model, name, unknown)
        kind = functools.partial(_kind, generation.manifest)
        for place in places:
            steps.looked_up(generation, place.names, columns, n, kind)


def _kind(manifest: Manifest, name: str) -> tuple[str, bool] | None:
    """Tells a feature's input, and whether it has one id an example; None: it has no ids."""
    feature = manifest.features[name]
    if isinstance(feature, DenseFeature):
        return None
    return inputs_of(name, feature)[0], feature.one_each


def check_offsets(offsets: Offsets, n: int, total: int, what: str) -> None:
    """Refuses offsets that do not cut `total` values into n examples.

    Raises:
      InvalidArgument: they are not n + 1, do not begin with 0, do not end with `total`, or fall.
    """
    if offsets.ndim != 1 or offsets.size != n + 1:
        raise InvalidArgument(f"{what}: {offsets.size} offsets; {n + 1} are expected, one more than the request's {n}")
    if n == 1 and offsets.tolist() == [0, total]:
        return
    if offsets[0] != 0 or offsets[-1] != total or np.count_nonzero(offsets[1:] < offsets[:-1]):
        raise InvalidArgument(
            f"{what}: offsets must begin with 0, never fall, and end with {total}, the number of values"
        )


def look_up(generation: Generation, request: Lookup, settings: ServiceSettings, steps: Steps) -> LookedUp:
    """Reads the table rows that ids stand for by one feature's id rule.

    Raises:
      NotFound: no such feature.
      InvalidArgument: the feature is dense: it has no table.
      FeatureError: a value is no id of the feature, or is unknown and the feature refuses those.
    """
    manifest, name = generation.manifest, request.feature
    if name not in manifest.features and name in manifest.inputs:
        name = manifest.inputs[name][0]
    feature = manifest.features.get(name)
    if feature is None:
        where = f"model {generation.model!r} version {generation.version}"
        raise NotFound(f"{where} has no feature {name[:128]!r}; {_cure(name, manifest.features, 'has')}")
    if not isinstance(feature, EmbeddedFeature):
        raise InvalidArgument(f"feature {name!r} is dense: it has no table to look up in")
    if feature.indicator is not None:
        raise InvalidArgument(f"feature {name!r} is an indicator: it has no table to look up in")
    if feature.split:
        raise InvalidArgument(f"feature {name!r} reads texts, which have a row for each of their words, not one")
    if feature.place is not None:
        raise InvalidArgument(f"feature {name!r} reads one of several values of its input: no id alone is one")
    if isinstance(feature.ids, SeveralIds) and len(feature.inputs) > 1:
        raise InvalidArgument(f"feature {name!r} crosses several inputs: no id alone has a row of its table")
    (read,) = inputs_of(name, feature)
    n = int(request.ids.values.size)
    at_most(n, settings.ids_max, "ids in one request", "ids_max")
    with steps.phase("lookup"):
        rows, _ = generation.reader.rows(name, {read: Column(request.ids.values)}, n)
        found = rows >= 0
        steps.looked_up(generation, (name,), {}, n, lambda _: (read, True))
        steps.unknown(generation.model, name, n - int(np.count_nonzero(found)))
        if feature.unknown.rule == "refuse" and not found.all():
            unknown = str(request.ids.values[~found][0])[:128]
            raise UnknownRefused(name, f"id {unknown!r} is not in its table, and the feature refuses such ids")
        table = generation.tables[feature.table]
        vectors = np.zeros((n, table.dim), np.float32)
        if feature.unknown.row is not None:
            vectors[:] = table.gather(np.array([feature.unknown.row], np.int64))
        vectors[found] = table.gather(rows[found])
    steps.computed(n)
    return LookedUp(generation.model, generation.version, feature.table, vectors, found)
