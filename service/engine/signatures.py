"""What clients can read about models: the states of versions, and all that a version takes,
computes and holds.

A version is described as it works: inputs -> readers -> tables -> towers -> outputs. Fields:
docs/reference/api.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bundle.features.ids.expressions import expression
from bundle.format.features import sent_dtype
from bundle.format.manifest import (
    Corpus,
    DenseFeature,
    EmbeddedFeature,
    GraphIds,
    IdRule,
    JoinedIds,
    Manifest,
    MultiInputIds,
    Stage,
    TextIds,
    Tower,
    TowerInput,
    TowerOutput,
    TowerPart,
    inputs_of,
)
from service.versions.version import LoadedTower, ModelVersion

Json = dict[str, Any]

_FEATURE: Json = {
    "shape": (),
    "length": 0,
    "combiner": "",
    "weighted": False,
    "unknown": "",
    "table": "",
}
"""An input's fields where they do not apply."""
_READER: Json = (
    dict.fromkeys(("ids", "place", "places", "max_norm", "empty_row", "padding", "below"))
    | dict.fromkeys(("table", "unknown", "combiner", "encoding", "dtype", "take"), "")
    | {"weighted": False, "length": 0, "shape": ()}
)
"""A reader's fields where they do not apply."""


def describe(model_version: ModelVersion) -> Json:
    """Returns, as a JSON value, all that a client needs to write a request for a version.

    `current` and `labels` are not known here: they are false and empty.
    """
    manifest = model_version.manifest
    return {
        "model": model_version.model,
        "version": model_version.version,
        "created": manifest.created,
        "calls": list(_calls(model_version)),
        "tables": [
            {"name": name, **_pick(entry, "rows", "dim", "dtype", "bytes")}
            for name, entry in manifest.tables.items()
        ],
        "indexes": [
            {"name": name, **_pick(entry, "corpus", "kind", "distance", "dim")}
            | {"size": manifest.corpora[entry.corpus].size}
            | {"recall_k": entry.recall.k, "recall": entry.recall.value}
            for name, entry in manifest.indexes.items()
        ],
        "corpora": _stores(manifest.corpora),
        "contexts": _stores(manifest.contexts),
        "lists": [
            {"name": name, **_pick(entry, "corpus", "size"), "by": entry.by or ""}
            for name, entry in manifest.lists.items()
        ],
        "stages": [
            {"before": name, **_pick(entry, "tower", "keep"), **_stage_recall(entry)}
            for name, entry in manifest.stages.items()
        ],
        "readers": [_reader(manifest, name) for name in manifest.features],
        "towers": [_tower(tower) for tower in model_version.towers.values()],
        "current": False,
        "labels": (),
    }


def _stage_recall(stage: Stage) -> Json:
    """Returns the lowest recall of a stage over its indexes; 0 for both where none is measured."""
    if not stage.recall:
        return {"recall_k": 0, "recall": 0.0}
    lowest = min(stage.recall.values(), key=lambda recall: recall.value)
    return {"recall_k": lowest.k, "recall": lowest.value}


def _pick(entry: object, *names: str) -> Json:
    return {name: getattr(entry, name) for name in names}


def _calls(model_version: ModelVersion) -> Iterator[Json]:
    manifest = model_version.manifest
    towers = model_version.towers
    indexes = model_version.manifest.indexes
    ranking = {name: tower for name, tower in towers.items() if tower.entry.role == "ranking"}

    def signature(
        call: str,
        name: str,
        inputs: Iterable[str],
        outputs: Sequence[str] = (),
        stores: bool = True,
    ) -> Json:
        features = [_feature(manifest, name, stores) for name in inputs]
        return {
            "call": call,
            "tower": name,
            "features": features,
            "outputs": outputs or (towers[name].entry.result,),
        }

    for index in indexes.values():
        yield signature("retrieve", index.query_tower, towers[index.query_tower].inputs)
    for name, tower in ranking.items():
        yield signature(
            "rank", name, tower.inputs, tuple(output.name for output in tower.entry.outputs)
        )
    for index in indexes.values():
        for name in ranking:
            context = model_version.ranking_inputs(name, "context")
            inputs = dict.fromkeys((*towers[index.query_tower].inputs, *context))
            yield signature("recommend", name, inputs)
    for name, tower in towers.items():
        yield signature("embed", name, tower.inputs, stores=False)


def _feature(manifest: Manifest, name: str, stores: bool) -> Json:
    """Describes an input by the first of the features that read it.

    Args:
      manifest: The manifest.
      name: The name of the input.
      stores: Whether a client may leave the input to a store.
    """
    readers = manifest.inputs[name]
    role = manifest.role_of(name)
    default = manifest.default_of(name)
    every = [manifest.features[reader] for reader in readers]
    feature = every[0]
    entries: Mapping[str, Corpus] = manifest.contexts
    if role == "candidate":
        entries = manifest.corpora
    stored = stores and any(name in store.features for store in entries.values())
    if isinstance(feature, DenseFeature):
        fields: Json = {"kind": feature.kind, "shape": feature.shape}
        # A padded list is described as a bag: a client sends as many values as it has.
        for reader in every:
            if isinstance(reader, DenseFeature) and reader.take == "padded":
                feature = reader
                fields = {"kind": "bag", "length": reader.shape[0]}
                break
        fields["weighted"] = any(reader.weighted for reader in every)
    elif feature.places is not None:  # a list of exactly as many values
        fields = {"kind": "dense", "shape": (feature.places,), "unknown": _unknown(feature)}
    else:
        fields = {
            "kind": "single" if feature.one_each else feature.kind,
            "unknown": _unknown(feature),
        }
        fields |= _pick(feature, "weighted", "table")
        if not feature.split:
            fields |= {"length": feature.length or 0, "combiner": feature.combiner or ""}
    # A client may leave out what has a default, or what a store has by id.
    required = default is None and not stored
    head = {
        "name": name,
        "kind": "",
        "type": sent_dtype(feature, name),
        "role": role,
        "required": required,
    }
    length = manifest.length_of(name)
    tail = {
        "default": default,
        "stored": stored,
        "readers": readers,
        "input_length": None,
    }
    if length is not None:
        tail["input_length"] = length.model_dump(mode="json")
    return head | _FEATURE | fields | tail


def _unknown(feature: EmbeddedFeature) -> str:
    if feature.unknown.rule == "row":
        return f"row {feature.unknown.row}"
    return feature.unknown.rule


def _rule(rule: IdRule, inputs: Sequence[str]) -> Json:
    """Returns a rule as the manifest writes it, but with its graphs as expressions."""
    if isinstance(rule, GraphIds):
        return {"kind": rule.kind, **_graph(rule, *inputs)}
    written = rule.model_dump(mode="json", exclude_none=True)
    if isinstance(rule, MultiInputIds):
        for name, key, entry in zip(inputs, written["keys"], rule.keys, strict=True):
            key.pop("input_length", None)  # described with the input
            if entry.ids is not None:
                key["ids"] = _graph(entry.ids, name)
    if isinstance(rule, JoinedIds):
        written["ids"] = _graph(rule.ids, *inputs)
    if isinstance(rule, TextIds):
        unit = "word"
        if rule.split == "characters":
            unit = "character"
        written["ids"] = _graph(rule.ids, unit)
        if rule.text is not None:
            written["text"] = _graph(rule.text, *inputs)
    return written


def _graph(graph: GraphIds, *names: str) -> Json:
    dtypes = tuple(node.dtype for node in graph.inputs)
    return {"dtypes": dtypes, "expression": expression(graph, *names)}


def _reader(manifest: Manifest, name: str) -> Json:
    feature = manifest.features[name]
    # Features of other kinds lack some fields, and have None in others: both are shown as absent.
    fields = {key: getattr(feature, key, default) for key, default in _READER.items()}
    fields = {key: _READER[key] if value is None else value for key, value in fields.items()}
    if isinstance(feature, EmbeddedFeature):
        shape: tuple[int, ...] = ()
        if feature.indicator is not None:
            shape = (feature.indicator,)
        encoding = ""
        if feature.kind == "bag":
            encoding = feature.encoding
        fields |= {
            "shape": shape,
            "ids": _rule(feature.ids, inputs_of(name, feature)),
            "unknown": _unknown(feature),
            "encoding": encoding,
        }
    return {
        "name": name,
        "inputs": inputs_of(name, feature),
        **_pick(feature, "kind", "role"),
        **fields,
    }


def _stores(entries: Mapping[str, Corpus]) -> list[Json]:
    return [
        {"name": name, **_pick(entry, "size", "features")}
        | {"id_type": entry.id_dtype, "attributes": tuple(entry.attributes)}
        for name, entry in entries.items()
    ]


def _tower(tower: LoadedTower) -> Json:
    entry = tower.entry
    running = {part.form.path for part in tower.parts}
    parts = [{**_pick(part, "name", "per"), **_network(part, running)} for part in entry.parts]
    head = {"name": tower.name, "device": tower.device, **_pick(entry, "role", "result")}
    return head | _network(entry, running) | {"formula": entry.formula or "", "parts": parts}


def _network(entry: Tower | TowerPart, running: set[str]) -> Json:
    """Describes what a tower and a part of one have; `running`: paths of the forms that run."""
    forms = [
        _pick(form, "kind", "precision", "max_abs_error")
        | {"effects": {name: effect.model_dump() for name, effect in form.effect.items()}}
        | {"runs": form.path in running}
        for form in entry.forms
    ]
    return {"inputs": _tensors(entry.inputs), "outputs": _tensors(entry.outputs), "forms": forms}


def _tensors(entries: Sequence[TowerInput | TowerOutput]) -> list[Json]:
    tensors = []
    for entry in entries:
        tensor = {
            **_pick(entry, "name", "dtype"),
            "shape": tuple(-1 if size is None else size for size in entry.shape),
            "readers": (),
            "tensor": "",
        }
        # Outputs have neither: no feature is written into them.
        if isinstance(entry, TowerInput):
            tensor |= {"readers": entry.sources, "tensor": entry.tensor}
        tensors.append(tensor)
    return tensors
