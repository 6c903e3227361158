"""What callers are told of models: states of versions, and the signature of every call."""

from __future__ import annotations

from collections.abc import Iterable

from bundle.manifest import CrossedIds, DenseFeature, HashIds, IdentityIds, KeyedIds, VocabularyIds
from service.engine.requests import (
    CallSignature,
    CorpusDetails,
    FeatureDetails,
    IndexDetails,
    ModelDetails,
    ModelState,
    TableDetails,
    VersionState,
)
from service.generations.generation import Generation, LoadedTower
from service.generations.switch import Switch


def states(switch: Switch) -> tuple[ModelState, ...]:
    """Returns every model and its versions, newest first."""
    return tuple(
        ModelState(name, tuple(VersionState(each.version, each.state, each.problem) for each in versions))
        for name, versions in switch.models().items()
    )


def describe(generation: Generation) -> ModelDetails:
    """Returns all that a caller needs to write a request for one version."""
    manifest = generation.manifest
    return ModelDetails(
        model=generation.model,
        version=generation.version,
        created=manifest.created,
        calls=tuple(_calls(generation)),
        tables=tuple(TableDetails(name, page.rows, page.dim, page.dtype) for name, page in manifest.tables.items()),
        indexes=tuple(
            IndexDetails(
                name=name,
                corpus=page.corpus,
                kind=page.kind,
                distance=page.distance,
                dim=page.dim,
                size=manifest.candidates[page.corpus].size,
                recall_k=page.recall.k,
                recall=page.recall.value,
            )
            for name, page in manifest.indexes.items()
        ),
        corpora=tuple(
            CorpusDetails(name, page.size, page.id_dtype, tuple(page.attributes), page.features)
            for name, page in manifest.candidates.items()
        ),
    )


def _calls(generation: Generation) -> Iterable[CallSignature]:
    towers, indexes = generation.towers, generation.manifest.indexes
    ranking = {name: tower for name, tower in towers.items() if tower.page.role == "ranking"}
    for index in indexes.values():
        query = towers[index.query_tower]
        yield CallSignature("retrieve", index.query_tower, _features(generation, query), (query.page.result,))
    for name, tower in ranking.items():
        yield CallSignature("rank", name, _features(generation, tower), _outputs(tower))
    for index in indexes.values():
        for name, tower in ranking.items():
            features = _features(generation, towers[index.query_tower])
            sent = {feature.name for feature in features}
            context = [
                each for each in _features(generation, tower) if each.role == "context" and each.name not in sent
            ]
            yield CallSignature("recommend", name, (*features, *context), (tower.page.result,))
    for name, tower in towers.items():
        yield CallSignature("embed", name, _features(generation, tower, stored=False), (tower.page.result,))


def _outputs(tower: LoadedTower) -> tuple[str, ...]:
    return tuple(output.name for output in tower.page.outputs)


def _features(generation: Generation, tower: LoadedTower, *, stored: bool = True) -> tuple[FeatureDetails, ...]:
    in_store = (
        {name for corpus in generation.manifest.candidates.values() for name in corpus.features} if stored else set()
    )
    taken = generation.manifest.inputs_of(tower.features)
    return tuple(_feature(generation, name, name in in_store) for name in taken)


def _feature(generation: Generation, name: str, in_store: bool) -> FeatureDetails:
    """Tells of one input what the first of the features that read it tells."""
    manifest = generation.manifest
    feature, role = manifest.features[manifest.inputs[name][0]], manifest.role_of(name)
    default = manifest.default_of(name)
    stored = in_store and role == "candidate"
    required = default is None and not stored
    if isinstance(feature, DenseFeature):
        return FeatureDetails(
            name=name,
            kind=feature.kind,
            type=feature.dtype,
            role=role,
            required=required,
            shape=feature.shape,
            default=default,
            stored=stored,
        )
    if isinstance(feature.ids, IdentityIds | KeyedIds):
        kind = "int64"
    elif isinstance(feature.ids, CrossedIds):
        key = feature.ids.keys[feature.inputs.index(name)]
        kind = key.dtype if key.boundaries is None else "float32"
    elif isinstance(feature.ids, HashIds):
        kind = "int64 or string"
    elif isinstance(feature.ids, VocabularyIds):
        kind = generation.manifest.vocabularies[feature.ids.vocabulary].dtype
    else:
        kind = "float32"
    unknown = f"row {feature.unknown.row}" if feature.unknown.rule == "row" else feature.unknown.rule
    return FeatureDetails(
        name=name,
        kind=feature.kind,
        type=kind,
        role=role,
        required=required,
        length=feature.length or 0,
        combiner=feature.combiner or "",
        weighted=feature.weighted,
        unknown=unknown,
        table=feature.table,
        default=default,
        stored=stored,
    )
