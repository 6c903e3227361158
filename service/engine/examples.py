"""Requests that a model version takes: a JSON body of each call, for the page that documents them.

Their ids are known to the version: keys of its vocabularies, candidates of its corpora. Where it
has neither, they are small numbers or short texts that its features take.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import BundleError
from bundle.features.columns import Column
from bundle.format.features import sent_dtype
from bundle.format.manifest import DenseFeature, EmbeddedFeature, Feature, lookup_tables_of
from bundle.storage import arrow, files
from service.contract.columns import json_value
from service.versions.version import LoadedTower, ModelVersion

Json = dict[str, Any]

_K = 3
"""Neighbors, or candidates, of a request."""
_KEYS = 3
"""Keys of a vocabulary that are tried."""
_INTEGERS = (1, 0, 2)
_FLOATS = (1.0, 0.0)
_TEXTS = ("a", "1", "1.0", "2026-01-02T03:04:05")
"""A word, numbers, and a time, of which some models read parts."""


def example_bodies(model_version: ModelVersion) -> dict[str, Json]:
    """Returns a body of each call that a version serves, by the name of the call."""
    bodies: dict[str, Json] = {}
    towers = model_version.towers
    ranking = [name for name, tower in towers.items() if tower.entry.role == "ranking"]
    ranking.sort(key=model_version.manifest.towers_of_stages.__contains__)
    index = next(iter(model_version.indexes.values()), None)
    if index is not None:
        query = towers[index.entry.query_tower]
        # A name that is not needed would only make the example longer.
        chosen_index = {}
        if len(model_version.indexes) > 1:
            chosen_index = {"index": index.name}
        context = _values(model_version, query.inputs)
        bodies["retrieve"] = {"k": _K, "context": context} | chosen_index
    if ranking:
        tower = towers[ranking[0]]
        chosen_tower = {}
        if len(ranking) > 1:
            chosen_tower = {"tower": tower.name}
        context = _values(model_version, tower.by_role["context"])
        bodies["rank"] = {"context": context} | _candidates(model_version, tower) | chosen_tower
        # A recommendation sends no candidates, so that the corpus must hold all that ranks them.
        scored = model_version.ranking_inputs(tower.name, "candidate")
        if index is not None and not _inputs_to_send(model_version, scored, index.corpus.name):
            ranked_by = model_version.ranking_inputs(tower.name, "context")
            context = _values(model_version, [*query.inputs, *ranked_by])
            chosen = chosen_index | chosen_tower
            bodies["recommend"] = {"k": _K, "context": context} | chosen
    if towers:
        # Other towers than ranking ones first: they need the features of one side alone.
        embedding = [name for name, tower in towers.items() if tower.entry.role != "ranking"]
        name = next(iter([*embedding, *towers]))
        bodies["embed"] = {"tower": name, "features": _values(model_version, towers[name].inputs)}
    looked_up = list(_looked_up(model_version))
    if looked_up:
        # A feature that has the name of its input is the one that a client would look up first.
        named_as_sent = [name for name in looked_up if name in model_version.manifest.inputs]
        feature = next(iter([*named_as_sent, *looked_up]))
        (input_name,) = model_version.manifest.inputs_of([feature])
        bodies["lookup"] = {"feature": feature, "ids": [_value(model_version, input_name, 1)]}
    return bodies


def example_columns(model_version: ModelVersion, inputs: Iterable[str]) -> dict[str, Column]:
    """Returns a column of one example by input, with values that the version takes."""
    columns = {}
    for name, value in _values(model_version, inputs).items():
        values = value
        if not isinstance(value, list):
            values = [value]
        packed: NDArray[Any] = np.array(values)
        if packed.dtype.kind == "U":
            packed = packed.astype(object)
        columns[name] = Column(packed, np.array([0, packed.size], np.int64))
    return columns


def _inputs_to_send(model_version: ModelVersion, inputs: Iterable[str], corpus: str) -> list[str]:
    """Returns which inputs of candidates a corpus does not hold and have no default."""
    manifest = model_version.manifest
    stored: Collection[str] = ()
    if corpus:
        stored = manifest.corpora[corpus].features
    return [name for name in inputs if name not in stored and manifest.default_of(name) is None]


def _candidates(model_version: ModelVersion, tower: LoadedTower) -> Json:
    """Returns the candidates of a ranking: by ids where one corpus holds what the tower takes of
    them, and by the features that it does not hold.
    """
    inputs = tower.by_role["candidate"]
    holding = [
        corpus
        for corpus in model_version.corpora.values()
        if not set(inputs).isdisjoint(corpus.entry.features)
    ]
    candidates: Json = {}
    corpus_name = ""
    count = _K
    # With several corpora, an id alone does not identify a candidate.
    if len(holding) == 1:
        (corpus,) = holding
        corpus_name = corpus.name
        count = min(_K, corpus.entry.size)
        ids = corpus.store.ids(np.arange(count)).tolist()
        candidates["candidate_ids"] = list(map(json_value, ids))
    sent_inputs = _inputs_to_send(model_version, inputs, corpus_name)
    if sent_inputs or not corpus_name:
        values = _values(model_version, sent_inputs or inputs)
        candidates["candidate_features"] = {name: [value] * count for name, value in values.items()}
    return candidates


def _looked_up(model_version: ModelVersion) -> Iterator[str]:
    """Yields the features that have a row for an id alone."""
    for name, feature in model_version.manifest.features.items():
        if not isinstance(feature, EmbeddedFeature) or not feature.table:
            continue
        if feature.joint is None and not feature.split and feature.place is None:
            yield name


def _values(model_version: ModelVersion, inputs: Iterable[str]) -> Json:
    """Returns a value of each input, as the JSON of one example has it."""
    return {name: _input_value(model_version, name) for name in dict.fromkeys(inputs)}


def _input_value(model_version: ModelVersion, name: str) -> Any:
    """Returns what a client sends of one example in an input: a value, or a list.

    The first of its features defines which.
    """
    manifest = model_version.manifest
    features = manifest.readers(name)
    length = manifest.length_of(name)
    if length is None:
        size = max(map(_size, features))
    else:
        size = length.values
    value = _value(model_version, name, size)
    if length is not None or _takes_list(features[0]):
        return [value] * size
    return value


def _size(feature: Feature) -> int:
    """Returns how many values a feature takes of each example; 1 if it takes any number."""
    if isinstance(feature, DenseFeature):
        if feature.take != "values":
            return 1
        return math.prod(feature.shape)
    return feature.places or 1


def _takes_list(feature: Feature) -> bool:
    if isinstance(feature, DenseFeature):
        return feature.take != "values" or bool(feature.shape)
    return not feature.one_each or feature.places is not None


def _value(model_version: ModelVersion, name: str, size: int) -> Any:
    """Returns a value of an input that its features take; of ids, one that their tables know.

    Args:
      size: How many of them an example has.
    """
    values = list(_possible_values(model_version, name))
    # The value that the fewest features do not know shows the most of the model.
    unknown = [(_unknown(model_version, name, value, size), value) for value in values]
    accepted = [(count, value) for count, value in unknown if count is not None]
    _, value = min(accepted or unknown[:1], key=lambda pair: pair[0] or 0)
    return json_value(value)


def _possible_values(model_version: ModelVersion, name: str) -> Iterator[Any]:
    """Yields values of the type of an input: keys of its vocabularies first."""
    manifest = model_version.manifest
    features = manifest.readers(name)
    for feature in features:
        if isinstance(feature, EmbeddedFeature):
            for table in lookup_tables_of(feature.ids):
                yield from _first_keys(model_version, table.vocabulary)
    dtypes = {sent_dtype(feature, name) for feature in features}
    if "string" in dtypes:
        yield from _TEXTS
    elif "float32" in dtypes:
        yield from _FLOATS
    else:
        yield from _INTEGERS


def _first_keys(model_version: ModelVersion, vocabulary: str) -> list[Any]:
    """Returns the first keys of a vocabulary, which was verified when the version was loaded."""
    entry = model_version.manifest.vocabularies[vocabulary]
    try:
        table, _ = arrow.open_trusted(files.locate(model_version.directory, entry.file))
    except BundleError:
        return []
    keys: list[Any] = table.column("key").slice(0, _KEYS).to_pylist()
    return keys


def _unknown(model_version: ModelVersion, name: str, value: Any, size: int) -> int | None:
    """Returns how many features of an input have no row for a value; None: one rejects it."""
    dtype: type = type(value)
    if isinstance(value, str):
        dtype = object
    column = Column(np.full(size, value, dtype), np.array([0, size], np.int64))
    unknown = 0
    for reader in model_version.manifest.inputs[name]:
        feature = model_version.manifest.features[reader]
        try:
            if isinstance(feature, DenseFeature):
                model_version.reader.activation(reader, {name: column}, 1)
            elif feature.joint is None:
                rows, _ = model_version.reader.rows(reader, {name: column}, 1)
                is_unknown = bool((rows < 0).any())
                if is_unknown and feature.unknown.rule == "refuse":
                    return None
                unknown += is_unknown
        except BundleError:
            return None
    return unknown
