"""What clients can learn of models: the states of versions, and all that a version takes, computes and holds.

A version is described as it works: inputs -> readers -> tables -> towers -> outputs. docs/api.md lists the fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bundle.manifest import (
    ArithmeticIds,
    ComputedIds,
    Corpus,
    DenseFeature,
    EmbeddedFeature,
    HashIds,
    IdentityIds,
    KeyedIds,
    Manifest,
    SeveralIds,
    TextIds,
    TowerForm,
    TowerInput,
    TowerOutput,
    VocabularyIds,
    first_of,
    inputs_of,
)
from service.models.manager import VersionState
from service.models.towers import LoadedTower
from service.models.version import ModelVersion

Json = dict[str, Any]

_FEATURE: Json = {
    "shape": (),
    "length": 0,
    "combiner": "",
    "weighted": False,
    "unknown": "",
    "table": "",
    "default": None,
    "stored": False,
    "readers": (),
}
"""An input's fields where they do not apply."""
_READER: Json = {
    "table": "",
    "ids": None,
    "unknown": "",
    "combiner": "",
    "encoding": "",
    "weighted": False,
    "length": 0,
    "shape": (),
    "dtype": "",
    "take": "",
    "place": None,
    "places": None,
    "max_norm": None,
    "empty_row": None,
    "padding": None,
    "below": None,
    "cast": None,
}
"""A reader's fields where they do not apply."""


@dataclass(frozen=True)
class ModelState:
    """A model and its versions, newest first."""

    name: str
    versions: tuple[VersionState, ...]


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
            {
                "name": name,
                "rows": entry.rows,
                "dim": entry.dim,
                "dtype": entry.dtype,
                "bytes": sum(size for _, size in entry.extents()),
            }
            for name, entry in manifest.tables.items()
        ],
        "indexes": [
            {
                "name": name,
                "corpus": entry.corpus,
                "kind": entry.kind,
                "distance": entry.distance,
                "dim": entry.dim,
                "size": manifest.candidates[entry.corpus].size,
                "recall_k": entry.recall.k,
                "recall": entry.recall.value,
            }
            for name, entry in manifest.indexes.items()
        ],
        "corpora": _stores(manifest.candidates),
        "contexts": _stores(manifest.contexts),
        "readers": [_reader(manifest, name) for name in manifest.features],
        "towers": [_tower(tower) for tower in model_version.towers.values()],
        "current": False,
        "labels": (),
    }


def _calls(model_version: ModelVersion) -> Iterator[Json]:
    manifest, towers, indexes = model_version.manifest, model_version.towers, model_version.manifest.indexes
    ranking = {name: tower for name, tower in towers.items() if tower.entry.role == "ranking"}

    def signature(
        call: str, name: str, inputs: Iterable[str], outputs: Sequence[str] = (), stores: bool = True
    ) -> Json:
        features = [_feature(manifest, each, stores) for each in inputs]
        return {"call": call, "tower": name, "features": features, "outputs": outputs or (towers[name].entry.result,)}

    for index in indexes.values():
        yield signature("retrieve", index.query_tower, towers[index.query_tower].inputs)
    for name, tower in ranking.items():
        yield signature("rank", name, tower.inputs, tuple(output.name for output in tower.entry.outputs))
    for index in indexes.values():
        for name, tower in ranking.items():
            yield signature(
                "recommend", name, dict.fromkeys((*towers[index.query_tower].inputs, *tower.by_role["context"]))
            )
    for name, tower in towers.items():
        yield signature("embed", name, tower.inputs, stores=False)


def _feature(manifest: Manifest, name: str, stores: bool) -> Json:
    """Describes an input by the first of the features that read it; `stores`: it may be left to a store."""
    readers, role, default = manifest.inputs[name], manifest.role_of(name), manifest.default_of(name)
    feature = manifest.features[readers[0]]
    holding = manifest.candidates if role == "candidate" else manifest.contexts
    stored = stores and any(name in store.features for store in holding.values())
    if isinstance(feature, DenseFeature):
        dense = [each for reader in readers if isinstance(each := manifest.features[reader], DenseFeature)]
        bag = next((each for each in dense if each.take == "padded"), None)
        fields: Json = {
            "kind": feature.kind if bag is None else "bag",
            "type": (bag or feature).dtype,
            "shape": feature.shape if bag is None else (),
            "length": 0 if bag is None else bag.shape[0],
            "weighted": any(manifest.features[reader].weighted for reader in readers),
        }
    elif feature.places is not None:  # a list of exactly as many values
        fields = {"kind": "dense", "shape": (feature.places,)}
    else:
        fields = {
            "kind": "single" if feature.one_each else feature.kind,
            "length": 0 if feature.split else feature.length or 0,
            "combiner": "" if feature.split else feature.combiner or "",
            "weighted": feature.weighted,
            "table": feature.table,
        }
    if isinstance(feature, EmbeddedFeature):
        fields |= {"type": _type(manifest, feature, name), "unknown": _unknown(feature)}
    required = default is None and not stored
    every = {"name": name, "kind": "", "type": "", "role": role, "required": required}
    return every | _FEATURE | fields | {"default": default, "stored": stored, "readers": readers}


def _type(manifest: Manifest, feature: EmbeddedFeature, name: str) -> str:
    """Returns the type of an input's values."""
    if feature.cast is not None or isinstance(feature.ids, TextIds):
        return "string" if feature.cast is None else feature.cast.of
    rule = first_of(feature.ids)
    if isinstance(rule, IdentityIds | ArithmeticIds | ComputedIds | KeyedIds):
        return "int64"
    if isinstance(feature.ids, SeveralIds):
        key = feature.ids.keys[feature.inputs.index(name)]
        return key.dtype if key.boundaries is None else "float32"
    if isinstance(rule, HashIds):
        return "int64 or string"
    if isinstance(rule, VocabularyIds):
        return manifest.vocabularies[rule.vocabulary].dtype
    return "float32"


def _unknown(feature: EmbeddedFeature) -> str:
    return f"row {feature.unknown.row}" if feature.unknown.rule == "row" else feature.unknown.rule


def _reader(manifest: Manifest, name: str) -> Json:
    feature = manifest.features[name]
    every = {"name": name, "inputs": inputs_of(name, feature), "kind": feature.kind, "role": feature.role} | _READER
    if isinstance(feature, DenseFeature):
        return every | {key: getattr(feature, key) for key in ("shape", "dtype", "take", "below")}
    same = ("table", "weighted", "place", "places", "max_norm", "empty_row", "padding")
    return (
        every
        | {key: getattr(feature, key) for key in same}
        | {
            "shape": () if feature.indicator is None else (feature.indicator,),
            "ids": feature.ids.model_dump(mode="json"),
            "unknown": _unknown(feature),
            "combiner": feature.combiner or "",
            "encoding": feature.encoding if feature.kind == "bag" else "",
            "length": feature.length or 0,
            "cast": None if feature.cast is None else feature.cast.model_dump(mode="json"),
        }
    )


def _stores(entries: Mapping[str, Corpus]) -> list[Json]:
    return [
        {
            "name": name,
            "size": entry.size,
            "id_type": entry.id_dtype,
            "attributes": tuple(entry.attributes),
            "features": entry.features,
        }
        for name, entry in entries.items()
    ]


def _tower(tower: LoadedTower) -> Json:
    entry, running = tower.entry, {part.form.path for part in tower.parts}
    return {
        "name": tower.name,
        "role": entry.role,
        "inputs": _tensors(entry.inputs),
        "outputs": _tensors(entry.outputs),
        "result": entry.result,
        "formula": entry.formula or "",
        "forms": _forms(entry.forms, running),
        "parts": [
            {
                "name": part.name,
                "per": part.per,
                "inputs": _tensors(part.inputs),
                "outputs": _tensors(part.outputs),
                "forms": _forms(part.forms, running),
            }
            for part in entry.parts
        ],
        "device": tower.device,
    }


def _tensors(entries: Sequence[TowerInput | TowerOutput]) -> list[Json]:
    return [
        {
            "name": one.name,
            "dtype": one.dtype,
            "shape": tuple(-1 if size is None else size for size in one.shape),
            "readers": one.sources if isinstance(one, TowerInput) else (),
            "tensor": one.tensor if isinstance(one, TowerInput) else "",
        }
        for one in entries
    ]


def _forms(forms: Iterable[TowerForm], running: set[str]) -> list[Json]:
    return [
        {
            "kind": form.kind,
            "precision": form.precision,
            "max_abs_error": form.max_abs_error,
            "effects": {name: effect.model_dump() for name, effect in form.effect.items()},
            "runs": form.path in running,
        }
        for form in forms
    ]
