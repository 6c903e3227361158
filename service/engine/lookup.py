"""Features: their columns -> the arrays that towers take; and the Lookup call. Counts out-of-vocabulary ids."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from bundle.columns import Column, Place
from bundle.errors import UnknownRefused
from bundle.manifest import DenseFeature, EmbeddedFeature, Manifest, SeveralIds, inputs_of
from service.config import ServiceSettings
from service.engine.context import Execution
from service.engine.requests import LookedUp, Lookup
from service.engine.validation import at_most, name_hint
from service.errors import InvalidArgument, NotFound
from service.models.version import ModelVersion


def count_examples(manifest: Manifest, columns: Mapping[str, Column]) -> int:
    """Returns how many examples packed columns hold: by offsets, else by the values of a single or dense feature.

    Bags and sequences without offsets do not say: they hold one example if nothing else is sent.
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


def write(
    model_version: ModelVersion, places: Sequence[Place], columns: Mapping[str, Column], n: int, execution: Execution
) -> None:
    """Looks features up, each once, into the arrays of `places`; to be called in a phase.

    Args:
      columns: what was sent, by input; an input without a column takes its default.
      n: examples in every column.
    Raises:
      FeatureError: a column does not fit its feature, or is missing without a default; names the input.
    """
    for name, count in model_version.reader.write(places, columns, n).items():
        execution.oov_ids(model_version.model, name, count)
    for place in places:
        execution.looked_up(model_version.model, place.names, n)


def look_up(model_version: ModelVersion, request: Lookup, settings: ServiceSettings, execution: Execution) -> LookedUp:
    """Reads the table rows of ids by one feature's id rule.

    Raises:
      NotFound: no such feature.
      InvalidArgument: an id alone has no row of the feature's table, or it has no table.
      FeatureError: a value is no id of the feature, or is unknown and the feature rejects those.
    """
    name, feature = _embedded(model_version, request.feature)
    (read,) = inputs_of(name, feature)
    n = int(request.ids.values.size)
    at_most(n, settings.max_values, "ids in one request", "max_values")
    with execution.phase("lookup"):
        rows, _ = model_version.reader.rows(name, {read: Column(request.ids.values)}, n)
        found = rows >= 0
        execution.looked_up(model_version.model, (name,), n)
        execution.oov_ids(model_version.model, name, n - int(np.count_nonzero(found)))
        if feature.unknown.rule == "refuse" and not found.all():
            unknown = str(request.ids.values[~found][0])[:128]
            raise UnknownRefused(name, f"id {unknown!r} is not in its table, and the feature refuses such ids")
        table = model_version.tables[feature.table]
        vectors = np.zeros((n, table.dim), np.float32)
        if feature.unknown.row is not None:
            vectors[:] = table.gather(np.array([feature.unknown.row], np.int64))
        vectors[found] = table.gather(rows[found])
    execution.computed(n)
    return LookedUp(model_version.model, model_version.version, feature.table, vectors, found)


def _embedded(model_version: ModelVersion, name: str) -> tuple[str, EmbeddedFeature]:
    """Returns the feature of this name, or the first that reads the input of this name."""
    manifest = model_version.manifest
    if name not in manifest.features and name in manifest.inputs:
        name = manifest.inputs[name][0]
    feature = manifest.features.get(name)
    if feature is None:
        where = f"model {model_version.model!r} version {model_version.version}"
        raise NotFound(f"{where} has no feature {name[:128]!r}; {name_hint(name, manifest.features, 'has')}")
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
    return name, feature
